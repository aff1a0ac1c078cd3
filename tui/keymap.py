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
    Key("2", "go('readiness')", "Readiness", "what must hold before a launch, and what to do about it", footer=False),
    Key("3", "go('launch')", "Launch", "choose size, target and machine, and launch", footer=False),
    Key("4", "go('run')", "Run", "the open run: stages, progress, plots, log", footer=False),
    Key("5", "go('runs')", "Runs", "every run of the workspace", footer=False),
    Key("p", "pilot", "Pilot", "launch the pilot, after one confirmation"),
    Key("question_mark", "help", "Help", "these keys"),
    Key("e", "export", "Export", "write the screen to an SVG file; the readiness report as JSON and Markdown too", footer=False),
    Key("ctrl+r", "reconnect", "Reconnect", "connect again now", footer=False),
    Key("escape", "step_back", "Back", "out of a field, where every key is text; then back to Overview", footer=False),
    Key("ctrl+z", "suspend_process", "Suspend", "back to the shell for a while (fg returns); runs go on", footer=False),
    Key("q", "leave", "Quit", "leave the console; runs go on"),
    Key("enter", "open_run", "Open", "open the run under the cursor", "overview"),
    Key("enter", "open_run", "Open", "open the run under the cursor", "runs"),
    Key("enter", "open", "Open", "fold or open a group; read a check in full", "readiness", footer=False),
    Key("left", "fold", "Fold", "fold the group", "readiness", footer=False),
    Key("right", "unfold", "Unfold", "open the group", "readiness", footer=False),
    Key("r", "again", "Again", "check again what is under the cursor: one check, or a group", "readiness"),
    Key("R", "all_again", "All", "check everything light again", "readiness"),
    Key("d", "deep", "Deep", "run the deep checks, after one confirmation: minutes", "readiness"),
    Key("s", "stop_deep", "Stop", "stop the deep check under way", "readiness"),
    Key("m", "mend", "Mend", "do the remedy: first a preview, then a confirmation", "readiness"),
    Key("c", "copy_command", "Command", "copy the remedy's command", "readiness", footer=False),
    Key("y", "copy", "Copy", "copy the report as Markdown (OSC 52)", "readiness"),
    Key("w", "only_wrong", "Wrong", "show only what is wrong, or everything", "readiness"),
    Key("f", "choose", "For", "choose the size, target and machine to judge for", "readiness", footer=False),
    Key("ctrl+l", "launch", "Launch", "launch what the form says, after one confirmation", "launch"),
    Key("s", "stop", "Stop", "stop the run: now, or after the next checkpoint", "run"),
    Key("r", "resume", "Resume", "go on with a stopped, failed or lost run", "run"),
    Key("z", "zoom", "Zoom", "show all, only the plots, only the log", "run"),
    Key("v", "verdict", "Details", "the verdict or the failure in full, with the last events", "run"),
)


def keys_of(where: str) -> list[Key]:
    """The keys of one screen, or of "everywhere"."""
    return [key for key in KEYS if key.where == where]


def key_of(where: str, action: str) -> str:
    """The key of an action, as a person writes it."""
    return next(key_label(key.keys) for key in KEYS if key.where == where and key.action == action)


def key_label(keys: str) -> str:
    """A key as a person writes it."""
    names = {"question_mark": "?", "enter": "Enter", "escape": "Esc"}
    first = keys.split(",")[0]
    return names.get(first, first.replace("ctrl+", "Ctrl+"))
