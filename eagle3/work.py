"""The worker: runs the stages of one run in order, skipping what an earlier attempt left whole.

Started by the supervisor as ``python -m eagle3 work RUN_DIR``. Exit codes: 0 finished, 75 stopped cleanly (resume
goes on from here), 1 failed with the reason in the last error event.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from pydantic import ValidationError

from eagle3 import __version__, forecast, made_from
from eagle3.core import evaluation, published
from eagle3.core.lineage import UPSTREAM
from eagle3.core.records import StageRecord
from eagle3.core.spec import STAGES, RunSpec, hash_of
from eagle3.core.wording import duration_label
from eagle3.failures import explain, read_spec
from eagle3.journal import Journal
from eagle3.rows import read_rows_past_torn
from eagle3.runner import notes, pruned, rundir
from eagle3.stages import prepare
from eagle3.stages.context import StageContext, StageError, Stopped
from eagle3.stages.hold import Hold
from eagle3.targets import TargetError, fetch, model_dir

EXIT_FINISHED, EXIT_FAILED, EXIT_STOPPED = 0, 1, 75


class StopFlag:
    """Whether the operator wants this attempt to end: SIGTERM, or a ``stop.json`` for this attempt."""

    def __init__(self, run_dir: Path, attempt: int) -> None:
        self._file = run_dir / "stop.json"
        self._attempt = attempt
        self._signalled = False

    def install(self) -> None:
        """Turn TERM and INT into the flag. A second one ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            raise SystemExit(EXIT_STOPPED)
        self._signalled = True

    def __call__(self) -> bool:
        if self._signalled:
            return True
        order = rundir.read_json(self._file)
        return isinstance(order, dict) and order.get("attempt", self._attempt) == self._attempt


def work(run_dir: Path) -> int:
    """Run every stage that still has to run; returns the exit code."""
    attempt = int(os.environ.get("EAGLE3_ATTEMPT", "1"))
    journal = Journal(run_dir, attempt)
    started = time.time()
    stage = "start"
    try:
        spec = read_spec(run_dir / "spec.toml")
        for record in run_dir.glob("servers/*.json"):  # of an attempt that was killed
            record.unlink()
        stop = StopFlag(run_dir, attempt)
        stop.install()
        worker_python = spec.worker_python or sys.executable
        ctx = StageContext(
            run_dir=run_dir,
            spec=spec,
            journal=journal,
            model_dir=model_dir(spec.target.model),
            worker_python=worker_python,
            server_python=spec.server_python or worker_python,
            stop_requested=stop,
        )
        journal.event("attempt", f"Attempt {attempt} works on {spec.size} of {spec.target.name} (spec {spec.hash}).")
        tell_lineage(ctx)
        if to_fetch(ctx) and not (run_dir / "stages" / "prepare.json").exists():
            stage = "prepare"  # a target may take hours to come, and prompts that cannot be used are known now
            prepare.look_at_prompts(spec)
            stage = "start"
        bring_target(ctx)
        tell_made_from(ctx)
        if attempt == 1:
            forecast.write(run_dir, spec)
        for stage in STAGES:
            run_stage(ctx, stage, importlib.import_module(f"eagle3.stages.{stage}"))
            if stage == "extract" and spec.extract.world > 1:
                tell_share(ctx)
                return EXIT_FINISHED
        finish(ctx, started)
    except Stopped:
        journal.event(
            "stopped", f"Stopped in {stage} after {duration_label(time.time() - started)}; resume goes on from what is whole."
        )
        return EXIT_STOPPED
    except StageError as error:
        tell_failure(journal, stage, str(error), error.detail)
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it was, the operator reads it in one place
        tell_failure(journal, stage, explain(error, run_dir, stage), traceback.format_exc())
        return EXIT_FAILED
    return EXIT_FINISHED


def tell_lineage(ctx: StageContext) -> None:
    """In a fork's first attempt: where it comes from and what it takes over."""
    lineage = rundir.read_object(ctx.run_dir / "fork.json")
    if lineage and ctx.journal.attempt == 1:
        taken = ", ".join(lineage.get("stages", [])) or "nothing whole"
        changed = ", ".join(lineage.get("changed", [])) or "no field"
        ctx.journal.event("forked", f"Forked from {ctx.spec.forked_from}: takes over {taken}; changes {changed}.")


