"""What holds for every file: no machine's paths, no registry's hosts, files of a readable length, modules that say what for."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = (".ci", "benchmarks", "docs", "eagle3", "remote", "requirements", "tests", "tools", "tui")
OURS = ("eagle3", "remote", "tui", "benchmarks")
NOT_OURS = {"__pycache__", ".git"}
LONG, TOO_LONG = 400, 500

# Spelled with brackets, so that this file does not match itself.
PATHS = re.compile(r"(?<![\w.}~])/(wor[k]|farm|roo[t])/|/opt/whee[l]s|\.\./share[d]\b")
HOSTS = re.compile(r"pypi\.or[g]|pythonhoste[d]|download\.pytorc[h]|deb\.debia[n]|registry\.npmj[s]")


def files() -> Iterator[Path]:
    """Every file of the project, committed or about to be."""
    for place in (*(ROOT / name for name in PLACES), ROOT):
        inside = place.rglob("*") if place != ROOT else place.iterdir()
        yield from (path for path in inside if path.is_file() and not NOT_OURS & set(path.parts))


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of each file that is text."""
    for path in files():
        data = path.read_bytes()
        if b"\0" not in data[:4096]:
            yield str(path.relative_to(ROOT)), data.decode("utf-8")


def python_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


@pytest.mark.parametrize(("what", "pattern"), [("a path of one machine", PATHS), ("a package registry's host", HOSTS)])
def test_no_file_names(what: str, pattern: re.Pattern[str]) -> None:
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], what


def test_the_check_for_paths_and_hosts_sees_what_it_looks_for() -> None:
    assert PATHS.search("see /wor" + "k/project") and PATHS.search("pip -f /opt/whee" + "ls")
    assert not PATHS.search("eagle3/wor" + "k/x") and not PATHS.search("~/wor" + "k/x")
    assert HOSTS.search("https://pypi.or" + "g/simple")


def test_no_python_file_is_too_long_to_read() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    long = {name: length for name, length in lengths.items() if length > LONG}
    if long:
        warnings.warn(f"over {LONG} lines, split where there is a second reason: {long}", stacklevel=1)
    assert {name: length for name, length in long.items() if length > TOO_LONG} == {}


def test_every_public_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.relative_to(ROOT).parts[0] in OURS and (path.name == "__init__.py" or not path.name.startswith("_"))
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_the_tools_can_be_executed() -> None:
    tools = [path for path in files() if path.parent in (ROOT / "tools", ROOT / ".ci") and path.read_bytes().startswith(b"#!")]
    assert tools
    assert [path.name for path in tools if not path.stat().st_mode & 0o111] == []
