"""What the tests of a small disk run on it: an extraction with twice as many samples under way as the server has places, while
somebody else takes the space away in the middle and gives it back.

``python -m tests.stages.small_disk PLACE [MODEL]``: with a model the server is transformers on it, else an edge fake. Prints one
line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eagle3.rows import write_rows
from eagle3.stages import extract
from eagle3.stages.context import StageContext, Stopped
from eagle3.stages.landing import Landing
from eagle3.states.quarantine import put_aside
from tests.stages.extraction import run, sample
from tests.stages.runs import context, rows
from tests.stages.tiny_models import spec_of

FLOOR = 2 << 20
SAMPLES, PLACES = 24, 4
DEADLINE_S = 240.0


def main(place: Path, model: Path | None) -> None:
    def attempt(ctx: StageContext) -> None:
        if model is None:
            run(ctx)
        else:
            extract.run(ctx)

    unbroken = made(place / "unbroken", model)
    attempt(unbroken)
    wanted, other = kept(unbroken), place / "other"
    shutil.rmtree(unbroken.run_dir)
    told: dict[str, Any] = {"floor_bytes": FLOOR, "samples": SAMPLES, "places": PLACES}
    if model is None:  # the stage itself waits before it begins where there is no room for all
        told |= at_the_floor_from_the_start(place / "floor", other, wanted)

    ctx = made(place / "run", model)
    stops: list[bool] = []
    ctx.stop_requested = lambda: bool(stops)
    # At the floor, and then a stop.
    with in_the_middle(lambda: fill(other, FLOOR + (300 << 10))) as under_way, at_the_guard(ctx, 1, lambda: stops.append(True)):
        try:
            attempt(ctx)
        except Stopped:
            told["stopped"] = True
    told["under_way"] = under_way[0]
    told["after_stop"] = left(ctx)
    other.unlink()
    # A resume on a disk that is really full in the middle: writes fail, then there is room again.
    stops.clear()
    with in_the_middle(lambda: fill(other, 64 << 10)), at_the_guard(ctx, 2, other.unlink):
        attempt(ctx)
    told["after_resume"] = left(ctx)
    told["kinds"] = [row["kind"] for row in rows(ctx.run_dir, "events.jsonl") if row["kind"] in ("guard-disk", "resumed")]
    told["same"] = kept(ctx) == wanted
    told["put_aside"] = sorted(put_aside(ctx.run_dir))
    sys.stdout.write(f"{json.dumps(told)}\n")


def at_the_floor_from_the_start(run_dir: Path, other: Path, wanted: list[tuple[int, str, str]]) -> dict[str, Any]:
    """There is room for a few samples more than are under way together; nobody takes any while it works."""
    ctx = made(run_dir, None)
    fill(other, FLOOR + (2 * PLACES + 3) * extract.open_store(ctx).landing_bytes(40))
    with at_the_guard(ctx, 1, other.unlink) as least:
        run(ctx)
    same = kept(ctx) == wanted
    shutil.rmtree(run_dir)
    return {"least_free_bytes": least[0], "floor_same": same}


def made(run_dir: Path, model: Path | None) -> StageContext:
    how: dict[str, Any] = {"disk_floor_bytes": FLOOR, "extract__concurrency": PLACES, "extract__backoff_s": 0.001}
    if model is not None:
        how |= spec_of(model, engine="transformers")
    ctx = context(run_dir, **how)
    ctx.model_dir = model or ctx.model_dir
    write_rows(run_dir / "data" / "samples.jsonl", [sample(index, 40 if model is None else 200) for index in range(SAMPLES)])
    return ctx


def kept(ctx: StageContext) -> list[tuple[int, str, str]]:
    """Sample, id and hash of every state."""
    return [(row["index"], row["id"], row["sha256"]) for row in rows(ctx.run_dir, "states/manifest.jsonl")]


def left(ctx: StageContext) -> dict[str, Any]:
    """What lies in the run's folder: the states by index, those that the manifest has, and whatever is half made."""
    files = [file for file in ctx.run_dir.rglob("*") if file.is_file()]
    return {
        "states": sorted(int(file.stem[3:]) for file in files if file.name.startswith("hs_") and file.suffix == ".safetensors"),
        "manifest": sorted(index for index, _, _ in kept(ctx)),
        "raw": len(list((ctx.run_dir / "states" / "raw").glob("*"))),
        "half": sorted(file.name for file in files if ".tmp" in file.name or file.name.startswith(".")),
    }


def fill(file: Path, leaves_bytes: int) -> None:
    """Somebody else takes all but so much of the disk."""
    with file.open("wb") as taken:
        while (size := shutil.disk_usage(file.parent).free - leaves_bytes) > 0:
            with contextlib.suppress(OSError):  # the run has just taken some of it: measure again
                os.posix_fallocate(taken.fileno(), os.fstat(taken.fileno()).st_size, size)


@contextlib.contextmanager
def in_the_middle(do: Callable[[], None]) -> Iterator[list[int]]:
    """Do it when the first sample after those that begin together asks for room: all the others are under way then. Gives how
    many are under way at most."""
    take_room, land, asked, now, most = Landing._take_room, Landing._land, [0], [0], [0]

    async def taking(self: Landing, size: int) -> None:
        asked[0] += 1
        if asked[0] == 2 * PLACES + 1:
            do()
        await take_room(self, size)

    async def landing(self: Landing, *about: Any) -> None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        try:
            await land(self, *about)
        finally:
            now[0] -= 1

    Landing._take_room, Landing._land = taking, landing  # type: ignore[method-assign]
    try:
        yield most
    finally:
        Landing._take_room, Landing._land = take_room, land  # type: ignore[method-assign]


@contextlib.contextmanager
def at_the_guard(ctx: StageContext, number: int, do: Callable[[], object]) -> Iterator[list[int]]:
    """Do it once the run has told for the ``number``-th time that it waits for space. Gives the least that was free till then."""
    least = [1 << 60]

    def look() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            least[0] = min(least[0], shutil.disk_usage(ctx.run_dir).free)
            waiting = [row for row in rows(ctx.run_dir, "events.jsonl") if row["kind"] == "guard-disk"]
            if len(waiting) >= number and (reason := (ctx.run_dir / "progress.json").read_text()) and "want of space" in reason:
                do()
                return
            time.sleep(0.002)

    helper = threading.Thread(target=look)
    helper.start()
    try:
        yield least
    finally:
        helper.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
