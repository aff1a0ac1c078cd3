"""ONE table of keys: bindings, footer, help and command palette all come from it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace


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
    Key("6", "go('logs')", "Logs", "the logs of the open run, of any length", footer=False),
    Key("7", "go('notes')", "Notes", "what was learnt: NOTES.md of the run and of the workspace", footer=False),
    Key("p", "pilot", "Pilot", "launch the pilot, after one confirmation"),
    Key("question_mark", "help", "Help", "these keys"),
    Key("e", "export", "Export", "write the screen to an SVG file, and its data beside it", footer=False),
    Key("y", "copy", "Copy", "copy what is in front (Readiness: as Markdown) to the terminal's clipboard", footer=False),
    Key("T", "theme", "Theme", "the next theme: calm, paper (light), contrast, safe (colour-blind)", footer=False),
    Key("H", "hosts", "Hosts", "choose the host that everything is about, or open one more", footer=False),
    Key("ctrl+n", "next_host", "Next host", "the next host of this console", footer=False),
    Key("W", "record", "Record", "record what the console receives into a file, or end the recording", footer=False),
    Key("ctrl+k", "hold", "Hold", "ask the container for no news, or go on", footer=False),
    Key("ctrl+r", "reconnect", "Reconnect", "connect again now", footer=False),
    Key("escape", "step_back", "Back", "out of a field, where every key is text; then back to Overview", footer=False),
    Key("ctrl+z", "suspend_process", "Suspend", "back to the shell for a while (fg returns); runs go on", footer=False),
    Key("q", "leave", "Quit", "leave the console; runs go on"),
    Key("enter", "open_run", "Open", "open the run under the cursor", "overview"),
    Key("space", "fold", "Fold", "fold or open the group of the host in front", "overview", False),
    Key("F", "fold_all", "Fold all", "fold or open the groups of all hosts", "overview", False),
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
    Key("w", "only_wrong", "Wrong", "show only what is wrong, or everything", "readiness"),
    Key("f", "choose", "For", "choose the size, target and machine to judge for", "readiness", footer=False),
    Key("slash", "filter", "Filter", "only runs whose line holds these words; Esc leaves the field", "runs"),
    Key("o", "sort", "Sort", "live first, newest, oldest, name, state, target", "runs"),
    Key("space", "mark", "Mark", "mark the run for a comparison, up to six", "runs"),
    Key("c", "compare", "Compare", "lay the marked runs side by side (or the open one and this one)", "runs"),
    Key("m", "other_figure(1)", "Figure", "another figure: acceptance, length, learning rate …", "compare"),
    Key("M", "other_figure(-1)", "Figure", "the figure before", "compare", False),
    Key("plus,equals_sign", "look('in')", "Zoom in", "half as much of the axis; -, <, >, 0, h, t, l, o, k as on Run", "compare"),
    Key("minus", "look('out')", "Zoom out", "twice as much", "compare", False),
    Key("less_than_sign", "look('back')", "Back", "earlier", "compare", False),
    Key("greater_than_sign", "look('on')", "On", "later", "compare", False),
    Key("0", "look('all')", "All", "everything", "compare", False),
    Key("h", "look('hour')", "Hour", "the last hour", "compare", False),
    Key("t", "look('axis')", "Time", "time or step on the axis", "compare", False),
    Key("l", "look('log')", "Log axis", "logarithmic axis", "compare", False),
    Key("o", "look('smooth')", "Smooth", "smoother; the raw line stays, faint", "compare", False),
    Key("k", "look('clip')", "Clip", "outliers do not stretch the axis", "compare", False),
    Key("left_square_bracket", "look('cursor_back')", "Cursor", "read the values one column before", "compare", False),
    Key("right_square_bracket", "look('cursor_on')", "Cursor", "read the values one column on", "compare", False),
    Key("c", "look('no_cursor')", "No cursor", "put the cursor away", "compare", False),
    Key("ctrl+l", "launch", "Launch", "launch what the form says, after one confirmation", "launch"),
    Key(
        "m,slash", "more", "More", "all fields, searched by words of their name or help; the picked one joins the form", "launch"
    ),
    Key(
        "Y",
        "copy_there",
        "Copy there",
        "copy the same as a command for a shell in the container (y: for this machine)",
        "launch",
        False,
    ),
    Key("down", "move(1)", "Down", "the next field", "launch", False),
    Key("up", "move(-1)", "Up", "the field before", "launch", False),
    Key("pagedown", "page(1)", "Page down", "a page of what it will do", "launch", False),
    Key("pageup", "page(-1)", "Page up", "a page back", "launch", False),
    Key("s", "stop", "Stop", "stop the run: now, or after the next checkpoint", "run"),
    Key("r", "resume", "Resume", "go on with a stopped, failed or lost run", "run"),
    Key("f", "fork", "Fork", "a new run from a stage or a checkpoint of this one, with other numbers", "run"),
    Key("n", "note", "Note", "add one line to the run's notes", "run", False),
    Key("z", "zoom", "Zoom", "show all, only the plots, only the log", "run"),
    Key("plus,equals_sign,up", "look('in')", "Zoom in", "plots: half as much, around the cursor or the end", "run", False),
    Key("minus,down", "look('out')", "Zoom out", "plots: twice as much", "run", False),
    Key("less_than_sign", "look('back')", "Back", "plots: earlier", "run", False),
    Key("greater_than_sign", "look('on')", "On", "plots: later; at the end they follow again", "run", False),
    Key("0", "look('all')", "All", "plots: everything", "run", False),
    Key("h", "look('hour')", "Hour", "plots: the last hour", "run", False),
    Key("t", "look('axis')", "Time", "plots: time or step on the axis", "run", False),
    Key("l", "look('log')", "Log axis", "plots: logarithmic axis", "run", False),
    Key("o", "look('smooth')", "Smooth", "plots: smoother; the raw line stays, faint", "run", False),
    Key("k", "look('clip')", "Clip", "plots: outliers do not stretch the axis", "run", False),
    Key("b", "look('blocks')", "Blocks", "plots: braille dots or blocks", "run", False),
    Key(
        "left_square_bracket,left",
        "look('cursor_back')",
        "Cursor",
        "plots: read the values a column back; arrows work once a plot has the focus (Tab)",
        "run",
        False,
    ),
    Key("right_square_bracket,right", "look('cursor_on')", "Cursor", "plots: read the values one column on", "run", False),
    Key("c", "look('no_cursor')", "No cursor", "plots: put the cursor away", "run", False),
    Key("m", "other_figure(1)", "Figure", "right plot: length, learning rate, gradient norm, tokens/s, GPU, disk …", "run"),
    Key("M", "other_figure(-1)", "Figure", "right plot: the figure before", "run", False),
    Key("slash", "search", "Search", "search the whole log for a pattern", "logs"),
    Key("n", "next_match(True)", "Next", "the next match", "logs", footer=False),
    Key("N", "next_match(False)", "Previous", "the match before", "logs", footer=False),
    Key("exclamation_mark", "errors", "Errors", "the errors of the log, the first one first", "logs"),
    Key("t", "time", "Time", "go to a time: 10:05, 2h (ago), 2026-11-30 10:05", "logs"),
    Key("f", "follow", "Follow", "follow the end, or stay put", "logs", footer=False),
    Key("w", "wrap", "Wrap", "fold long lines, or cut them", "logs"),
    Key("right_square_bracket", "other(1)", "Other log", "the next log: other attempts, servers", "logs"),
    Key("left_square_bracket", "other(-1)", "Other log", "the log before", "logs", footer=False),
    Key("g,home", "begin", "Begin", "the beginning of the log", "logs", footer=False),
    Key("G,end", "end", "End", "the end of the log, and follow it", "logs", footer=False),
    Key("up,k", "move(-1)", "Up", "a line up", "logs", footer=False),
    Key("down,j", "move(1)", "Down", "a line down", "logs", footer=False),
    Key("pageup,ctrl+b", "page(-1)", "Page up", "a page up", "logs", footer=False),
    Key("pagedown,space", "page(1)", "Page down", "a page down", "logs", footer=False),
    Key("left", "sideways(-20)", "Left", "back along long lines", "logs", footer=False),
    Key("right", "sideways(20)", "Right", "along long lines", "logs", footer=False),
    Key("i", "edit", "Edit", "write in the notes; Esc leaves off", "notes"),
    Key("ctrl+s", "save", "Save", "save what was written; what others wrote meanwhile stays", "notes"),
    Key("right_square_bracket,left_square_bracket", "other", "Run or workspace", "the other notes", "notes"),
    Key("C", "checkpoint", "Checkpoint", "save the training now, after the step under way", "run", False),
    Key("P", "pause", "Pause", "hold the run, saved, with all that it holds; again: let it go on", "run"),
    Key("D", "dump", "Stacks", "have every process of the run write its stack into the log", "run", False),
    Key("A", "all_rows", "All rows", "read every row of a picture that shows only some", "run", False),
    Key("V", "services", "Servers", "vLLM servers: unit or process, command line, environment, since when", "overview", False),
    Key("v", "verdict", "Details", "the verdict or the failure in full, with the last events", "run"),
    Key("enter", "take", "Take", "what is lit: at first the answer that changes nothing; others have their own key", "question"),
    Key("left,up", "light(-1)", "Before", "light the answer before", "question"),
    Key("right,down", "light(1)", "Next", "light the next answer", "question"),
    Key("pagedown", "page(1)", "Page down", "a page of what the question is about", "question"),
    Key("pageup", "page(-1)", "Page up", "a page back", "question"),
    Key("escape", "leave", "Leave", "leave everything as it is", "question"),
    Key("escape,q", "dismiss", "Close", "close it, as the key that opened it does", "reading"),
    Key("up,k", "scroll(0, -1)", "Scroll", "a line up", "reading"),
    Key("down,j", "scroll(0, 1)", "Scroll", "a line down", "reading"),
    Key("pageup,ctrl+b", "scroll(-1, 0)", "Scroll", "a page up", "reading"),
    Key("pagedown,space", "scroll(1, 0)", "Scroll", "a page down", "reading"),
    Key("home,g", "scroll(-1000, 0)", "Scroll", "the beginning", "reading"),
    Key("end,G", "scroll(1000, 0)", "Scroll", "the end", "reading"),
)

DIALOGS = ("question", "reading")
"""Places over a screen: no key of "everywhere" holds there but those of `everywhere_and_over`."""


class RebindError(ValueError):
    """Keys cannot be changed as asked; the message is one sentence."""


_MODIFIED = re.compile(r"(?:(?:ctrl|shift|alt)\+)+(?=.)")
_NAMES = {
    "solidus": "slash", "reverse_solidus": "backslash", "commercial_at": "at", "hyphen_minus": "minus", "plus_sign": "plus",
    "low_line": "underscore",
}  # fmt: skip
"""Where Textual's name of a character is not Unicode's."""
_SPECIAL = frozenset({
    "up", "down", "left", "right", "home", "end", "pageup", "pagedown", "insert", "delete", "backspace", "enter", "escape",
    "tab", "space", *(f"f{number}" for number in range(1, 25)),
})  # fmt: skip


def _name_of(character: str) -> str:
    if character.isalnum():
        return character
    name = unicodedata.name(character, "").lower().replace("-", "_").replace(" ", "_")
    return _NAMES.get(name, name)


_CHARACTERS = {_name_of(chr(code)): chr(code) for code in range(33, 127)}


def character_of(key: str) -> str | None:
    """What a field takes the key for, by Textual's name of it; None where it is no text."""
    return " " if key == "space" else _CHARACTERS.get(key)


