"""Recording what the console receives, begun and ended by a key or by the command line; and saying that this is a replay."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.message import Message

from tui import messages
from tui.fleet import Fleet
from tui.formats import bytes_label

if TYPE_CHECKING:
    from tui.recording import Recorder

SECRET_NAMES = ("TOKEN", "SECRET", "PASSWORD", "API_KEY")
"""Ends of names of variables whose values are secrets."""


class Taping(Fleet):
    """A part of `tui.app.ConsoleApp`. ``replay_of`` names what is played, where this is a replay."""

    clock: Callable[[], float]
    recorder: Recorder | None = None
    cut = ""
    """Why a recording that is replayed breaks off; empty where it was ended in order."""
    replay_of = ""

    @property
    def ended_words(self) -> str:
        """How a replay stands: playing, or why there is no more of it."""
        if not getattr(self.clock, "at_end", False):
            return "Nothing here is live."
        return self.cut or "It has ended."

    def tell(self, text: str, severity: str = "information") -> None:
        raise NotImplementedError

    def present(self) -> None:
        raise NotImplementedError

    def action_record(self) -> None:
        """Begin a recording in the current folder, or end the one under way."""
        if self.replay_of:
            self.tell("This is a replay; it is recorded already.", "warning")
        elif self.recorder is not None:
            self.end_recording()
        else:
            self.begin_recording(Path(time.strftime("eagle3-%Y%m%d-%H%M%S.recording", time.localtime(self.clock()))))

    def begin_recording(self, path: Path) -> None:
        """Record into ``path`` from now on, beginning with how things stand."""
        from tui.recording import Recorder  # with half of the link: not before the first picture

        try:
            path = path.absolute()  # of a folder that may be gone
            self.recorder = Recorder(path, self.clock, list(self.members), self.front.console.poll_s, self._secrets)
        except OSError as error:
            self.tell(f"{path} cannot be recorded to: {error.strerror or error}; name another file.", "error")
            return
        self.tell(f"Recording into {path}.")
        for member in self.members.values():
            self.record(member.name, messages.LinkChanged(member.console.link))
            if (probe := member.console.probe.value) is not None and member.console.runs_known:
                self.record(member.name, messages.ProbeArrived(probe, self.clock()))
        if view := self.front.console.open_run:
            self.front.session.follow(view.run_id)  # from its beginning: news are only what is new
        self.present()

    def _secrets(self) -> list[str]:
        """Values that a recording must not hold, whatever they look like: of this environment, and of runs started here."""
        here = [value for name, value in os.environ.items() if name.upper().endswith(SECRET_NAMES) and value]
        return here + [value for member in self.members.values() for value in member.session.secret_values()]

    def record(self, host: str, news: Message) -> None:
        """Write a piece of news, while a recording is under way."""
        if self.recorder is None:
            return
        try:
            self.recorder.take(host, news)
        except OSError as error:
            path, self.recorder = self.recorder.path, None
            self.tell(f"The recording {path} ended: {error.strerror or error}. What it holds can be replayed.", "error")
        else:
            if self.recorder.full:
                self.end_recording(", as long as a recording may be")

    def end_recording(self, why: str = "") -> None:
        """End the recording in order and say where it is."""
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return
        try:
            recorder.close(why)
            size = bytes_label(recorder.path.stat().st_size)
        except OSError as error:
            self.tell(f"The recording {recorder.path} could not be ended in order: {error.strerror or error}.", "error")
        else:
            self.tell(f"Recorded {size}{why}: eagle3-tui replay {recorder.path}")
        self.present()

    def taping_words(self) -> list[str]:
        """What the title says of it on every screen."""
        words: list[Any] = ["replay" if self.replay_of else "", "recording" if self.recorder else ""]
        return [word for word in words if word]
