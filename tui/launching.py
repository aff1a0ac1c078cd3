"""What the operator asks of runs: launch, stop, resume. Each after one confirmation, and one more where the host is not ready."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text

from eagle3.core.presets import SpecError
from eagle3.core.readiness.words import CHECK_WORDS, VERDICT_STATUS
from eagle3.core.spec import RunSpec
from remote.ask import SecretQuestion
from tui import expect, messages, plan
from tui.forking import Fork
from tui.formats import age_label, duration_label, one_line
from tui.login import ask_secret
from tui.readiness import RED_S, Readiness
from tui.run_secrets import SecretError, values_of
from tui.screens.confirm import Choice, Confirm
from tui.themes.palette import CHECK_COLOURS, MUTED, WARN

if TYPE_CHECKING:
    from tui.app import ConsoleApp

NAMED = 4
"""Failing checks that the second question names one by one."""


@dataclass(frozen=True)
class Wanted:
    """A confirmed launch that waits for the answer of a check."""

    spec: RunSpec
    run_id: str
    secret_names: tuple[str, ...] = ()
    fork: Fork | None = None

    @property
    def taken(self) -> tuple[str, ...]:
        """The stages that it takes over from another run."""
        return self.fork.plan.takes if self.fork is not None else ()


class Launching:
    """The questions before a launch, a stop and a resume; what they lead to is the session's work."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self._waiting: Wanted | None = None

    def pilot(self) -> None:
        """Launch the pilot. What is half-typed in the form does not stand in the way where another screen is in front."""
        choices = self._app.choices.with_size("pilot")
        if not self._app.form_in_front():
            try:
                plan.resolve(choices)
            except SpecError:
                places = {name: choices.typed[name] for name in ("workspace", "worker_python") if name in choices.typed}
                choices = replace(plan.first_choices(), machine=choices.machine, typed=places)
        self.launch(choices)

    def launch(self, choices: plan.Choices) -> None:
        """One confirmation, one run id, one launch: asking again under that id never starts a second run.

        Readiness is asked again where it is old, red or was judged for another spec, while the question stands.
        """
        app = self._app
        if not app.may_change():
            return
        if app.console_state.launching:
            app.tell(f"{app.console_state.launching} is being launched; wait for its answer.", "warning")
            return
        try:
            spec = plan.launchable(choices)
        except SpecError as error:
            # Where the form is in front, what cannot be resolved stands there in red already.
            if not app.form_in_front() or plan.resolves(choices):
                app.tell(f"{error} Press 3 to mend it.", "error")
            return
        run_id = plan.new_run_id(spec.size, app.clock())
        names = [*plan.secret_names(choices), *filter(None, [spec.alerts.webhook_env])]
        rows = expect.launch_rows(app.console_state, spec, run_id, names, expect.as_of(app.console_state, app.clock()))
        self._ask(f"Launch the {spec.size}?", rows, Choice("launch", "y", "Launch"), Wanted(spec, run_id, tuple(names)))

    def _ask(self, title: str, rows: list[tuple[str, str]], yes: Choice, wanted: Wanted) -> None:
        """The one confirmation, with the readiness of what is wanted as it comes in."""
        app = self._app
        view = app.checking.view(wanted.spec, wanted.taken)
        if view.due(app.clock()):
            app.checking.ask(view)
        note = "It runs in the container and goes on when the console is closed."
        live = ("Readiness", lambda: readiness_words(view, app.clock()))

        def answered(answer: str | None) -> None:
            if answer and not app.console_state.launching:
                app.console_state.launching = wanted.run_id
                self._waiting = wanted
                asked_s = app.clock() - (view.asked_at or 0.0)
                if view.due(app.clock()) and asked_s > RED_S:
                    app.checking.ask(view)  # the question has stood for long
                self.checked(wanted.spec.hash)
                if self._waiting is wanted and app.console_state.link.status not in {"up", "degraded"}:
                    app.tell(f"{app.console_state.host} does not answer; {wanted.run_id} has not started yet.", "warning")
                app.present()

        app.ask_once(Confirm(title, rows, [yes, Choice("", "escape", "Cancel")], note, live), answered)

    def fork(self) -> None:
        """Ask where to fork the open run and what to change, then confirm what that takes over."""
        from tui.screens.fork import ForkScreen

        app = self._app
        view = app.console_state.open_run
        if view is None or not app.may_change():
            return
        if app.console_state.launching:
            app.tell(f"{app.console_state.launching} is being launched; wait for its answer.", "warning")
            return
        app.ask_once(ForkScreen(view.run_id, app.session.workspace), lambda fork: self._confirm_fork(fork) if fork else None)
        app.session.ask_forkable(view.run_id)

    def _confirm_fork(self, fork: Fork) -> None:
        app = self._app
        run_id = plan.new_run_id(f"{fork.spec.size}-fork", app.clock())
        free = expect.free_words(app.console_state.probe.value, fork.spec, fork.plan.takes)
        rows = fork.rows(app.console_state.host, run_id, free)
        wanted = Wanted(fork.spec, run_id, fork.secrets, fork)
        self._ask(f"Fork {fork.parent}?", rows, Choice("fork", "y", "Fork"), wanted)

    def note(self) -> None:
        """Add one line to the notes of the open run, with the time and who wrote it."""
        from tui.screens.note import NoteScreen

        app = self._app
        view = app.console_state.open_run
        if view is None or not app.may_change():
            return

        lines: dict[str, str] = {}

        def add(words: str) -> str:
            """The same words again are the same line: an answer may have been lost, and no line is to stand there twice."""
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(app.clock()))
            line = lines.setdefault(words, f"- {stamp} {app.session.actor or 'somebody'}: {words}")
            app.session.add_note(view.run_id, line)
            return line

        app.ask_once(NoteScreen(view.run_id, add))

    def checked(self, spec_hash: str) -> None:
        """Go on with a confirmed launch once the check of its spec has ended: at once where nothing stands against it, after
        a second question that names what does."""
        wanted = self._waiting
        if wanted is None or wanted.spec.hash != spec_hash:
            return
        view = self._app.checking.view(wanted.spec, wanted.taken)
        if view.asking is not None:
            return
        self._waiting = None
        if view.report is not None and not view.red and not view.problem:
            self._go(wanted, view)
        else:
            self._ask_anyway(wanted, view)

    def _go(self, wanted: Wanted, view: Readiness) -> None:
        report = view.report.model_dump(mode="json") if view.report else None
        self._app.run_worker(self._launch(wanted, report))

    async def _launch(self, wanted: Wanted, report: dict[str, Any] | None) -> None:
        """Ask for the secrets that this environment lacks, then launch."""

        async def ask(name: str) -> str | None:
            return await ask_secret(self._app, SecretQuestion(self._app.console_state.host, name, run_id=wanted.run_id))

        try:
            # The names of a fork's secrets are the container's word, which is no leave to send it variables of ours.
            environment: dict[str, str] | None = None if wanted.fork is None else {}
            secrets = await values_of(wanted.secret_names, ask, environment)
        except SecretError as error:
            self._app.post_message(messages.AskFailed(f"Launching {wanted.run_id}", str(error)))
            return
        self._app.session.move(wanted.spec.workspace)
        if wanted.fork is not None:
            self._app.session.fork(wanted.fork, wanted.run_id, secrets, report=report)
        else:
            self._app.session.launch(wanted.spec, wanted.run_id, secrets, report=report)

    def _ask_anyway(self, wanted: Wanted, view: Readiness) -> None:
        app = self._app
        buttons = [
            Choice("look", "2", "Look at it", safe=True),
            Choice("anyway", "a", "Launch anyway", danger=True),
            Choice("", "escape", "Cancel"),
        ]

        def answered(answer: str | None) -> None:
            if answer == "anyway":
                self._go(wanted, view)
                return
            app.console_state.launching = ""
            app.present()
            if answer == "look":
                app.checking.look_at(wanted.spec)

        title = f"{'Not ready' if view.red else 'Readiness is not known'}: launch the {wanted.spec.size} anyway?"
        app.ask_over(Confirm(title, against(view), buttons, "The run records the report that it is started under."), answered)

    def stop(self) -> None:
        app = self._app
        view = app.console_state.open_run
        if view is None or view.ended or not app.may_change():
            return
        rows = [("Run", view.run_id), ("Host", app.console_state.host)]
        buttons = [
            Choice("after-checkpoint", "c", "After the checkpoint"),
            Choice("now", "n", "Now", danger=True),
            Choice("", "escape", "Keep running"),
        ]
        note = "What is whole on disk stays; the run can be resumed."
        app.ask_once(
            Confirm("Stop the run?", rows, buttons, note), lambda mode: app.session.stop(view.run_id, mode) if mode else None
        )

    def control(self, action: Literal["pause", "go-on", "checkpoint"]) -> None:
        """Ask the open run, while it lives, to hold, to go on or to save."""
        view = self._app.console_state.open_run
        if view is not None and not view.ended and self._app.may_change():
            self._app.session.control(view.run_id, action)

    def pause(self) -> None:
        """Hold the open run after one confirmation; let a held one go on at once."""
        app = self._app
        view = app.console_state.open_run
        if view is None or view.ended or not app.may_change():
            return
        if view.summary is not None and view.summary.paused_at is not None:
            app.session.control(view.run_id, "go-on", view.summary.pauses_to_lift())
            return
        rows = [("Run", view.run_id), ("Host", app.console_state.host)]
        buttons = [Choice("pause", "y", "Pause"), Choice("", "escape", "Keep running")]
        note = "It holds after the work under way, saved. Its memory, servers and GPUs stay its own; stopping frees them."
        app.ask_once(Confirm("Pause the run?", rows, buttons, note), lambda answer: self.control("pause") if answer else None)

    def dump(self) -> None:
        view = self._app.console_state.open_run
        if view is not None and not view.ended and self._app.may_change():
            self._app.session.dump(view.run_id)

    def resume(self) -> None:
        app = self._app
        view = app.console_state.open_run
        if view is None or not view.resumable or app.console_state.launching or not app.may_change():
            return
        done = ", ".join(view.summary.stages) if view.summary and view.summary.stages else "none"
        rows = [("Run", view.run_id), ("Host", app.console_state.host), ("State", view.state), ("Done", done)]

        def answered(answer: str | None) -> None:
            if answer:
                app.console_state.launching = view.run_id
                app.session.resume(view.run_id)

        buttons = [Choice("resume", "y", "Resume"), Choice("", "escape", "Cancel")]
        app.ask_once(Confirm("Resume the run?", rows, buttons, "Finished stages are kept; the rest runs again."), answered)


