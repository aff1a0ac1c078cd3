"""What a launch needs of a spec, in the runner's plain words. Shared by every way to start a run: the bare
shell, SSH and a batch system all hand this to ``runner.launch``."""

from __future__ import annotations

import re
from typing import Any

from eagle3.core.estimate import estimate
from eagle3.core.spec import STAGES, RunSpec


def new_run_id(spec: RunSpec, stamp: str, salt: str) -> str:
    """A run id such as ``pilot-20261130-101500-ab12``: the launch's idempotency key, so make it once per intent.

    ``stamp`` is the local time as YYYYmmdd-HHMMSS, ``salt`` a few random characters.
    """
    size = re.sub(r"[^a-z0-9-]", "-", spec.size.lower()) or "run"
    return f"{size}-{stamp}-{salt}"[:64]


def launch_request(spec: RunSpec, *, default_python: str, pythonpath: str) -> dict[str, Any]:
    """The ``launch`` argument of ``runner.launch`` (it becomes ``launch.json``).

    ``default_python`` runs the worker where the spec names none; ``pythonpath`` is the folder from which it imports
    ``eagle3`` (empty where the interpreter has it installed).
    """
    need = estimate(spec).needs[0]
    return {
        "v": 1,
        "argv": [spec.worker_python or default_python, "-m", "eagle3", "work", "{run_dir}"],
        "env": {},
        "pythonpath": pythonpath,
        "grace_s": spec.grace_s,
        "group": spec.group,
        "services": [service.model_dump() for service in spec.services],
        "device": spec.device,
        "share_device": spec.share_device,
        "time_limit_s": spec.time_limit_s or None,
        "label": {"size": spec.size, "target": spec.target.name, "machine": spec.machine},
        "stage_names": list(STAGES),
        "spec_hash": spec.hash,
        # Looked at before services yield.
        "prompts": spec.data.prompts,
        # What the runner holds against the disk before anything is made.
        "needs": {"bytes": need.bytes, "inodes": need.inodes, "what": need.what, "keeps_bytes": spec.disk_floor_bytes},
        "disk_floor_bytes": spec.disk_floor_bytes,
        "log_limit_bytes": spec.log_limit_bytes,
        "stall": {"response": spec.guards.stall, "after_s": spec.guards.stall_s},
        "clock": {"response": spec.guards.clock, "jump_s": spec.guards.clock_jump_s},
        "hooks": spec.alerts.model_dump() if spec.alerts.wanted else None,
    }
