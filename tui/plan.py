"""What a launch will do: the operator's choices, resolved to a RunSpec and said in numbers. Pure."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from eagle3.core import presets
from eagle3.core.presets import SpecError
from eagle3.core.records import Disk, Probe
from eagle3.core.spec import RunSpec
from tui.formats import bytes_label, count_label

DEFAULT_WORKSPACE = "~/eagle3"
SIZES = ("smoke", "pilot")
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

    def with_size(self, size: str) -> Choices:
        """The same choices for another size. Numbers typed for one size do not carry over to another."""
        return self if size == self.size else replace(self, size=size, train_prompts="", max_steps="", more="")


def first_choices(workspace: str = "", worker_python: str = "") -> Choices:
    """The choices before anybody chose."""
    return Choices(target=presets.names("target")[0], machine=_machine("cpu"), workspace=workspace, worker_python=worker_python)


def for_machine(choices: Choices, probe: Probe | None) -> Choices:
    """The choices with the machine preset that fits what the probe saw, where there is one."""
    return for_gpu(choices, probe is not None and probe.gpu.status == "ok" and bool(probe.gpu.gpus))


def for_gpu(choices: Choices, gpu: bool) -> Choices:
    """The choices with the first machine preset for a host with or without a GPU, where there is one."""
    return replace(choices, machine=_machine("gpu" if gpu else "cpu") or choices.machine)


def _machine(kind: str) -> str:
    fitting = [name for name in presets.names("machine") if presets.load("machine", name).get("kind") == kind]
    return fitting[0] if fitting else ""


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


def resolve(choices: Choices) -> RunSpec:
    """The spec of the choices. Raises SpecError in one sentence."""
    return presets.resolve(choices.size, choices.target, choices.machine, overrides(choices))


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
    """Free space where the run would write, and the floor that it keeps."""
    disk = workspace_disk(probe, spec.workspace)
    if disk is None or disk.free_bytes is None:
        return f"unknown; the run keeps {bytes_label(spec.disk_floor_bytes)} free"
    low = " — not enough" if disk.free_bytes <= spec.disk_floor_bytes else ""
    where = disk.mount or disk.path
    return f"{bytes_label(disk.free_bytes)} free on {where}; the run keeps {bytes_label(spec.disk_floor_bytes)} free{low}"


def new_run_id(size: str, now: float, pick: Callable[[str], str] = random.choice) -> str:
    """A fresh run id such as ``pilot-20261130-101500-ab12``: the launch's idempotency key, made once per confirmation."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    name = re.sub(r"[^a-z0-9-]+", "-", size.lower()).strip("-") or "run"
    return f"{name}-{stamp}-{''.join(pick(ALPHABET) for _ in range(4))}"
