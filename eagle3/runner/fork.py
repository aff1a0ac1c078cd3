"""A new run that begins where another one stands, without copying what the other has made.

Files of finished stages get a second name in the new run (a hard link; where the file system gives none, a symbolic one). All
of them are replaced, never changed, by whoever writes them anew; the two that are appended to are copied. A pin in the parent
says who relies on it, so that ``prune`` leaves alone what a symbolic link points at.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from eagle3.runner import pruned, rundir
from eagle3.runner.errors import VerbError
from eagle3.runner.preflight import check_launch, make_run_dir, secret_names

FILE = "fork.json"
PINS = "pins"

_COPIED = frozenset({"states/manifest.jsonl", "data/answers.part.jsonl"})
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES})


def fork(
    workspace: rundir.PathLike,
    run_id: str,
    new_id: str,
    spec_toml: str,
    launch: Dict[str, Any],
    stages: Sequence[str],
    partial: Sequence[str] = (),
    checkpoint: Optional[int] = None,
    changed: Sequence[str] = (),
    actor: str = "",
) -> Dict[str, Any]:
    """Make the run ``new_id`` with ``stages`` of ``run_id`` in it; it is not started: ``launch`` does that.

    ``partial``: stages of which only what a resume goes on from is brought along (answers, states, checkpoints).
    ``checkpoint``: the step that the training is to go on from. ``changed``: fields that differ, for the record.

    Answers ``{"run_id","run_dir","already","files","bytes","how"}``; ``how`` is "hard links" or "symbolic links". A second call
    for the same run and spec gives ``already``. Every file of a stage's record is held against its SHA-256, states against their
    size: the worker holds them against theirs before it uses them.

    Raises VerbError: usage, not_found (the run, a stage, a checkpoint), failed (a file is not what its record says), disk.
    """
    parent, child = rundir.run_path(workspace, run_id), rundir.run_path(workspace, new_id)
    if not (parent / "launch.json").exists():
        raise VerbError("not_found", f"There is no run {run_id} in {parent.parent.parent}.", "`eagle3 ls` lists them.")
    if parent == child:
        raise VerbError("usage", f"A fork needs an id of its own, not {run_id}.", "Choose another --id.")
    lineage = {
        "v": 1, "run_id": run_id, "stages": list(stages), "partial": list(partial), "checkpoint": checkpoint,
        "changed": list(changed), "by": actor, "t": time.time(),
    }  # fmt: skip
    if (child / "launch.json").exists():
        return _already(child, spec_toml, run_id)
    # What the whole run would take says nothing of a run that begins with another's files.
    asked = {key: value for key, value in launch.items() if key not in ("needs", "prompts")}
    plan = {**check_launch(asked), "v": 1, "actor": actor, "created_at": time.time(), "forked_from": run_id}
    pin = parent / PINS / f"{new_id}.json"
    with contextlib.suppress(FileExistsError):
        pin.parent.mkdir(mode=0o700)
    # First the pin: nothing may be pruned while it is being linked.
    rundir.write_json(pin, {**lineage, "run_id": new_id, "how": "pending"})
    linker = _Linker(parent)
    try:
        made = make_run_dir(child, spec_toml, plan, None, fill=lambda folder: linker.bring(folder, lineage))
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            _leave(pin, child, lineage, "symbolic links")  # not known, so the careful one
        raise
    if not made:
        _leave(pin, child, lineage, linker.how)
        return _already(child, spec_toml, run_id)
    rundir.write_json(pin, {**lineage, "run_id": new_id, "how": linker.how})
    return {
        "run_id": new_id, "run_dir": str(child), "already": False,
        "files": linker.files, "bytes": linker.bytes, "how": linker.how,
    }  # fmt: skip


def _leave(pin: Path, child: Path, lineage: Dict[str, Any], how: str) -> None:
    """Let go of a pin without having made the run. Where another fork of the same two has made it meanwhile, the pin is that
    one's, which may be linked by names: then it has to stay for as long as that run does."""
    if rundir.read_object(child / FILE).get("run_id") == lineage["run_id"]:
        rundir.write_json(pin, {**lineage, "run_id": child.name, "how": how})
    else:
        pin.unlink()


