"""Readiness: whether a run can be started here, what is wrong, and what to do about it."""

from __future__ import annotations

import json

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.widgets import OptionList, Select, Static

from eagle3.core import presets
from eagle3.core.readiness.words import CHECK_WORDS, VERDICT_STATUS, WRONG, markdown
from tui import plan
from tui.checking import Checking
from tui.exporting import Tables
from tui.formats import age_label, duration_label, fit, moment_label, one_line
from tui.readiness import OLD_S, Deep, Folding, Readiness, Row, sections_of
from tui.screens.base import ConsoleScreen, bindings_of
from tui.state import Console
from tui.themes.palette import ACCENT, BAD, CHECK_COLOURS, MUTED, TEXT, WARN
from tui.widgets.check_detail import CheckDetail
from tui.widgets.checks import CheckList
from tui.widgets.panel import caption

FIELDS = {"size": "the size", "target": "the target", "machine": "the machine"}


def verdict_text(view: Readiness | None, problem: str, now: float, width: int) -> Text:
    """The verdict with its age, and the first thing to fix below: two lines of ``width`` columns."""
    if view is None:
        return Text(f"✗ {one_line(problem)} Press 3 to mend it.\n", BAD)
    if view.report is None:
        words = "Asking the container…" if view.asking is not None else "Nothing has been checked yet."
        return Text(f"{words}\n", MUTED)
    report = view.report
    status = VERDICT_STATUS[report.verdict]
    line = Text.assemble((f"{CHECK_WORDS[status][0]} {report.verdict}", f"bold {CHECK_COLOURS[status]}"))
    age = view.age(now)
    line.append(f" · {age_label(age)}", WARN if age is not None and age > OLD_S else MUTED)
    line.append(f" · {deep_age(view, now)}", MUTED)
    if view.asking is not None:
        line.append(f"   ◌ checking{f' {view.asking}' if view.asking else ''}… {duration_label(now - view.asking_since)}", ACCENT)
    line.append("\n" + fit(one_line(report.verdict_text), width), TEXT)
    return line


def deep_age(view: Readiness, now: float) -> str:
    """How old the deep part of the report is: "deep 3 min ago", "deep never"."""
    deep = [check for check in view.report.checks if check.deep and check.status != "skipped"] if view.report else []
    known = [age for check in deep if (age := view.age_of(check, now)) is not None]
    return f"deep {age_label(max(known))}" if known else "deep never"


def doing_text(view: Readiness | None, console: Console, now: float) -> Text:
    """A deep check under way, or why nothing new comes; empty where there is nothing to say."""
    if view is not None and view.deep is not None:
        return deep_text(view.deep, now)
    link = console.link
    if link.status in {"down", "refused"}:
        as_of = (
            f" As of {moment_label(view.light_at, now, '%H:%M:%S')}." if view is not None and view.light_at is not None else ""
        )
        return Text(f"✗ {one_line(link.reason) or 'The link is down.'}{as_of}", BAD)
    if view is not None and view.problem and view.asking is None:
        return Text(f"▲ {one_line(view.problem)}", WARN)
    return Text("")


def deep_text(deep: Deep, now: float) -> Text:
    """ "◌ deep.canary 12 s of at most 2 min 00 s · 5 answered · 1 min 02 s in all"."""
    if deep.stopping:
        return Text("◌ being stopped…", WARN)
    words = f"{one_line(deep.doing, 60)} {duration_label(now - deep.since)}" if deep.doing else "starting"
    if deep.doing and deep.limit_s is not None:
        words += f" of at most {duration_label(deep.limit_s)}"
    answered = f" · {deep.done} answered" if deep.doing.startswith("deep.") else ""
    return Text(f"◌ {words}{answered} · {duration_label(now - deep.began)} in all", ACCENT)


def busy_checks(view: Readiness | None) -> frozenset[str]:
    """The checks that are being asked again now."""
    if view is None or view.report is None:
        return frozenset()
    asked = None if view.asking is None else set(view.asking.split(", ")) if view.asking else set()
    doing = view.deep.doing if view.deep else ""
    found = set()
    for check in view.report.checks:
        needs = set(sections_of([check]))
        light = asked is not None and not check.deep and (not asked or needs & asked)
        if light or (doing and doing in needs):
            found.add(check.id)
    return frozenset(found)


