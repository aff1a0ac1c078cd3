"""What a launch will do: the operator's choices, resolved to a RunSpec, and the command that launches the same. Pure."""

from __future__ import annotations

import random
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cache
from typing import Any

from eagle3.core import presets
from eagle3.core.estimate import estimate
from eagle3.core.presets import SpecError
from eagle3.core.records import Probe
from eagle3.core.spec import RunSpec
from tui.fields import every, written
from tui.run_secrets import SecretError, names_of

DEFAULT_TARGET = "smollm2-135m"
SIZES = ("smoke", "pilot", "full")
CHOSEN = ("size", "target", "machine", "secrets")
"""Choices that are no fields."""
HERE = "this machine"
"""What the console calls the host of ``--local``."""
PLACES = ("workspace", "worker_python", "server_python", "data.prompts")
"""Fields that say where something lies, whatever the size of a run."""
IN_THE_CONTAINER = {"workspace", "data.prompts"}
"""Paths that are never relative: nobody knows the folder that they would be relative to."""
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


@dataclass(frozen=True)
class Choices:
    """What the Launch screen holds. ``typed``: texts by the dotted name of their field; a field that is not in it keeps the
    preset's value."""

    size: str = "pilot"
    target: str = ""
    machine: str = ""
    typed: Mapping[str, str] = dataclass_field(default_factory=dict)
    secrets: str = ""

    def with_size(self, size: str) -> Choices:
        """The same choices for another size. What was typed for one size does not carry over to another, places do."""
        kept = {name: text for name, text in self.typed.items() if name in PLACES}
        return self if size == self.size else replace(self, size=size, typed=kept)

    def with_field(self, name: str, text: str) -> Choices:
        """The same choices with another size, target, machine or secrets, or with ``text`` typed into the field ``name``."""
        if name in CHOSEN:
            return replace(self, **{name: text})  # type: ignore[arg-type]
        typed = {key: value for key, value in self.typed.items() if key != name}
        return replace(self, typed=typed | ({name: text} if text.strip() else {}))


def first_choices(workspace: str = "", worker_python: str = "") -> Choices:
    """The choices before anybody chose."""
    places = {"workspace": workspace, "worker_python": worker_python}
    typed = {name: text for name, text in places.items() if text}
    return Choices(target=DEFAULT_TARGET, machine=_machine("cpu"), typed=typed)


def for_machine(choices: Choices, probe: Probe | None) -> Choices:
    """The choices with the machine preset that fits what the probe saw, where there is one."""
    seen = [gpu.name for gpu in probe.gpu.gpus] if probe is not None and probe.gpu.status == "ok" else []
    return for_gpus(choices, seen)


def for_gpus(choices: Choices, names: Sequence[str]) -> Choices:
    """The choices with the machine preset that fits a host with GPUs of these names, or without any."""
    return replace(choices, machine=_machine("gpu" if names else "cpu", tuple(names)) or choices.machine)


@cache
def _machine(kind: str, gpu_names: tuple[str, ...] = ()) -> str:
    """The machine preset of a kind whose GPUs have the names seen; where none has, the first of the kind. Every probe asks."""
    fitting = {name: presets.load("machine", name) for name in presets.names("machine")}
    fitting = {name: table for name, table in fitting.items() if table.get("kind") == kind}
    named = [
        name
        for name, table in fitting.items()
        if gpu_names and all(str(table.get("hardware", {}).get("gpu_name", "?")) in seen for seen in gpu_names)
    ]
    return next(iter([*named, *fitting]), "")


def overrides(choices: Choices) -> dict[str, Any]:
    """The typed fields as dotted overrides. Raises SpecError in one sentence for a path that is none of the container's."""
    values = {name: every()[name].value(text) if name in every() else text for name, text in choices.typed.items()}
    for name in IN_THE_CONTAINER & set(values):
        text = str(values[name])
        if not (text.startswith(("/", "~/")) or text == "~" or (name, text) == ("data.prompts", "builtin")):
            why = f"'{text}' is a path in the container, so it must begin with / or ~/."
            raise SpecError(f"{name}: {why}", {name: why})
    return values


def secret_names(choices: Choices) -> list[str]:
    """The variables that the worker is to get, by name. Raises SpecError in one sentence."""
    try:
        return names_of(choices.secrets.replace(",", " ").split())
    except SecretError as error:
        raise SpecError(str(error), {"secrets": str(error)}) from error


def preset(choices: Choices) -> RunSpec:
    """The spec of the chosen presets alone. Raises SpecError."""
    return presets.resolve(choices.size, choices.target, choices.machine)


def resolve(choices: Choices) -> RunSpec:
    """The spec of the choices, in which no secret stands. Raises SpecError in one sentence."""
    secret_names(choices)
    return presets.resolve(choices.size, choices.target, choices.machine, overrides(choices))


def resolves(choices: Choices) -> bool:
    """Whether the choices make a spec at all."""
    try:
        resolve(choices)
    except SpecError:
        return False
    return True


def launchable(choices: Choices) -> RunSpec:
    """The spec of the choices, as one that a run can be started with. Raises SpecError in one sentence."""
    spec = resolve(choices)
    if problems := estimate(spec).problems:
        raise SpecError(problems[0])
    return spec


def changes(choices: Choices, spec: RunSpec) -> dict[str, tuple[Any, Any]]:
    """What differs from the presets: field → (the preset's value, the spec's)."""
    return presets.difference(preset(choices), spec)


def commands(choices: Choices, spec: RunSpec, host: str, helper_python: str = "") -> tuple[str, str]:
    """The commands that launch exactly this: from this machine, and from a shell in the container. ``host`` as the console
    calls it; ``helper_python`` as the console was given it."""
    differing = changes(choices, spec)
    sets = [
        f"--set {shlex.quote(f'{name}={written(value)}')}"
        for name, (_, value) in differing.items()
        if name != "workspace" and value is not None
    ]
    what = [f"--size {choices.size}", f"--target {choices.target}", f"--machine {choices.machine}"]
    if "workspace" in differing:
        what.append(f"--workspace {shlex.quote(spec.workspace)}")
    secrets = [f"--secret {name}" for name in secret_names(choices)]
    where = "--local" if host == HERE else shlex.quote(host)
    python = [f"--python {shlex.quote(helper_python)}"] if helper_python else []
    return (
        " ".join(["eagle3-tui launch", where, *python, *what, *sets, *secrets]),
        " ".join(["eagle3 run", *what, *sets, *secrets]),
    )


def new_run_id(size: str, now: float, pick: Callable[[str], str] = random.choice) -> str:
    """A fresh run id such as ``pilot-20261130-101500-ab12``: the launch's idempotency key, made once per confirmation."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    name = re.sub(r"[^a-z0-9-]+", "-", size.lower()).strip("-") or "run"
    return f"{name}-{stamp}-{''.join(pick(ALPHABET) for _ in range(4))}"


def launched_words(ack: Mapping[str, Any], run_id: str, host: str) -> str:
    """What a launch has come to: it runs, it was there already, or what yields to it is still being stopped."""
    then = "it starts by itself when what yields to it has stopped" if ack.get("state") == "starting" else "it goes on by itself"
    return f"{'Found' if ack.get('already') else 'Launched'} {run_id} on {host}; {then}."
