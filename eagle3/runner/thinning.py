"""A long file of metric rows seen in a few: what a first picture of 10^6 rows is made from.

The file is read once, in pieces. For each of ``target / 2`` stretches of it and each kind of row (attempt, stage, split)
the rows of the smallest and the largest loss are kept, so a spike stays a spike; a kind with few rows, such as held-out
ones, is kept whole; the first and the last row of each kind are always there. Rows are picked by their text and passed on
as they are. After ``LIMIT_S`` only the beginning of each further stretch is read, and the answer says so.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

PIECE_BYTES = 1 << 20
HASTE_BYTES = 1 << 15
"""What is read of a stretch once time is up."""
LIMIT_S = 8.0
KINDS = 256
LEAST_STRETCH_BYTES = 4096

Kind = bytes
Row = Tuple[int, bytes]
"""Its number in the file, and its text."""
Group = Tuple[List[Tuple[float, int]], List[int]]
"""Rows of one kind in a piece: (loss, index) of those that have a loss, and the indexes of all."""


class Picture:
    """The rows kept (in the order of the file), ``seen`` rows in all, and where reading ended. ``hasty``: rows were passed
    over unseen."""

    def __init__(self, lines: List[bytes], seen: int, end: int, hasty: bool) -> None:
        self.lines, self.seen, self.end, self.hasty = lines, seen, end, hasty


def picture(
    descriptor: int, start: int, size: int, target: int, *, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.monotonic
) -> Picture:
    """The whole lines between the offsets ``start`` and ``size``, thinned to about ``target`` a kind."""
    end = _last_line_end(descriptor, start, size)
    stretches = max(1, target // 2)
    width = max(LEAST_STRETCH_BYTES, -(-(end - start) // stretches))
    keeper = _Keeper(target)
    due, hasty, at = clock() + limit_s, False, start
    while at < end:
        stop = min(end, at + width)
        hurry = clock() > due
        begun = at
        while at < stop:
            # A line belongs to the stretch that it begins in, so the last piece may reach over its end.
            lines, after = _lines(descriptor, at, min(HASTE_BYTES if hurry else PIECE_BYTES, stop - at), end)
            keeper.take(lines)
            at = after
            if hurry:
                break
        keeper.next_stretch()
        if hurry and at < stop:
            hasty = True
            at = _line_start(descriptor, begun + width, end)
    return Picture(keeper.lines(), keeper.seen, end, hasty)


class _Keeper:
    def __init__(self, target: int) -> None:
        self._target = target
        self._all: Dict[Kind, Optional[List[Row]]] = {}
        self._first: Dict[Kind, Row] = {}
        self._last: Dict[Kind, Row] = {}
        self._extremes: Dict[Kind, List[Any]] = {}
        self._picked: Dict[Kind, List[Row]] = {}
        self.seen = 0

    def take(self, lines: List[bytes]) -> None:
        """The next lines of the file."""
        rows = [line for line in lines if line]
        try:
            groups = _all_alike(rows)
        except ValueError:
            groups = _one_by_one(rows)
        for kind, (losses, indexes) in groups.items():
            if kind not in self._first and len(self._first) >= KINDS:
                kind = b"more kinds than are told apart"
            self._first.setdefault(kind, (self.seen + indexes[0], rows[indexes[0]]))
            self._last[kind] = (self.seen + indexes[-1], rows[indexes[-1]])
            few = self._all.setdefault(kind, [])
            if few is not None:
                few.extend((self.seen + index, rows[index]) for index in indexes[: self._target + 1])
                if len(few) > self._target:
                    self._all[kind] = None
            if losses:
                (low, at_low), (high, at_high) = min(losses), max(losses)
                held = self._extremes.get(kind)
                if held is None:
                    held = self._extremes[kind] = [low, None, high, None]
                if held[1] is None or low < held[0]:
                    held[:2] = [low, (self.seen + at_low, rows[at_low])]
                if held[3] is None or high > held[2]:
                    held[2:] = [high, (self.seen + at_high, rows[at_high])]
            elif kind not in self._extremes:
                row = (self.seen + indexes[0], rows[indexes[0]])
                self._extremes[kind] = [math.inf, row, -math.inf, row]
        self.seen += len(rows)

    def next_stretch(self) -> None:
        """What comes now belongs to the next stretch."""
        for kind, held in self._extremes.items():
            self._picked.setdefault(kind, []).extend((held[1], held[3]))
        self._extremes.clear()

    def lines(self) -> List[bytes]:
        """Everything kept, in the order of the file."""
        rows: Set[Row] = set()
        for kind, few in self._all.items():
            rows.update(self._picked.get(kind, ()) if few is None else few)
            rows.update((self._first[kind], self._last[kind]))
        return [line for _, line in sorted(rows)]


def _all_alike(rows: List[bytes]) -> Dict[Kind, Group]:
    """The rows by kind, where they are spelled as the journal spells them: by far the quickest. Raises ValueError for others."""
    heads = {row[: row.find(b'"seq":')] for row in rows}
    if len(heads) != 1:
        raise ValueError("several attempts")
    (head,) = heads
    values = [float(row[(at := row.find(b'"loss":')) + 7 : row.find(b",", at)]) for row in rows]
    stages = [row[row.find(b'"stage":') : row.find(b'"step":')] for row in rows]
    groups: Dict[Kind, Group] = {stage: ([], []) for stage in set(stages)}
    if not head.startswith(b"{") or not all(stage.startswith(b'"stage":') for stage in groups):
        raise ValueError("spelled otherwise")
    for index, stage in enumerate(stages):
        losses, indexes = groups[stage]
        losses.append((values[index], index))
        indexes.append(index)
    return {head + stage: group for stage, group in groups.items()}


def _one_by_one(rows: List[bytes]) -> Dict[Kind, Group]:
    groups: Dict[Kind, Group] = {}
    for index, row in enumerate(rows):
        kind, loss = _kind_and_loss(row)
        losses, indexes = groups.setdefault(kind, ([], []))
        indexes.append(index)
        if loss is not None and math.isfinite(loss):
            losses.append((loss, index))
    return groups


def _kind_and_loss(line: bytes) -> Tuple[Kind, Optional[float]]:
    """By the text where it is spelled as the journal spells it, else by reading the row."""
    head, stage, loss = line.find(b'"seq":'), line.find(b'"stage":'), line.find(b'"loss":')
    step = line.find(b'"step":', stage) if stage >= 0 else -1
    if head > 0 and 0 <= stage < step:
        kind = line[:head] + line[stage:step]
        if loss < 0:
            return kind, None
        stop = line.find(b",", loss)
        try:
            return kind, float(line[loss + 7 : stop if stop >= 0 else line.rfind(b"}")])
        except ValueError:
            return kind, None
    try:
        row = json.loads(line.decode("utf-8"))
        value = row.get("loss")
        kind = f"{row.get('attempt')}/{row.get('stage')}/{row.get('split')}".encode("utf-8", "backslashreplace")
        return kind, float(value) if isinstance(value, (int, float)) else None
    except (ValueError, AttributeError, RecursionError):
        return b"unreadable", None


def _lines(descriptor: int, at: int, size: int, end: int) -> Tuple[List[bytes], int]:
    """The lines that begin in the ``size`` bytes from ``at``, which is the start of one; and where the next one begins."""
    content = os.pread(descriptor, size, at)
    if not content.endswith(b"\n"):
        rest: List[bytes] = []
        position = at + len(content)
        while position < end:
            part = os.pread(descriptor, min(8192, end - position), position)
            newline = part.find(b"\n")
            rest.append(part if newline < 0 else part[: newline + 1])
            position += len(rest[-1])
            if newline >= 0 or not part:
                break
        content += b"".join(rest)
    if not content:
        return [], end  # it was truncated meanwhile: the next look tells
    lines = content.split(b"\n")
    return lines[:-1] if not lines[-1] else lines, at + len(content)


def _line_start(descriptor: int, offset: int, end: int) -> int:
    """The first start of a line at or after ``offset``."""
    position = offset - 1
    while position < end:
        part = os.pread(descriptor, min(8192, end - position), position)
        newline = part.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        if not part:
            break
        position += len(part)
    return end


def _last_line_end(descriptor: int, start: int, size: int) -> int:
    position = size
    while position > start:
        begin = max(start, position - 8192)
        newline = os.pread(descriptor, position - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        position = begin
    return start
