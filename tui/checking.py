"""Readiness as the operator asks for it: checks, deep checks and remedies, and the views that hold what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eagle3.core.presets import SpecError
from eagle3.core.readiness.report import Check, Report
from eagle3.core.spec import RunSpec
from tui import messages, plan
from tui.readiness import OLD_S, Deep, Readiness, sections_of
from tui.screens.confirm import Choice, Confirm

if TYPE_CHECKING:
    from tui.app import ConsoleApp

VIEWS_KEPT = 12
"""Specs whose readiness is kept at hand; each keystroke in the Launch form makes another spec."""
RETRY_S = 30.0
"""Seconds before something that brought no answer is asked again without being told to."""


def judged(facts: Mapping[str, Any], view: Readiness) -> Report:
    """The report on what is known. What a deep check has not come to yet is skipped; what it left out is unknown."""
    from eagle3.core.readiness.judge import judge  # every check with it: not before the first picture

    found = judge(
        facts, view.spec, host=view.host, deep=view.deep_ended, local_now=facts.get("local_now"),
        round_trip_s=facts.get("round_trip_s"),
    )  # fmt: skip
    deep = any(name.startswith("deep.") for name in facts)
    return found.model_copy(update={"deep": deep, "about": {**found.about, "spec": view.spec.hash}})


class Checking:
    """Owns the views; ``picked`` is what the Readiness screen was told to judge for, where that is not what Launch has."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self._views: dict[str, Readiness] = {}
        self.picked: dict[str, str] = {}
        self._settling = ("", 0.0)

    # --- what is looked at

    def choices(self) -> plan.Choices:
        return replace(self._app.choices, **self.picked)  # type: ignore[arg-type]

    def pick(self, field: str, value: str) -> None:
        """Judge for another size, target or machine from now on; what equals Launch's choice follows it again."""
        self.picked.pop(field, None)
        if value != getattr(self._app.choices, field):
            self.picked[field] = value

    def current(self) -> tuple[Readiness | None, str]:
        """The view of what is chosen, or the sentence that says why there is none."""
        try:
            return self.view(plan.resolve(self.choices())), ""
        except SpecError as error:
            return None, str(error)

    def view(self, spec: RunSpec, taken: tuple[str, ...] = ()) -> Readiness:
        """What is known for ``spec``, which takes the stages ``taken`` over: from this session, or from the catalog."""
        found = self._views.pop(spec.hash, None)
        if found is None or found.taken != taken:
            found = Readiness(spec, self._app.console_state.host, taken)
            catalog = self._app.catalog
            if catalog is not None and (kept := catalog.report(found.host, spec.workspace, spec.hash)) is not None:
                found.remember(*kept)
        self._views[spec.hash] = found
        for old in [key for key, view in self._views.items() if view.asking is None and view.deep is None][:-VIEWS_KEPT]:
            del self._views[old]
        return found

    def look_at(self, spec: RunSpec) -> None:
        """Show the readiness of ``spec``."""
        for field, value in (("size", spec.size), ("target", spec.target.name), ("machine", spec.machine)):
            self.pick(field, value)
        self._app.action_go("readiness")

    # --- asking

    def ask(self, view: Readiness, checks: list[Check] | None = None) -> None:
        """Ask for the light facts again: all, or those of some checks. Deep ones among them are asked by a deep check."""
        if checks is not None and checks and all(check.deep for check in checks):
            self.ask_deep(view, checks)
            return
        if view.asking is not None:
            return
        sections = sections_of([check for check in checks if not check.deep]) if checks is not None else ()
        view.asking, view.asking_since, view.problem = ", ".join(sections), self._app.clock(), ""
        view.asked_at = view.asking_since
        self._app.session.check(view.spec, sections, view.taken)
        self._app.present()

    def ask_deep(self, view: Readiness, checks: list[Check] | None = None) -> None:
        """A deep check, after a confirmation that says what it costs the machine."""
        app = self._app
        if not app.may_change():
            return
        if (busy := self.deep_view()) is not None:
            app.tell(f"A deep check or a build is under way for the {busy.spec.size}; s stops it.", "warning")
            return
        sections = sections_of(checks) if checks is not None else ()
        rows = [
            ("Host", app.console_state.host),
            ("Judged for", f"{view.spec.size} · {view.spec.target.name} · {view.spec.machine}"),
            ("Runs", ", ".join(sections) if sections else "every deep probe, one after another"),
            ("Takes", "some minutes; each probe ends at its own limit"),
            ("Uses", "the run's own environments, free devices, and a server of its own that it ends"),
        ]
        buttons = [Choice("deep", "y", "Check"), Choice("", "escape", "Cancel")]

        def answered(answer: str | None) -> None:
            if answer:
                view.deep, view.deep_ended, view.problem = Deep(app.clock()), False, ""
                app.session.deep_check(view.spec, sections)
                app.present()

        app.ask_once(Confirm("Run the deep checks?", rows, buttons, "It goes on when the link drops; s stops it."), answered)

    def deep_view(self) -> Readiness | None:
        """The view whose deep check, or build of an environment, is under way."""
        return next((view for view in self._views.values() if view.deep is not None), None)

    def stop_deep(self) -> None:
        """Stop the deep check or the build under way."""
        if (view := self.deep_view()) is not None and view.deep is not None and not view.deep.stopping:
            view.deep = replace(view.deep, stopping=True)
            self._app.session.stop_job()
            self._app.present()

    def keep_fresh(self, view: Readiness, settle_s: float = 0.0) -> None:
        """Ask by ourselves what was never asked or is old, once the choice has stood for ``settle_s`` and while the link
        is up. After a failure only now and then."""
        app = self._app
        now = app.clock()
        if self._settling[0] != view.spec.hash:
            self._settling = (view.spec.hash, now)
        age = view.age(now)
        waits = now - self._settling[1] < settle_s or (view.asked_at is not None and now - view.asked_at < RETRY_S)
        if view.asking is None and not waits and (age is None or age > OLD_S) and app.console_state.link.status == "up":
            self.ask(view)

    # --- answers

    def take_facts(self, message: messages.FactsArrived) -> None:
        view = self._views.get(message.spec_hash)
        if view is None:
            return
        if view.deep is not None:
            done = sum(name.startswith("deep.") for name in message.facts)
            view.deep = replace(view.deep, done=view.deep.done + done)
        view.take(message.facts, message.at, judged)
        self._keep(view)

    def take_ended(self, message: messages.CheckEnded) -> None:
        if (view := self._views.get(message.spec_hash)) is not None:
            view.asking, view.problem = None, message.problem

    def take_doing(self, message: messages.JobDoing) -> None:
        view = self._views.get(message.spec_hash)
        if view is not None:
            now = self._app.clock()
            view.deep = replace(view.deep or Deep(now), doing=message.doing, since=now, limit_s=message.limit_s)

    def take_deep_ended(self, message: messages.DeepEnded) -> None:
        view = self._views.get(message.spec_hash)
        if view is None:
            return
        stopped = view.deep is not None and view.deep.stopping
        view.deep, view.problem = None, "" if stopped else message.problem
        self._app.tell("The deep check was stopped." if stopped else message.problem or "The deep check has ended.")
        # A check that was stopped has skipped the rest; one that broke off owes an answer for it.
        view.deep_ended = not stopped
        if view.facts:
            view.judge_again(judged)
            self._keep(view)

    def _keep(self, view: Readiness) -> None:
        catalog = self._app.catalog
        if catalog is not None and view.report is not None and view.light_at is not None:
            catalog.save_report(view.host, view.spec.workspace, view.spec.hash, view.report, view.ages, view.light_at)

    # --- taking away

    def copy_command(self, check: Check) -> None:
        """The command of a check's remedy to the clipboard."""
        if check.action is not None and check.action.command:
            self._app.copy_to_clipboard(check.action.command)
            self._app.tell("Copied the command of the remedy.")
        elif check.remedy:
            self._app.copy_to_clipboard(check.remedy)
            self._app.tell("Copied the remedy.")
