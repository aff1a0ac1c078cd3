"""What the disks really do: bytes written, an fsync's time, locks between processes."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3.core.readiness.registry import Context, Facts, Finding, check
from eagle3.core.readiness.statuses import Status
from eagle3.core.wording import bytes_label

SLOW_BYTES_S, TOO_SLOW_BYTES_S = 50e6, 5e6
"""Extraction writes hundreds of MB/s on eight GPUs (research, part B); under 5 MB/s even a pilot on two cores waits for it."""
SLOW_FSYNC_S, TOO_SLOW_FSYNC_S = 0.05, 1.0
"""Each record of a run is made durable: 20 ms is a good disk in the network, a second halts a step."""


@check(
    "disk.write_speed", title="Each disk takes bytes fast enough",
    why="Hidden states are written as fast as the target reads: a slow disk becomes the pace of the extraction.",
    catches="states of 1.17 GB a sample on a slow disk (SpecForge#426); a read-only folder that looked writable",
    proof="real here: a read-only mount, and a folder that is fine; slow: pure, on figures",
    needs=("deep.disk",), deep=True,
)  # fmt: skip
def write_speed(facts: Facts, context: Context) -> Iterable[Finding]:
    """One finding a file system."""
    for place in facts["deep.disk"]["paths"]:
        path = place["path"]
        if place.get("same_as"):
            continue
        if place.get("error"):
            yield Finding("fail", f"{path}: {place['error']}", "Choose a folder that this user may write.", which=path)
        else:
            speed = place["write_bytes"] / max(place["write_s"], 1e-9)
            status = _graded(-speed, -SLOW_BYTES_S, -TOO_SLOW_BYTES_S)
            text = f"{path}: {bytes_label(place['write_bytes'])} in {place['write_s']:.2f} s, {bytes_label(speed)}/s"
            yield Finding(status, text, "" if status == "ok" else "Put the workspace on a local disk.", which=path)
        if place.get("left"):
            yield Finding(
                "warn", f"a probe's file could not be removed: {place['left']}", f"rm {place['left']}", which=f"{path}.left"
            )


@check(
    "disk.fsync_time", title="An fsync comes back soon",
    why="Rows and records are made durable one by one; where each waits a second, the run waits with it.",
    catches="a run that waits for its own records on a network volume (SpecForge#426, measured by its fsync)",
    proof="fake: fsync of libc that waits; the rest is real",
    needs=("deep.disk",), deep=True,
)  # fmt: skip
def fsync_time(facts: Facts, context: Context) -> Iterable[Finding]:
    """The median of small appends, each made durable."""
    for place in facts["deep.disk"]["paths"]:
        if place.get("same_as") or place.get("error"):
            continue
        median_s, worst_s = place["fsync_median_s"], place["fsync_worst_s"]
        status = _graded(median_s, SLOW_FSYNC_S, TOO_SLOW_FSYNC_S)
        text = f"{place['path']}: median {1000 * median_s:.1f} ms, worst {1000 * worst_s:.1f} ms of {place['fsyncs']}"
        yield Finding(status, text, "" if status == "ok" else "Put the workspace on a local disk.", which=place["path"])


@check(
    "disk.locks_hold", title="Locks hold between processes",
    why="The server holds a lock until a state is written; where locks are only pretended, half a file is taken for whole.",
    catches="files taken for whole while the server writes (speculators#743); a mount with nolock: two processes get one lock",
    proof="fake: flock of libc that grants everything; the rest is real",
    needs=("deep.disk",), deep=True,
)  # fmt: skip
def locks_hold(facts: Facts, context: Context) -> Iterable[Finding]:
    """A lock taken by one process and asked for by another."""
    for place in facts["deep.disk"]["paths"]:
        if place.get("same_as") or place.get("error"):
            continue
        lock, path = place["lock"], place["path"]
        if lock == "holds":
            yield Finding("ok", f"{path}: a second process is kept out", which=path)
        else:
            remedy = "Put the workspace on a local disk, or mount the file system with locks."
            yield Finding("fail" if lock == "does not hold" else "warn", f"{path}: the lock {lock}", remedy, which=path)


def _graded(value: float, warn_above: float, fail_above: float) -> Status:
    return "fail" if value > fail_above else "warn" if value > warn_above else "ok"
