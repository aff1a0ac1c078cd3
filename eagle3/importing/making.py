"""Making a run of an import: whole under another name, then renamed; where anything does not fit, nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eagle3.core.spec import RunSpec
from eagle3.failures import read_spec
from eagle3.importing import filling
from eagle3.rows import Row
from eagle3.runner import rundir
from eagle3.runner.errors import VerbError
from eagle3.runner.preflight import check_launch, make_run_dir
from eagle3.stages.context import StageContext, StageError

Fill = Callable[[StageContext], dict[str, Any]]


def make(workspace: str, run_id: str, spec: RunSpec, launch: dict[str, Any], sources: Sequence[Path], fill: Fill, by: str) -> Row:
    """The run ``run_id`` with what ``fill`` puts into it; it is not started. Answers ``{"run_id","run_dir",…counts}``.

    Raises VerbError: usage (the id is taken, something does not fit), disk, permission.
    """
    run_dir = rundir.run_path(workspace, run_id)
    if run_dir.exists():
        raise VerbError("usage", f"The run {run_id} exists already.", "Choose another --id.")
    # What the whole run would take says nothing of a run that begins with the states of another, and their prompts need
    # not be here.
    asked = {key: value for key, value in launch.items() if key not in ("needs", "prompts")}
    plan = {**check_launch(asked), "v": 1, "actor": by, "created_at": time.time()}
    told: dict[str, Any] = {"v": 1, "sources": [str(source) for source in sources], "by": by}

    def put(folder: Path) -> None:
        try:
            # The journal speaks to a worker's log, which is this command's standard output.
            with contextlib.redirect_stdout(sys.stderr):
                ctx = filling.context(folder, spec)
                told.update(fill(ctx))
                ctx.journal.event("imported", f"Made of {', '.join(told['sources'])}: {told['samples']} samples.")
        except StageError as error:
            raise VerbError("usage", str(error), "", error.detail) from error
        (folder / "progress.json").unlink(missing_ok=True)
        rundir.write_json(folder / filling.FILE, {**told, "t": time.time()})

    if not make_run_dir(run_dir, spec.to_toml(), plan, None, fill=put):
        raise VerbError("usage", f"The run {run_id} exists already.", "Choose another --id.")
    return {"run_id": run_id, "run_dir": str(run_dir)} | told


def joined_spec(shares: Sequence[Path], workspace: str) -> RunSpec:
    """The spec of the run that these shares are of. Raises VerbError (usage) where they are not its shares, each once."""
    try:
        specs = [read_spec(share / "spec.toml") for share in shares]
    except StageError as error:
        raise VerbError("usage", str(error)) from error
    world = specs[0].extract.world
    whole = [_whole(spec, workspace) for spec in specs]
    for share, spec, one in zip(shares, specs, whole, strict=True):
        if one != whole[0]:
            raise VerbError(
                "usage", f"{share.name} and {shares[0].name} are runs of different specs.", "`eagle3 spec diff` shows the fields."
            )
        if not rundir.read_object(share / "stages" / "extract.json"):
            raise VerbError(
                "usage", f"The extract stage of {share.name} has not finished.", f"`eagle3 resume {share.name}` first."
            )
        if spec.extract.world != world:
            raise VerbError("usage", f"{share.name} is one of {spec.extract.world} shares, {shares[0].name} of {world}.")
    ranks = sorted(spec.extract.rank for spec in specs)
    if ranks != list(range(world)):
        lacking = sorted(set(range(world)) - set(ranks))
        wrong = f"share {lacking[0]} of {world} is not among them" if lacking else "one share is named twice"
        raise VerbError("usage", f"These are not all shares of one run: {wrong}.", "Name every share once.")
    return whole[0]


def _whole(spec: RunSpec, workspace: str) -> RunSpec:
    dumped = json.loads(spec.model_dump_json())
    dumped["extract"] |= {"rank": 0, "world": 1}
    return RunSpec.model_validate(dumped | {"workspace": workspace, "forked_from": ""})
