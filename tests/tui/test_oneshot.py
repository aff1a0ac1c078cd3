"""The commands without a screen: what they print on the way, and the one line at the end."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.records import Event, Progress, RunSummary
from remote.errors import ContainerError, LinkError
from tests.tui.support.container import FakeContainer, News
from tests.tui.support.folders import NOW, event, lines, write_run
from tests.tui.test_terminal import read_until
from tui import oneshot
from tui.oneshot import Place, Talk
from tui.state import LinkState

LAST_LINE = {
    "val": {"acc_pos", "accept_len"},
    "untrained": {"acc_pos"},
    "served": {"accept_len", "acc_pos", "drafts", "prompts", "tok_s", "tok_s_no_draft"},
    "lossless": {"identical", "of"},
}


def talk(container: Any, *, as_json: bool = True) -> Talk:
    return Talk(container, Place("box", False, "~/eagle3"), as_json)


async def test_a_failed_run_ends_with_the_whole_line_of_json_and_1(
    container: FakeContainer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(container.root, "run-a", "failed", exit_code=1, state_text="failed with exit code 1")
    lines(run / "events.jsonl", [event("failed", "train: the shard model.safetensors is truncated.", "error")])
    lines(run / "events.jsonl", [event("attempt_ended", "attempt 1 ended: exit code 1", "error", actor="supervisor")])
    assert await oneshot.watch(talk(container), "run-a", 5.0) == 1
    out, err = capsys.readouterr()
    assert "error: train: the shard" in err and "attempt 1 ended" not in err, "the reason is said once"
    assert out.count("\n") == 1, "stdout holds the answer and nothing else"
    answer = json.loads(out)
    assert {"run_id", "run_dir", "state", "wall_s", "stages", "verdict"} <= set(answer)
    assert {name: set(answer[name]) for name in LAST_LINE} == LAST_LINE
    assert (answer["state"], answer["text"]) == ("failed", "train: the shard model.safetensors is truncated.")
    assert answer["stages"]["regenerate"] > 0
    assert answer["val"]["accept_len"] is not None and answer["served"]["accept_len"] is None


class Silent(FakeContainer):
    """Its run says something once, and then nothing until ``speak``: a model that loads, or a link that is down."""

    def __init__(self, root: Path, error: LinkError | None = None) -> None:
        super().__init__(root)
        self.speak = asyncio.Event()
        self.error = error

    async def follow(self, run_id: str, poll_s: float = 1.0, probe_s: float | None = None) -> AsyncIterator[Any]:
        summary = RunSummary(run_id=run_id, state="running", now=NOW, created_at=NOW - 60)
        progress = Progress(stage="regenerate", done=0, total=84, unit="prompts", reason="loading the model")
        yield News(summary, progress, events=[Event(level="warn", text="a warning")])
        await self.speak.wait()
        if self.error:
            raise self.error
        yield News(summary.model_copy(update={"state": "finished"}))


async def test_a_silent_run_still_has_its_line_every_few_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    container = Silent(tmp_path)
    watching = asyncio.create_task(oneshot.watch(talk(container), "run-a", 0.02))
    said = ""
    async with asyncio.timeout(30):
        while said.count("loading the model") < 3:
            said += capsys.readouterr().err
            await asyncio.sleep(0.01)
    container.speak.set()
    assert await watching == 0
    assert "warn: a warning" in said and "regenerate 0/84 prompts" in said


async def test_a_link_that_ends_the_watch_says_that_the_run_goes_on(tmp_path: Path) -> None:
    container = Silent(tmp_path, LinkError("refused", "The host key of box is not the one known."))
    container.speak.set()
    with pytest.raises(LinkError, match=r"not the one known\. The run run-a goes on without us\.") as failed:
        await oneshot.watch(talk(container), "run-a", 5.0)
    assert failed.value.kind == "refused"


def test_a_link_that_goes_and_comes_is_told_beside_the_answer(
    container: FakeContainer, capsys: pytest.CaptureFixture[str]
) -> None:
    speaking = talk(container)
    speaking.link_changed(LinkState("up", NOW))
    speaking.tells_link = True
    speaking.link_changed(LinkState("down", NOW, "box has not answered for 15 s"))
    speaking.link_changed(LinkState("up", NOW))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "link down: box has not answered for 15 s\nlink up again\n")


async def test_stopping_what_has_ended_says_so(container: FakeContainer, capsys: pytest.CaptureFixture[str]) -> None:
    class Ended(FakeContainer):
        async def stop(self, run_id: str, mode: str = "now", actor: str = "") -> dict[str, Any]:
            return {"run_id": run_id, "already": True, "state": "finished", "mode": mode}

    await oneshot.stop(talk(Ended(container.root), as_json=False), "run-a", "now")
    assert capsys.readouterr().out == "run-a has ended already: finished.\n"


@pytest.mark.parametrize(("state", "words"), [("finished", "has finished"), ("running", "goes on already")])
async def test_resuming_what_has_finished_or_runs_starts_nothing(
    container: FakeContainer, capsys: pytest.CaptureFixture[str], state: str, words: str
) -> None:
    class Busy(FakeContainer):
        async def launch(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"already": True, "attempt": 1}

    write_run(container.root, "run-a", state=state)
    try:
        assert await oneshot.resume(talk(Busy(container.root), as_json=False), "run-a", {}, None, False) == 0
    except ContainerError as error:
        assert (error.code, words in error.text) == ("usage", True)
    else:
        assert words in capsys.readouterr().out


def test_an_answer_that_cannot_be_written_is_one_sentence_and_1(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tui", "check", "--local", "--workspace", str(tmp_path / "ws")],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=100, env=environment, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "The answer could not be written (No space left on device); runs go on.\n"


def test_an_error_in_json_is_the_last_line_also_where_both_streams_are_one(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tui", "launch", "ssh://127.0.0.1:1", "--watch", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    words, answer = done.stdout.splitlines()
    assert json.loads(answer)["error"]["text"] == words


@pytest.mark.parametrize(("closed", "code"), [("<&-", 3), (">&-", 3), ("2>&-", 3), ("<&- >&- 2>&-", 3)])
def test_closed_streams_end_no_command_with_a_traceback(tmp_path: Path, closed: str, code: int) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m tui runs ssh://127.0.0.1:1 --json {closed}', sys.executable],
        capture_output=True, text=True, timeout=100, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert "Traceback" not in done.stderr


ASKING = """
import asyncio
from remote.ask import HostKeyQuestion
from tui.questions import on_terminal
question = HostKeyQuestion("box", "box", "ED25519", "SHA256:abc")
try:
    print("answer", asyncio.run(on_terminal().host_key(question)), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(("typed", "ended"), [(b"yes\n", b"answer True"), (b"\x04", b"answer False"), (b"\x03", b"interrupted")])
def test_a_question_on_the_terminal_takes_an_answer_an_end_and_a_ctrl_c(typed: bytes, ended: bytes) -> None:
    pid, master = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts what it puts behind with Ctrl-C ignored
        os.execv(sys.executable, [sys.executable, "-c", ASKING])
    try:
        read_until(master, b"[yes/no]")
        os.write(master, typed)
        read_until(master, ended)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(master)