def tell_share(ctx: StageContext) -> None:
    """A run that extracts a share of the samples ends with it: a draft is trained on all of them."""
    extract = ctx.spec.extract
    ctx.journal.event(
        "finished",
        f"Share {extract.rank} of {extract.world} is extracted ({ctx.figures['extract']['samples']} samples). "
        "When the other shares are, `eagle3 import RUN RUN … --id NEW` joins them into a run that trains.",
    )


def to_fetch(ctx: StageContext) -> bool:
    """Whether the target is not on this machine, and its preset says where it comes from. A folder that somebody named is
    theirs: a wrong path is an error, not a place to put a model."""
    target = ctx.spec.target
    return bool(target.source) and "{cache}" in target.model and not ctx.model_dir.exists()


def bring_target(ctx: StageContext) -> None:
    """Fetch a target that is not on this machine and whose preset says where it comes from. Raises StageError.

    Before the first stage, since the target's files are part of what the stages are made from.
    """
    if not to_fetch(ctx):
        return
    target = ctx.spec.target

    def alive() -> None:
        ctx.journal.progress("prepare", 0, None, "", quiet_s=1800, reason=f"fetching {target.name}, once on this machine")

    def say(text: str) -> None:
        ctx.journal.event("target", text)
        alive()  # a large target takes hours

    alive()
    try:
        fetch(target.name, target.source, ctx.model_dir, say)
    except TargetError as error:
        raise StageError(str(error)) from error


def tell_made_from(ctx: StageContext) -> None:
    """Put down what this attempt is made from besides the spec, and say where that is not what the one before was made from."""
    before, now = made_from.of_run(ctx.run_dir), made_from.here(ctx.spec, sys.executable)
    if changed := made_from.differences(before, now):
        text = f"Since the attempt before something has changed. {' '.join(changed)}"
        ctx.journal.event("made-from", text, level="warn")
    rundir.write_json(ctx.path("attempts", str(ctx.journal.attempt), made_from.FILE), now)


def tell_failure(journal: Journal, stage: str, text: str, detail: str) -> None:
    """Say why the attempt fails, in the events and in the log. A full disk may take neither; the exit code still tells."""
    with contextlib.suppress(OSError):
        journal.event("failed", f"{stage}: {text}"[:1500], level="error", detail=detail, stage=stage)
        if detail:
            sys.stdout.write(f"{detail.rstrip()}\n")
            sys.stdout.flush()


def run_stage(ctx: StageContext, name: str, module: ModuleType) -> None:
    """Run one stage and write its record, or take over the record of an earlier attempt that is still true."""
    record_path = ctx.path("stages", f"{name}.json")
    inputs = inputs_hash(ctx, name, module)
    record = rundir.read_json(record_path)
    if record is not None:
        why = stale(ctx, record, inputs, module)
        if not why:
            ctx.figures[name] = record["figures"]
            ctx.journal.event("stage-skipped", f"{name} is whole from {whence(record)}; it is not repeated.", stage=name)
            return
        if isinstance(record, dict) and record.get("remade") is False:
            raise StageError(f"{name} was imported and cannot be made here ({why}); put that back, or import again.")
        ctx.journal.event("stage-again", f"{name} runs again: {why}.", level="warn", stage=name)
        record_path.unlink()
    hold = Hold(ctx, name)
    hold.wait()
    ctx.check_stop()
    # What an earlier attempt concluded no longer holds once a stage runs again.
    (ctx.run_dir / "result.json").unlink(missing_ok=True)
    ctx.journal.event("stage-started", f"{name} starts.", stage=name)
    ctx.journal.restart_rate()
    # A stage goes on from what an earlier attempt has left: its seconds are then not the whole of it.
    begun_path = ctx.path("stages", f".{name}.begun")
    parents = rundir.read_object(ctx.run_dir / "fork.json").get("partial") or []
    begun = begun_path.exists() or record is not None or name in parents
    begun_path.touch()
    since, paused_s = time.time(), ctx.paused_s
    figures: dict[str, Any] = module.run(ctx)
    seconds = time.time() - since - (ctx.paused_s - paused_s)
    ctx.figures[name] = figures
    rundir.write_json(
        record_path,
        {
            "v": 1,
            "stage": name,
            "attempt": ctx.journal.attempt,
            "inputs": inputs,
            "spec_hash": ctx.spec.hash,
            "outputs": outputs(ctx.run_dir, module.OUTPUTS, ctx.check_stop),
            "figures": figures,
            "seconds": round(seconds, 2),
            "begun_before": begun,
            "t": time.time(),
        },
    )
    begun_path.unlink(missing_ok=True)
    ctx.journal.event("stage-finished", f"{name} took {duration_label(seconds)}.", stage=name)


