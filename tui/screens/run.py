"""Run: where the run is, how the training goes, what it says. One screen for a live run and for a finished one."""

from __future__ import annotations

from functools import partial

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from tui.exporting import Tables, tables_of
from tui.formats import age_label, count_label, moment_label, number_label
from tui.plotting.figures import FIGURES, marks_of
from tui.plotting.machine import MACHINE_FIGURES
from tui.screens.base import TO_PILOT, TO_RUNS, bindings_of
from tui.screens.looking import PlotScreen
from tui.state import Console, RunView
from tui.themes.palette import ACCENT, SERIES, WARN
from tui.widgets.events import EventsPanel
from tui.widgets.headline import Headline
from tui.widgets.log import RunLog
from tui.widgets.panel import caption
from tui.widgets.plot import MetricPlot
from tui.widgets.progress import ProgressLine
from tui.widgets.stages import StagesPanel

ZOOMS = ("all", "plots", "log")
NOTHING = f"No run is open.  Press {TO_RUNS} to choose one, or {TO_PILOT} to launch the pilot."


def loss_title(view: RunView, roomy: bool) -> str:
    """ "Loss ━ train 4.31 ● val 4.52" as Textual markup; only our own words and numbers."""
    words = "Loss"
    for split, mark, colour in (("train", "━", ACCENT), ("val", "●", WARN)):
        if (row := view.metrics.last("train", split)) is not None:
            words += f" [{colour}]{mark}[/]{f' {split} ' if roomy else ''}{number_label(row.loss)}"
    return words


def acceptance_title(view: RunView, room: int) -> str:
    """ "Acceptance by position, held-out 0.19 0.04 0.01", each figure in the colour of its position, or as much of the words
    as ``room`` columns have place for beside the figures."""
    row = view.metrics.last("train", "val") or view.metrics.last("train", "train")
    values = [number_label(value) for value in (row.acc_pos if row else [])[:5]]
    words = ["Acceptance", "Accept"]
    if row is not None:
        words.insert(0, f"Acceptance by position, {'held-out' if row.split == 'val' else 'training'}")
    fits = [word for word in words if len(" ".join([word, *values])) <= room]
    if not fits:
        values = [value.removeprefix("0") for value in values]
    coloured = [f"[{SERIES[min(k, len(SERIES) - 1)]}]{value}[/]" for k, value in enumerate(values)]
    return " ".join([*(fits or words[-1:])[:1], *coloured])


def length_words(view: RunView, room: int) -> str:
    """ "length served 1.17 · simulated 1.24" in ``room`` columns: the two are different things and never share a word."""
    row = view.metrics.last("train", "val") or view.metrics.last("train", "train")
    simulated = row.accept_len if row is not None else None
    served = served_length(view)
    known = [
        f"{name} {number_label(value)}" for name, value in (("served", served), ("simulated", simulated)) if value is not None
    ]
    words = " · ".join(known)
    return f"length {words}" if words and len(words) + 7 <= room else words


def served_length(view: RunView) -> float | None:
    """The acceptance length by vLLM's counters, once the stage evaluate has measured it."""
    if view.result is not None and isinstance(value := view.result.served.get("accept_len"), (int, float)):
        return float(value)
    rows = [
        row for split in ("served", "val", "train") for row in view.metrics.rows("evaluate", split) if row.accept_len is not None
    ]
    return rows[-1].accept_len if rows else None


def link_problem(console: Console, view: RunView, now: float) -> str:
    """Why nothing new comes: the reason of a link that is down, and how old the picture is. Empty while it is up."""
    if console.link.status not in {"down", "refused"} or not console.link.reason:
        return ""
    reason = console.link.reason.rstrip(".")
    return f"{reason}. Last heard {age_label(None if view.at is None else now - view.at)}."


