"""Reading the log of a vLLM server that has died: the one line that says why."""

from __future__ import annotations

import re
from pathlib import Path

_TAIL_BYTES = 256 * 1024
_PREFIX = re.compile(
    r"^(?:\((?:[\w.]+ )?pid=\d+\)|\([\w. ]+\)|(?:ERROR|WARNING|INFO|CRITICAL)\b|\d\d-\d\d \d\d:\d\d:\d\d|\[[\w./]+:\d+\]|:)\s*"
)
_ERROR = re.compile(
    r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Failure)\b(?:: .+)?|.*\berror: .+|.*Segmentation fault.*|"
    r"Worker proc .+ died unexpectedly.*"
)
# What others say once the engine or one of its workers is dead: true, and of no help.
_ECHO = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|See (?:stack trace|root cause) above|Executor failed\.|"
    r"EngineDeadError|cancelled|CancelledError"
)


def tail(path: Path, limit: int = 2000) -> str:
    """The last ``limit`` characters of a log; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")[-limit:]
    except FileNotFoundError:
        return ""


def last_error(path: Path) -> str:
    """The last line of the log's newest server that names a cause, without its prefixes, as a sentence."""
    text = tail(path, _TAIL_BYTES).rpartition("\n===== ")[2]
    lines = [_bare(line) for line in text.splitlines()[1:]]
    lines = [line for line in lines if line]
    errors = [line for line in lines if _ERROR.match(line)]
    causes = [line for line in errors if not _ECHO.search(line)]
    found = (causes or errors or lines or ["it said nothing"])[-1]
    found = found if len(found) <= 300 else found[:299] + "…"
    return found if found.endswith((".", "!", "?")) else found + "."


def _bare(line: str) -> str:
    line = line.strip()
    while (match := _PREFIX.match(line)) and match.end():
        line = line[match.end() :]
    return line
