"""The app's ears for news of readiness: each message to whoever keeps what it brings, then to the screen in front."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.fleet import Fleet

if TYPE_CHECKING:
    from tui import messages


class ReadinessNews(Fleet):
    """A part of `tui.app.ConsoleApp`."""

    def tell(self, text: str, severity: str = "information") -> None:
        raise NotImplementedError

    def present(self) -> None:
        raise NotImplementedError

    def _tell_catalog_problem(self) -> None:
        raise NotImplementedError

    def on_facts_arrived(self, message: messages.FactsArrived) -> None:
        self.checking.take_facts(message)
        self._tell_catalog_problem()
        self.present()

    def on_check_ended(self, message: messages.CheckEnded) -> None:
        self.checking.take_ended(message)
        self.launching.checked(message.spec_hash)
        self.present()

    def on_job_doing(self, message: messages.JobDoing) -> None:
        self.checking.take_doing(message)
        self.present()

    def on_deep_joined(self, message: messages.DeepJoined) -> None:
        self.tell(f"A deep check runs there already ({message.job}); it is listened to.", "warning")

    def on_deep_ended(self, message: messages.DeepEnded) -> None:
        self.checking.take_deep_ended(message)
        self.present()

    def on_remedy_answered(self, message: messages.RemedyAnswered) -> None:
        self.mending.answered(message)
        self.present()

    def on_build_ended(self, message: messages.BuildEnded) -> None:
        self.mending.build_ended(message)
        self.present()

    def on_report_read(self, message: messages.ReportRead) -> None:
        if (view := self.console_state.open_run) and view.run_id == message.run_id:
            view.take_report(message.text)
            self.present()
