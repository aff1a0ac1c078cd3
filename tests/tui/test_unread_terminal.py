"""A terminal that stops reading costs neither the link nor a row."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from eagle3.core.presets import resolve
from remote.container import Container, Settings
from tests.support.sshd import Sshd
from tests.tui.support.terminal import LIMIT_S, ended, on_terminal

FAKE_WORKER = Path(__file__).parents[1] / "support" / "fake_worker.py"
UNREAD_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """It hangs up on whoever has not answered for two seconds."""
    started = Sshd(tmp_path / "impatient", more_config="ClientAliveInterval 1\nClientAliveCountMax 2").start()
    yield started
    started.stop()


class Terminal:
    """Reads what the console draws, when asked to."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._screen)

    def until(self, true: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + LIMIT_S
        while not true(shown := "\n".join(self._screen.display)):
            assert time.monotonic() < deadline, f"waited in vain for {what}; the screen was:\n{shown}"
            if select.select([self._master], [], [], 0.2)[0]:
                self._stream.feed(os.read(self._master, 65536))
        return shown

    def waiting(self) -> bool:
        return bool(select.select([self._master], [], [], 0)[0])


@pytest.mark.long
async def test_a_terminal_that_is_not_read_for_half_a_minute_costs_neither_the_link_nor_a_row(
    server: Sshd, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    config = server.write_client_config(home / ".ssh" / "config")
    known = home / ".ssh" / "known_hosts"
    known.write_text(f"{server.known_name} {server.public_key()}\n")
    settings = Settings(state_dir=tmp_path / "state", ssh_config=config, known_hosts=known)
    async with Container(server.url, settings=settings) as container:
        spec = resolve("smoke", "smollm2-135m", "cpu", {"worker_python": str(FAKE_WORKER)})
        run_dir = Path((await container.launch(spec, "watched"))["run_dir"])

    console, master = on_terminal('exec "$0" -m tui open "$1" --run watched', home, server.url)
    with ended(console):
        terminal = Terminal(master)
        terminal.until(lambda shown: "● up" in shown and "step 1" in shown, "the run")
        before = server.sessions()
        stopped = time.monotonic()
        while time.monotonic() - stopped < UNREAD_S:
            time.sleep(0.2)  # noqa: ASYNC251
            assert server.sessions() == before, "the link was lost while the terminal was not read"
        assert terminal.waiting()
        (run_dir / "finish").touch()
        terminal.until(lambda shown: "finished" in shown, "the end of the run, once the terminal is read again")
        last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        terminal.until(lambda shown: f"step {last} " in shown, f"the last line of the log, step {last}")
        assert server.sessions() == before
        assert "Timeout, client not responding" not in (server.folder / "sshd.log").read_text()
        console.terminate()
        terminal.until(lambda _: console.poll() is not None or not terminal.waiting(), "the end of the console")
    os.close(master)
