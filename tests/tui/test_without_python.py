"""A host without a usable Python: the operator sees the machine, what is wrong, and what to do next."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.tui.support.driving import until_seen
from tui.app import ConsoleApp
from tui.connect import connector

GONE = "python-not-there"


def test_check_describes_the_host_and_fails(tmp_path: Path) -> None:
    def check(*more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "tui", "check", "--local", "--workspace", str(tmp_path / "w"), "--python", GONE, *more]
        return subprocess.run(words, capture_output=True, text=True, timeout=100)

    done = check("--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (1, "not ready")
    checks = {check["id"]: check for check in found["checks"]}
    python = checks.pop("python.helper")
    assert python["status"] == "fail" and f"There is no {GONE}" in python["evidence"] and "Found: 3." in python["evidence"]
    assert "--python /" in python["remedy"]
    assert "memory" in checks["host.seen"]["evidence"] and any(name.startswith("disk.seen:") for name in checks)
    assert found["as_of"] > 0
    assert not (tmp_path / "w").exists()

    words = check().stdout
    assert "✗ failed   python.helper" in words and "→ Use the one at /" in words and "disk.seen:/ " in words


async def test_the_console_shows_the_machine_under_the_sentence(tmp_path: Path) -> None:
    app = ConsoleApp(connector("", local=True, python=GONE), host="this machine", workspace=str(tmp_path / "w"), poll_s=0.5)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await until_seen(pilot, f"There is no {GONE}", "--python /", "free")
        assert "not known yet" in screen and "none yet" not in screen
