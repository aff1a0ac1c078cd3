"""In CI a skipped test is a failure, and is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def session(folder: Path, body: str, ci: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file with that body, as CI does or as a person does."""
    (folder / "test_sample.py").write_text(f"import pytest\n\n{body}\n")
    options = ["-p", "tests.ci_guard", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "CI": ci}, check=False)


SKIPPED = "@pytest.mark.skip(reason='no sshd here')\ndef test_login(): ..."
SKIPPED_FILE = "pytest.skip('no sshd here', allow_module_level=True)"
EXPECTED_TO_FAIL = "@pytest.mark.xfail(reason='no sshd here')\ndef test_login(): assert False"
PASSES = "def test_login(): ..."


@pytest.mark.parametrize("body", [SKIPPED, SKIPPED_FILE, EXPECTED_TO_FAIL])
def test_in_ci_a_test_that_does_not_run_fails_the_session_and_is_named_with_its_reason(tmp_path: Path, body: str) -> None:
    done = session(tmp_path, body, ci="true")
    assert done.returncode == 1, done.stdout
    named = [line for line in done.stdout.splitlines() if line.startswith("test_sample.py")]
    assert any("no sshd here" in line for line in named), done.stdout


def test_in_ci_pytests_closing_line_stays_the_last_one(tmp_path: Path) -> None:
    done = session(tmp_path, SKIPPED, ci="true")
    assert "1 skipped" in done.stdout.splitlines()[-1]


def test_in_ci_a_session_without_skips_passes(tmp_path: Path) -> None:
    assert session(tmp_path, PASSES, ci="true").returncode == 0


def test_outside_ci_a_skipped_test_is_allowed(tmp_path: Path) -> None:
    assert session(tmp_path, SKIPPED, ci="").returncode == 0
