"""Text from outside is text: what a log, a model's name or a traceback says can neither style, move nor command a terminal."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC: titles, clipboard, links
    r"|\x1b[PX^_].*?(?:\x1b\\|$)"  # DCS, SOS, PM, APC
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]?",  # two-character escapes
    re.DOTALL,
)
# Controls; then what has no width or turns the direction of writing, by which one name can pass for another.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)

# What a file name that is not UTF-8 is read as; no terminal, file or clipboard takes it.
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def clean_line(text: str, limit: int = 500) -> str:
    """One line of outside text made harmless: escape sequences, control, direction and zero-width characters removed.

    A ``\\r`` progress line shows what a terminal would show last; more than ``limit`` characters are cut with "…".
    """
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = parts[-1] if parts else ""
    text = _CONTROLS.sub("", _ESCAPES.sub("", text[: limit * 20].replace("\n", " "))).expandtabs(4)
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clean_text(text: str) -> str:
    """Outside text of many lines made harmless; its lines stay."""
    return "\n".join(clean_line(line, len(line) + 1) for line in text.replace("\r\n", "\n").split("\n"))


def one_line(text: str, limit: int = 500) -> str:
    """Outside text of any number of lines as one harmless line."""
    return clean_line(" ".join(text.split()), limit)


def clean_lines(text: str, limit: int = 500, most: int = 200) -> list[str]:
    """Outside text as harmless lines, ``most`` of them at most; the last one says how many more there were."""
    lines = text.split("\n")
    kept = [clean_line(line.removesuffix("\r"), limit) for line in lines[:most]]
    return [*kept, f"… {len(lines) - most} more lines"] if len(lines) > most else kept
