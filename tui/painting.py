"""Sends to the terminal only what differs from what stands there.

Textual paints every widget whole that has changed anywhere: an age of four letters in a border repaints its box, and over
a day in tmux over SSH that is what there is to send. What was sent is remembered here row by row, piece by piece, and of a
partial update the pieces that stand there already are left out, in the others the segments at both ends that do. A full
update (another screen, a resize, coming back from a suspend) is sent whole and remembered anew.
"""

from __future__ import annotations

from itertools import takewhile

from rich.console import Console
from rich.control import Control
from rich.segment import Segment
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.strip import Strip


class Painted:
    """What stands on the terminal. A row is kept with the places at which its pieces end: where these are others, nothing
    of the row is known."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[tuple[int, ...], dict[int, Strip]]] = {}
        self.whole: tuple[object, Size] | None = None
        """What was painted whole last: of which screen, and in which size. Textual drops an update of a screen that has just
        given way, and with it may go the only whole picture in a new size."""

    def reduced(self, update: object, screen: object = None) -> object:
        """The update that has the same effect with fewer bytes. It is worked out when it is written, since an update may be
        dropped before that."""
        if type(update) is ChopsUpdate:
            return _Part(self, update)
        if type(update) is LayoutUpdate:
            return _Whole(self, update, screen)
        if update is not None:
            self._rows.clear()
        return update

    def forget(self) -> None:
        """Something else may have drawn there."""
        self._rows.clear()

    def take(self, y: int, ends: tuple[int, ...], x: int, strip: Strip) -> Strip | None:
        """Remember a piece; returns what stood there, None where that is not known."""
        known = self._rows.get(y)
        if known is None or known[0] != ends:
            known = self._rows[y] = (ends, {})
        old = known[1].get(x)
        known[1][x] = strip
        return old


def differing(old: Strip, new: Strip) -> tuple[int, list[Segment]]:
    """Where the first differing segment begins, in cells from the left, and the segments from there to the last that differs."""
    before, after = list(old), list(new)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    offset = sum(segment.cell_length for segment in after[:same])
    rest, stood = after[same:], before[same:]
    if sum(segment.cell_length for segment in rest) == sum(segment.cell_length for segment in stood):
        tail = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(reversed(stood), reversed(rest), strict=False)))
        rest = rest[: len(rest) - tail]
    return offset, rest


class _Part(CompositorUpdate):
    def __init__(self, painted: Painted, update: ChopsUpdate) -> None:
        self._painted, self._update = painted, update

    def render_segments(self, console: Console) -> str:
        update, out = self._update, []
        for y, x1, x2 in update.spans:
            ends = tuple(update.chop_ends[y])
            for end, (x, strip) in zip(ends, update.chops[y].items(), strict=False):
                # A piece beside the span may hold only the ground behind its widget, which was not asked for a picture.
                if strip is None or x >= x2 or end <= x1:
                    continue
                old = self._painted.take(y, ends, x, strip)
                if old is None:
                    out += [Control.move_to(x, y).segment.text, strip.render(console)]
                elif old != strip:
                    offset, segments = differing(old, strip)
                    out += [Control.move_to(x + offset, y).segment.text, Strip(segments).render(console)]
        return "".join(out)


class _Whole(CompositorUpdate):
    def __init__(self, painted: Painted, update: LayoutUpdate, screen: object) -> None:
        self._painted, self._update, self._screen = painted, update, screen

    def render_segments(self, console: Console) -> str:
        self._painted.forget()
        region = self._update.region
        self._painted.whole = self._screen, region.size
        rows = [[strip for strip in row if strip is not None] for row in self._update.strips]
        for y, row in enumerate(rows, region.y):
            places, x = [], region.x
            for strip in row:
                places.append(x)
                x += strip.cell_length
            ends = (*places[1:], x)
            for place, strip in zip(places, row, strict=True):
                self._painted.take(y, ends, place, strip)
        return LayoutUpdate(list(rows), region).render_segments(console)
