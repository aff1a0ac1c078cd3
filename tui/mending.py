"""Remedies: first what would be done, in things and sizes; then, confirmed, the act; then the check that offered it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eagle3.core.readiness.report import Action, Check
from tui import messages
from tui.formats import bytes_label, count_label, one_line
from tui.readiness import Readiness
from tui.screens.confirm import Choice, Confirm
from tui.screens.pick import Pick

if TYPE_CHECKING:
    from tui.app import ConsoleApp

ITEMS_SHOWN = 8
"""Things that a preview names one by one."""
COMMAND_SHOWN = 130
"""Columns of a command that a preview shows; a list of pinned packages goes on for screens."""
PICKED = frozenset({"delete"})
"""Remedies of which the operator picks the things one by one."""


@dataclass
class Mend:
    """A remedy under way. ``shown`` is what the operator has agreed to, once things were picked; ``python`` is the interpreter
    of an environment that is being built."""

    view: Readiness
    check: Check
    action: Action
    shown: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    python: str = ""


class Mending:
    """One remedy at a time; nothing acts without the token of a preview that was shown."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self._mend: Mend | None = None

    def preview(self, view: Readiness, check: Check) -> None:
        """Ask what the remedy of a check would do; nothing is done before that is shown and confirmed."""
        if check.action is None:
            self._app.tell(check.remedy or "The console has no remedy for this check.")
        elif not self._app.may_change():
            return
        elif self._mend is not None:
            self._app.tell("Another remedy is under way; wait for its end.", "warning")
        else:
            self._mend = Mend(view, check, check.action)
            self._app.tell(f"Asking what would be done: {label_of(check.action)}…")
            self._app.session.remedy(view.spec, check.id, check.action)

    def answered(self, message: messages.RemedyAnswered) -> None:
        """A preview, or what was done."""
        mend = self._mend
        if mend is None:
            return
        answer = message.answer
        if answer is None:
            self._mend = None
            self._app.tell(f"{label_of(mend.action)}: {message.problem}", "error")
        elif message.preview:
            self._app.clear_notifications()
            self._take_preview(mend, answer)
        elif answer.get("check_id"):
            mend.python = next((str(item.get("python", "")) for item in items_of(answer, "done")), "")
            self._app.tell("The build has started; it goes on when the link drops.")
        else:
            self._mend = None
            self._app.tell(str(answer.get("text") or "Done."))
            self._app.checking.ask(mend.view, [mend.check])

    def _take_preview(self, mend: Mend, answer: Mapping[str, Any]) -> None:
        items, token = items_of(answer), str(answer.get("token") or "")
        if not items or not token:
            self._mend = None
            refused = "; ".join(one_line(str(entry.get("why", "")), 200) for entry in items_of(answer, "refused"))
            self._app.tell(f"There is nothing to do: {refused or one_line(str(answer.get('text') or ''))}", "warning")
        elif mend.shown and {str(item.get("path")): item for item in items} == mend.shown:
            self._app.session.remedy(mend.view.spec, mend.check.id, mend.action, token=token)
        elif mend.action.verb in PICKED and not mend.shown:
            self._app.ask_over(Pick(f"{label_of(mend.action)}?", items), lambda picked: self._picked(mend, items, picked))
        else:
            self._confirm(mend, answer, token)

    def _picked(self, mend: Mend, items: list[Mapping[str, Any]], picked: list[str] | None) -> None:
        """Ask again with only what was picked: the token of that preview is the one that acts, where it shows the same."""
        if not picked:
            self._mend = None
            return
        mend.shown = {str(item["path"]): item for item in items if str(item.get("path")) in picked}
        mend.action = mend.action.model_copy(update={"args": {**mend.action.args, "paths": picked}})
        self._app.session.remedy(mend.view.spec, mend.check.id, mend.action)

    def _confirm(self, mend: Mend, answer: Mapping[str, Any], token: str) -> None:
        label = label_of(mend.action)
        buttons = [Choice("do", "y", "Do it", danger=True), Choice("", "escape", "Cancel")]

        def decided(choice: str | None) -> None:
            if choice:
                self._app.session.remedy(mend.view.spec, mend.check.id, mend.action, token=token)
            else:
                self._mend = None

        title = f"{label[:1].upper()}{label[1:]}?"
        self._app.ask_over(Confirm(title, preview_rows(answer), buttons, one_line(mend.action.confirm)), decided)

    def build_ended(self, message: messages.BuildEnded) -> None:
        """An environment is there, or is not: it can be taken for launches at once."""
        mend, self._mend = self._mend, None
        if mend is None:
            return
        stopped = mend.view.deep is not None and mend.view.deep.stopping
        mend.view.deep = None
        if stopped or message.problem or not mend.python:
            self._app.tell(f"The environment is not whole: {'stopped.' if stopped else message.problem}", "error")
            return
        rows = [("Python", mend.python)]
        buttons = [Choice("use", "y", "Use it"), Choice("", "escape", "Leave it")]

        def decided(choice: str | None) -> None:
            if choice:
                self._app.choose("worker_python", mend.python)
                self._app.present()

        self._app.ask_over(Confirm("The environment is built: launch with it?", rows, buttons), decided)


def label_of(action: Action) -> str:
    """A remedy in the words of the check that offers it."""
    return one_line(action.label or action.verb, 60)


def items_of(answer: Mapping[str, Any], key: str = "items") -> list[Mapping[str, Any]]:
    """The entries of an answer that can be understood."""
    return [item for item in answer.get(key) or () if isinstance(item, Mapping)]


def preview_rows(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a remedy would do, in rows: each thing with its size, the sum, and what it will not touch and why."""
    items, refused = items_of(answer), items_of(answer, "refused")
    rows = [row for item in items[:ITEMS_SHOWN] for row in item_rows(item, answer)]
    if len(items) > ITEMS_SHOWN:
        rows.append(("…", f"{len(items) - ITEMS_SHOWN} more"))
    if text := one_line(str(answer.get("text") or ""), 300):
        rows.append(("In all", text))
    rows += [("Left", one_line(str(entry.get("why") or entry.get("what") or ""), 200)) for entry in refused[:ITEMS_SHOWN]]
    return rows


def item_rows(item: Mapping[str, Any], answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One thing of a preview: a process, a path with its size, or an environment with the commands that build it."""
    if item.get("pid") is not None:
        measured = (answer.get("measured") or {}).get(str(item["pid"])) or {}
        sizes = [f"{bytes_label(measured[k])} {word}" for k, word in (("gpu_bytes", "of GPU memory"), ("rss_bytes", "of memory"))
                 if measured.get(k)]  # fmt: skip
        words = [one_line(str(item.get("name") or ""), 80), one_line(str(item.get("owner") or ""), 80), *sizes]
        return [(f"End {item['pid']}", ", ".join(word for word in words if word))]
    if item.get("commands"):
        commands = [" ".join(map(str, c)) if isinstance(c, list) else str(c) for c in item["commands"]]
        return [
            ("Makes", one_line(str(item.get("folder") or ""), 200)),
            *(("Runs", one_line(c, COMMAND_SHOWN)) for c in commands),
        ]
    files = f", {count_label(item['files'])} files" if isinstance(item.get("files"), int) else ""
    return [(bytes_label(item.get("bytes")), f"{one_line(str(item.get('path') or ''), 200)}{files}")]
