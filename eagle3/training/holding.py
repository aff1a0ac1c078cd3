"""Holding a training on all its ranks at once: while its run is paused, and while there is no room for a checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from eagle3.stages.context import StageContext, StageError
from eagle3.stages.hold import Hold
from eagle3.stages.room import DiskRoom
from eagle3.training.group import Group

POLL_S = 0.2


@dataclass(frozen=True)
class Room:
    """What a wait for room has come to: "free", "waits" (still), "stop" (somebody asked for one while it waited) or "over" (it
    took too long: ``why``). ``fits``: a checkpoint can be written, be it below the floor. ``paused``: the run is, meanwhile."""

    state: Literal["free", "waits", "stop", "over"]
    fits: bool
    paused: bool = False
    why: str = ""


class Holding:
    """Rank 0 looks, tells and decides; all ranks hold. Its methods are collective."""

    def __init__(self, ctx: StageContext, group: Group) -> None:
        self._ctx, self._group = ctx, group
        self._hold = Hold(ctx, "train", "steps")
        self._hold.total = ctx.spec.train.max_steps
        self._room = DiskRoom(ctx, self._hold, needs="the next checkpoint needs", who="The training")

    def while_paused(self, step: int) -> None:
        """Hold until the run goes on or is to stop; the caller looks for the stop."""
        self._hold.done = step
        while self._group.agree(lambda: self._hold() and not self._ctx.stop_requested()):
            time.sleep(POLL_S)

    def for_room(self, step: int, more_bytes: int) -> Room:
        """Hold until there is room for so much, a stop is asked for, or ``guards.disk_wait_s`` is over.

        The steps that are not saved yet are worth hours of all GPUs: what the caller does about them where there is no room
        within the floor follows from ``fits``.
        """
        self._hold.done = step
        while (found := self._group.agree(lambda: self._look(more_bytes))).state == "waits":
            time.sleep(POLL_S)
        return found

    def _look(self, more_bytes: int) -> Room:
        fits = self._room.fits_below_the_floor(more_bytes)
        if self._room.short(more_bytes) and self._ctx.stop_requested():
            return Room("stop", fits)
        try:
            free = self._room.take(more_bytes)
        except StageError as error:
            return Room("over", fits, why=str(error))
        if not free:
            self._hold()  # a pause is told, and its time is none of the wait's
            return Room("waits", fits)
        self._room.give(more_bytes)
        return Room("free", fits=True, paused=self._hold.paused)