def forkable(run_dir: Path) -> Dict[str, Any]:
    """What there is to fork from, for the verb ``forkable``: finished stages, steps of checkpoints, the spec, the names of
    the secrets that the run was started with, and how many of its states are missing."""
    launch = rundir.read_object(run_dir / "launch.json")
    try:
        spec_toml = (run_dir / "spec.toml").read_text(encoding="utf-8")
    except FileNotFoundError:
        spec_toml = ""
    return {
        "run_id": run_dir.name, "stages": finished_stages(run_dir), "checkpoints": checkpoints(run_dir), "spec_toml": spec_toml,
        "secret_env": secret_names(launch), "states_missing": states_missing(run_dir),
    }  # fmt: skip


def finished_stages(run_dir: Path) -> List[str]:
    """The stages of a run that have a record, in no order."""
    folder = run_dir / "stages"
    return sorted(path.stem for path in folder.glob("*.json") if rundir.read_object(path).get("outputs") is not None)


def states_missing(run_dir: Path) -> int:
    """How many of the hidden states that the run's manifest vouches for are not there (pruned) or of another size."""
    missing = 0
    for row in _rows(run_dir / "states" / "manifest.jsonl"):
        try:
            missing += (run_dir / "states" / f"hs_{row.get('index')}.safetensors").stat().st_size != row.get("bytes")
        except FileNotFoundError:
            missing += 1
    return missing


def checkpoints(run_dir: Path) -> List[int]:
    """The steps of a run's complete checkpoints, ascending."""
    found = []
    for folder in (run_dir / "train" / "checkpoints").glob("step-*"):
        marker = rundir.read_object(folder / "complete.json")
        if isinstance(marker.get("step"), int) and folder.name == f"step-{marker['step']}":
            found.append(int(marker["step"]))
    return sorted(found)


def _already(child: Path, spec_toml: str, run_id: str) -> Dict[str, Any]:
    same = (child / "spec.toml").read_text(encoding="utf-8") == spec_toml
    if not same or rundir.read_object(child / FILE).get("run_id") != run_id:
        raise VerbError("usage", f"The run {child.name} exists already and is another one.", "Choose another --id.")
    return {"run_id": child.name, "run_dir": str(child), "already": True, "files": 0, "bytes": 0, "how": ""}


