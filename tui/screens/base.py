"""What every screen has: the title bar, the footer from the one table of keys, and ``present`` for what is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen

from tui.keymap import character_of, everywhere_and_over, key_label, key_of, keys_of
from tui.widgets.keys_line import KeysLine
from tui.widgets.titlebar import TitleBar

if TYPE_CHECKING:
    from tui.app import ConsoleApp
    from tui.exporting import Tables
    from tui.state import Console


TO_RUNS, TO_PILOT = key_of("everywhere", "go('runs')"), key_of("everywhere", "pilot")
"""Keys as they are now: the screens are imported after the operator's own keys are settled."""


def bindings_of(where: str) -> list[BindingType]:
    """The table's keys of one place as Textual's bindings. Those of `everywhere_and_over` hold in dialogs too."""
    over = everywhere_and_over()
    return [
        Binding(
            key.keys, key.action, key.label, show=key.footer, key_display=key_label(key.keys),
            priority=where == "everywhere" and key.keys in over,
        )
        for key in keys_of(where)
    ]  # fmt: skip


class ConsoleScreen(Screen[None]):
    """Subclasses name themselves in ``HERE``, give their widgets in ``body`` and show what is known in ``present``."""

    HERE: ClassVar[str] = ""
    _styled_in = ""
    """The theme in which the whole screen was styled last."""
    _composed = False
    """News may come before the widgets are there, and after they are gone."""
    HORIZONTAL_BREAKPOINTS = [(0, "-slim"), (60, "-narrow"), (110, "-wide")]  # noqa: RUF012 - Textual's spelling
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (18, "-short"), (34, "-tall")]  # noqa: RUF012

    @property
    def console_app(self) -> ConsoleApp:
        return cast("ConsoleApp", self.app)

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def present(self, console: Console, now: float) -> None:
        raise NotImplementedError

    def step_back(self) -> bool:
        """Close what the screen itself has opened; whether there was something."""
        return False

    @property
    def is_written_in(self) -> bool:
        """Whether letters are text here now, which a change of screens would turn into keys."""
        return self.focused is not None and self.focused.check_consume_key("a", "a")

    def clip(self) -> str:
        """What is copied from here: the text in sight, unless a screen knows better."""
        rows = [strip.text.rstrip() for strip in self._compositor.render_strips()]
        return "\n".join(rows[1:-1]).strip("\n")

    def exports(self) -> Tables:
        """Makes what is written beside the picture, by suffix ("csv", "json")."""
        return dict

    def compose(self) -> ComposeResult:
        yield TitleBar(self.HERE)
        with Vertical(classes="body"):
            yield from self.body()
        yield KeysLine(show_command_palette=False)

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """What the footer offers. In a field: no key that is text there (Textual leaves out those that it knows by their
        character, which "slash" is not), and the one that leaves it."""
        found = super().active_bindings
        if (field := self.focused) is None or not field.check_consume_key("a", "a"):
            return found
        offered = {key: bound for key, bound in found.items() if not field.check_consume_key(key, character_of(key))}
        if leaves := offered.get("escape"):
            offered["escape"] = leaves._replace(binding=replace(leaves.binding, show=True))
        return offered

    # Textual calls the on_… methods of a screen and of its base each by itself: a subclass's must not call this one.
    def on_mount(self) -> None:
        self._composed = True
        self.refresh_known()

    def on_unmount(self) -> None:
        self._composed = False

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Textual styles all the widgets of a screen anew that comes back, a third of what a change of screens takes. Its
        widgets were styled as they changed; only a theme may have passed it by."""
        event.refresh_styles = self._styled_in != self.app.theme
        self._styled_in = self.app.theme
        self.refresh_known()

    def why_not(self, action: str) -> str:
        """One sentence on why the key of ``action`` does nothing now; empty where it need not be said."""
        return ""

    def on_key(self, event: events.Key) -> None:
        """A key that the state does not allow says why: silence looks like a key that is broken."""
        for key in keys_of(self.HERE):
            if (
                event.key in key.keys.split(",")
                and self.check_action(key.action, ()) is False
                and (why := self.why_not(key.action))
            ):
                self.console_app.tell(why, "warning")

    def on_title_bar_picked(self, message: TitleBar.Picked) -> None:
        message.stop()
        self.console_app.action_go(message.name)

    def _notes(self) -> list[str]:
        app = self.console_app
        words = [word for word, true in (("held", app.console_state.held), ("read-only", app.settings.read_only)) if true]
        return words + app.taping_words()

    def refresh_known(self) -> None:
        """Show what is known now: called on news, and once a second for the ages."""
        if not self._composed:
            return
        app = self.console_app
        now = app.clock()
        self.query_one(TitleBar).show(app.console_state.host, app.console_state.link, now, self._notes(), len(app.members))
        self.present(app.console_state, now)
