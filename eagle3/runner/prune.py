"""What of a run could be deleted, how much that frees, and what keeps it; and deleting it.

Nothing of a run that works is touched, nothing that a fork points at, and nothing that a resume of an unfinished run needs unless
that run is given up.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from eagle3.runner import fork, pruned, rundir, state
from eagle3.runner.errors import VerbError, from_os_error

ARTEFACTS = ("states", "checkpoints", "untrained", "logs")
"""What can be pruned: hidden states, checkpoints of the training, the draft as it was before it, and logs of servers and of
attempts that have ended."""


def prune(
    run_dir: Path,
    artefacts: Sequence[str],
    apply: bool = False,
    gone: Optional[Dict[Tuple[int, int], int]] = None,
    abandon: bool = False,
) -> Dict[str, Any]:
    """``{"run_id","state","items","freed_bytes"}``: of each artefact what it holds and what deleting it frees, and why it stays.

    An item is ``{"what","files","bytes","freed_bytes","kept"}``; ``kept`` is the reason in words, empty where it can go.
    ``freed_bytes`` leaves out files that have another name elsewhere (a fork's hard links): deleting them frees nothing. With
    ``apply`` what can go is deleted. ``gone`` counts, over several runs of one preview, the names that would go. With ``abandon``
    nothing is kept for a resume: what is deleted of an unfinished run its resume makes again. A run that works and what a fork
    points at are safe from that too.

    Raises VerbError: usage (an unknown artefact), not_found, permission.
    """
    if wrong := [name for name in artefacts if name not in ARTEFACTS]:
        raise VerbError("usage", f"{wrong[0]!r} cannot be pruned.", f"Name {', '.join(ARTEFACTS)}.")
    if not (run_dir / "launch.json").exists():
        raise VerbError("not_found", f"There is no run {run_dir.name} in {run_dir.parent.parent}.", "`eagle3 ls` lists them.")
    now = time.time()
    found = state.summary(run_dir, now)
    pins = fork.pinned_by(run_dir, now)
    # What has been deleted really no longer counts as a name.
    gone = {} if gone is None or apply else gone
    items = []
    for name in artefacts:
        files = _files(run_dir, name, found, abandon)
        kept = _kept(name, found, pins, abandon) if files else ""
        sizes = [0 if path.is_symlink() else about.st_size for path, about in files]
        item = {"what": name, "files": len(files), "bytes": sum(sizes), "freed_bytes": 0, "kept": kept}
        if not kept:
            item["freed_bytes"] = sum(size for size, (_, about) in zip(sizes, files) if _last_name(about, gone))
            if apply and files:
                if name in ("untrained", pruned.STATES):  # first, so that a prune that is killed leaves nothing to be made again
                    pruned.note(run_dir, name, now)
                _delete(run_dir, [path for path, _ in files])
        items.append(item)
    return {
        "run_id": run_dir.name, "state": found["state"], "items": items, "freed_bytes": sum(i["freed_bytes"] for i in items),
    }  # fmt: skip


def _last_name(about: os.stat_result, gone: Dict[Tuple[int, int], int]) -> bool:
    """Whether deleting this name frees the file: it has no other, or all others would have gone before."""
    key = (about.st_dev, about.st_ino)
    gone[key] = gone.get(key, 0) + 1
    return gone[key] >= about.st_nlink


def _kept(name: str, found: Dict[str, Any], pins: List[Tuple[str, Dict[str, Any]]], abandon: bool) -> str:
    if found["state"] in state.LIVE:
        return f"the run is {found['state']}"
    needs = {"states": ("extract",), "checkpoints": ("train",), "untrained": ("train",)}.get(name, ())
    for new_id, pin in pins:
        if set(needs) & {*(pin.get("stages") or ()), *(pin.get("partial") or ())}:
            return f"the fork {new_id} points at them"
    if abandon:
        return ""
    if name == "states" and "train" not in found["stages"]:
        return "the training has not finished and would need them (--abandon)"
    if name == "untrained" and "export" not in found["stages"]:
        return "the run has not finished and may serve it for comparison (--abandon)"
    return ""


def _files(run_dir: Path, name: str, found: Dict[str, Any], abandon: bool) -> List[Tuple[Path, os.stat_result]]:
    """What belongs to an artefact; symbolic links are another run's files and count as empty."""
    paths: Iterable[Path]
    if name == "states":
        paths = (run_dir / "states").glob("hs_*.safetensors")
    elif name == "checkpoints":
        steps = fork.checkpoints(run_dir)
        # A training that has not finished goes on from the newest one, and may end with the best.
        best = rundir.read_object(run_dir / "train" / "best.json").get("step")
        done = abandon or "train" in found["stages"]
        going = steps if done else [step for step in steps[:-1] if step != best]
        folders = [run_dir / "train" / "checkpoints" / f"step-{step}" for step in going]
        # And what a training that started over put aside.
        folders += (run_dir / "train").glob("passed-over-step-*") if done else ()
        paths = (path for folder in folders for path in folder.iterdir())
    elif name == "untrained":
        paths = (path for path in (run_dir / pruned.UNTRAINED).rglob("*") if not path.is_dir())
    else:
        old = [n for n in state.attempts(run_dir) if n != found["attempt"]]
        attempts = (run_dir / "attempts" / str(number) / "run.log" for number in old)
        paths = [*(run_dir / "logs").glob("*.log"), *attempts]
    found_files = []
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError):
            found_files.append((path, path.lstat()))
    return found_files


def _delete(run_dir: Path, paths: Sequence[Path]) -> None:
    """The marker of a checkpoint goes first: what is left of one that is half deleted is then no checkpoint any more."""
    try:
        for path in sorted(paths, key=lambda path: path.name != "complete.json"):
            with contextlib.suppress(FileNotFoundError):  # another prune is at it
                path.unlink()
        for folder in {path.parent for path in paths if path.parent.name.startswith(("step-", "passed-over-step-"))}:
            shutil.rmtree(str(folder), ignore_errors=True)
        rundir.append_line(
            run_dir / "events.jsonl",
            {
                "v": 1, "attempt": state.attempts(run_dir)[-1] if state.attempts(run_dir) else 0, "t": time.time(),
                "kind": "pruned", "level": "info", "actor": "prune", "text": f"{len(paths)} files were pruned.",
            },
        )  # fmt: skip
    except OSError as error:
        raise from_os_error(error, f"pruning {run_dir.name}") from error
