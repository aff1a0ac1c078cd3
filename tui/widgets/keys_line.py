"""The last line of every screen: Textual's footer, made anew only where the keys that it offers are others."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen
from textual.widgets import Footer


class KeysLine(Footer):
    """Textual makes all the widgets of its footer anew at each change of the focus and of the screen, and styles them: a
    third of what a change of screens takes."""

    _offered: object = None

    def bindings_changed(self, screen: Screen[Any]) -> None:
        if not screen.app.app_focus or not self.is_attached or screen is not self.screen:
            return super().bindings_changed(screen)
        shown = [bound for bound in screen.active_bindings.values() if bound.binding.show]
        offered = [(bound.binding, bound.enabled, bound.tooltip, self.app.get_key_display(bound.binding)) for bound in shown]
        if offered != self._offered:
            self._offered = offered
            super().bindings_changed(screen)
        return None
