"""The plain way: the helper starts the supervisor, the supervisor starts the worker, on the machine at the other end."""

from __future__ import annotations

from typing import Any

from eagle3.core.spec import STAGES, RunSpec


def launch_dict(spec: RunSpec, *, site: str, default_python: str) -> dict[str, Any]:
    """What becomes ``launch.json``. ``site`` is the folder with the `eagle3` package there (absolute);
    ``default_python`` stands in for an empty ``worker_python``."""
    return {
        "argv": [spec.worker_python or default_python, "-m", "eagle3", "work", "{run_dir}"],
        "env": {},
        "pythonpath": site,
        "grace_s": spec.grace_s,
        "group": spec.group,
        "label": {"size": spec.size, "target": spec.target.name, "machine": spec.machine},
        "stage_names": list(STAGES),
    }
