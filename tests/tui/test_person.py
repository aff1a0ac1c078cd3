"""The real console on a real terminal, read through an emulator as a person would read it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.tui.support.person import Person
from tests.tui.support.written import written_run

CTRL_Z = "\x1a"


@pytest.mark.slow
def test_a_person_finds_the_way_through_the_console_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "eagle3").mkdir()
    run_id = written_run(tmp_path / "eagle3")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "TERM": "xterm-256color",
        "PS1": "shell> ",
    }
    environment |= {"XDG_CONFIG_HOME": str(tmp_path), "HISTFILE": "/dev/null"}
    with Person(["/bin/bash", "--norc", "--noprofile", "-i"], environment) as person:
        person.sees("shell>")
        person.press(f"{sys.executable} -m tui --local\r")
        person.sees("1 Overview", "GPU memory", "Disks", "vLLM servers", "? Help", "q Quit")
        person.sees(run_id, "✓ finished", "● up since")
        person.press("%")  # no key of ours
        for key, words in (
            ("4", ("Verdict", "Stages", "The draft learned")),
            ("5", ("live first", run_id)),
            ("6", ("run.log", "last words")),
            ("7", ("Notes of", "i Edit")),
            ("1", ("vLLM servers",)),
            ("2", ("Checks", "for pilot")),
            ("1", ("vLLM servers",)),
            ("3", ("New run",)),
        ):
            person.press(key)
            person.sees(*words)
        person.press("\x1b")  # out of the form, as the help says
        person.sees("vLLM servers", gone=["New run"])
        person.resize(40, 12)
        person.sees("1 Overview 2 3 4 5 6 7", "Runs", run_id[:9])
        person.resize(80, 24)
        person.sees("vLLM servers", "? Help", "q Quit", run_id)
        person.press(CTRL_Z)
        person.sees("shell>", "Stopped")
        person.press("fg\r")
        person.sees("1 Overview", "vLLM servers", "q Quit", run_id, gone=["shell>"])
        person.press("?")
        person.sees("close it", "the machine: link, GPUs")
        person.press("\x1b")
        person.sees("vLLM servers", gone=["close it"])
        person.press("q")
        person.sees("Runs go on in the container")
        person.press("q")
        person.sees("shell>")
        person.press("echo left with $?\r")
        person.sees("left with 0")
