"""Secrets of a run: named, never written; asked where they are not known; the container's word alone sends none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from remote.ask import Ask, SecretQuestion
from tests.support.waiting import until as waited
from tests.tui.conftest import Clock
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import write_run
from tui import messages
from tui.app import ConsoleApp
from tui.catalog import Catalog
from tui.connect import connector
from tui.run_secrets import SecretError, names_of, started_with, values_of
from tui.session import Session

FAKE_WORKER = Path(__file__).parent / "support" / "fake_worker.py"
TOKEN, KEY = "hf_" + "Zq8" * 9, "correct horse battery"


def test_names_are_names_and_a_value_typed_by_mistake_is_not_repeated() -> None:
    assert names_of(["HF_TOKEN", "", "B", "HF_TOKEN"]) == ["HF_TOKEN", "B"]
    for wrong in ("HF_TOKEN=hunter2", "hunter2!", "-x", "7UP"):
        with pytest.raises(SecretError) as caught:
            names_of([wrong])
        assert "by name alone" in str(caught.value) and wrong not in str(caught.value)


async def test_values_come_from_the_environment_or_a_person_or_not_at_all() -> None:
    asked: list[str] = []

    async def ask(name: str) -> str | None:
        asked.append(name)
        return "typed" if name == "B" else None

    assert await values_of(["A", "B"], ask, {"A": "set", "B": ""}) == {"A": "set", "B": "typed"}
    assert asked == ["B"]
    with pytest.raises(SecretError, match=r"C is not set in this environment and was not given; export C first\."):
        await values_of(["C"], ask, {})
    with pytest.raises(SecretError, match="no terminal to ask on"):
        await values_of(["B"], None, {})


@pytest.mark.parametrize(
    ("text", "names"),
    [(None, []), ("", []), ("[]", []), ('{"secret_env": "HF_TOKEN"}', []), ('{"secret_env": ["A", 3, "B=x", "C"]}', ["A", "C"])],
)
def test_what_a_run_was_started_with_is_read_with_care(text: str | None, names: list[str]) -> None:
    assert started_with(text) == names


async def test_a_resume_asks_for_what_it_does_not_know_and_takes_nothing_from_the_environment_by_itself(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container could name any variable of the operator's in its launch.json."""
    monkeypatch.setenv("CLOUD_PASSWORD", "not-for-the-container")
    write_run(tmp_path, "run-a", state="stopped")
    (tmp_path / "run-a" / "launch.json").write_text(json.dumps({"secret_env": ["CLOUD_PASSWORD", "HF_TOKEN"]}))
    container = FakeContainer(tmp_path)
    posted: list[Any] = []
    asked: list[SecretQuestion] = []
    answers = ["", TOKEN, KEY]

    async def secret(question: SecretQuestion) -> str | None:
        asked.append(question)
        return answers.pop(0)

    session = Session(container, post=posted.append, ask=Ask(secret=secret), clock=clock, workspace="/a")
    session.start()
    try:
        session.resume("run-a")
        await waited(lambda: any(isinstance(message, messages.AskFailed) for message in posted), "the refusal")
        assert container.launches == []
        session.resume("run-a")
        await waited(lambda: bool(container.launches), "the resume")
    finally:
        await session.close()
    assert container.secrets["run-a"] == {"CLOUD_PASSWORD": TOKEN, "HF_TOKEN": KEY}
    assert [(question.prompt, question.run_id, question.echo) for question in asked] == [
        ("CLOUD_PASSWORD", "run-a", False), ("CLOUD_PASSWORD", "run-a", False), ("HF_TOKEN", "run-a", False),
    ]  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace in which a run stays in training until it is told to go on."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = tmp_path / "eagle3"
    folder.mkdir()
    (folder / "hold").touch()
    yield folder
    (folder / "hold").unlink(missing_ok=True)


def worker_environment(workspace: Path, attempt: int) -> dict[str, str]:
    [started] = (workspace / "runs").glob(f"*/attempts/{attempt}/started.json")
    pid = json.loads(started.read_text())["pid"]
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def where_it_stands(folder: Path, *values: str) -> list[str]:
    """Files below ``folder`` and command lines of this machine that hold one of the values."""
    needles = [value.encode() for value in values]
    files = [path for path in folder.rglob("*") if path.is_file() and any(needle in path.read_bytes() for needle in needles)]
    listed = subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, check=True).stdout.splitlines()
    return [*map(str, files), *(line.decode("utf-8", "replace") for line in listed if any(needle in line for needle in needles))]


def console(workspace: Path, tmp_path: Path) -> ConsoleApp:
    return ConsoleApp(
        connector("", local=True, python=sys.executable),
        host="this machine", workspace=str(workspace), worker_python=str(FAKE_WORKER),
        catalog=Catalog(tmp_path / "catalog.sqlite"), poll_s=0.5,
    )  # fmt: skip


