"""A screen as text that can be read in a diff: its words, and below them which style each cell has.

A style is told by a letter; which letter is which style stands at the end. Blank cells without a style of their own are left out.
"""

from __future__ import annotations

from string import ascii_letters, digits

from rich.style import Style

from tui.app import ConsoleApp


def snapshot(app: ConsoleApp) -> str:
    """The screen in front, as it goes to the terminal: after all filters."""
    names: dict[str, str] = {}
    words, looks = [], []
    for strip in app.screen._compositor.render_strips():
        text, look = "", ""
        for segment in strip:
            letter = names.setdefault(told(segment.style), (ascii_letters + digits)[len(names) % 62])
            text += segment.text
            look += letter * segment.cell_length
        words.append(text.rstrip())
        looks.append(_runs(look))
    legend = [f"{letter} = {style}" for style, letter in names.items()]
    return "\n".join([*words, "--- styles, row by row: letter and columns", *looks, "--- letters", *legend, ""])


def told(style: Style | None) -> str:
    """A style in words, without what does not show (meta data, links)."""
    if style is None:
        return "plain"
    parts = [name for name in ("bold", "dim", "italic", "underline", "reverse", "strike") if getattr(style, name)]
    parts += [f"{style.color.name}" if style.color else "", f"on {style.bgcolor.name}" if style.bgcolor else ""]
    return " ".join(filter(None, parts)) or "plain"


def _runs(look: str) -> str:
    """ "aaab" as "a3 b1"."""
    out: list[list[object]] = []
    for letter in look:
        if out and out[-1][0] == letter:
            out[-1][1] = int(str(out[-1][1])) + 1
        else:
            out.append([letter, 1])
    return " ".join(f"{letter}{count}" for letter, count in out)
