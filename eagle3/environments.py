"""A run's Python environment made ready before the run: size and room first, then the build as a detached job, told as it
goes. Asked again it finds what is there, joins a build under way, or goes on with the wheels that have come."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.core.harmless import one_line
from eagle3.core.wording import bytes_label, duration_label
from eagle3.runner import buildenv, jobs, rundir
from eagle3.runner.errors import VerbError
from eagle3.runner.remedies import remedy

NEEDS_BYTES = {"cpu": 2 << 30, "cuda": 9 << 30}
"""Room for the worker's environment by device. CPU: 1.4 GiB of files on Debian 12, measured, and their byte code. CUDA:
assumed, torch's own CUDA libraries and the unpacking of their wheels beside."""
FLOOR_BYTES = 1 << 30
"""What stays free."""
POLL_S = 0.5
TELL_EVERY_S = 10.0

Say = Callable[[str], None]


class NotReady(RuntimeError):
    """The environment is not made: one sentence that says why and what to do."""


def planned(workspace: str, device: str, args: dict[str, Any]) -> dict[str, Any]:
    """What would be built, changing nothing: ``{"folder","python","there","token","needs_bytes","text"}``.

    Raises NotReady where it must not or cannot be built, or the disk is too small.
    """
    try:
        shown = remedy(workspace, "build_env", args)
        folder = Path((shown["items"] or shown["refused"])[0].get("folder") or shown["refused"][0]["what"])
    except VerbError as error:
        raise NotReady(f"{error.text} {error.remedy}".strip()) from error
    told = {
        "folder": str(folder), "python": str(folder / "bin" / "python"), "there": (folder / buildenv.COMPLETE).is_file(),
        "token": shown["token"], "needs_bytes": NEEDS_BYTES.get(device, NEEDS_BYTES["cuda"]), "text": shown["text"],
    }  # fmt: skip
    if told["there"]:
        return told
    if shown["refused"] and not building(workspace):
        raise NotReady(f"{shown['refused'][0]['why']}; end that, or choose another workspace.")
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free_bytes, needed = shutil.disk_usage(there).free, max(0, told["needs_bytes"] - held_bytes(folder))
    if free_bytes - needed < FLOOR_BYTES:
        raise NotReady(
            f"The environment needs about {bytes_label(needed)} more, and the disk of {there} has {bytes_label(free_bytes)} "
            f"free, of which {bytes_label(FLOOR_BYTES)} stay; free some space, or choose another workspace."
        )
    return told


def build(
    workspace: str, plan: dict[str, Any], args: dict[str, Any], say: Say, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Build what ``plan`` says, or join the build that is under way, and tell its steps, bytes, rate and time left.

    The build goes on where this is interrupted. Raises NotReady, naming the command that failed and its last line.
    """
    try:
        check_id = building(workspace)
        if check_id:
            say(f"A build is under way ({check_id}); joining it.")
        else:
            check_id = remedy(workspace, "build_env", args, preview=False, token=plan["token"])["check_id"]
        _follow(workspace, check_id, plan, say, sleep)
    except VerbError as error:
        raise NotReady(f"{error.text} {error.remedy}".strip()) from error
    if not (Path(plan["folder"]) / buildenv.COMPLETE).is_file():
        raise NotReady(f"The build that was joined made another environment than {plan['folder']}; ask again for this one.")


def building(workspace: str) -> str:
    """The build that is under way in a workspace; empty where none is."""
    for folder in (rundir.workspace_path(workspace) / "checks").glob("env-*"):
        if rundir.read_object(folder / "job.json").get("kind") == "environment build" and jobs.is_live(folder):
            return folder.name
    return ""


def held_bytes(folder: Path) -> int:
    """What lies in a folder that is being filled."""
    total = 0
    for path in folder.rglob("*") if folder.is_dir() else ():
        try:
            total += path.lstat().st_size
        except FileNotFoundError:  # an installer moves its files
            continue
    return total


def _follow(workspace: str, check_id: str, plan: dict[str, Any], say: Say, sleep: Callable[[float], None]) -> None:
    folder, offset, log_offset, last = Path(plan["folder"]), 0, 0, ""
    began = told_at = time.monotonic()
    first = held_bytes(folder)
    while True:
        answer = jobs.read(workspace, check_id, offset, log_offset)
        offset, log_offset = answer["offset"], answer["log_offset"]
        last = next((line for line in reversed(answer["log"].splitlines()) if line.strip()), last)
        failed = ""
        for line in answer["lines"]:
            row = json.loads(line)
            if row.get("doing"):
                say(f"◌ {one_line(str(row['doing']), 120)}…")
            elif row.get("ok") is False:
                failed = f"{one_line(str(row['step']), 120)} {one_line(str(row['text']), 80)}"
        if failed:
            raise NotReady(
                f"The environment is not whole: {failed} ({one_line(last, 200) or 'no output'}); mend that and ask again, the "
                f"wheels that have come are kept. Its log: {jobs.job_path(workspace, check_id) / 'log'}"
            )
        if answer["done"]:
            ended = answer["exit"]
            if ended.get("code") != 0:
                why = ended.get("error") or ("it was stopped" if ended.get("stopped") else "it was ended from outside")
                raise NotReady(f"The build of {folder} did not end well: {why}; ask again, it goes on from its wheels.")
            return
        if (now := time.monotonic()) - told_at >= TELL_EVERY_S:
            told_at = now
            say(_how_far(held_bytes(folder), first, plan["needs_bytes"], now - began))
        sleep(POLL_S)


def _how_far(held: int, first: int, needs: int, seconds: float) -> str:
    rate = max(0.0, (held - first) / seconds)
    left = f", about {duration_label((needs - held) / rate)} left" if rate > 0 and needs > held else ""
    return f"{bytes_label(held)} of about {bytes_label(needs)}, {bytes_label(rate)}/s{left}"
