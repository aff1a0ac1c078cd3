"""The colours, once: the themes that the style sheets use and the same values for text drawn line by line.

One accent; green, amber and red only ever repeat what a word and a symbol already say. Text is drawn in the colours of
the theme "calm"; another theme's stand in for them when the line is painted (``filters.PaletteFilter``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from textual.theme import Theme


@dataclass(frozen=True)
class Palette:
    """The colours of a theme. ``series`` are those of positions and runs in a plot, told apart by lightness too."""

    background: str
    surface: str
    panel: str
    text: str
    muted: str
    faint: str
    accent: str
    focus: str
    cursor: str
    good: str
    warn: str
    bad: str
    blue: str
    violet: str
    dark: bool = True

    def colours(self) -> tuple[str, ...]:
        """All colours in one fixed order."""
        return tuple(getattr(self, field.name) for field in fields(self) if field.name != "dark")


PALETTES = {
    "calm": Palette(
        "#12161b", "#171c22", "#2b343f", "#d8dee6", "#8593a3", "#44505d", "#62c6c2", "#3f7f86", "#24424a",
        "#86c98e", "#e5bb6b", "#ea8079", "#6aa5e0", "#a58fd8",
    ),
    "paper": Palette(
        "#fbfaf7", "#f1efe9", "#d3cfc4", "#23272d", "#5d6570", "#b9b6ac", "#0b6b68", "#5aa5a1", "#d6e8e6",
        "#2b6f36", "#8a5a00", "#b3261e", "#1f5fa8", "#6a4bb0", dark=False,
    ),
    "contrast": Palette(
        "#000000", "#0a0a0a", "#8a8a8a", "#ffffff", "#d0d0d0", "#9a9a9a", "#00ffff", "#ffffff", "#004a7f",
        "#00ff5f", "#ffff00", "#ff8080", "#80c0ff", "#e0a0ff",
    ),
    # Okabe and Ito's colours, which people with any common colour blindness tell apart.
    "safe": Palette(
        "#12161b", "#171c22", "#2b343f", "#e6e6e6", "#9aa4ae", "#4a5560", "#56b4e9", "#0072b2", "#1d3f55",
        "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#e69f00",
    ),
}  # fmt: skip
"""The themes by name: dark, light, high contrast, and safe for the colour-blind."""

CALM = PALETTES["calm"]
BACKGROUND, SURFACE, PANEL = CALM.background, CALM.surface, CALM.panel
TEXT, MUTED, FAINT = CALM.text, CALM.muted, CALM.faint
ACCENT, FOCUS = CALM.accent, CALM.focus
GOOD, WARN, BAD = CALM.good, CALM.warn, CALM.bad
SERIES = (ACCENT, CALM.blue, CALM.violet, MUTED)
"""Series in one plot, told apart by lightness too."""


def theme(name: str) -> Theme:
    """The theme ``name`` as Textual takes it."""
    colours = PALETTES[name]
    return Theme(
        name=name,
        primary=colours.accent,
        secondary=colours.focus,
        accent=colours.accent,
        foreground=colours.text,
        background=colours.background,
        surface=colours.surface,
        panel=colours.panel,
        success=colours.good,
        warning=colours.warn,
        error=colours.bad,
        dark=colours.dark,
        variables={
            "footer-background": colours.surface,
            "footer-key-foreground": colours.accent,
            "footer-description-foreground": colours.muted,
            "block-cursor-background": colours.cursor,
            "block-cursor-foreground": colours.text,
            "block-cursor-text-style": "none",
            "border": colours.panel,
            "border-blurred": colours.panel,
            "quiet": colours.muted,
            "cursor": colours.cursor,
        },
    )


STATE_COLOURS = {
    "starting": ACCENT,
    "running": ACCENT,
    "unsupervised": WARN,
    "stalled": WARN,
    "finished": GOOD,
    "failed": BAD,
    "stopped": MUTED,
    "lost": WARN,
    "unknown": WARN,
}
LINK_COLOURS = {"connecting": MUTED, "up": GOOD, "degraded": WARN, "down": BAD, "refused": BAD}
CHECK_COLOURS = {"ok": GOOD, "warn": WARN, "fail": BAD, "unknown": WARN, "skipped": MUTED}
