"""How a plot is looked at: which part of the axis, on which scale, how smooth. A `View` is a value; a change gives a new one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Range = tuple[float, float]
Axis = Literal["step", "time"]

SMOOTHINGS = (0.0, 0.6, 0.9, 0.98)
"""Weights of the past in the smoothed line; the raw line stays visible below it."""
LEAST_SHARE = 1e-4
"""The deepest zoom, as a share of everything."""
HOUR_S = 3600.0


@dataclass(frozen=True)
class View:
    """``window`` is the part of the axis in sight, None for all of it; with ``follow`` it keeps its width and moves with
    the newest point. ``cursor`` is the place of the reading line, None where there is none."""

    axis: Axis = "step"
    window: Range | None = None
    follow: bool = True
    log: bool = False
    smoothing: float = 0.0
    clip: bool = False
    cursor: float | None = None
    blocks: bool = False

    def within(self, everything: Range) -> Range:
        """The range in sight, of ``everything`` that there is now."""
        if self.window is None:
            return everything
        low, high = self.window
        if self.follow:
            return max(everything[0], everything[1] - (high - low)), everything[1]
        return low, high

    def zoomed(self, factor: float, everything: Range) -> View:
        """A window ``factor`` times as wide, around the cursor where there is one, else around the newest point while
        following, else around the middle. As wide as everything is everything."""
        low, high = self.within(everything)
        whole = everything[1] - everything[0]
        width = max((high - low) * factor, whole * LEAST_SHARE)
        if whole <= 0 or width >= whole:
            return replace(self, window=None, follow=True)
        centre = self.cursor if self.cursor is not None else high if self.follow else (low + high) / 2
        share = (centre - low) / (high - low) if high > low else 0.5
        share = min(1.0, max(0.0, share))
        window = _inside((centre - share * width, centre + (1 - share) * width), everything)
        return replace(self, window=window, follow=self.follow and self.cursor is None)

    def panned(self, share: float, everything: Range) -> View:
        """Moved by ``share`` of its width; at the newest end it follows again."""
        if self.window is None:
            return self
        low, high = self.within(everything)
        window = _inside((low + share * (high - low), high + share * (high - low)), everything)
        return replace(self, window=window, follow=window[1] >= everything[1] and share > 0)

    def last(self, width: float) -> View:
        """The newest ``width`` of the axis, following."""
        return replace(self, window=(0.0, width), follow=True)

    def all(self) -> View:
        return replace(self, window=None, follow=True)

    def on(self, axis: Axis) -> View:
        """On another axis; window and cursor are places on the old one, so they go."""
        return self if axis == self.axis else replace(self, axis=axis, window=None, follow=True, cursor=None)

    def smoother(self) -> View:
        """The next smoothing, from the strongest back to none."""
        place = SMOOTHINGS.index(self.smoothing) if self.smoothing in SMOOTHINGS else 0
        return replace(self, smoothing=SMOOTHINGS[(place + 1) % len(SMOOTHINGS)])

    def moved(self, columns: int, width: int, everything: Range) -> View:
        """The cursor ``columns`` of ``width`` on; it appears at the newest point, and stays in sight."""
        low, high = self.within(everything)
        if self.cursor is None:
            return replace(self, cursor=high)
        return replace(self, cursor=min(high, max(low, self.cursor + columns * (high - low) / max(1, width))))

    def words(self) -> str:
        """What is not as usual, in a few words; empty where all is."""
        parts = []
        if self.window is not None:
            hour = self.axis == "time" and self.follow and self.window[1] - self.window[0] == HOUR_S
            parts.append("last hour" if hour else "zoomed" if self.follow else "zoomed, stays put")
        if self.log:
            parts.append("log")
        if self.smoothing:
            parts.append(f"smooth {self.smoothing:g}")
        if self.clip:
            parts.append("clipped")
        return ", ".join(parts)


def _inside(window: Range, everything: Range) -> Range:
    """The window, moved so that it lies inside everything; its width stays."""
    low, high = window
    if high > everything[1]:
        low, high = low - (high - everything[1]), everything[1]
    if low < everything[0]:
        low, high = everything[0], high + (everything[0] - low)
    return low, min(high, everything[1])
