"""The colours, once: the theme that the style sheets use and the same values for text drawn line by line.

One accent; green, amber and red only ever repeat what a word and a symbol already say.
"""

from __future__ import annotations

from textual.theme import Theme

BACKGROUND = "#12161b"
SURFACE = "#171c22"
PANEL = "#2b343f"
TEXT = "#d8dee6"
MUTED = "#8593a3"
FAINT = "#44505d"
ACCENT = "#62c6c2"
FOCUS = "#3f7f86"
SERIES = (ACCENT, "#6aa5e0", "#a58fd8", "#8593a3")
"""Series in one plot, told apart by lightness too."""
GOOD = "#86c98e"
WARN = "#e5bb6b"
BAD = "#ea8079"

THEME = Theme(
    name="calm",
    primary=ACCENT,
    secondary=FOCUS,
    accent=ACCENT,
    foreground=TEXT,
    background=BACKGROUND,
    surface=SURFACE,
    panel=PANEL,
    success=GOOD,
    warning=WARN,
    error=BAD,
    dark=True,
    variables={
        "footer-background": SURFACE,
        "footer-key-foreground": ACCENT,
        "footer-description-foreground": MUTED,
        "block-cursor-background": "#24424a",
        "block-cursor-foreground": TEXT,
        "block-cursor-text-style": "none",
        "border": PANEL,
        "border-blurred": PANEL,
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
