"""Secrets that a run needs, such as HF_TOKEN: named on the command line or in the form, never written there.

The value comes from the operator's environment or from a question without echo. It stays in this process's memory and
travels over the helper's stdin into the worker's environment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

AskValue = Callable[[str], Awaitable[str | None]]
"""Asks a person for the value of a name; None where the question was cancelled."""


class SecretError(ValueError):
    """A secret cannot be had, in one sentence with the next step. It never quotes what was typed: that may be a value."""


def names_of(words: Iterable[str]) -> list[str]:
    """The names, each once. Raises SecretError where one is no name of a variable."""
    found = list(dict.fromkeys(word for word in words if word))
    if not all(NAME.fullmatch(word) for word in found):
        raise SecretError("Give secrets by name alone, such as HF_TOKEN; values come from this environment or are asked.")
    return found


async def values_of(names: Iterable[str], ask: AskValue | None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name → value, from the environment where it is set there, else by ``ask``. Raises SecretError."""
    known = os.environ if environment is None else environment
    values: dict[str, str] = {}
    for name in names:
        value = known.get(name) or (await ask(name) if ask is not None else None)
        if not value:
            why = "and was not given" if ask is not None else "and there is no terminal to ask on"
            raise SecretError(f"{name} is not set in this environment {why}; export {name} first.")
        values[name] = value
    return values


def started_with(launch_json: str | None) -> list[str]:
    """The names of the secrets that a run was launched with, as its launch.json lists them.

    They come from the container, so they are only ever asked for or named: taking their values from this environment
    unasked would let a container choose what it is sent.
    """
    try:
        listed = json.loads(launch_json or "{}").get("secret_env") or []
    except (ValueError, AttributeError):
        return []
    return [name for name in listed if isinstance(name, str) and NAME.fullmatch(name)] if isinstance(listed, list) else []
