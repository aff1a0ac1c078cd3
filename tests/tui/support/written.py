"""A run directory as the runner's own writer leaves it."""

from __future__ import annotations

import time
from pathlib import Path

from eagle3.runner import rundir
from tests.tui.support.folders import metric, result


def written_run(workspace: Path) -> str:
    """A finished run in ``workspace``; returns its id."""
    run = rundir.run_path(str(workspace), "pilot-written")
    for folder in (run / "attempts" / "1", run / "stages"):
        folder.mkdir(parents=True)
    now = time.time()
    rundir.write_json(run / "launch.json", {"v": 1, "label": {"size": "pilot", "target": "smollm2-135m", "machine": "cpu"}})
    rundir.write_json(run / "attempts/1/starting.json", {"v": 1, "attempt": 1, "t": now - 60})
    rundir.write_json(run / "attempts/1/started.json", {"v": 1, "attempt": 1, "t": now - 59, "pid": 1, "actor": "tests"})
    rundir.write_json(run / "attempts/1/exit.json", {"v": 1, "attempt": 1, "code": 0, "signal": None, "stopped": False, "t": now})
    rundir.write_json(
        run / "progress.json", {"v": 1, "attempt": 1, "stage": "export", "done": 1, "total": 1, "unit": "files", "t": now}
    )
    rundir.write_json(run / "result.json", result("pilot-written"))
    for step in range(1, 40):
        rundir.append_line(run / "metrics.jsonl", metric(step))
    (run / "attempts/1/run.log").write_text("step 1\n[/red] last words\n")
    return "pilot-written"
