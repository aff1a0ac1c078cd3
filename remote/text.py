"""Text from the far side made safe to show: no terminal control, no secrets."""

from __future__ import annotations

import re
from typing import Any

from eagle3.runner.redact import redact

_OSC = re.compile(r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?")
_CSI = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?")
_ESC = re.compile(r"\x1b[ -/]*[0-~]?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Strip escape sequences and control characters, and of a line rewritten with ``\\r`` keep what a terminal
    would show in the end. Tabs and line ends stay."""
    if "\x1b" in text or _CONTROL.search(text):
        for pattern in (_OSC, _CSI, _ESC, _CONTROL):
            text = pattern.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return redact(text)


def made_plain(value: Any) -> Any:
    """Any JSON value with every text in it made `plain`, the names of fields left as they are."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [made_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: made_plain(item) for key, item in value.items()}
    return value


def last_line(data: bytes, limit: int = 300) -> str:
    """The last line with something on it, shortened: what a dying command most likely meant to say."""
    lines = [line.strip() for line in plain(data.decode("utf-8", "replace")).splitlines() if line.strip()]
    return lines[-1][-limit:] if lines else ""
