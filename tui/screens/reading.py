"""A dialog to read: its keys, and what its frame says of them, come from the one table."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget

from tui.keymap import keys_of, reading_foot
from tui.screens.base import bindings_of
from tui.screens.question import Dialog


class ReadingScreen(Dialog[None]):
    """Subclasses give the one widget that is read in ``page``. The key that opens it closes it: ``OPENED_BY`` is its place and
    action in the table."""

    BINDINGS = bindings_of("reading")
    OPENED_BY: ClassVar[tuple[str, str]]
    HEADING: ClassVar[str]
    SHAPE: ClassVar[str] = "tall"
    """Classes of the dialog's box."""

    def page(self) -> Widget:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes=self.SHAPE) as dialog:
            dialog.border_title = self.HEADING
            dialog.border_subtitle = reading_foot(self._opening)
            self._page = self.page()
            yield self._page

    @property
    def _opening(self) -> str:
        where, action = self.OPENED_BY
        return next(key.keys for key in keys_of(where) if key.action == action)

    def on_mount(self) -> None:
        self._bindings.bind(self._opening, "dismiss", show=False)
        self._page.focus()

    def action_scroll(self, pages: int, lines: int) -> None:
        self._page.scroll_relative(y=lines + pages * max(1, self._page.size.height - 1), animate=False)

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(result)
