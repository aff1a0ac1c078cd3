"""A shakedown from the operator's machine, through a real SSH server: a job in the container does it, and is told to its end."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3.runner import rundir
from tests.shakedown.worker import as_interpreter

TOKEN = "hf_" + "Yb7" * 9


@pytest.mark.long
def test_the_console_starts_a_shakedown_tells_it_and_joins_it_again(tmp_path: Path) -> None:
    python = as_interpreter(tmp_path)
    words = ["shakedown", "--local", "--workspace", str(tmp_path / "ws"), "--id", "shakedown-far", "--json"]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "HF_TOKEN": TOKEN}

    def ask(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tui", *words, *more, "--set", f"worker_python={python}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)

    done = ask("--secret", "HF_TOKEN")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["passed"] and report["run_id"] == "shakedown-far"
    assert "The shakedown kills the worker behind step" in done.stderr and "Shakedown passed." in done.stderr
    first = rundir.read_object(tmp_path / "ws" / "runs" / "shakedown-far" / "attempts" / "1" / "exit.json")
    assert first["signal"] == 9
    # Both attempts got the secret, and it stands in no file.
    had = (tmp_path / "ws" / "runs" / "shakedown-far" / "tokens").read_text().split()
    assert had == [hashlib.sha256(TOKEN.encode()).hexdigest()] * 2
    assert [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()] == []
    assert json.loads(ask().stdout) == report, "the same shakedown, not a second one"
    refused = ask("--id", "mine")
    assert refused.returncode == 2 and "begins with 'shakedown-'" in refused.stderr
