"""A question whose answer may change something: no key answers it that was typed before a person can have read it."""

from __future__ import annotations

import time
from typing import TypeVar

from textual import events
from textual.screen import ModalScreen

from tui.keymap import everywhere_and_over

READ_S = 0.3
"""Seconds that a question stands, and that no key is pressed, before one can answer it. Who types ahead, or into what they
took for a field, presses the next key sooner."""
TOO_SOON = "too soon to be an answer; press it again"

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """One that may end by itself: also where another has come over it, which Textual would then close in its place."""

    _ended: tuple[Answer | None] | None = None

    def end(self, result: Answer | None = None) -> None:
        """Close it with ``result``, now or once it is in front again."""
        if self.app.screen is self:  # Textual calls one below another dialog current too
            self.dismiss(result)
        else:
            self._ended = (result,)

    def on_screen_resume(self) -> None:
        if self._ended is not None:
            self.call_later(self._end_now)

    def _end_now(self) -> None:
        if self._ended is not None and self.app.screen is self:
            self.dismiss(self._ended[0])


class Question(Dialog[Answer]):
    """`takes` says whether a key counts; the app asks it before it hands a key on. ``harmless``: keys that change nothing."""

    read_s = READ_S
    _quiet_since: float | None = None
    """When it was painted, or a key came that was none for it; None before the first picture."""
    _refused = False
    """Whether the last key came too soon: the foot says so until one counts."""

    def harmless(self) -> frozenset[str]:
        return frozenset({"escape"}) | everywhere_and_over()

    def foot(self) -> str:
        """What stands in the frame below."""
        return ""

    def show_foot(self) -> None:
        self.query_one("#dialog").border_subtitle = TOO_SOON if self._refused else self.foot()

    def on_screen_resume(self) -> None:
        """It has come to the front: what is typed counts once it was painted."""
        self._quiet_since = None
        self.call_after_refresh(self._painted)

    def _painted(self) -> None:
        self._quiet_since = time.monotonic()

    def takes(self, event: events.Key) -> bool:
        """Whether the key was pressed by somebody who can have read the question. What comes too soon is said, and dropped."""
        if event.key in self.harmless():
            return True
        self._refused = self._quiet_since is None or event.time - self._quiet_since < self.read_s
        if self._quiet_since is not None:
            # Once it was read nothing is too soon any more.
            self._quiet_since = max(self._quiet_since, event.time) if self._refused else 0.0
        for dialog in self.query("#dialog"):  # none yet where the key was typed before the first picture
            dialog.border_subtitle = TOO_SOON if self._refused else self.foot()
        return not self._refused
