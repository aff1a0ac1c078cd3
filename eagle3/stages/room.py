"""Waiting for space: a stage that writes much holds before the disk is at its floor, says so, and goes on when there is room."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from eagle3.core.wording import bytes_label, duration_label
from eagle3.runner.events import guard_record
from eagle3.stages.context import StageContext, StageError

if TYPE_CHECKING:
    from eagle3.stages.hold import Hold

SLACK = 0.1
"""Of the floor: so much more must be free before a stage that waited goes on, or it would stop again at once."""
_POLL_S = 0.2
TELL_BYTES = 1 << 20
"""Left free by what is written below the floor: events, rows and the log of the end."""


class DiskRoom:
    """Room for what is being written, counted before it is there. Nothing is freed: which files can go is for people to say.

    Told as a guard when the wait begins (so alerts take it) and in the progress while it lasts.
    """

    def __init__(
        self,
        ctx: StageContext,
        hold: Hold,
        *,
        clock: Callable[[], float] = time.monotonic,
        free_bytes: Callable[[], int] | None = None,
        needs: str = "the next states need",
        who: str = "Extract",
    ) -> None:
        self._ctx, self._hold, self._clock = ctx, hold, clock
        self._needs, self._who = needs, who
        self._free = free_bytes or (lambda: shutil.disk_usage(ctx.run_dir).free)
        self._since: float | None = None
        self._gave_up: StageError | None = None
        self._looked = self._waited_s = 0.0
        self._taken = 0

    def take(self, more_bytes: int) -> bool:
        """Reserve room for a file that is about to be written; false where there is none yet. ``give`` ends the reservation.

        Raises StageError once it has waited for ``guards.disk_wait_s``, without the time for which the run was paused.
        """
        floor = self._ctx.spec.disk_floor_bytes
        need = self._taken + more_bytes + (int(SLACK * floor) if self._since is not None else 0)
        free = self._free()
        if free - need >= floor:
            self._over(free)
            self._gave_up = None
            self._taken += more_bytes
            return True
        self._wait(free, need)
        return False

    def wait(self, more_bytes: int, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait until so much fits; nothing stays reserved. Raises StageError as ``take`` does, and Stopped on a stop."""
        while not self.take(more_bytes):
            self._ctx.check_stop()
            self._hold()  # a pause is told, and its time is none of the wait's
            sleep(_POLL_S)
        self.give(more_bytes)

    def give(self, more_bytes: int) -> None:
        """The file is there, or will not come."""
        self._taken -= more_bytes

    def short(self, more_bytes: int) -> bool:
        """Whether there is no room for so much now."""
        return self._free() - more_bytes < self._ctx.spec.disk_floor_bytes

    def fits_below_the_floor(self, more_bytes: int) -> bool:
        """Whether so much still goes onto the disk at all, with a little left to tell of it."""
        return self._free() >= (1 + SLACK) * more_bytes + TELL_BYTES

    def _wait(self, free: int, need: int) -> None:
        ctx, now = self._ctx, self._clock()
        floor, limit_s = ctx.spec.disk_floor_bytes, ctx.spec.guards.disk_wait_s
        state = (
            f"the disk of {ctx.run_dir} has {bytes_label(free)} free, {self._needs} {bytes_label(need)} and the run "
            f"keeps {bytes_label(floor)} free (disk_floor_bytes)"
        )
        if not limit_s:
            raise self._stop(f"{state[0].upper()}{state[1:]}.", free, need)
        if self._since is None:
            self._since = self._looked = now
            self._waited_s = 0.0
            goes_on = need + floor + int(SLACK * floor)
            action = (
                f"It goes on by itself at {bytes_label(goes_on)} free and gives up after {duration_label(limit_s)} "
                "(guards.disk_wait_s); `eagle3 prune --all` shows what could be freed."
            )
            counts = {"needed_bytes": need, "goes_on_bytes": goes_on}
            record = guard_record("disk", free, floor, counts, "pause", action)
            ctx.journal.event("guard-disk", f"Paused: {state}. {action}", level="warn", guard=record)
        self._waited_s += 0.0 if self._hold.paused else now - self._looked
        self._looked = now
        if self._waited_s > limit_s and not self._hold.paused:
            raise self._stop(f"There was no space for {duration_label(limit_s)} (guards.disk_wait_s): {state}.", free, need)
        reason = f"Paused for want of space: {bytes_label(free)} free of {bytes_label(need + floor)} needed."
        self._hold.because("space", reason)

    def _stop(self, found: str, free: int, need: int) -> StageError:
        """Told once, though many may wait: the others ask once more before the first one's error has ended them."""
        if self._gave_up is None:
            self._gave_up = self._ctx.disk_stop(found, free, need)
        return self._gave_up

    def _over(self, free: int) -> None:
        if self._since is None:
            return
        waited_s = self._clock() - self._since
        self._since = None
        self._hold.over("space")
        goes_on = self._hold.reason or f"{self._who} goes on after {waited_s:.0f} s."
        self._ctx.journal.event("resumed", f"There is space again, {bytes_label(free)}. {goes_on}")
