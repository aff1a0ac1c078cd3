"""A shakedown from the operator's machine, through a real SSH server: a job in the container does it, and is told to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3.runner import rundir
from tests.shakedown.worker import as_interpreter


@pytest.mark.long
def test_the_console_starts_a_shakedown_tells_it_and_joins_it_again(tmp_path: Path) -> None:
    python = as_interpreter(tmp_path)
    words = ["shakedown", "--local", "--workspace", str(tmp_path / "ws"), "--id", "shakedown-far", "--json"]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}

    def ask(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tui", *words, *more, "--set", f"worker_python={python}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)

    done = ask()
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["passed"] and report["run_id"] == "shakedown-far"
    assert "The shakedown kills the worker behind step" in done.stderr and "Shakedown passed." in done.stderr
    first = rundir.read_object(tmp_path / "ws" / "runs" / "shakedown-far" / "attempts" / "1" / "exit.json")
    assert first["signal"] == 9
    assert json.loads(ask().stdout) == report, "the same shakedown, not a second one"
    refused = ask("--id", "mine")
    assert refused.returncode == 2 and "begins with 'shakedown-'" in refused.stderr
