"""Launch: what to run, in the few fields that matter; what that will take, in numbers; what is wrong, as it is typed."""

from __future__ import annotations

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal, Vertical
from textual.events import DescendantFocus
from textual.widgets import Button, Input, Select, Static

from eagle3.core import presets
from eagle3.core.presets import SpecError
from eagle3.core.spec import RunSpec
from tui import expect, fields, plan
from tui.formats import one_line
from tui.keymap import key_of
from tui.launching import readiness_words
from tui.screens.base import ConsoleScreen, bindings_of
from tui.screens.fields import FieldsScreen
from tui.state import Console
from tui.themes.palette import BAD, MUTED
from tui.widgets.effects import Amounts, EffectsPanel
from tui.widgets.field_row import FieldRow

SETTLE_S = 1.5
"""Seconds that the form stands still before the readiness of what it says is asked."""
SELECTS = {"size": "Size", "target": "Target", "machine": "Machine"}
SECRETS = fields.Field(
    "secrets", "names of variables", "",
    "names only, such as HF_TOKEN: values come from this environment or are asked, and stand in no file",
)  # fmt: skip
"""Typed as a field, and none of the spec."""


class Chooser(Select[str], inherit_bindings=False):
    """A closed one opens by Enter or Space: the arrows go through the fields, here too."""

    BINDINGS = [Binding("enter,space", "show_overlay", "Show menu", show=False)]  # noqa: RUF012 - Textual's spelling


class Form(Vertical):
    """The fields. The one that is typed in stays in sight with the line below it, whatever grows or shrinks around it."""

    def on_resize(self) -> None:
        for row in self.query("FieldRow.here").results(FieldRow):
            row.call_after_refresh(self._bring, row)

    def _bring(self, row: FieldRow) -> None:
        """In sight; its name first where it is higher than the form."""
        row.scroll_visible(animate=False, top=row.outer_size.height > self.size.height)


