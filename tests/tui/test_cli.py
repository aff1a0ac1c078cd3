"""The command line: light to import, honest exit codes, words and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.folders import write_run
from tui import cli, picture

FAKE_WORKER = Path(__file__).parent / "support" / "fake_worker.py"


def run(*words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"HOME": str(home), "XDG_STATE_HOME": str(home / "state")} if home else {})}
    return subprocess.run(
        [sys.executable, "-m", "tui", *words], capture_output=True, text=True, timeout=100, env=environment, check=False
    )


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = "import sys, tui.cli; print([m for m in ('textual', 'asyncssh', 'remote', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_first_picture_needs_no_ssh_library_and_no_plots() -> None:
    code = "import sys, tui.app, tui.connect; print([m for m in ('asyncssh', 'plotext', 'textual_plotext') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check"], "Say which HOST"),
        (["check", "--local", "box"], "'box' is one argument too many; with --local no HOST is given."),
        (["check", "--json", "--markdown", "--local"], "Say --json or --markdown, not both."),
        (["runs", "box", "extra"], "'extra' is one argument too many."),
        (["stop", "box"], "Say which run to stop"),
        (["picture", "--local", "run"], "Write: eagle3-tui picture"),
        (["picture", "--local", "run", "out.svg", "--size", "big"], "Write: eagle3-tui picture"),
        (["picture", "--local", "run", "out.svg", "--size", "0x0"], "at least 40 columns and 12 rows"),
        (["picture", "--local", "run", "out.svg", "--screen", "bogus"], "There is no screen 'bogus'"),
        (["picture", "--local", "run", "no-such-folder/out.svg"], "The folder no-such-folder for the picture does not exist."),
        (["resume", "box"], "Say which run to resume"),
        (["--local", "box"], "With --local no HOST is given"),
        (["record", "box"], "Say which file to write"),
        (["record", "box", "--to", "/"], "/ exists already"),
        (["record", "--to", "new-file"], "Say which HOST to record"),
        (["record", "box", "--to", "no-such-folder/a"], "The folder no-such-folder for the recording does not exist."),
        (["replay", "a", "--theme", "pink"], "There is no theme 'pink'"),
        (["support", "box"], "Say which run the report is about"),
        (
            ["support", "box", "run", "--out", "no-such-folder/a.tar.gz"],
            "The folder no-such-folder for the bundle does not exist.",
        ),
        (["launch", "box", "--secret", "HF_TOKEN=abc"], "by name alone"),
        (["launch", "box", "--secret", "NOT_SET_ANYWHERE"], "export NOT_SET_ANYWHERE first"),
        (["ls"], "There is no command 'ls' here: use `eagle3-tui runs`"),
    ],
)
def test_wrong_usage_is_one_sentence_and_ends_with_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["box"], ["--local"], ["open", "box"], ["box", "--workspace", "/w"]])
def test_what_is_no_command_opens_the_console(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def start(hosts: list[str], **options: Any) -> int:
        calls.append((hosts, options["local"], options["workspace"]))
        return 0

    monkeypatch.setattr("tui.launchpad.open_console", start)
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 0
    local = "--local" in words
    assert calls == [([] if local else ["box"], local, "/w" if "/w" in words else "~/eagle3")]


def test_several_hosts_are_opened_once_each_and_all_are_those_of_the_ssh_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[list[str]] = []

    def start(hosts: list[str], **options: Any) -> int:
        calls.append(hosts)
        return 0

    monkeypatch.setattr("tui.launchpad.open_console", start)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu-1 gpu-*\nHost gpu-2\n")
    for words in (["a", "b", "a"], ["--all"], ["gpu-2", "--all"]):
        with pytest.raises(SystemExit):
            cli.main(words)
    assert calls[0] == ["a", "b"]
    assert calls[1][:2] == ["gpu-1", "gpu-2"] and calls[2][:2] == ["gpu-2", "gpu-1"]


def test_without_words_and_without_a_terminal_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([])
    assert "A console for training and watching" in capsys.readouterr().out


def test_the_console_without_a_terminal_says_what_to_use_instead(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--local"])
    assert ended.value.code == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_a_host_that_is_not_there_is_3_and_json_says_so_too() -> None:
    done = run("check", "no-such-host.invalid", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "unreachable"
    assert "no-such-host.invalid" in done.stderr and "Traceback" not in done.stderr


async def test_a_picture_that_cannot_be_written_is_one_sentence_and_1(
    container: FakeContainer, make_app: MakeApp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(container.root, "run-a")
    assert await picture._take(make_app(run_id="run-a"), tmp_path, "run", (80, 24)) == 1
    assert capsys.readouterr().err == f"The picture cannot be written to {tmp_path}: Is a directory.\n"


@pytest.mark.timeout(300)  # a dozen commands one after another
def test_from_check_to_picture_on_this_machine(tmp_path: Path) -> None:
    """One workspace through every command, as an operator's script would."""
    home, workspace = tmp_path / "home", tmp_path / "eagle3"
    home.mkdir()
    local = ["--local", "--workspace", str(workspace)]

    def answer(*words: str, code: int = 0) -> dict[str, Any]:
        done = run(*words, *local, "--json", home=home)
        assert done.returncode == code, done.stderr
        value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return value

    found = json.loads(run("check", *local, "--json", "--target", "smollm2-135m", home=home).stdout)
    assert {"host", "as_of", "deep", "about", "verdict", "verdict_text", "first_fix", "checks"} <= set(found)
    assert {"id", "group", "status", "title", "evidence", "why", "remedy", "took_s"} <= set(found["checks"][0])
    assert found["about"]["size"] == "pilot" and found["about"]["target"] == "smollm2-135m"
    assert answer("watch", code=1)["error"]["code"] == "not_found"

    wrong = run("launch", *local, "--set", "train.max_step=3", home=home)
    assert wrong.returncode == 2
    assert "train.max_step: there is no such field" in wrong.stderr

    refused = answer("launch", "--set", f"worker_python={FAKE_WORKER}", "--run-id", "pilot-cli", code=1)["error"]
    assert refused["code"] == "not_ready" and "python." in refused["text"]
    assert answer("runs")["runs"] == []
    launched = answer("launch", "--set", f"worker_python={FAKE_WORKER}", "--run-id", "pilot-cli", "--anyway")
    assert (launched["run_id"], launched["already"]) == ("pilot-cli", False)
    again = answer("launch", "--set", f"worker_python={FAKE_WORKER}", "--run-id", "pilot-cli")
    assert again["already"] is True, "what runs already needs no readiness"
    recorded = json.loads((workspace / "runs" / "pilot-cli" / "report.json").read_text())
    assert recorded["verdict"] in {"ready", "ready with warnings", "not ready"} and recorded["checks"]

    ended = answer("watch")
    assert (ended["run_id"], ended["state"], ended["verdict"]) == ("pilot-cli", "finished", "learns")
    [listed] = answer("runs")["runs"]
    assert listed["state"] == "finished"
    assert answer("stop", "no-such-run", code=1)["error"]["code"] == "not_found"

    words = run("check", *local, "--markdown", home=home)
    assert words.stdout.startswith("## Readiness of this machine: ") and "### host" in words.stdout
    picture = tmp_path / "run.svg"
    done = run("picture", *local, "pilot-cli", str(picture), "--size", "100x30", home=home)
    assert done.returncode == 0, done.stderr
    assert "Verdict" in picture.read_text()
    ElementTree.parse(picture)