async def test_secrets_named_in_the_form_reach_the_worker_and_stand_in_no_file_and_no_process_list(
    workspace: Path, tmp_path: Path
) -> None:
    app = console(workspace, tmp_path)
    screens: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● up since", "none yet")
        await pilot.press("3")
        await until_seen(pilot, "New run")
        app.screen.query_one("#secrets", Input).focus()
        await until_seen(pilot, "stand in no file")
        app.screen.query_one("#secrets", Input).value = "HF_TOKEN=oops"
        await until_seen(pilot, "by name alone")
        app.screen.query_one("#secrets", Input).value = "HF_TOKEN VAULT_KEY"
        await until(pilot, lambda: app.choices.secrets == "HF_TOKEN VAULT_KEY", "the names to be taken")
        await pilot.press("ctrl+l")
        screens.append(await until_seen(pilot, "Launch the pilot?", "HF_TOKEN, VAULT_KEY"))
        await pilot.press("y")
        await until_seen(pilot, "launch the pilot anyway?")  # a stand-in for a worker's Python has no packages
        await pilot.press("a")
        await until_seen(pilot, "needs: VAULT_KEY")
        await pilot.press(*("space" if character == " " else character for character in KEY))
        screens.append(seen(app))
        await pilot.press("enter")
        screens.append(await until_seen(pilot, "● train", "s Stop"))
        first = worker_environment(workspace, 1)
        assert (first["HF_TOKEN"], first["VAULT_KEY"]) == (TOKEN, KEY)
        assert where_it_stands(tmp_path, TOKEN, KEY) == []
        [launched] = (workspace / "runs").glob("*/launch.json")
        assert json.loads(launched.read_text())["secret_env"] == ["HF_TOKEN", "VAULT_KEY"]

        await pilot.press("s")
        await until_seen(pilot, "Stop the run?")
        await pilot.press("n")
        await until_seen(pilot, "■ stopped", "r Resume")
        await pilot.press("r")
        await until_seen(pilot, "Resume the run?")
        await pilot.press("y")
        screens.append(await until_seen(pilot, "● train", "s Stop"))
        await until(pilot, lambda: bool([*workspace.glob("runs/*/attempts/2/started.json")]), "the second attempt")
        second = worker_environment(workspace, 2)
        assert (second["HF_TOKEN"], second["VAULT_KEY"]) == (TOKEN, KEY)
    assert where_it_stands(tmp_path, TOKEN, KEY) == []
    assert not any(TOKEN in screen or KEY in screen for screen in screens)


@pytest.mark.timeout(300)  # five commands, each a process of its own
async def test_on_the_command_line_a_secret_is_a_name_and_a_resume_wants_it_again(workspace: Path, tmp_path: Path) -> None:
    local = ["--local", "--workspace", str(workspace), "--json"]

    def answer(*words: str, **environment: str) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "tui", *words, *local]
        clean = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=100, env={**clean, **environment}, stdin=subprocess.DEVNULL
        )
        assert TOKEN not in done.stdout + done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"error": done.stderr}

    launch = ["launch", "--set", f"worker_python={FAKE_WORKER}", "--run-id", "with-secret", "--secret", "HF_TOKEN", "--anyway"]
    code, refused = answer(*launch)
    assert code == 2 and "export HF_TOKEN first" in refused["error"]
    assert not (workspace / "runs").exists()

    assert answer(*launch, HF_TOKEN=TOKEN, OTHER_TOKEN=KEY, SSH_AUTH_SOCK="/agent", NCCL_ALGO="Ring")[0] == 0
    first = worker_environment(workspace, 1)
    assert (first["HF_TOKEN"], first["NCCL_ALGO"]) == (TOKEN, "Ring")
    assert not first.keys() & {"OTHER_TOKEN", "SSH_AUTH_SOCK"}, "this machine is the container, and nobody named them"
    assert where_it_stands(tmp_path, TOKEN) == []

    assert answer("stop", "with-secret")[0] == 0
    await waited(lambda: (workspace / "runs" / "with-secret" / "attempts" / "1" / "exit.json").exists(), "the run to stop")
    code, refused = answer("resume", "with-secret", HF_TOKEN=TOKEN)
    assert code == 2 and "--secret HF_TOKEN" in refused["error"]["remedy"]
    code, resumed = answer("resume", "with-secret", "--secret", "HF_TOKEN", HF_TOKEN=TOKEN)
    assert (code, resumed["attempt"]) == (0, 2)
    assert worker_environment(workspace, 2)["HF_TOKEN"] == TOKEN
    assert where_it_stands(tmp_path, TOKEN) == []
