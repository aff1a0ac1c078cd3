"""Which screen is in front, and which dialog is over it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from textual.screen import Screen
from textual.widgets import Input

from tui.fleet import LATER, Fleet
from tui.keymap import key_of
from tui.screens.base import ConsoleScreen
from tui.terminal import TerminalApp


class Navigation(Fleet, TerminalApp):
    """A part of `tui.app.ConsoleApp`."""

    if TYPE_CHECKING:  # the app's own

        def tell(self, text: str, severity: str = "information") -> None: ...
        def open_run(self, run_id: str) -> None: ...

    def action_go(self, name: str) -> None:
        """Bring a screen to the front, importing it the first time."""
        if not isinstance(self.screen, ConsoleScreen) or name == self.screen.HERE:
            return
        if name == "run" and self.console_state.open_run is None and (latest := self.console_state.latest_run()):
            self.open_run(latest)
            return
        if name == "overview":
            while len(self.screen_stack) > 1:
                self.pop_screen()
            return
        known = self._screen_name(name)
        if not self.is_screen_installed(known):
            screen_class = getattr(import_module(f"tui.screens.{name}"), LATER[name])
            self.install_screen(screen_class(), known)
        if len(self.screen_stack) > 1:
            self.switch_screen(known)
        else:
            self.push_screen(known)

    def action_step_back(self) -> None:
        """Out of a field that takes every key as text, or of what a screen has opened; from anywhere else to Overview."""
        from textual.widgets import TextArea  # with documents and their parsers: not before the first picture

        if isinstance(self.focused, Input):
            self.screen.set_focus(None)
        elif isinstance(self.focused, TextArea) and not self.focused.read_only:
            self.focused.read_only = True
            self.present()
        elif isinstance(self.screen, ConsoleScreen) and self.screen.HERE == "compare":
            self.action_go("runs")
        elif not (isinstance(self.screen, ConsoleScreen) and self.screen.step_back()):
            self.console_state.since = ""
            self.action_go("overview")
            self.present()

    def form_in_front(self) -> bool:
        return isinstance(self.screen, ConsoleScreen) and self.screen.HERE == "launch"

    def action_help(self) -> None:
        from tui.screens.help import HelpScreen

        self.ask_once(HelpScreen(str(getattr(self.screen, "HERE", ""))))

    def show_details(self) -> None:
        from tui.screens.details import DetailsScreen

        if view := self.console_state.open_run:
            self.session.read_report(view.run_id)
            self.ask_once(DetailsScreen(view))

    def ask_once(self, screen: Screen[Any], then: Callable[[Any], None] | None = None) -> None:
        """Open a dialog, unless one is open."""
        if not self.in_front:
            self._ask_later(screen, then)
        elif isinstance(self.screen, ConsoleScreen):
            self.push_screen(screen, then)

    def ask_over(self, screen: Screen[Any], then: Callable[[Any], None]) -> None:
        """Open a dialog that must be answered, over whatever is open."""
        if self.in_front:
            self.push_screen(screen, then)
        else:
            self._ask_later(screen, then)

    def _ask_later(self, screen: Screen[Any], then: Callable[[Any], None] | None) -> None:
        """A key that is meant for one host must not answer a question about another: it waits until its host is in front."""
        self.here.waiting.append((screen, then))
        self.tell(
            f"{self.here.name} has a question; it is asked when that host is in front ({key_of('everywhere', 'hosts')}).",
            "warning",
        )
