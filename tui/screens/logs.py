"""Logs: a run's logs as they are written, of any length: follow, search, go to a time, the errors first."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from eagle3.core.records import LogPage, LogSearch
from tui import messages
from tui.formats import age_label, bytes_label, clean_line, count_label
from tui.reading import LogAsk, Reading
from tui.screens.base import TO_PILOT, TO_RUNS, ConsoleScreen, bindings_of
from tui.state import Console
from tui.themes.palette import ACCENT, BAD, MUTED, TEXT, WARN
from tui.widgets.pager import LogPager
from tui.widgets.panel import caption

PROMPTS = {
    "search": ("Search", "a regular expression; small letters find capitals too"),
    "time": ("Go to", "10:05 · 10:05:30 · 2h (ago) · 2026-11-30 10:05"),
}
NOTHING = f"No run is open.  Press {TO_RUNS} to choose one, or {TO_PILOT} to launch the pilot."
POLL_S = 1.0
QUESTIONS = ("search", "time")
"""What a person asks of a log; pages come by themselves."""


def where_line(reading: Reading) -> Text:
    """Which log, where in it, how long it is."""
    names = [file.name for file in reading.files]
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(clean_line(reading.run_id, 64), TEXT)
    line.append(f"  {clean_line(reading.name, 80)}", f"bold {TEXT}")
    if len(names) > 1 and reading.name in names:
        line.append(f" ({names.index(reading.name) + 1} of {len(names)})", MUTED)
    if (share := reading.share) is not None:
        line.append(f"  {share:.0%} of {bytes_label(reading.size)}", MUTED)
    return line


def found_line(reading: Reading) -> Text:
    """What the search found, or what went wrong."""
    line = Text(no_wrap=True, overflow="ellipsis")
    if problem := reading.problem or reading.refused:
        return line.append(clean_line(problem), BAD)
    if reading.asked is not None and reading.asked.op == "search":
        return line.append("Searching the whole log …", MUTED)
    if (found := reading.search) is None:
        return line
    what = found.pattern.removeprefix("level:") + " lines" if found.pattern.startswith("level:") else f"'{found.pattern}'"
    if not found.total:
        line.append(f"No {what} in this log{' when it was searched' if reading.grown else ''}.", WARN)
    else:
        line.append(f"{clean_line(what, 60)}: ", TEXT)
        line.append(f"{count_label(found.position) if found.position else '?'} of {count_label(found.total)}", ACCENT)
        line.append(" when it was searched" if reading.grown else "", MUTED)
        line.append("  n N walk" if found.total > 1 else "", MUTED)
    levels = [f"{count_label(count)} {name}" for name, count in found.levels.items() if found.pattern != f"level:{name}"]
    line.append(f"   lines by level: {', '.join(levels)}" if levels else "", MUTED)
    return line.append("   ] reads the next log", MUTED) if not found.total and len(reading.files) > 1 else line


class LogsScreen(ConsoleScreen):
    HERE = "logs"
    BINDINGS = bindings_of("logs")
    _asking = ""

    def body(self) -> ComposeResult:
        yield Static(NOTHING, id="nothing", markup=False)
        with Vertical(id="logs"):
            yield Static(id="where", markup=False)
            yield LogPager(id="pager")
            yield Static(id="found", markup=False)
            with Horizontal(id="ask"):
                yield Static(id="ask-label", markup=False)
                yield Input(compact=True, id="ask-input")

    def on_mount(self) -> None:
        self.query_one("#ask").display = False
        self.query_one(LogPager).focus()
        self.set_interval(POLL_S, self._poll)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        self._choose()

    # --- asking

    def _choose(self) -> None:
        """Read the logs of the open run; without one those that are read already, else those of the latest."""
        console = self.console_app.console_state
        run_id = console.shown_run(console.reading.run_id if console.reading else "")
        if run_id and (console.reading is None or console.reading.run_id != run_id):
            console.reading = Reading(run_id)
            self._ask(LogAsk("files"))

    def _ask(self, ask: LogAsk | None) -> None:
        if ask is not None and (reading := self.console_app.console_state.reading):
            reading.asked = ask
            if ask.op in QUESTIONS:
                reading.refused = ""
            self.console_app.session.read_log(reading.run_id, ask)

    def _poll(self) -> None:
        """Once a second, while this screen is in front: what is new, or the question again that got no answer. Nothing while
        the container is asked for no news, but for a log that was never seen."""
        if not self.is_current:
            return
        self._choose()
        reading = self.console_app.console_state.reading
        if self.console_app.console_state.held and reading is not None and reading.at is not None:
            return
        if reading is not None and reading.asked is None:
            self._ask(LogAsk("files") if not reading.name else reading.wanted(self._height, poll=True))

    @property
    def _height(self) -> int:
        return self.query_one(LogPager).height

    # --- answers

    def arrived(self, message: messages.LogArrived) -> None:
        """Take the answer in, and ask for what is missing in sight."""
        reading = self.console_app.console_state.reading
        if reading is None or message.ask != reading.asked:
            return
        ask, answer, reading.asked = message.ask, message.answer, None
        if isinstance(answer, list):
            reading.take_files(answer)
            if not reading.name and answer:
                self._ask(reading.open(answer[0].name))
        elif isinstance(answer, LogPage):
            reading.take_page(ask, answer, message.at, self._height)
            if reading.asked is None:
                self._ask(reading.wanted(self._height, poll=False))
        elif isinstance(answer, LogSearch):
            match = reading.take_search(ask, answer)
            if match is not None:
                self._go_to(match)
        else:
            self._go_to(answer)
        if ask.op in QUESTIONS:
            self._answered(ask)
        self.refresh_known()

    def failed(self, message: messages.LogFailed) -> None:
        reading = self.console_app.console_state.reading
        if reading is not None and message.ask == reading.asked:
            reading.asked = None
            if message.ask.op in QUESTIONS:
                reading.refused = message.text
            else:
                reading.problem = message.text
            self.refresh_known()

    def _go_to(self, at: int) -> None:
        reading = self.console_app.console_state.reading
        if reading is not None and not reading.show_at(at, self._height):
            self._ask(reading.to(at))
        elif reading is not None:
            self._ask(reading.wanted(self._height, poll=False))

    # --- showing

    def present(self, console: Console, now: float) -> None:
        reading = console.reading
        self.query_one("#nothing").display = reading is None
        self.query_one("#logs").display = reading is not None
        if reading is None:
            return
        pager = self.query_one(LogPager)
        pager.show(reading)
        for name, line in (("#where", where_line(reading)), ("#found", found_line(reading))):
            widget = self.query_one(name, Static)
            if widget.content != line:
                widget.update(line)
        if not reading.files and reading.at is None and not reading.problem:
            words = "asking for the logs …" if reading.asked else "no log yet"
        elif reading.following:
            words = f"follows · {age_label(None if reading.at is None else now - reading.at)}"
        else:
            words = "stays put · f or End follows"
        stale = reading.following and console.stale(reading.at, now, POLL_S)
        caption(pager, subtitle=f"stale · {words}" if stale and reading.at is not None else words)
        pager.set_class(stale and reading.at is not None, "stale")

    # --- keys

    def _moved(self, rows: int) -> None:
        if reading := self.console_app.console_state.reading:
            reading.scroll(rows, self._height)
            if reading.asked is None:
                self._ask(reading.wanted(self._height, poll=False))
            self.refresh_known()

    def on_log_pager_moved(self, message: LogPager.Moved) -> None:
        self._moved(message.rows)

    def action_move(self, rows: int) -> None:
        self._moved(rows)

    def action_page(self, pages: int) -> None:
        self._moved(pages * max(1, self._height - 1))

    def action_sideways(self, columns: int) -> None:
        self.query_one(LogPager).sideways(columns)
        self.refresh_known()

    def action_begin(self) -> None:
        self._go_to(0)
        self.refresh_known()

    def action_end(self) -> None:
        if reading := self.console_app.console_state.reading:
            self._ask(reading.to_end())

    def action_follow(self) -> None:
        reading = self.console_app.console_state.reading
        if reading is not None and reading.following:
            reading.following = False
            self.refresh_known()
        else:
            self.action_end()

    def action_wrap(self) -> None:
        pager = self.query_one(LogPager)
        pager.wrap, pager.left = not pager.wrap, 0
        self.refresh_known()

    def action_other(self, step: int) -> None:
        reading = self.console_app.console_state.reading
        if reading is not None and (name := reading.other(step)) and name != reading.name:
            self._ask(reading.open(name))
            self.refresh_known()

    def action_errors(self) -> None:
        """The first error, whatever is in sight: where a failure began."""
        reading = self.console_app.console_state.reading
        if reading is not None and reading.name:
            self._ask(LogAsk("search", reading.name, at=0, text="level:error"))
            self.refresh_known()

    def action_next_match(self, forward: bool) -> None:
        reading = self.console_app.console_state.reading
        if reading is None or reading.search is None:
            self.console_app.tell("Nothing was searched yet; / searches.", "warning")
            return
        found = reading.next_match(forward)
        if found is None:
            self.console_app.tell("There is no further match." if reading.search.total else "There is no match.", "warning")
        elif isinstance(found, int):
            reading.search.current = found
            self._go_to(found)
        else:
            self._ask(found)
        self.refresh_known()

    def action_search(self) -> None:
        self._open_field("search")

    def action_time(self) -> None:
        self._open_field("time")

    def _open_field(self, what: str) -> None:
        if self.console_app.console_state.reading is None:
            return
        self._asking = what
        label, hint = PROMPTS[what]
        self.query_one("#ask-label", Static).update(label)
        field = self.query_one("#ask-input", Input)
        field.value, field.placeholder = "", hint
        self.query_one("#ask").display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        reading, text = self.console_app.console_state.reading, event.value.strip()
        if reading is not None and reading.name and text:
            # It stays open until the answer is there: what is refused is mended where it stands, and no letter becomes a key.
            self._ask(reading.look_for(text) if self._asking == "search" else LogAsk("time", reading.name, text=text))
        else:
            self._close_field()
        self.refresh_known()

    def _answered(self, ask: LogAsk) -> None:
        """The field goes, unless something else was typed in it meanwhile."""
        if self.query_one("#ask").display and self.query_one("#ask-input", Input).value.strip() == ask.text:
            self._close_field()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """Esc out of the field, or a click elsewhere: it goes. Another window of the desktop in front: it stays."""
        if isinstance(event.widget, Input) and self.query_one("#ask").display and self.app.app_focus:
            self.call_later(self._close_field)

    def _close_field(self) -> None:
        """Close it, and what was refused in it is settled."""
        if (reading := self.console_app.console_state.reading) is not None:
            reading.refused = ""
        self.query_one("#ask").display = False
        self.query_one(LogPager).focus()