def whence(record: dict[str, Any]) -> str:
    """Who finished a stage: an earlier attempt, or the run that this one was forked from."""
    if record.get("imported_from"):
        return "the import"
    parent = record.get("forked_from")
    return f"the run {parent}" if parent else f"attempt {record['attempt']}"


def inputs_hash(ctx: StageContext, name: str, module: ModuleType) -> str:
    """What the stage's result depends on: its part of the spec and what the stages before it left."""
    spec_part: Callable[[RunSpec], dict[str, Any]] = module.spec_part
    # What a stage reads besides, such as the samples that were put aside; mostly nothing.
    besides: Callable[[StageContext], dict[str, Any]] = getattr(module, "besides", lambda ctx: {})
    upstream = {}
    for before in UPSTREAM[name]:
        record = rundir.read_json(ctx.run_dir / "stages" / f"{before}.json") or {}
        upstream[before] = {path: entry["sha256"] for path, entry in record.get("outputs", {}).items()}
    return hash_of({"stage": name, "spec": spec_part(ctx.spec), "upstream": upstream} | besides(ctx))


def stale(ctx: StageContext, found: Any, inputs: str, module: ModuleType) -> str:
    """Why a finished stage, whose record was ``found``, cannot be taken over as it is; empty where it can."""
    try:
        record = StageRecord.model_validate(found)
    except ValidationError:
        return "its record is damaged"
    if record.inputs != inputs:
        return "what it was made from has changed"
    now = outputs(ctx.run_dir, module.OUTPUTS, ctx.check_stop)
    for path, entry in record.outputs.items():
        if path not in now and pruned.on_purpose(ctx.run_dir, path):
            continue
        if path not in now:
            return "its record is of another version" if (ctx.run_dir / path).is_file() else f"{path} is gone"
        if now[path]["sha256"] != entry["sha256"]:
            return f"{path} is not what it left"
    whole: Callable[[StageContext], str] | None = getattr(module, "whole", None)
    return whole(ctx) if whole and not (record.stage == "extract" and states_used_up(ctx)) else ""


def states_used_up(ctx: StageContext) -> bool:
    """Whether the states were pruned after a training whose result still stands: nothing will read them again."""
    if not pruned.states_used_up(ctx.run_dir):
        return False
    for name in ("vocabulary", "train"):
        module = importlib.import_module(f"eagle3.stages.{name}")
        found = rundir.read_json(ctx.run_dir / "stages" / f"{name}.json")
        if found is None or stale(ctx, found, inputs_hash(ctx, name, module), module):
            return False
    return True


