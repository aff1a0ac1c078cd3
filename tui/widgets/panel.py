"""A titled box whose subtitle is the age of what it shows; when that is stale, the box dims and says so."""

from __future__ import annotations

from rich.text import Text
from textual.geometry import Region
from textual.widget import Widget

from tui.formats import age_label
from tui.themes.palette import FAINT, MUTED


class Panel(Widget):
    """Subclasses implement ``draw``: the lines for a width, always as Text, never as markup."""

    TITLE = ""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.border_title = self.TITLE
        self._shown: object = None
        self._drawn: tuple[object, Text] | None = None

    def draw(self, width: int) -> Text:
        raise NotImplementedError

    def changed(self, shown: object) -> None:
        """Repaint where ``shown`` (any value that stands for the content) differs from the last one; lay the screen out
        again only where the content takes another number of rows."""
        if shown != self._shown:
            self._shown = shown
            before = self._drawn[1].plain.count("\n") if self._drawn else None
            self._drawn = None
            now = self._text().plain.count("\n") if self.is_attached else None
            self.refresh(layout=now is None or now != before)

    def _text(self) -> Text:
        """What ``draw`` gives for the present size, drawn once."""
        width = self.content_size.width or 36
        key = (width, self.app.size)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = (key, self.draw(width))
        return self._drawn[1]

    def age(self, seconds: float | None, stale: bool, note: str = "") -> None:
        """Say how old the content is. ``note`` is said before the age."""
        words = "not known yet" if seconds is None else age_label(seconds)
        if stale and seconds is not None:
            words = f"stale · {words}"
        words = f"{note} · {words}" if note else words
        caption(self, subtitle=words)
        self.set_class(stale and seconds is not None, "stale")

    @property
    def rows(self) -> int:
        """Rows that the whole content takes, borders and all."""
        return self._text().plain.count("\n") + 3

    def render(self) -> Text:
        text = self._text()
        text.no_wrap = True
        text.overflow = "ellipsis"
        return text


def caption(widget: Widget, *, title: str | None = None, subtitle: str | None = None) -> None:
    """Set a border's words where they changed. What a border gives back is not what it was given, so a comparison with
    it would repaint the screen at every turn; and Textual's own setter repaints the whole widget for them, content and all,
    which for an age that grows each second is most of what a plot costs. So only the border's row is painted anew."""
    before: dict[str, str] = widget.__dict__.setdefault("_caption", {})
    for name, words in (("border_title", title), ("border_subtitle", subtitle)):
        if words is None or before.get(name) == words:
            continue
        first_time = name not in before
        before[name] = words
        if first_time or not widget.outer_size:
            setattr(widget, name, words)
            continue
        lines = widget.render_str(words).expand_tabs(4).split()
        setattr(widget, f"_{name}", lines[0])
        corner, size = widget.content_offset, widget.outer_size
        row = 0 if name == "border_title" else size.height - 1
        widget.refresh(Region(-corner.x, row - corner.y, size.width, 1))


def quiet(text: str) -> Text:
    """A line that says that there is nothing, or why."""
    return Text(text, style=MUTED)


def bar_text(parts: tuple[str, str], colour: str) -> Text:
    """A bar of ``formats.bar`` with its track faint."""
    return Text.assemble((parts[0], colour), (parts[1], FAINT))


def join(lines: list[Text]) -> Text:
    return Text("\n").join(lines)
