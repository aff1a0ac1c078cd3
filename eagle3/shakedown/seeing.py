"""What a shakedown's run has left, read from its directory, and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3 import forecast
from eagle3.core.estimate import Estimate
from eagle3.core.shakedown import Proof, Seen, proofs, rate_rows
from eagle3.core.spec import STAGES, RunSpec
from eagle3.core.wording import bytes_label, duration_label
from eagle3.rows import read_rows
from eagle3.runner import fork, ranks, rundir, state
from eagle3.shakedown.doing import FILE, killed_attempt, training_rows

V = 1


def seen(run_dir: Path, summary: dict[str, Any]) -> Seen:
    """The evidence of a shakedown that has ended, however it ended."""
    records = records_of(run_dir)
    result = rundir.read_object(run_dir / "result.json")
    own = rundir.read_object(run_dir / FILE)
    losses: dict[int, dict[int, float]] = {}
    for row in training_rows(run_dir):
        if isinstance(row.get("loss"), (int, float)):
            losses.setdefault(int(row["attempt"]), {})[int(row["step"])] = float(row["loss"])
    killed = killed_attempt(run_dir)
    ended = rundir.read_object(state.attempt_dir(run_dir, killed) / "exit.json")
    return Seen(
        state=str(summary["state"]),
        state_text=str(summary["state_text"]),
        longest_tokens=_longest_sample(run_dir),
        saved_steps=fork.checkpoints(run_dir),
        killed_attempt=killed,
        killed_by=ended.get("signal") if killed else None,
        left_alive=list(own.get("left_alive") or ()),
        resumed_from=((records.get("train") or {}).get("figures") or {}).get("resumed_from"),
        before=losses.get(killed, {}),
        after=losses.get(killed + 1, {}),
        stage_attempts={name: int(record["attempt"]) for name, record in records.items() if record},
        served=result.get("served") or {},
        has_result=bool(result),
        chosen_tokens=int(own.get("chosen_tokens") or 0),
        rank_steps={rank.rank: rank.step for rank in ranks.read(run_dir, int((records.get("train") or {}).get("attempt") or 0))},
    )


def records_of(run_dir: Path) -> dict[str, Any]:
    """The stages' records, None for a stage that has not finished."""
    return {name: rundir.read_json(run_dir / "stages" / f"{name}.json") for name in STAGES}


def report(
    run_dir: Path, short: RunSpec, full: RunSpec, summary: dict[str, Any], before: Estimate, after: Estimate
) -> dict[str, Any]:
    """What was proved, each rate as it was estimated and as it is, and the estimate of the run (``full``) before and after."""
    # Asked as for a run that is not there yet: what the shakedown holds is none of its files.
    no_room = forecast.no_room(full, run_dir.parent / f".{run_dir.name}-next")
    need = bytes_label(after.needs[0].bytes)
    found = [*proofs(seen(run_dir, summary), short), Proof("room", not no_room, no_room or f"{need} for the whole run are free")]
    measured, _ = forecast.measured(run_dir, short, records_of(run_dir))
    own = rundir.read_object(run_dir / FILE)
    return {
        "v": V,
        "run_id": run_dir.name,
        "run_dir": str(run_dir),
        "passed": all(proof.ok for proof in found),
        "proofs": [vars(proof) for proof in found],
        "rates": rate_rows(own.get("rates") or {}, measured),
        "estimate_of_shakedown": rundir.read_object(run_dir / "result.json").get("estimate") or {},
        "seconds_before": round(before.seconds, 1),
        "seconds_after": round(after.seconds, 1),
        "stages_after": {stage.stage: round(stage.seconds, 1) for stage in after.stages},
    }


def lines(told: dict[str, Any]) -> list[str]:
    """The report for a terminal."""
    table = [Proof(**proof) for proof in told["proofs"]]
    text = [f"{'✓' if proof.ok else '✗'} {proof.name:<13} {proof.text}" for proof in table]
    text.append(f"{'rate':<16} {'estimated':>12} {'measured':>12}  measured ÷ estimated")
    for row in told["rates"]:
        measured = f"{row['measured']:,.1f}" if row["measured"] else "–"
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "–"
        text.append(f"{row['rate']:<16} {row['estimated']:>12,.1f} {measured:>12}  {ratio} ({row['source']})")
    off = (told["estimate_of_shakedown"] or {}).get("seconds_ratio")
    if off:
        text.append(f"The shakedown took {off:.2f} times its own estimate.")
    text.append(
        f"The whole run: {duration_label(told['seconds_before'])} as estimated before, {duration_label(told['seconds_after'])} "
        "with what this workspace has measured."
    )
    text.append("Shakedown passed." if told["passed"] else "Shakedown FAILED: mend what is marked before the run.")
    return text


def _longest_sample(run_dir: Path) -> int:
    file = run_dir / "data" / "samples.jsonl"
    return max((len(row["input_ids"]) for row in read_rows(file)), default=0) if file.is_file() else 0
