"""What happens to every line just before it is painted: another theme's colours, and plain ASCII for terminals without more."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from tui.themes.palette import CALM, Palette

_ASCII = {
    "●": "*", "○": "o", "◌": "o", "✓": "+", "✗": "x", "▲": "!", "■": "#", "▪": "#", "▸": ">", "·": ".", "–": "-", "—": "-",
    "…": "~", "×": "x", "→": ">", "←": "<", "↑": "^", "↓": "v", "━": "=", "─": "-", "│": "|", "╭": "+", "╮": "+", "╰": "+",
    "╯": "+", "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "┬": "+", "┴": "+", "┼": "+", "▔": "-", "▁": "_",
    "▂": "_", "▃": "_", "▅": "#", "▆": "#", "▇": "#", "▾": "v", "°": " ",
    "▎": "|", "▊": "|", "█": "#", "▌": "|", "▐": "|", "▀": '"', "▄": "_", "░": ":", "▒": ":", "▓": "#", "±": "~", "’": "'",
}  # fmt: skip
_BRAILLE = " .:oO@"
"""By the number of dots, roughly."""


@lru_cache(maxsize=4096)
def ascii_of(character: str) -> str:
    """A character, or as many ASCII ones as it is columns wide."""
    if character < "\x80":
        return character
    if "\u2800" <= character <= "\u28ff":
        dots = (ord(character) - 0x2800).bit_count()
        return _BRAILLE[min(len(_BRAILLE) - 1, (dots + 1) // 2)]
    return _ASCII.get(character, "?" * cell_len(character))


class AsciiFilter(LineFilter):
    """Every line in ASCII, each character as wide as before."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment("".join(map(ascii_of, segment.text)), segment.style, segment.control)
            for segment in segments
        ]


class PaletteFilter(LineFilter):
    """The colours of ``palette`` in place of those of the theme "calm" that text was drawn in."""

    def __init__(self, palette: Palette) -> None:
        super().__init__(enabled=palette != CALM)
        self._colours = {
            RichColor.parse(ours).triplet: RichColor.parse(theirs)
            for ours, theirs in zip(CALM.colours(), palette.colours(), strict=True)
        }
        self._style = lru_cache(maxsize=4096)(self._exchanged)

    def _exchanged(self, style: Style) -> Style:
        colour, ground = style.color, style.bgcolor
        new_colour = self._colours.get(colour.triplet, colour) if colour is not None else None
        new_ground = self._colours.get(ground.triplet, ground) if ground is not None else None
        if new_colour is colour and new_ground is ground:
            return style
        return style + Style.from_color(new_colour, new_ground)

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(segment.text, self._style(segment.style), segment.control) if segment.style is not None else segment
            for segment in segments
        ]
