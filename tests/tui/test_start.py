"""The short way to the console, past the parser of the command line."""

from __future__ import annotations

import subprocess
import sys

from tui import cli
from tui.start import COMMANDS, plain_place


def test_every_command_goes_to_the_parser() -> None:
    commands = {command.name or getattr(command.callback, "__name__", "") for command in cli.app.registered_commands}
    assert commands | set(cli.ELSEWHERE) == COMMANDS
    assert all(plain_place([word]) is None for word in COMMANDS)


def test_a_host_or_this_machine_alone_is_plain_and_everything_else_is_not() -> None:
    assert plain_place(["gpu-box"]) == "gpu-box" and plain_place(["--local"]) == ""
    for words in ([], ["--help"], ["gpu-box", "--ascii"], ["--local", "--run"], [""], ["-x"]):
        assert plain_place(words) is None


def test_the_short_way_loads_no_parser_and_says_what_is_missing_without_a_terminal() -> None:
    code = "import sys; from tui.start import main; sys.argv = ['eagle3-tui', 'box']\n"
    code += "try: main()\nfinally: print('typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False" and "needs a terminal" in done.stderr and done.returncode == 2
