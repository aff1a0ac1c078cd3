"""What a launch will do: the operator's choices, resolved to a RunSpec and said in numbers. Pure."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3.core import presets
from eagle3.core.estimate import estimate
from eagle3.core.presets import SpecError
from eagle3.core.records import Disk, Probe
from eagle3.core.spec import RunSpec
from tui.formats import bytes_label, count_label, duration_label
from tui.run_secrets import SecretError, names_of
from tui.state import Console

DEFAULT_WORKSPACE = "~/eagle3"
DEFAULT_TARGET = "smollm2-135m"
SIZES = ("smoke", "pilot", "full")
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


@dataclass(frozen=True)
class Choices:
    """What the Launch screen holds. Texts are as typed; an empty one leaves the preset's value."""

    size: str = "pilot"
    target: str = ""
    machine: str = ""
    workspace: str = ""
    worker_python: str = ""
    prompts: str = ""
    train_prompts: str = ""
    max_steps: str = ""
    more: str = ""
    secrets: str = ""

    def with_size(self, size: str) -> Choices:
        """The same choices for another size. Numbers typed for one size do not carry over to another."""
        return self if size == self.size else replace(self, size=size, train_prompts="", max_steps="", more="")


def first_choices(workspace: str = "", worker_python: str = "") -> Choices:
    """The choices before anybody chose."""
    return Choices(target=DEFAULT_TARGET, machine=_machine("cpu"), workspace=workspace, worker_python=worker_python)


def for_machine(choices: Choices, probe: Probe | None) -> Choices:
    """The choices with the machine preset that fits what the probe saw, where there is one."""
    seen = [gpu.name for gpu in probe.gpu.gpus] if probe is not None and probe.gpu.status == "ok" else []
    return for_gpus(choices, seen)


def for_gpus(choices: Choices, names: Sequence[str]) -> Choices:
    """The choices with the machine preset that fits a host with GPUs of these names, or without any."""
    return replace(choices, machine=_machine("gpu" if names else "cpu", names) or choices.machine)


def _machine(kind: str, gpu_names: Sequence[str] = ()) -> str:
    """The machine preset of a kind whose GPUs have the names seen; where none has, the first one of the kind."""
    fitting = {name: presets.load("machine", name) for name in presets.names("machine")}
    fitting = {name: table for name, table in fitting.items() if table.get("kind") == kind}
    named = [
        name
        for name, table in fitting.items()
        if gpu_names and all(str(table.get("hardware", {}).get("gpu_name", "?")) in seen for seen in gpu_names)
    ]
    return next(iter([*named, *fitting]), "")


def overrides(choices: Choices) -> dict[str, Any]:
    """The typed fields as dotted overrides. Raises SpecError in one sentence for a number that is none."""
    values: dict[str, Any] = {}
    for label, key, text in (
        ("Train prompts", "data.train_prompts", choices.train_prompts),
        ("Max steps", "train.max_steps", choices.max_steps),
    ):
        if text.strip():
            digits = text.strip().replace(",", "").replace("_", "")
            if not digits.isdecimal() or int(digits) < 1:
                raise SpecError(f"{label}: '{text.strip()}' is not a whole number from 1 up.")
            values[key] = int(digits)
    if choices.prompts.strip():
        values["data.prompts"] = _container_path("Prompts file", choices.prompts.strip(), also="builtin")
    if choices.workspace.strip():
        values["workspace"] = _container_path("Workspace", choices.workspace.strip())
    if choices.worker_python.strip():
        values["worker_python"] = choices.worker_python.strip()
    for word in choices.more.split():
        key, value = presets.parse_override(word)
        values[key] = value
    return values


def _container_path(label: str, text: str, also: str = "") -> str:
    if text == also or text.startswith(("/", "~/")) or text == "~":
        return text
    raise SpecError(f"{label}: '{text}' is a path in the container, so it must begin with / or ~/.")


def secret_names(choices: Choices) -> list[str]:
    """The variables that the worker is to get, by name. Raises SpecError in one sentence."""
    try:
        return names_of(choices.secrets.replace(",", " ").split())
    except SecretError as error:
        raise SpecError(str(error)) from error


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


