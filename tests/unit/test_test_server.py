"""The sshd that the tests start is the one that they talk to, however many test processes there are."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sshd import Sshd, free_port

ROOT = Path(__file__).parents[2]


def test_two_processes_with_the_same_luck_get_different_ports() -> None:
    random.seed(20261130)
    ours = free_port()
    code = "import random; random.seed(20261130); from tests.support.sshd import free_port; print(free_port())"
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert 20000 <= int(theirs.stdout) != ours


def test_whoever_else_answers_on_the_port_is_not_taken_for_the_server(tmp_path: Path) -> None:
    first = Sshd(tmp_path / "first").start()
    try:
        with pytest.raises(RuntimeError, match="sshd did not start"):
            Sshd(tmp_path / "second", port=first.port).start()
    finally:
        first.stop()