class LaunchScreen(ConsoleScreen):
    HERE = "launch"
    BINDINGS = bindings_of("launch")
    _judged: tuple[plan.Choices, RunSpec | None, SpecError | None] | None = None
    _preset: tuple[tuple[str, str, str], RunSpec | None] | None = None
    _amounts: tuple[object, Amounts] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._asked_for: list[str] = []
        """Fields that the operator has added to the form."""

    def body(self) -> ComposeResult:
        choices = self.console_app.choices
        with Horizontal(id="chosen"):
            for name, label in SELECTS.items():
                yield Static(Text(label, MUTED), classes="label")
                options = plan.SIZES if name == "size" else presets.names(name)
                yield Chooser(
                    [(option, option) for option in options],
                    value=getattr(choices, name),
                    allow_blank=False,
                    compact=True,
                    id=name,
                )
        with Container(id="launch-panes"):
            with Form(id="fields") as form:
                form.border_title = "New run"
                form.border_subtitle = f"{key_of('launch', 'more')} more fields"
                for name in self._wanted():
                    yield self._row(name)
                yield FieldRow(SECRETS, choices.secrets)
            yield EffectsPanel(id="effects")
        yield Static(id="ready")
        with Horizontal(id="go"):
            yield Button(Text(f" Launch  {key_of('launch', 'launch')} "), id="launch", variant="primary", compact=True)
            yield Static(id="problem")

    def _row(self, name: str) -> FieldRow:
        return FieldRow(fields.every()[name], self.console_app.choices.typed.get(name, ""))

    def on_mount(self) -> None:
        self.query_one("#size").focus()

    # --- what is known

    def _wanted(self) -> list[str]:
        """The fields of the form: those that matter for what is chosen, then those that were asked for or have a text."""
        choices = self.console_app.choices
        names = fields.that_matter(choices.size, str(presets.load("machine", choices.machine).get("kind")))
        more = [*self._asked_for, *(name for name in choices.typed if name in fields.every())]
        return list(dict.fromkeys([*names, *more]))

    def _judge(self) -> tuple[RunSpec | None, SpecError | None]:
        choices = self.console_app.choices
        if self._judged is None or self._judged[0] != choices:
            try:
                self._judged = choices, plan.resolve(choices), None
            except SpecError as error:
                self._judged = choices, None, error
        return self._judged[1:]

    def _of_the_preset(self) -> RunSpec | None:
        choices = self.console_app.choices
        key = (choices.size, choices.target, choices.machine)
        if self._preset is None or self._preset[0] != key:
            try:
                self._preset = key, plan.preset(choices)
            except SpecError:
                self._preset = key, None
        return self._preset[1]

    def present(self, console: Console, now: float) -> None:
        """The numbers follow the fields; what is free follows the probe."""
        self._lay_out()
        spec, error = self._judge()
        problem = self._problem(error)
        self.query_one(EffectsPanel).show(self._known(console, spec), console.probe.value, expect.as_of(console, now))
        self._rows(spec, error)
        ready = self._readiness(spec, now) if spec is not None else Text("–", MUTED)
        self._put("#ready", Text.assemble(("Readiness  ", MUTED), ready, no_wrap=True, overflow="ellipsis"))
        waiting = f"Launching {console.launching}…" if console.launching else ""
        if not problem and not waiting and console.link.status not in {"up", "degraded"}:
            waiting = "Not connected: the launch would wait for the link."
        if not problem and not waiting and isinstance(self.focused, Input):
            waiting = "Esc leaves the field; ↑ ↓ go to others."
        self._put("#problem", Text(f"✗ {problem}", BAD) if problem else Text(waiting, MUTED))
        self.query_one("#launch", Button).disabled = spec is None or bool(console.launching)

    def _problem(self, error: SpecError | None) -> str:
        """What is wrong, for the last line: only the names of fields that tell it themselves."""
        if error is None:
            return ""
        shown = {row.field.name for row in self.query(FieldRow) if row.display}
        if not error.fields or not set(error.fields) <= shown:
            return one_line(str(error))
        one = len(error.fields) == 1
        return f"{', '.join(error.fields)} {'is' if one else 'are'} wrong; see the line under {'it' if one else 'each'}."

    def _put(self, selector: str, line: Text) -> None:
        widget = self.query_one(selector, Static)
        if widget.content != line:
            widget.update(line)

    def _known(self, console: Console, spec: RunSpec | None) -> Amounts | None:
        if spec is None:
            return None
        app = self.console_app
        rates = expect.measured(console, spec)
        key = (app.choices, spec.hash, console.host, rates)
        if self._amounts is None or self._amounts[0] != key:
            commands = plan.commands(app.choices, spec, console.host, app.helper_python)
            self._amounts = key, Amounts(spec, expect.expected(console, spec), plan.changes(app.choices, spec), commands)
        return self._amounts[1]

    def _rows(self, spec: RunSpec | None, error: SpecError | None) -> None:
        """Preset values, and the sentence under each field that is wrong."""
        preset = self._of_the_preset()
        values = presets.flat(preset) if preset is not None else {}
        wrong = error.fields if error is not None else {}
        for row in self.query(FieldRow):
            name = row.field.name
            default = "none" if row.field is SECRETS else fields.said(values.get(name))
            problem = str(error) if row.field is SECRETS and "secrets" in wrong else wrong.get(name, "")
            row.show(default, one_line(problem, 300), name in self.console_app.choices.typed)

    def _lay_out(self) -> None:
        """Mount the rows that are wanted now, in their order; the others stay unseen, with what was typed."""
        for select in self.query("#chosen Select").results(Select):
            if not select.expanded and select.value != (chosen := getattr(self.console_app.choices, str(select.id))):
                select.value = chosen  # the machine follows what the probe saw, until somebody chooses
        rows = {row.field.name: row for row in self.query(FieldRow)}
        wanted = [*self._wanted(), SECRETS.name]
        for name, row in rows.items():
            # A field that were taken away while it is typed in would leave the next letters to act as keys.
            row.display = name in wanted or (row.is_mounted and row.has_focus_within)
        for place, name in enumerate(wanted):
            if name not in rows:
                following = next(rows[later] for later in wanted[place + 1 :] if later in rows)
                rows[name] = self._row(name)
                self.query_one("#fields").mount(rows[name], before=following)

    def _readiness(self, spec: RunSpec, now: float) -> Text:
        """The verdict for what the form says; asked by itself once the form has stood still."""
        view = self.console_app.checking.view(spec)
        self.console_app.checking.keep_fresh(view, SETTLE_S)
        return readiness_words(view, now)

    @property
    def is_written_in(self) -> bool:
        """The form has done its work once its run is launched."""
        return False

    def clip(self) -> str:
        """What is copied: the command that launches the same."""
        return self._commands()[0]

    def _commands(self) -> tuple[str, str]:
        amounts = self._known(self.console_app.console_state, self._judge()[0])
        return amounts.commands if amounts is not None else ("", "")

    # --- what the operator does

    @on(Input.Changed)
    @on(Select.Changed)
    def typed(self, event: Input.Changed | Select.Changed) -> None:
        event.stop()
        if not isinstance(event.value, str):
            return
        if isinstance(event, Select.Changed):
            self.console_app.choose(str(event.select.id), event.value)
        elif isinstance(row := event.input.parent and event.input.parent.parent, FieldRow):
            self.console_app.choose(row.field.name, event.value)
        self.refresh_known()

    @on(Button.Pressed, "#launch")
    def pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_launch()

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_launch()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """The help of a field is shown below it, and both are brought in sight."""
        for row in self.query(FieldRow):
            row.set_class(row.input is event.widget, "here")
            if row.input is event.widget:
                row.call_after_refresh(row.scroll_visible, animate=False)

    def action_launch(self) -> None:
        self.console_app.launching.launch(self.console_app.choices)

    def action_move(self, step: int) -> None:
        """The next field, or the one before."""
        if step > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def action_page(self, step: int) -> None:
        """A page of what it will do, from wherever the cursor is."""
        panel = self.query_one(EffectsPanel)
        panel.scroll_relative(y=step * max(1, panel.size.height - 2), animate=False)

    def action_copy_there(self) -> None:
        """Copy the command for a shell in the container."""
        if command := self._commands()[1]:
            self.console_app.copy_to_clipboard(command)
            self.console_app.tell("Copied the command for a shell in the container.")

    def action_more(self) -> None:
        """All fields, to be searched; the one that is picked joins the form."""

        def picked(name: str | None) -> None:
            if name:
                if name not in self._asked_for:
                    self._asked_for.append(name)
                self.refresh_known()
                self.call_after_refresh(self._focus, name)

        spec = self._judge()[0] or self._of_the_preset()
        self.console_app.ask_once(FieldsScreen(presets.flat(spec) if spec is not None else {}), picked)

    def _focus(self, name: str) -> None:
        for row in self.query(FieldRow):
            if row.field.name == name:
                row.input.focus()