class _Linker:
    """Brings files of one run into another one that is being made."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self.files = 0
        self.bytes = 0
        self.how = "hard links"

    def bring(self, folder: Path, lineage: Dict[str, Any]) -> None:
        """Fill ``folder``, the new run under its temporary name. Raises VerbError and OSError."""
        for stage in lineage["stages"]:
            self._stage(folder, stage)
        if "regenerate" in (*lineage["stages"], *lineage["partial"]):
            self._file(folder, "data/answers.part.jsonl")
        if "extract" in (*lineage["stages"], *lineage["partial"]):
            self._states(folder, lineage)
        if "train" in (*lineage["stages"], *lineage["partial"]):
            self._training(folder, lineage["checkpoint"])
        rundir.write_json(folder / FILE, lineage)

    def _stage(self, folder: Path, stage: str) -> None:
        record = rundir.read_object(self._parent / "stages" / f"{stage}.json")
        if not isinstance(record.get("outputs"), dict):
            raise VerbError(
                "not_found", f"The stage {stage} of {self._parent.name} has not finished.", f"Fork from the stage {stage}."
            )
        for name, entry in record["outputs"].items():
            if (folder / name).exists():
                continue  # an output of two stages' patterns
            if not (self._parent / name).exists() and pruned.on_purpose(self._parent, name):
                rundir.write_json(folder / pruned.FILE, rundir.read_object(self._parent / pruned.FILE), durable=False)
                continue
            self._file(folder, name)
            if not (folder / name).is_file() or _sha256(folder / name) != entry.get("sha256"):
                raise VerbError(
                    "failed",
                    f"{self._parent / name} is not what the stage {stage} left.",
                    f"Resume {self._parent.name} with --verify to make it again, or fork from the stage {stage}.",
                )
        (folder / "stages").mkdir(mode=0o700, exist_ok=True)
        rundir.write_json(folder / "stages" / f"{stage}.json", {**record, "forked_from": self._parent.name}, durable=False)

    def _states(self, folder: Path, lineage: Dict[str, Any]) -> None:
        """The states that the manifest vouches for and whose size is right; the others are made again."""
        for name in ("states/manifest.jsonl", "states/looked.json"):
            self._file(folder, name)
        if "train" in lineage["stages"] and states_missing(self._parent):
            # The training is taken over, and nothing else reads them.
            pruned.note(folder, pruned.STATES, time.time())
        for row in _rows(self._parent / "states" / "manifest.jsonl"):
            name = f"states/hs_{row.get('index')}.safetensors"
            with contextlib.suppress(FileNotFoundError):
                if (self._parent / name).stat().st_size == row.get("bytes") and not (folder / name).exists():
                    self._file(folder, name)

    def _training(self, folder: Path, step: Optional[int]) -> None:
        there = checkpoints(self._parent)
        if step is not None and step not in there:
            raise VerbError("not_found", f"{self._parent.name} has no checkpoint of step {step}.", f"It has {there or 'none'}.")
        if step is None and not there:
            return
        chosen = there[-1] if step is None else step
        place = f"train/checkpoints/step-{chosen}"
        marker = rundir.read_object(self._parent / place / "complete.json")
        for name, seal in (marker.get("files") or {}).items():
            self._file(folder, f"{place}/{name}")
            if not (folder / place / name).is_file() or _sha256(folder / place / name) != seal.get("sha256"):
                raise VerbError(
                    "failed", f"{self._parent / place / name} is not what was saved.", "Fork from another checkpoint."
                )
        self._file(folder, f"{place}/complete.json")
        # What the untrained draft reaches is measured once.
        for path in [*sorted((self._parent / "train" / "untrained").glob("*")), self._parent / "train" / "floor.json"]:
            name = str(path.relative_to(self._parent))
            if path.is_file() and not (folder / name).exists():
                self._file(folder, name)

    def _file(self, folder: Path, name: str) -> None:
        """Give one file of the parent a second name; one that is not there is left out."""
        source, target = self._parent / name, folder / name
        if not source.is_file():
            return
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        size = source.stat().st_size
        if name in _COPIED:
            if not target.exists():
                shutil.copyfile(str(source), str(target))
            return
        real = source.resolve()  # a fork of a fork points at the file itself
        try:
            os.link(str(real), str(target))
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            target.symlink_to(real)
            self.how = "symbolic links"
        self.files += 1
        self.bytes += size


def pinned_by(run_dir: Path, now: float) -> List[Tuple[str, Dict[str, Any]]]:
    """The forks that need this run's files by their names: id and pin. A hard link needs nothing; a fork that is gone neither."""
    found = []
    for path in sorted((run_dir / PINS).glob("*.json")):
        pin = rundir.read_object(path)
        being_made = pin.get("how") == "pending" and now - float(pin.get("t") or 0.0) < 3600.0
        if being_made or (pin.get("how") == "symbolic links" and (run_dir.parent / path.stem).is_dir()):
            found.append((path.stem, pin))
    return found


def _rows(path: Path) -> Iterator[Dict[str, Any]]:
    try:
        with path.open("rb") as lines:
            for line in lines:
                try:
                    row = json.loads(line.decode("utf-8"))
                except ValueError:
                    continue  # a torn last line
                if isinstance(row, dict):
                    yield row
    except FileNotFoundError:
        return


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        for block in iter(lambda: content.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
