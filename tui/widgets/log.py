"""The tail of a run's log: remote text, shown as text. It follows while the reader is at the end, and stays put where
the reader has scrolled up."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.style import Style
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widgets import Log

from tui.formats import clean_line
from tui.state import LOG_LINES, RunView
from tui.widgets.panel import caption

FAILURE_LINES = 60
"""Lines of a traceback that are shown; `v` shows all."""
FEW_LINES = 100
"""Lines whose width is not worth a thread."""


class RunLog(Log):
    """Takes only the lines that it has not shown yet, so a long log costs nothing at each tick."""

    virtual_size = Reactive(Size(0, 0))
    """As Textual's, but a line that comes lays no screen out anew: the box has its place, and a bar asks for its own."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(highlight=False, max_lines=LOG_LINES, auto_scroll=True, id=id)
        self.border_title = "Log"
        self._mark: tuple[str, int] = ("", 0)
        self._seen = 0
        self._following = True
        self._told: tuple[str, int, float] | None = None
        """The failure whose traceback stands below the log."""
        self._style: Style | None = None

    def show(self, view: RunView, now: float) -> None:
        mark = (view.run_id, view.log_resets)
        if mark != self._mark:
            self._mark, self._seen, self._following, self._told = mark, 0, True, None
            self.clear()
        if view.log_seq != self._seen:
            self.write_lines(view.new_log(self._seen), scroll_end=False)
            self._seen = view.log_seq
        self._tell_failure(view)
        self._refresh_scrollbars()
        if self._following and not self.is_vertical_scroll_end:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        self._tell_bar()
        following = "follows" if self._following else "scrolled up · End follows"
        caption(self, subtitle=following if view.log_seq else "nothing yet")

    def _tell_failure(self, view: RunView) -> None:
        """Below the log of a run that failed, once, the traceback that its last error left: a failed run opens on it."""
        failure = view.failure
        if failure is None or not failure.detail or self._told == (view.run_id, failure.attempt, failure.t):
            return
        self._told = (view.run_id, failure.attempt, failure.t)
        lines = [clean_line(line) for line in failure.detail.splitlines() if line.strip()]
        if not lines or lines[-1].strip() in {line.strip() for line in list(view.log)[-FAILURE_LINES:]}:
            return  # the log itself ends with it
        self.write_lines(["", f"What attempt {failure.attempt} failed with:", *lines[-FAILURE_LINES:]], scroll_end=False)

    def _update_size(self, updates: int, lines: Sequence[str]) -> None:  # type: ignore[override]
        """Textual starts a thread for the width of what came, each second anew."""
        if len(lines) > FEW_LINES:
            super()._update_size(updates, list(lines))
        elif lines:
            self._update_maximum_width(updates, max(cell_len(self._process_line(line)) for line in lines))

    def _tell_bar(self) -> None:
        """Tell the scroll bar now, so that it is painted with the lines."""
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = self.virtual_size.height
            self.vertical_scrollbar.window_size = self.container_size.height

    def _scroll_update(self, virtual_size: Size) -> None:
        """Textual paints the bar once more after each line, in a picture of its own; it paints itself where it has changed."""
        self._refresh_scrollbars()
        self._tell_bar()
        self.scroll_x = self.validate_scroll_x(self.scroll_x)
        self.scroll_y = self.validate_scroll_y(self.scroll_y)

    @property
    def rich_style(self) -> Style:
        """The style of the lines: worked out once a picture, where Textual does so for each line."""
        return self._style or super().rich_style

    def render_lines(self, crop: Region) -> list[Strip]:
        self._style = super().rich_style
        try:
            return super().render_lines(crop)
        finally:
            self._style = None

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling up lets go of the end; coming back to it takes hold again. A change of size does neither."""
        super().watch_scroll_y(old_value, new_value)
        if self.is_vertical_scroll_end:
            self._following = True
        elif new_value < old_value:
            self._following = False

    def on_resize(self) -> None:
        """A box that shrinks (the headline grew) still shows the end."""
        if self._following:
            self.call_after_refresh(self.scroll_end, animate=False, immediate=True, x_axis=False)
