"""The console's side towards the terminal: colours and what is done to painted lines, what is sent, its size, its notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from textual import events
from textual.app import App
from textual.binding import Binding
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import Screen

from tui.formats import one_line
from tui.keymap import key_label
from tui.painting import Painted
from tui.screens.question import Dialog
from tui.themes.filters import AsciiFilter, PaletteFilter
from tui.themes.palette import CALM, PALETTES, theme

if TYPE_CHECKING:
    from tui.settings import Settings


MOST_UNSAID = 6
"""Notes kept for after a question; of more the newest."""


class TerminalApp(App[None]):
    """The base of `tui.app.ConsoleApp`."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        # Before it runs: changed later, the whole style sheet would be read twice before the first picture.
        for name in PALETTES:
            self.register_theme(theme(name))
        self.theme = settings.theme
        self._painted = {name: PaletteFilter(palette) for name, palette in PALETTES.items()}
        self._ascii = [AsciiFilter()] if settings.ascii else []
        self._on_terminal = Painted()
        self._unsaid: list[tuple[str, str, float]] = []

    def get_driver_class(self) -> type[Driver]:
        """On a Unix terminal, ours."""
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":
            return found
        from tui.driver import PromptDriver

        return PromptDriver

    def get_key_display(self, binding: Binding) -> str:
        """Keys of Textual's own widgets are spelled as ours are."""
        return binding.key_display or key_label(binding.key)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """What the style sheet needs before a theme is chosen."""
        return {"quiet": CALM.muted, "cursor": CALM.cursor}

    def refresh_css(self, animate: bool = True) -> None:
        """Textual's own. Before there is a screen only the colours are taken over: the style sheet is read after that anyway, and
        would be read twice for the first picture."""
        if self.screen_stack:
            super().refresh_css(animate)
        else:
            self.stylesheet.set_variables(self.get_css_variables())

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Another theme's colours, Textual's own filters (NO_COLOR among them), ASCII."""
        painted = self._painted.get(self.theme)
        first = [painted] if painted is not None and painted.enabled else []
        return [*first, *super().get_line_filters(), *self._ascii]

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        """Textual's way to the terminal: only what differs from what stands there goes on, and nothing once the console is being
        left: it would be painted over the shell's own screen."""
        if self._exit:
            return
        super()._display(screen, self._on_terminal.reduced(renderable, screen))  # type: ignore[arg-type]

    def heed_suspension(self) -> None:
        """From now on paint everything again on coming back from ctrl-z: the shell has written there, and Textual itself
        paints nothing then where the size is still the same."""

        self.app_resume_signal.subscribe(self, lambda _: self._paint_whole())

    def _paint_whole(self) -> None:
        self._on_terminal.forget()
        self.screen.refresh()

    def fit_the_terminal(self) -> None:
        """Where a change of size passed unheard, or its picture was dropped (both can be, while a screen gives way to another),
        mend it now."""
        from tui.driver import PromptDriver

        if self.is_headless or not isinstance(self._driver, PromptDriver):
            return
        size = self._driver.terminal_size
        if size != self.size:
            self.post_message(events.Resize(size, size))
        elif self.screen.size != size:
            self.screen.post_message(events.Resize(size, size))
        elif self._on_terminal.whole != (self.screen, size):
            self._paint_whole()

    def say(self, text: str, severity: str, timeout_s: float) -> None:
        """Show a note. Over a question or a form there is none, since it could lie on the answers: it waits."""
        if self._asked:
            others = [said for said in self._unsaid if said[0] != text]
            self._unsaid = [*others[1 - MOST_UNSAID :], (text, severity, timeout_s)]
            return
        for note in list(self._notifications):
            if note.message == text:
                self._unnotify(note)  # the same note twice would only cover more
        self.notify(text, severity=cast(Any, severity), markup=False, timeout=timeout_s)

    @property
    def _asked(self) -> bool:
        return bool(self.screen_stack) and isinstance(self.screen, Dialog)

    def _refresh_notifications(self) -> None:
        """Textual's own, which it calls as a screen comes to the front."""
        if self._asked:
            return
        unsaid, self._unsaid = self._unsaid, []
        for note in unsaid:
            self.say(*note)
        super()._refresh_notifications()

    def copy_to_clipboard(self, text: str) -> None:
        """Textual's own; of what is no text (half a character in a name from outside) a mark is copied."""
        super().copy_to_clipboard(text.encode("utf-8", "replace").decode())

    def desktop_note(self, text: str) -> None:
        """By OSC 9, which terminals that know no such thing ignore; only while another window is in front."""
        if self._driver is not None and not self.app_focus:
            self._driver.write(f"\x1b]9;{one_line(text, 200)}\x07")
