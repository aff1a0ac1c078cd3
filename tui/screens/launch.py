"""Launch: what to run, in a few fields; what that will do, in numbers; and what is wrong with it, as it is typed."""

from __future__ import annotations

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Grid, Horizontal
from textual.events import DescendantFocus
from textual.widgets import Button, Input, Select, Static

from eagle3.core import presets
from eagle3.core.presets import SpecError
from eagle3.core.spec import RunSpec
from tui import plan
from tui.formats import one_line
from tui.launching import readiness_words
from tui.screens.base import ConsoleScreen, bindings_of
from tui.state import Console
from tui.themes.palette import ACCENT, BAD, MUTED, TEXT
from tui.widgets.panel import Panel, join

HINTS = {
    "size": "smoke proves that the line works; pilot shows that a draft learns.",
    "target": "The model that the draft is trained for.",
    "machine": "What the container has; it sets devices, servers and sizes.",
    "train_prompts": "How many prompts to train on; empty takes the preset's number.",
    "max_steps": "Optimizer steps at most; empty takes the preset's number.",
    "prompts": "A JSONL file of conversations in the container; empty: the built-in prompts.",
    "workspace": "A folder in the container; runs are written to its runs/ folder.",
    "worker_python": "Interpreter there with transformers and speculators; empty: the one found.",
    "more": "field=value with spaces between, such as train.seed=3 vocabulary.size=4096.",
    "secrets": "Names only, such as HF_TOKEN: values come from this environment or are asked, and stand in no file.",
}
LABELS = {
    "size": "Size",
    "train_prompts": "Train prompts",
    "target": "Target",
    "max_steps": "Max steps",
    "machine": "Machine",
    "prompts": "Prompts file",
    "workspace": "Workspace",
    "worker_python": "Python",
    "more": "More fields",
    "secrets": "Secrets",
}
SETTLE_S = 1.5
"""Seconds that the form stands still before the readiness of what it says is asked."""
SELECTS = ("size", "target", "machine")


class PlanPanel(Panel):
    """The stages in numbers, or the sentence that says what is wrong."""

    TITLE = "What it will do"
    spec: RunSpec | None = None
    disk = ""
    readiness = Text("")

    def show(self, spec: RunSpec | None, disk: str, readiness: Text) -> None:
        self.spec, self.disk, self.readiness = spec, disk, readiness
        self.changed((spec, disk, readiness))

    def draw(self, width: int) -> Text:
        if self.spec is None:
            return Text("–", MUTED)
        rows = [*plan.steps(self.spec), ("disk", self.disk)]
        lines = [Text.assemble((f"{name:<12}", MUTED if name == "disk" else ACCENT), (words, TEXT)) for name, words in rows]
        return join([*lines, Text.assemble(("readiness   ", MUTED), self.readiness)])


class LaunchScreen(ConsoleScreen):
    HERE = "launch"
    BINDINGS = bindings_of("launch")

    def body(self) -> ComposeResult:
        choices = self.console_app.choices
        with Grid(id="form") as form:
            form.border_title = "New run"
            for name, label in LABELS.items():
                with Horizontal(classes=f"field {name}"):
                    yield Static(Text(label, MUTED), classes="label")
                    if name in SELECTS:
                        options = plan.SIZES if name == "size" else presets.names(name)
                        yield Select[str](
                            [(option, option) for option in options],
                            value=getattr(choices, name),
                            allow_blank=False,
                            compact=True,
                            id=name,
                        )
                    else:
                        yield Input(getattr(choices, name), compact=True, id=name)
        yield Static(id="hint")
        yield PlanPanel(id="plan")
        with Horizontal(id="go"):
            yield Button(Text(" Launch  Ctrl+l "), id="launch", variant="primary", compact=True)
            yield Static(id="problem")

    def on_mount(self) -> None:
        self.query_one("#size").focus()

    def present(self, console: Console, now: float) -> None:
        """The numbers follow the fields, the disk follows the probe."""
        problem = ""
        try:
            spec: RunSpec | None = plan.resolve(self.console_app.choices)
        except SpecError as error:
            spec, problem = None, one_line(str(error))
        self.query_one(PlanPanel).show(
            spec, plan.disk_line(console.probe.value, spec) if spec else "", self._readiness(spec, now) if spec else Text("")
        )
        if spec is not None:
            for name, value in (
                ("train_prompts", str(spec.data.train_prompts)),
                ("max_steps", str(spec.train.max_steps)),
                ("prompts", "built in"),
                ("workspace", spec.workspace),
                ("worker_python", spec.worker_python or "found in the container"),
                ("more", "field=value …"),
                ("secrets", "none; such as HF_TOKEN"),
            ):
                self.query_one(f"#{name}", Input).placeholder = value
        waiting = f"Launching {console.launching}…" if console.launching else ""
        if not problem and not waiting and console.link.status not in {"up", "degraded"}:
            waiting = "Not connected: the launch would wait for the link."
        if not problem and not waiting and isinstance(self.focused, Input):
            waiting = "Esc leaves the field."
        line = Text(f"✗ {problem}", BAD) if problem else Text(waiting, MUTED)
        widget = self.query_one("#problem", Static)
        if widget.content != line:
            widget.update(line)
        self.query_one("#launch", Button).disabled = spec is None or bool(console.launching)

    def _readiness(self, spec: RunSpec, now: float) -> Text:
        """The verdict for what the form says; asked by itself once the form has stood still."""
        view = self.console_app.checking.view(spec)
        self.console_app.checking.keep_fresh(view, SETTLE_S)
        return readiness_words(view, now)

    @on(Input.Changed)
    @on(Select.Changed)
    def typed(self, event: Input.Changed | Select.Changed) -> None:
        event.stop()
        widget = event.input if isinstance(event, Input.Changed) else event.select
        if isinstance(event.value, str) and widget.id in LABELS:
            self.console_app.choose(widget.id, event.value)
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
        name = str(event.widget.id)
        self.query_one("#hint", Static).update(Text(HINTS.get(name, ""), MUTED))

    def action_launch(self) -> None:
        self.console_app.launching.launch(self.console_app.choices)