def spelled(keys: str) -> str:
    """Keys as a person writes them ("?", "ctrl+x, F5") as Textual spells them. Raises RebindError for what is no key."""
    found = []
    for word in keys.replace(",,", ",comma").split(",") if keys != "," else ["comma"]:
        word = word.strip()
        modified = _MODIFIED.match(word)
        front, key = (modified.group(), word[modified.end() :]) if modified else ("", word)
        if len(key) == 1 and key.isprintable() and key != " ":
            key = _name_of(key)
        elif key.lower() in _SPECIAL:
            key = key.lower()
        elif key not in _CHARACTERS:
            raise RebindError(f"There is no key '{word}'; write one like x, ?, F5, ctrl+x, pageup or question_mark.")
        found.append(front + key)
    return ",".join(found)


def rebound(table: tuple[Key, ...], wanted: Mapping[str, str]) -> tuple[Key, ...]:
    """The table with other keys: ``wanted`` maps "place.action" ("run.stop", "everywhere.pilot") to keys, several with commas.
    Raises RebindError for a name or a key that is none, and where a key would mean two things on one screen."""
    named = {f"{key.where}.{key.action}": key for key in table}
    if unknown := sorted(set(wanted) - set(named)):
        raise RebindError(f"There is no key to change called '{unknown[0]}'; names are like run.stop or everywhere.pilot.")
    asked = {name: spelled(keys) for name, keys in wanted.items()}
    made = tuple(replace(key, keys=asked.get(f"{key.where}.{key.action}", key.keys)) for key in table)
    for where in {key.where for key in made}:
        taken: dict[str, Key] = {}
        for key in made:
            if key.where != where and (key.where != "everywhere" or where in DIALOGS):
                continue
            for one in key.keys.split(","):
                other = taken.setdefault(one, key)
                changed = {f"{k.where}.{k.action}" for k in (key, other)} & set(wanted)
                if other is not key and changed:
                    raise RebindError(f"The key '{one}' would mean both {other.label} and {key.label}; choose another.")
    return made