def readiness_words(view: Readiness, now: float) -> Text:
    """The verdict for one spec with its age in a line, or why there is none."""
    if view.asking is not None:
        return Text(f"◌ checking… {duration_label(now - view.asking_since)}", MUTED)
    if view.problem:
        return Text(f"? could not be checked: {one_line(view.problem)}", WARN)
    if view.report is None:
        return Text("not checked yet", MUTED)
    status = VERDICT_STATUS[view.report.verdict]
    words = f"{CHECK_WORDS[status][0]} {view.report.verdict}, {age_label(view.age(now))}"
    if status != "ok":
        words = f"{words}: {one_line(view.report.verdict_text)}"
    return Text(words, CHECK_COLOURS[status])


def against(view: Readiness) -> list[tuple[str, str]]:
    """What stands against a launch, for the second question: each failing check with its evidence, or why nothing is known."""
    if not view.red or view.report is None:
        return [("Check", view.problem or "no answer yet")]
    failing = [check for check in view.report.checks if check.status == "fail"]
    rows = [(one_line(check.id, 40), one_line(check.evidence or check.title, 200)) for check in failing[:NAMED]]
    return (
        [*rows, ("…", f"{len(failing) - NAMED} more")] if len(failing) > NAMED else rows or [("Check", "nothing was looked at")]
    )
