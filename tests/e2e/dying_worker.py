"""A worker that ends itself with SIGKILL in the middle of a stage: ``dying_worker.py PLAN -m eagle3 work RUN_DIR``.

PLAN is a JSON file ``{stage: calls}``: in that stage, the process dies at the so-many-th thing that it reports, or at
the latest when the stage's work is done and its record is not yet written. Each stage of the plan is used up once.
The stages, the servers and the training are the real ones.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from eagle3 import work
from eagle3.core.spec import STAGES
from eagle3.journal import Journal

plan_file = Path(sys.argv[1])
plan: dict[str, int] = json.loads(plan_file.read_text())
now_in: list[str] = []


def die() -> None:
    del plan[now_in[-1]]
    plan_file.write_text(json.dumps(plan))
    os.kill(os.getpid(), signal.SIGKILL)


def counted(method: Any) -> Any:
    def report(self: Journal, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        if now_in and now_in[-1] in plan:
            plan[now_in[-1]] -= 1
            if plan[now_in[-1]] <= 0:
                die()

    return report


def mortal(stage: str) -> None:
    module = importlib.import_module(f"eagle3.stages.{stage}")
    whole_run = module.run

    def run(ctx: Any) -> Any:
        now_in.append(stage)
        figures = whole_run(ctx)
        if stage in plan:
            die()
        now_in.pop()
        return figures

    module.run = run  # type: ignore[attr-defined]


for name in ("progress", "metrics", "event"):
    setattr(Journal, name, counted(getattr(Journal, name)))
for stage in STAGES:
    mortal(stage)
sys.exit(work.work(Path(sys.argv[-1]).resolve()))