def steps(spec: RunSpec) -> list[tuple[str, str]]:
    """What the run will do: (stage, one short line in numbers)."""
    source = "built-in prompts" if spec.data.prompts == "builtin" else spec.data.prompts
    train, heldout = spec.data.train_prompts, spec.data.heldout_prompts
    return [
        ("prepare", f"{count_label(train)} prompts to train on, {count_label(heldout)} held out; {source}"),
        ("regenerate", f"answers by the target itself, up to {spec.regenerate.max_new_tokens} tokens each"),
        ("extract", f"hidden states of layers {', '.join(str(k) for k in spec.target.captured_layers)}"),
        ("vocabulary", f"{count_label(spec.vocabulary.size)} tokens that the draft can propose"),
        ("train", f"{count_label(spec.train.max_steps)} steps of {count_label(spec.train.pack_tokens)} tokens, "
                  f"{spec.train.ttt_steps} positions ahead"),
        ("evaluate", f"{spec.evaluate.prompts} held-out prompts served, {spec.evaluate.lossless_prompts} compared word for word"),
        ("export", "the draft as vLLM loads it, with a model card"),
    ]  # fmt: skip


def workspace_disk(probe: Probe | None, workspace: str) -> Disk | None:
    """The disk that holds the workspace, as far as the probe tells: it answers with the workspace first."""
    if probe is None or not probe.disks:
        return None
    named = [disk for disk in probe.disks if disk.path.rstrip("/") == workspace.rstrip("/")]
    return (named or probe.disks)[0]


def disk_line(probe: Probe | None, spec: RunSpec) -> str:
    """What the run needs where it would write, what is free there, and the floor that it keeps."""
    disk, needed = workspace_disk(probe, spec.workspace), estimate(spec).peak_bytes
    needs = f"needs {bytes_label(needed)}"
    if disk is None or disk.free_bytes is None:
        return f"{needs}; free space unknown; the run keeps {bytes_label(spec.disk_floor_bytes)} free"
    low = " — not enough" if disk.free_bytes - needed < spec.disk_floor_bytes else ""
    where = disk.mount or disk.path
    return f"{needs}, {bytes_label(disk.free_bytes)} free on {where}; keeps {bytes_label(spec.disk_floor_bytes)} free{low}"


def time_line(spec: RunSpec) -> str:
    """The expected time, its longest stages, and how sure that is: the weakest of the rates that it follows from."""
    found = estimate(spec)
    longest = sorted((stage for stage in found.stages if stage.rate), key=lambda stage: -stage.seconds)[:2]
    sources = [stage.rate_source for stage in longest]
    known = next(source for source in ("derived", "reported", "measured") if source in sources)
    parts = ", ".join(f"{stage.stage} {duration_label(stage.seconds)}" for stage in longest)
    return f"about {duration_label(found.seconds)} ({parts}; rates {known})"


def new_run_id(size: str, now: float, pick: Callable[[str], str] = random.choice) -> str:
    """A fresh run id such as ``pilot-20261130-101500-ab12``: the launch's idempotency key, made once per confirmation."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    name = re.sub(r"[^a-z0-9-]+", "-", size.lower()).strip("-") or "run"
    return f"{name}-{stamp}-{''.join(pick(ALPHABET) for _ in range(4))}"


def launch_rows(console: Console, spec: RunSpec, run_id: str, secret_names: Sequence[str] = ()) -> list[tuple[str, str]]:
    """What a confirmation of a launch shows."""
    secrets = [("Secrets", ", ".join(secret_names))] if secret_names else []
    return [
        ("Host", console.host),
        ("Target", f"{spec.target.name} on machine {spec.machine}"),
        (
            "Size",
            f"{spec.size}: {count_label(spec.data.train_prompts)} prompts to train on, {spec.data.heldout_prompts} held out",
        ),
        ("Training", f"{count_label(spec.train.max_steps)} steps, vocabulary {count_label(spec.vocabulary.size)}"),
        ("Workspace", spec.workspace),
        ("Disk", disk_line(console.probe.value, spec)),
        ("Time", time_line(spec)),
        *secrets,
        ("Run", run_id),
    ]
