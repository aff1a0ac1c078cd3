"""ONE table of keys: bindings, footer, help and command palette all come from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """A key of the console. ``where`` is "everywhere" or a screen's name; ``action`` is Textual's action string."""

    keys: str
    action: str
    label: str
    help: str
    where: str = "everywhere"
    footer: bool = True


KEYS: tuple[Key, ...] = (
    Key("1", "go('overview')", "Overview", "the machine: link, GPUs, disks, vLLM servers, runs", footer=False),
    Key("3", "go('launch')", "Launch", "choose size, target and machine, and launch", footer=False),
    Key("4", "go('run')", "Run", "the open run: stages, progress, plots, log", footer=False),
    Key("5", "go('runs')", "Runs", "every run of the workspace", footer=False),
    Key("p", "pilot", "Pilot", "launch the pilot, after one confirmation"),
    Key("question_mark", "help", "Help", "these keys"),
    Key("e", "export", "Export", "write the screen to an SVG file", footer=False),
    Key("ctrl+r", "reconnect", "Reconnect", "connect again now", footer=False),
    Key("escape", "step_back", "Back", "out of a field, where every key is text; then back to Overview", footer=False),
    Key("ctrl+z", "suspend_process", "Suspend", "back to the shell for a while (fg returns); runs go on", footer=False),
    Key("q", "leave", "Quit", "leave the console; runs go on"),
    Key("enter", "open_run", "Open", "open the run under the cursor", "overview"),
    Key("enter", "open_run", "Open", "open the run under the cursor", "runs"),
    Key("ctrl+l", "launch", "Launch", "launch what the form says, after one confirmation", "launch"),
    Key("s", "stop", "Stop", "stop the run: now, or after the next checkpoint", "run"),
    Key("r", "resume", "Resume", "go on with a stopped, failed or lost run", "run"),
    Key("z", "zoom", "Zoom", "show all, only the plots, only the log", "run"),
    Key("v", "verdict", "Details", "the verdict or the failure in full, with the last events", "run"),
)


def keys_of(where: str) -> list[Key]:
    """The keys of one screen, or of "everywhere"."""
    return [key for key in KEYS if key.where == where]


def key_label(keys: str) -> str:
    """A key as a person writes it."""
    names = {"question_mark": "?", "enter": "Enter", "escape": "Esc"}
    first = keys.split(",")[0]
    return names.get(first, first.replace("ctrl+", "Ctrl+"))
