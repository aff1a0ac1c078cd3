"""What a launch is expected to take, in words, beside what the container has: disk, time and GPUs by stage. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from eagle3.core import rates
from eagle3.core.estimate import Estimate, StageEstimate, break_even_lines, estimate
from eagle3.core.rates import RateSource
from eagle3.core.records import Disk, Probe
from eagle3.core.spec import RunSpec
from tui.formats import UNKNOWN, age_label, bytes_label, count_label, duration_label
from tui.state import Console


def expected(console: Console, spec: RunSpec) -> Estimate:
    """The estimate by the rates that the container has measured, and by the built-in ones where it has none."""
    return estimate(spec, measured(console, spec))


def measured(console: Console, spec: RunSpec) -> Mapping[str, Any]:
    """What the runs of the workspace have measured for this machine and target; nothing of another workspace's."""
    probe = console.probe.value
    return rates.known(probe.rates, spec) if probe is not None and spec.workspace == console.workspace else {}


def workspace_disk(probe: Probe | None, workspace: str) -> Disk | None:
    """The disk that holds the workspace, as far as the probe tells: it answers with the workspace first."""
    if probe is None or not probe.disks:
        return None
    named = [disk for disk in probe.disks if disk.path.rstrip("/") == workspace.rstrip("/")]
    return (named or probe.disks)[0]


def free_words(probe: Probe | None, spec: RunSpec, taken: Sequence[str] = ()) -> str:
    """What is free where the run would write, and whether that is enough with the floor that it keeps. ``taken``: the stages
    that it takes over from another run."""
    disk = workspace_disk(probe, spec.workspace)
    if disk is None or disk.free_bytes is None:
        return "free space unknown"
    low = disk.free_bytes - estimate(spec, taken=taken).peak_bytes < spec.disk_floor_bytes
    keeps = f"; the run keeps {bytes_label(spec.disk_floor_bytes)} free"
    return (
        f"{bytes_label(disk.free_bytes)} free on {disk.mount or disk.path}{keeps if low else ''}{' — not enough' if low else ''}"
    )


def as_of(console: Console, now: float) -> str:
    """ " as of 2 h ago" where what is known of the container is stale, else nothing."""
    at = console.probe.at
    return f" as of {age_label(now - at)}" if at is not None and console.stale(at, now) else ""


def disk_line(probe: Probe | None, spec: RunSpec) -> str:
    """What the run needs where it would write, and what is free there."""
    return f"needs at most {bytes_label(estimate(spec).peak_bytes)}; {free_words(probe, spec)}"


def time_line(found: Estimate) -> str:
    """The expected time, its longest stages, and how sure that is: the weakest of the rates that it follows from."""
    longest = sorted((stage for stage in found.stages if stage.rate), key=lambda stage: -stage.seconds)[:2]
    sources = [stage.rate_source for stage in longest]
    known = next(source for source in ("derived", "reported", "measured") if source in sources)
    parts = ", ".join(f"{stage.stage} {duration_label(stage.seconds)}" for stage in longest)
    return f"about {duration_label(found.seconds)} ({parts}; rates {known})"


def indices(gpus: Sequence[int]) -> str:
    """GPU indices in a few columns: "0-7", "0,2", "–" for none."""
    ordered = sorted(gpus)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered)) or "–"


STAGE_COLUMNS = ("", "disk", "time", "GPUs", "tokens/s", "source")
"""What `stage_cells` gives; the source says how the tokens/s are known."""


def stage_cells(stage: StageEstimate, spec: RunSpec) -> tuple[str, ...]:
    """A row of the estimate, a cell for each of `STAGE_COLUMNS`."""
    return (
        stage.stage,
        bytes_label(stage.bytes),
        duration_label(stage.seconds),
        indices(spec.devices.of(stage.stage)),
        count_label(stage.rate) if stage.rate else UNKNOWN,
        stage.rate_source,
    )


def break_even(found: Estimate) -> list[tuple[str, RateSource | Literal[""]]]:
    """From which acceptance length on a draft pays, as the core says it, each with how it is known ("": not at all)."""
    known = list(found.break_even.values())
    return [(words, known[place].source if known else "") for place, words in enumerate(break_even_lines(found))]


def gpu_line(probe: Probe | None, spec: RunSpec) -> str:
    """The memory that the target's weights take on each GPU of a stage, beside what is free there; "" without GPUs."""
    named = sorted({gpu for stage in ("regenerate", "extract", "evaluate") for gpu in spec.devices.of(stage)})
    if not named:
        return ""
    weights = spec.target.weights_bytes
    each = weights / max(1, spec.server.tensor_parallel)
    needs = (
        f"weights {bytes_label(weights)}, {bytes_label(each)} a GPU (published size)" if weights else "weights of unknown size"
    )
    if probe is None or probe.gpu.status != "ok":
        return f"{needs}; GPUs not seen"
    cards = {gpu.index: gpu for gpu in probe.gpu.gpus}
    if missing := [gpu for gpu in named if gpu not in cards]:
        return f"{needs}; the container has no GPU {indices(missing)}"
    free = {
        k: cards[k].memory_total_bytes - cards[k].memory_used_bytes  # type: ignore[operator]
        for k in named
        if cards[k].memory_total_bytes is not None and cards[k].memory_used_bytes is not None
    }
    if not free:
        return f"{needs}; free memory unknown"
    least = min(free, key=lambda k: free[k])
    low = " — not enough" if weights and free[least] < each else ""
    return f"{needs}; least free {bytes_label(free[least])}, on GPU {least}{low}"


def launch_rows(
    console: Console, spec: RunSpec, run_id: str, secret_names: Sequence[str] = (), old: str = ""
) -> list[tuple[str, str]]:
    """What a confirmation of a launch shows. ``old``: as of when what is free is, where that is not now."""
    secrets = [("Secrets", ", ".join(secret_names))] if secret_names else []
    gpus = gpu_line(console.probe.value, spec)
    return [
        ("Host", console.host),
        ("Target", f"{spec.target.name} on machine {spec.machine}"),
        (
            "Size",
            f"{spec.size}: {count_label(spec.data.train_prompts)} prompts to train on, {spec.data.heldout_prompts} held out",
        ),
        ("Training", f"{count_label(spec.train.max_steps)} steps, vocabulary {count_label(spec.vocabulary.size)}"),
        ("Workspace", spec.workspace),
        ("Disk", disk_line(console.probe.value, spec) + old),
        *([("GPU", gpus + old)] if gpus else []),
        ("Time", time_line(expected(console, spec))),
        *secrets,
        ("Run", run_id),
    ]
