"""A worker during which a process of its run is killed with SIGKILL: ``dying_worker.py PLAN -m eagle3 work RUN_DIR``.

PLAN is a JSON file ``{stage: [who, when]}``. Who: "worker", "supervisor", "server" (the stage's own) or "rank-<r>" (of a
training). When, driven by what the run itself writes: "began" (the stage has said that it starts; a server has its record and
loads; the ranks are there), a number (so many reports of the stage; of ranks: rows of steps), "worked" (its files are whole,
its record is not there yet; at the latest then) or "recorded" (its record is written). Each stage is used up once. A worker whose
supervisor was killed is held there until somebody stops it. The stages, the servers and the training are the real ones.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3 import work
from eagle3.core.spec import STAGES
from eagle3.journal import Journal
from eagle3.runner import rundir

LIMIT_S = 100.0

plan_file = Path(sys.argv[1])
plan: dict[str, tuple[str, int | str]] = {stage: tuple(entry) for stage, entry in json.loads(plan_file.read_text()).items()}
run_dir = Path(sys.argv[-1]).resolve()
supervisor = os.getppid()
flags: list[work.StopFlag] = []
stage_now = ""
reports = 0


def due(*moments: int | str) -> bool:
    return stage_now in plan and plan[stage_now][1] in moments


def strike() -> None:
    """Kill whom the plan names for this stage; gives control back where that is not this process."""
    who = plan[stage_now][0]
    victim = {"worker": os.getpid, "supervisor": lambda: supervisor, "server": server_pid}.get(who, lambda: rank_pid(who))()
    if not victim:
        return
    del plan[stage_now]
    plan_file.write_text(json.dumps(plan))
    os.kill(victim, signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while who == "supervisor" and not flags[-1]() and time.monotonic() < end:
        time.sleep(0.02)


def server_pid() -> int:
    """The server of this stage; 0 while there is none."""
    return next((int(rundir.read_object(record)["pid"]) for record in run_dir.glob("servers/*.json")), 0)


def rank_pid(who: str) -> int:
    """A rank of the training; 0 while it is not there."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        mine = str(run_dir).encode() in command and f"RANK={who[5:]}".encode() in environ
        if mine and b"eagle3.training.rank" in command and b"eagle3.training.torchrun" not in command:
            return int(folder.name)
    return 0


def reporting(method: Callable[..., None]) -> Callable[..., None]:
    def report(self: Journal, *args: Any, **more: Any) -> None:
        global reports, stage_now
        method(self, *args, **more)
        if args[0] == "stage-started":
            stage_now, reports = more["stage"], 0
            if plan.get(stage_now, ("server", 0))[0] in ("worker", "supervisor") and due("began"):
                strike()
        elif stage_now in plan and not plan[stage_now][0].startswith("rank"):
            reports += 1
            when = plan[stage_now][1]
            if isinstance(when, int) and reports >= when:
                strike()

    return report


def writing(path: Path, content: Any, **more: Any) -> None:
    write_json(path, content, **more)
    place = Path(path).parent.name
    if (place == "stages" and due("recorded")) or (place == "servers" and due("began")):
        strike()


def mortal(stage: str) -> None:
    module = importlib.import_module(f"eagle3.stages.{stage}")
    whole_run = module.run

    def run(ctx: Any) -> Any:
        asked = ctx.stop_requested

        def asked_while_ranks_train() -> bool:
            if stage in plan and plan[stage][0].startswith("rank"):
                when = plan[stage][1]
                metrics = run_dir / "metrics.jsonl"
                told = metrics.read_text().splitlines() if metrics.exists() else []
                rows = sum(json.loads(line)["stage"] == "train" and json.loads(line)["split"] == "train" for line in told)
                if not isinstance(when, int) or rows >= when:
                    strike()
            return bool(asked())

        ctx.stop_requested = asked_while_ranks_train
        figures = whole_run(ctx)
        ctx.stop_requested = asked
        if stage in plan and plan[stage][0] in ("worker", "supervisor") and plan[stage][1] != "recorded":
            strike()
        return figures

    module.run = run  # type: ignore[attr-defined]


class Flag(work.StopFlag):
    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        flags.append(self)


work.StopFlag = Flag  # type: ignore[misc]
write_json = rundir.write_json
rundir.write_json = writing
for name in ("progress", "metrics", "event"):
    setattr(Journal, name, reporting(getattr(Journal, name)))
for stage in STAGES:
    mortal(stage)
sys.exit(work.work(run_dir))
