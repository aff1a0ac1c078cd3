"""A shakedown asked for over the channel: `eagle3 shakedown` as a detached job, which outlives the link and kills its worker
from there."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from eagle3.runner import jobs
from eagle3.runner.deepcheck import package_home
from eagle3.runner.errors import VerbError
from eagle3.runner.preflight import check_secrets
from eagle3.runner.rundir import PathLike, workspace_path

LIMIT_S = 48 * 3600.0
"""A last limit: the command has its own, by the estimate."""


def start(
    workspace: PathLike,
    run_id: str,
    spec: Dict[str, Any],
    python: str,
    actor: str = "",
    secret_env: Optional[Dict[str, str]] = None,
) -> Dict[str, Any]:
    """Shake the run of ``spec`` (as JSON) down under ``run_id``; ``{"check_id","already"}``. Safe to repeat. Its lines are
    read as those of a check; the last one holds the report. Stopping the job stops its run. ``secret_env`` reaches the
    environment of the command and, as with a launch, of the worker."""
    if not isinstance(spec, dict) or not str(run_id).startswith("shakedown-"):
        raise VerbError("usage", "A shakedown needs a spec and an id that begins with 'shakedown-'.", "Ask as eagle3-tui does.")
    secrets = {str(key): str(value) for key, value in (secret_env or {}).items()}
    check_secrets(secrets)
    home = str(workspace_path(workspace))
    command = ["-m", "eagle3", "shakedown", "spec.json", "--workspace", home, "--id", run_id, "--lines"]
    command += [f"--secret={name}" for name in sorted(secrets)]
    pythonpath = os.pathsep.join(filter(None, [str(package_home()), os.environ.get("PYTHONPATH", "")]))
    env = {"PYTHONPATH": pythonpath, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [str(spec.get("worker_python") or python), *command]
    return jobs.start(
        workspace, run_id, "shakedown", argv, files={"spec.json": spec}, env=env, limit_s=LIMIT_S, actor=actor, secrets=secrets
    )  # fmt: skip