def rebind(wanted: Mapping[str, str]) -> None:
    """Change the table for this process. To be called before the screens are imported: their bindings come from it."""
    global KEYS
    KEYS = rebound(KEYS, wanted)


def keys_of(where: str) -> list[Key]:
    """The keys of one screen, or of "everywhere"."""
    return [key for key in KEYS if key.where == where]


def everywhere_and_over() -> frozenset[str]:
    """The key for the way back to the shell, which holds in dialogs and fields too; none where it was made a letter."""
    return frozenset(key.keys for key in KEYS if key.action == "suspend_process" and key.keys.startswith("ctrl+"))


def key_of(where: str, action: str) -> str:
    """The key of an action, as a person writes it."""
    return next(key_label(key.keys) for key in KEYS if key.where == where and key.action == action)


def key_label(keys: str) -> str:
    """A key as a person writes it."""
    names = {
        "question_mark": "?", "enter": "Enter", "escape": "Esc", "slash": "/", "exclamation_mark": "!",
        "right_square_bracket": "]", "left_square_bracket": "[", "plus": "+", "minus": "-",
        "less_than_sign": "<", "greater_than_sign": ">", "up": "↑", "down": "↓", "left": "←", "right": "→",
        "pageup": "PgUp", "pagedown": "PgDn", "space": "Space", "home": "Home", "end": "End",
    }  # fmt: skip
    first = keys.split(",")[0]
    return names.get(first, first.replace("ctrl+", "Ctrl+"))


def reading_foot(opened_by: str) -> str:
    """What the frame of a dialog to read says: every key that closes it, and the first ones that scroll. ``opened_by``: the
    keys that opened it, as the table has them."""
    keys = keys_of("reading")
    closing = [one for key in keys if key.action == "dismiss" for one in key.keys.split(",")]
    scrolling = [key_label(key.keys) for key in keys if key.label == "Scroll"][:4]
    return f"{' '.join(map(key_label, dict.fromkeys([*closing, *opened_by.split(',')])))} close it · {' '.join(scrolling)} scroll"