class RunScreen(PlotScreen):
    HERE = "run"
    BINDINGS = bindings_of("run")
    _figure = "acceptance"
    """In the right plot."""
    figures = (*FIGURES, *MACHINE_FIGURES)
    _allowed: tuple[str, bool, bool] | None = None
    _drawn_run = ""
    """The run whose plots stand there."""

    def body(self) -> ComposeResult:
        clock = self.console_app.clock
        yield Static(NOTHING, id="nothing", markup=False)
        with Vertical(id="run"):
            yield Headline(id="headline")
            yield ProgressLine(id="progress")
            with Horizontal(id="panes"):
                with Vertical(id="side"):
                    yield StagesPanel(id="stages")
                    yield EventsPanel(id="events")
                with Vertical(id="main"):
                    with Horizontal(id="plots"):
                        yield MetricPlot("Loss", clock=clock, id="loss")
                        yield MetricPlot("Acceptance", clock=clock, id="acceptance")
                    yield RunLog(id="log")

    def on_mount(self) -> None:
        self.set_class(True, "zoom-all")
        self.query_one(RunLog).focus()

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        view = self.console_app.console_state.open_run
        if self._composed and view is not None and view.run_id == self._drawn_run:
            for plot in self.plots():
                plot.rest()

    def present(self, console: Console, now: float) -> None:
        view = console.open_run
        self.query_one("#nothing").display = view is None
        self.query_one("#run").display = view is not None
        if view is None:
            return
        stale = console.stale(view.at, now)
        self.query_one(Headline).show(view, now, stale, link_problem(console, view, now))
        self.query_one(ProgressLine).show(view, now)
        self.query_one(StagesPanel).show(view, now)
        self.query_one(EventsPanel).show(view, now)
        self.query_one(RunLog).show(view, now)
        self._plots(view, now)
        self.query_one("#panes").set_class(stale and not view.ended, "stale")
        allowed = (view.run_id, view.summary is not None and not view.ended, view.resumable)
        if allowed != self._allowed:
            self._allowed = allowed
            self.refresh_bindings()

    def _plots(self, view: RunView, now: float) -> None:
        self._drawn_run = view.run_id
        look, metrics = self._look, view.metrics
        version = (view.run_id, metrics.version, len(view.events))
        age = view.age_of(metrics.last_t, now)
        point = f"last point {age_label(age)}" if age is not None and not view.ended else ""
        if view.thinned is not None:
            shown = f"{count_label(view.thinned.kept)} of {count_label(view.thinned.rows)} rows"
            asked = f"reading all, {view.all_rows_share:.0%}" if view.all_rows_share is not None else "A reads all"
            point = f"{shown} · {asked}"
        elif metrics.thinned:
            point = " · ".join(filter(None, (f"{count_label(len(metrics))} of {count_label(metrics.taken)} rows", point)))
        loss, other = self.query_one("#loss", MetricPlot), self.query_one("#acceptance", MetricPlot)
        roomy, room = loss.size.width >= 36, other.size.width - 4
        look, history = self._look, self.console_app.console_state.history
        nothing = "it left no points" if view.ended and view.heard else "no points yet"
        marks = partial(marks_of, view.events, metrics, look.axis)
        loss.show(version, FIGURES["loss"], partial(FIGURES["loss"].lines, metrics, look.axis), look, marks, nothing)
        machine = MACHINE_FIGURES.get(self._figure)
        if machine is not None:
            drawn = partial(machine.lines, history, metrics, look.axis)
            other.show((version, history.watched), machine.figure, drawn, look, marks, machine.nothing, loss.everything, loss)
        else:
            figure = FIGURES[self._figure]
            other.show(version, figure, partial(figure.lines, metrics, look.axis), look, marks, nothing, beside=loss)
        captions = {"loss": loss_title(view, roomy), "acceptance": acceptance_title(view, room)}
        lengths = length_words(view, room) if self._figure in {"acceptance", "length"} else ""
        if machine is not None and (since := machine.since(history)) is not None:
            lengths = f"seen since {moment_label(since, now)}"
        title = machine.figure.title if machine is not None else FIGURES[self._figure].title
        caption(loss, title=captions["loss"], subtitle=self.words_below(loss, point))
        caption(other, title=captions.get(self._figure, title), subtitle=other.reading or lengths)

    # --- how the plots are looked at

    def plots(self) -> list[MetricPlot]:
        return [self.query_one("#loss", MetricPlot), self.query_one("#acceptance", MetricPlot)]

    def exports(self) -> Tables:
        """The metric rows of the run, as CSV and as JSON."""
        view = self.console_app.console_state.open_run
        if view is None:
            return dict
        metrics = view.metrics.copy()
        return lambda: tables_of(metrics.all_rows())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers only what the run's state allows."""
        view = self.console_app.console_state.open_run
        if action in {"stop", "checkpoint", "pause", "dump"}:
            return view is not None and view.summary is not None and not view.ended
        if action == "resume":
            return view is not None and view.resumable
        if action in {"zoom", "verdict", "fork", "note"}:
            return view is not None
        return True

    def why_not(self, action: str) -> str:
        view = self.console_app.console_state.open_run
        if view is None:
            return "No run is open; press 5 to choose one."
        if view.summary is None:
            return f"Nothing is known of {view.run_id} yet."
        if action == "resume":
            return f"{view.run_id} is {view.state}; only a stopped, failed or lost run can be resumed."
        return f"{view.run_id} has ended ({view.state}); this key is for a run that lives."

    def action_fork(self) -> None:
        self.console_app.launching.fork()

    def action_note(self) -> None:
        self.console_app.launching.note()

    def action_stop(self) -> None:
        self.console_app.launching.stop()

    def action_resume(self) -> None:
        self.console_app.launching.resume()

    def action_all_rows(self) -> None:
        """Bring all the rows of a thinned picture."""
        view = self.console_app.console_state.open_run
        if view is not None and view.thinned is not None and view.all_rows_share is None:
            view.all_rows_share = 0.0
            self.console_app.session.complete(view.run_id)
            self.refresh_known()

    def action_checkpoint(self) -> None:
        self.console_app.launching.control("checkpoint")

    def action_pause(self) -> None:
        self.console_app.launching.pause()

    def action_dump(self) -> None:
        self.console_app.launching.dump()

    def action_verdict(self) -> None:
        self.console_app.show_details()

    def action_zoom(self) -> None:
        """All, only the plots, only the log, all again."""
        now = next((name for name in ZOOMS if self.has_class(f"zoom-{name}")), "all")
        wanted = ZOOMS[(ZOOMS.index(now) + 1) % len(ZOOMS)]
        for name in ZOOMS:
            self.set_class(name == wanted, f"zoom-{name}")
        # The arrows belong to what is in sight.
        if wanted == "plots":
            self.query_one("#loss", MetricPlot).focus()
        else:
            self.query_one(RunLog).focus()
        self.refresh_known()
