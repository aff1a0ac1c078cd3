"""What changed between two JSON values, so that a poll sends only that.

Pure, and used on both sides: the helper makes a change with `diff`, the console applies it with `patched`. A change is
``["=", value]`` (replaced), ``["{", {key: change}, [keys gone]]`` or ``["[", {index: change}, length]``; None: the same.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from typing import Any, Dict, List, Optional

KEPT = 8
"""Snapshots that a channel remembers: the last answer to each of a few questions, and those before that got lost."""

Change = Optional[List[Any]]


def diff(old: Any, new: Any) -> Change:
    """The change that makes ``new`` of ``old``; both as JSON gives them (objects with text keys, lists, scalars)."""
    if isinstance(old, dict) and isinstance(new, dict):
        inside = {}
        for key, value in new.items():
            change = diff(old[key], value) if key in old else ["=", value]
            if change is not None:
                inside[key] = change
        gone = [key for key in old if key not in new]
        return ["{", inside, gone] if inside or gone else None
    if isinstance(old, list) and isinstance(new, list):
        items = {}
        for index, value in enumerate(new):
            change = diff(old[index], value) if index < len(old) else ["=", value]
            if change is not None:
                items[str(index)] = change
        return ["[", items, len(new)] if items or len(old) != len(new) else None
    # 1, 1.0 and True are equal to Python and different in JSON.
    return None if type(old) is type(new) and old == new else ["=", new]


def patched(old: Any, change: Change) -> Any:
    """``old`` after ``change``; ``old`` itself stays as it is. Raises ValueError where the change is none of this value."""
    if change is None:
        return old
    try:
        kind, inside = change[0], change[1]
        if kind == "=":
            return inside
        if kind == "{" and isinstance(old, dict):
            kept = {key: value for key, value in old.items() if key not in change[2]}
            return {**kept, **{key: patched(kept.get(key), part) for key, part in inside.items()}}
        if kind == "[" and isinstance(old, list):
            length = int(change[2])
            items = (old + [None] * (length - len(old)))[:length]
            for index, part in inside.items():
                items[int(index)] = patched(items[int(index)], part)
            return items
    except (LookupError, TypeError) as error:
        raise ValueError(f"a change that cannot be read: {error!r}") from error
    raise ValueError("a change that does not fit what it is to change")


class Memory:
    """What the other end of a channel was sent. It quotes the token of what it holds, and gets the change from there;
    a token of another channel, or one long past, gets the whole value."""

    def __init__(self) -> None:
        # The helper of the next connection must not take this one's tokens for its own.
        self._name = os.urandom(3).hex()
        self._count = 0
        self._sent: "OrderedDict[str, Any]" = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, held: Any, value: Any) -> Dict[str, Any]:
        """``{"is": token}`` (the same as ``held``), ``{"is","from","change"}``, or ``{"is","value"}``."""
        plain = json.loads(json.dumps(value))  # exactly what the other end will read
        with self._lock:
            known = isinstance(held, str) and held in self._sent
            change = diff(self._sent[held], plain) if known else None
            if known and change is None:
                self._sent.move_to_end(held)
                return {"is": held}
            self._count += 1
            token = f"{self._name}{self._count}"
            self._sent[token] = plain
            while len(self._sent) > KEPT:
                self._sent.popitem(last=False)
            return {"is": token, "from": held, "change": change} if known else {"is": token, "value": plain}


class Held:
    """The other end's half: the value as last told, and its token."""

    def __init__(self) -> None:
        self.token: Optional[str] = None
        self.value: Any = None

    def fits(self, answer: Dict[str, Any]) -> bool:
        """Whether ``answer`` is whole, or builds on what is held."""
        return "value" in answer or (self.token is not None and answer.get("from", answer.get("is")) == self.token)

    def take(self, answer: Dict[str, Any]) -> Any:
        """The value after ``answer``. Raises ValueError, and forgets, where they do not fit: the next question brings all."""
        try:
            if not self.fits(answer):
                raise ValueError("an answer that builds on something not held")
            self.value = answer["value"] if "value" in answer else patched(self.value, answer.get("change"))
        except ValueError:
            self.forget()
            raise
        self.token = answer.get("is")
        return self.value

    def forget(self) -> None:
        """Hold nothing: the next answer is whole."""
        self.token, self.value = None, None