class ReadinessScreen(ConsoleScreen):
    HERE = "readiness"
    BINDINGS = bindings_of("readiness")

    def __init__(self) -> None:
        super().__init__()
        self._folding = Folding()
        self._allowed: object = None

    @property
    def _checking(self) -> Checking:
        return self.console_app.checking

    def body(self) -> ComposeResult:
        choices = self._checking.choices()
        yield Static(id="verdict")
        with Horizontal(id="judged"):
            yield Static(Text("for", MUTED), classes="label")
            for name in FIELDS:
                options = plan.SIZES if name == "size" else presets.names(name)
                yield Select[str](
                    [(option, option) for option in options], value=getattr(choices, name), allow_blank=False, compact=True,
                    id=name, classes="pick",
                )  # fmt: skip
        yield Static(id="doing")
        with Container(id="split"):
            yield CheckList(id="checks")
            yield CheckDetail(id="detail")

    def on_mount(self) -> None:
        checks = self.query_one(CheckList)
        checks.border_title = "Checks"
        checks.focus()

    def present(self, console: Console, now: float) -> None:
        choices = self._checking.choices()
        for name in FIELDS:
            select = self.query_one(f"#{name}", Select)
            if select.value != getattr(choices, name) and not select.expanded:
                with self.prevent(Select.Changed):
                    select.value = getattr(choices, name)
        view, problem = self._checking.current()
        if view is not None:
            self._checking.keep_fresh(view)
        for name, text in (
            ("#verdict", verdict_text(view, problem, now, self.size.width - 4)),
            ("#doing", doing_text(view, console, now)),
        ):
            widget = self.query_one(name, Static)
            if widget.content != text:
                widget.update(text)
                widget.display = bool(text.plain)
        report = view.report if view is not None else None
        rows = self._folding.rows(report)
        checks = self.query_one(CheckList)
        checks.show(rows, busy_checks(view))
        wrong = sum(check.status in WRONG for check in report.checks) if report else 0
        words = f"{wrong} of {len(report.checks)} to look at" if report else ""
        caption(checks, subtitle=f"only what is wrong · {words}" if self._folding.only_wrong else words)
        self._tell(view, now)

    def _tell(self, view: Readiness | None, now: float) -> None:
        """Tell what is under the cursor, and offer the keys that it allows."""
        row = self.query_one(CheckList).current()
        check = row.check if row else None
        age_s = view.age_of(check, now) if view is not None and check is not None else None
        old = age_s is not None and age_s > OLD_S
        nothing = "Nothing is wrong." if view is not None and view.report is not None else "No answer yet."
        self.query_one(CheckDetail).show(row, age_s, old, nothing)
        deep = self._checking.deep_view() is not None
        allowed = (deep, view is not None and view.report is not None, check is not None and check.action is not None)
        if allowed != self._allowed:
            self._allowed = allowed
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what can be done now."""
        if not self._composed:
            return True
        if action in {"deep", "stop_deep"}:
            return (self._checking.deep_view() is not None) == (action == "stop_deep")
        if action == "mend":
            row = self.query_one(CheckList).current()
            return row is not None and row.check is not None and row.check.action is not None
        return True

    def why_not(self, action: str) -> str:
        if action == "mend":
            return "There is no remedy here that the console can carry out; Enter shows what to do."
        return "A deep check is under way; s stops it." if action == "deep" else "No deep check is under way."

    def step_back(self) -> bool:
        """Out of a check that is read in full, or out of the fields."""
        zoomed = self.has_class("zoomed")
        self.remove_class("zoomed")
        checks = self.query_one(CheckList)
        elsewhere = self.focused is not None and self.focused is not checks
        checks.focus()
        return zoomed or elsewhere

    def clip(self) -> str:
        """The report as Markdown."""
        view, _ = self._checking.current()
        return markdown(view.report) if view is not None and view.report is not None else ""

    def exports(self) -> Tables:
        """The report as JSON and as Markdown."""
        view, _ = self._checking.current()
        if view is None or view.report is None:
            return dict
        data = json.dumps(view.report.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
        texts = {"json": data, "md": markdown(view.report)}
        return lambda: texts

    # --- what the widgets say

    @on(OptionList.OptionHighlighted, "#checks")
    def moved(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._tell(self._checking.current()[0], self.console_app.clock())

    def on_check_list_chosen(self, message: CheckList.Chosen) -> None:
        message.stop()
        self._open(message.row)

    @on(Select.Changed)
    def picked(self, event: Select.Changed) -> None:
        event.stop()
        if isinstance(event.value, str) and event.select.id in FIELDS:
            self._checking.pick(event.select.id, event.value)
            self.refresh_known()

    # --- keys

    def _row(self) -> tuple[Readiness | None, Row | None]:
        return self._checking.current()[0], self.query_one(CheckList).current()

    def _open(self, row: Row) -> None:
        if row.check is None:
            self._folding.fold(row.group, row.folded)
            self.refresh_known()
        else:
            self.add_class("zoomed")
            self.query_one(CheckDetail).focus()

    def action_open(self) -> None:
        _, row = self._row()
        if self.has_class("zoomed"):
            self.step_back()
        elif row is not None:
            self._open(row)

    def _fold(self, opened: bool) -> None:
        _, row = self._row()
        if row is not None and not self.has_class("zoomed"):
            self._folding.fold(row.group, opened)
            self.refresh_known()

    def action_fold(self) -> None:
        self._fold(False)

    def action_unfold(self) -> None:
        self._fold(True)

    def action_again(self) -> None:
        view, row = self._row()
        if view is not None:
            self._checking.ask(view, None if row is None else [row.check] if row.check else list(row.checks))

    def action_all_again(self) -> None:
        view, _ = self._row()
        if view is not None:
            self._checking.ask(view)

    def action_deep(self) -> None:
        view, _ = self._row()
        if view is not None:
            self._checking.ask_deep(view)

    def action_stop_deep(self) -> None:
        self._checking.stop_deep()

    def action_mend(self) -> None:
        view, row = self._row()
        if view is not None and row is not None and row.check is not None:
            self.console_app.mending.preview(view, row.check)

    def action_copy_command(self) -> None:
        _, row = self._row()
        if row is not None and row.check is not None:
            self._checking.copy_command(row.check)

    def action_only_wrong(self) -> None:
        self._folding.only_wrong = not self._folding.only_wrong
        self.refresh_known()

    def action_choose(self) -> None:
        self.query_one("#size", Select).focus()