def outputs(run_dir: Path, patterns: tuple[str, ...], between: Callable[[], None] = lambda: None) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file that the patterns (globs inside the run directory) match. ``between`` is called before
    each file and may raise: hidden states are many gigabytes."""
    found: dict[str, dict[str, Any]] = {}
    for pattern in patterns:
        for path in sorted(run_dir.glob(pattern)):
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    between()
                    with file.open("rb") as stream:
                        digest = hashlib.file_digest(stream, "sha256").hexdigest()
                    found[str(file.relative_to(run_dir))] = {"bytes": file.stat().st_size, "sha256": digest}
    return found


def finish(ctx: StageContext, started: float) -> None:
    """Write ``result.json`` and the summaries that people read."""
    if rundir.read_object(ctx.run_dir / "result.json"):
        # No stage has run again, or it would be gone: its wall time and the note are those of the work.
        ctx.journal.event("finished", "Everything was whole already; result.json stands as it was.")
        return
    records = {name: rundir.read_json(ctx.run_dir / "stages" / f"{name}.json") for name in STAGES}
    train, evaluate = ctx.figures["train"], ctx.figures["evaluate"]
    result: dict[str, Any] = {
        "v": 1,
        "run_id": ctx.run_dir.name,
        "run_dir": str(ctx.run_dir),
        "state": "finished",
        "wall_s": round(time.time() - first_start(ctx.run_dir, started), 1),
        "stages": {name: record["seconds"] for name, record in records.items()},
        "val": train["val"],
        "untrained": train["untrained"],
        "served": evaluate["served"],
        "lossless": evaluate["lossless"],
        **{name: evaluate[name] for name in ("kinds", "curve", "temperatures") if name in evaluate},
        "published": published_beside(ctx),
        "verdict": evaluate["verdict"],
        "verdict_text": evaluate["verdict_text"],
        "thresholds": evaluate["thresholds"],
        "forked_from": ctx.spec.forked_from,
        "made_from": made_from.of_run(ctx.run_dir),
        "estimate": forecast.outcome(ctx.run_dir, records),
        "spec_hash": ctx.spec.hash,
        "eagle3": __version__,
        "attempts": ctx.journal.attempt,
    }
    rundir.write_json(ctx.run_dir / "result.json", result)
    forecast.learn(ctx.run_dir, ctx.spec, records)
    note(ctx, result)
    ctx.journal.event("finished", f"Finished: {evaluate['verdict_text']}")


def served_line(served: dict[str, Any]) -> str:
    """The served acceptance with its counts, for a summary."""
    if served["accept_len"] is None:
        return "The draft was not served;"
    between = evaluation.between_label(served.get("accept_len_interval"), served.get("answers"))
    length = f"{served['accept_len']:.2f}" + (f" ({between})" if between else "")
    return f"Served acceptance length {length} over {served['drafts']} drafts on {served['prompts']} prompts;"


def published_beside(ctx: StageContext) -> dict[str, Any]:
    """The run's draft beside those that others have published for its target; empty where none are known."""
    theirs = published.drafts_for(ctx.spec.target.name)
    if not theirs:
        return {}
    lengths: dict[int, tuple[int, float]] = {}
    trained: dict[int, tuple[int, int]] = {}
    for row in read_rows_past_torn(ctx.run_dir / "metrics.jsonl"):
        scored = (row.get("stage"), row.get("split")) == ("train", "val") and row.get("accept_len")
        # Of a step that was repeated, the highest attempt counts, and of its rows the last.
        if scored and row["attempt"] >= lengths.get(row["step"], (0, 0.0))[0]:
            lengths[row["step"]] = (row["attempt"], row["accept_len"])
        stepped = (row.get("stage"), row.get("split")) == ("train", "train") and row.get("tokens")
        if stepped and row["attempt"] >= trained.get(row["step"], (0, 0))[0]:
            trained[row["step"]] = (row["attempt"], row["tokens"])
    scored = sorted(lengths)
    capacity = ctx.spec.train.pack_tokens * ctx.spec.packs_per_step
    seen = published.tokens_seen(scored, {step: tokens for step, (_, tokens) in trained.items()}, capacity)
    curve = [(tokens, lengths[step][1]) for step, tokens in zip(scored, seen, strict=True)]
    extracted = ctx.figures["extract"]
    return published.beside(theirs, ctx.figures["evaluate"]["served"], curve, extracted["tokens"] / max(1, extracted["samples"]))


def first_start(run_dir: Path, default: float) -> float:
    """When the run's first attempt began: the wall time of a resumed run counts its interruptions too."""
    first = rundir.read_json(run_dir / "attempts" / "1" / "started.json") or {}
    return float(first.get("t", default))


def note(ctx: StageContext, result: dict[str, Any]) -> None:
    """Append the summary to the run's and the workspace's NOTES.md; edits by people stay."""
    served, val = result["served"], result["val"]
    forked = f"Forked from {ctx.spec.forked_from}. " if ctx.spec.forked_from else ""
    text = (
        f"\n## {result['run_id']} ({time.strftime('%Y-%m-%d %H:%M')})\n"
        f"{ctx.spec.size} of {ctx.spec.target.name} on {ctx.spec.machine}: {forked}{result['verdict_text']}\n"
        f"{served_line(served)} "
        f"simulated (held-out) {val['accept_len']:.2f}; untrained position 0 {result['untrained']['acc_pos'][0]:.1%}. "
        f"Wall {duration_label(result['wall_s'])}. {forecast.note_line(result['estimate'])}\n"
    )
    more = [
        *evaluation.lines(result.get("curve", []), result.get("kinds", {}), result.get("temperatures", [])),
        *published.sentences(result.get("published", {})),
    ]
    text += "".join(f"- {line}\n" for line in more)
    for place in (ctx.run_dir, ctx.run_dir.parent.parent):
        notes.append(place, text)
