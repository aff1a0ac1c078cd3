"""Real trainings of a tiny draft: it learns, it stops and goes on as if nothing had been, and it refuses to go astray."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.stages import train
from eagle3.stages.context import StageContext, StageError, Stopped
from eagle3.states.packing import pack
from eagle3.states.quarantine import Quarantine
from tests.support.guards import the_guard

pytestmark = pytest.mark.slow

Rows = Callable[[StageContext, str], list[dict]]


def losses(rows: list[dict]) -> dict[int, float]:
    """Loss by step, the last row of each step winning."""
    return {row["step"]: row["loss"] for row in rows if row["split"] == "train"}


def checkpoints(ctx: StageContext) -> set[str]:
    return {path.name for path in (ctx.run_dir / "train" / "checkpoints").iterdir()}


def weights(ctx: StageContext) -> dict[str, torch.Tensor]:
    return load_file(ctx.run_dir / "train" / "draft" / "model.safetensors")


def test_the_draft_learns_the_rule_and_beats_the_untrained_one(toy_run: Callable[..., StageContext], rows_of: Rows) -> None:
    ctx = toy_run(max_steps=60, learning_rate=5e-3, validate_every_steps=30, vocabulary_size=64)
    figures = train.run(ctx)
    rows = rows_of(ctx, "metrics.jsonl")
    assert list(losses(rows)) == list(range(1, 61))
    assert figures["loss"] < 0.5 * losses(rows)[1]
    assert figures["val"]["acc_pos"][0] > 0.5 > 0.2 > figures["untrained"]["acc_pos"][0]
    assert figures["val"]["tokens"] == figures["untrained"]["tokens"] == 4 * (14 - 2)
    assert (figures["steps"], figures["resumed_from"]) == (60, None)
    assert [row["step"] for row in rows if row["split"] == "val"] == [0, 30, 60]


def test_a_draft_learns_from_states_of_eight_bits_without_the_samples_that_were_put_aside(
    toy_run: Callable[..., StageContext],
) -> None:
    ctx = toy_run(max_steps=60, learning_rate=5e-3, validate_every_steps=60, vocabulary_size=64)
    for path in (ctx.run_dir / "states").glob("hs_*.safetensors"):
        save_file(pack(load_file(path), "float8_e4m3"), path)
    for index in (4, 5):
        (ctx.run_dir / "states" / f"hs_{index}.safetensors").unlink()
        sample = {"index": index, "id": f"toy-{index}", "split": "heldout", "input_ids": []}
        Quarantine(ctx.run_dir / "states").put(sample, "its states are wrong", tries=3, attempt=1, now=0.0)
    figures = train.run(ctx)
    assert figures["val"]["acc_pos"][0] > 0.5 > 0.2 > figures["untrained"]["acc_pos"][0]
    assert figures["val"]["samples"] == 3, "of four held-out ones"


def test_every_row_is_complete(toy_run: Callable[..., StageContext], rows_of: Rows) -> None:
    ctx = toy_run(max_steps=3)
    train.run(ctx)
    for row in rows_of(ctx, "metrics.jsonl"):
        if row["split"] == "train":
            assert len(row["loss_pos"]) == len(row["acc_pos"]) == 2
            assert row["accept_len"] == pytest.approx(1 + sum(row["acc_pos"]))
            assert row["loss"] == pytest.approx(sum(row["loss_pos"]), rel=1e-4)
            assert row["grad_norm"] > 0 and row["tok_s"] > 0
    warm = [row["lr"] for row in rows_of(ctx, "metrics.jsonl") if row["split"] == "train"]
    assert warm[0] == 0.0 < warm[1] < warm[2]


def test_silence_is_announced_while_the_packages_load_and_ended_by_the_first_step(
    toy_run: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = toy_run(max_steps=2)
    told: list[dict] = []
    progress = ctx.journal.progress

    def tell(*args: Any, **kwargs: Any) -> None:
        progress(*args, **kwargs)
        told.append(json.loads((ctx.run_dir / "progress.json").read_text()))

    monkeypatch.setattr(ctx.journal, "progress", tell)
    train.run(ctx)
    assert told[0]["quiet_until"] > told[0]["t"] and "loading" in told[0]["reason"]
    assert told[-1]["quiet_until"] is None
    assert (told[-1]["done"], told[-1]["total"], told[-1]["unit"]) == (2, 2, "steps")


def test_nothing_stays_replaced_in_the_libraries_after_a_training(toy_run: Callable[..., StageContext]) -> None:
    from speculators.train import trainer

    def taps() -> tuple:
        logger = logging.getLogger("speculators.metrics")
        return torch.nn.utils.clip_grad_norm_, trainer.tqdm, trainer._StepTimer, tuple(logger.handlers), logger.propagate

    before = taps()
    train.run(toy_run(max_steps=1))
    assert taps() == before


def test_the_draft_starts_from_the_deepest_auxiliary_layer_and_the_same_seed_gives_the_same_draft(
    toy_run: Callable[..., StageContext],
) -> None:
    from eagle3.training import draft

    ctx = toy_run()
    first, again = (draft.build(ctx.spec, ctx.model_dir, ctx.run_dir / "vocabulary") for _ in range(2))
    hidden = ctx.spec.target.hidden_size
    assert float(first.fc.weight[:, -hidden:].detach().diagonal().mean()) == pytest.approx(1.0, abs=0.05)
    assert float(first.fc.weight[:, :hidden].diagonal().mean()) == pytest.approx(0.0, abs=0.05)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in first.state_dict().items())


def test_what_is_left_is_a_speculators_checkpoint_in_the_targets_precision(toy_run: Callable[..., StageContext]) -> None:
    ctx = toy_run(max_steps=2)
    train.run(ctx)
    for name in ("draft", "untrained"):
        folder = ctx.run_dir / "train" / name
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
        config = json.loads((folder / "config.json").read_text())
        assert config["speculators_model_type"] == "eagle3" and "auto_map" not in config
        assert config["draft_vocab_size"] == 48
        assert config["dtype"] == "float32"
        assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
        assert config["transformer_layer_config"]["vocab_size"] == 64
        assert config["speculators_config"]["verifier"]["name_or_path"] == str(ctx.model_dir)
        tensors = load_file(folder / "model.safetensors")
        assert {"d2t", "t2d", "fc.weight", "lm_head.weight", "embed_tokens.weight", "norm.weight"} <= tensors.keys()
        assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())
    assert not list((ctx.run_dir / "train").glob(".*.partial"))


@pytest.mark.parametrize("steps", [6, 7], ids=["at the end of an epoch", "in the middle of one"])
def test_a_stop_between_steps_saves_and_the_resume_repeats_the_unbroken_run(
    toy_run: Callable[..., StageContext], rows_of: Rows, steps: int
) -> None:
    unbroken = toy_run(run="unbroken")
    train.run(unbroken)

    # An epoch has three steps.
    stopped = toy_run(run="broken", stop_after=steps)
    with pytest.raises(Stopped):
        train.run(stopped)
    assert f"step-{steps}" in checkpoints(stopped)
    assert not (stopped.run_dir / "train" / "draft").exists()

    resumed = toy_run(run="broken")
    figures = train.run(resumed)
    assert figures["resumed_from"] == steps
    assert losses(rows_of(resumed, "metrics.jsonl")) == losses(rows_of(unbroken, "metrics.jsonl"))
    for name, tensor in weights(unbroken).items():
        assert torch.equal(weights(resumed)[name], tensor), name


def test_a_kill_costs_the_steps_since_the_last_whole_checkpoint_and_nothing_else(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    ctx = toy_run()
    figures = train.run(ctx)
    assert checkpoints(ctx) == {"step-8", "step-12"}
    before = losses(rows_of(ctx, "metrics.jsonl"))
    kept = weights(ctx)
    # A kill while the last checkpoint was written.
    newest = ctx.run_dir / "train" / "checkpoints" / "step-12" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    again = train.run(toy_run())
    assert again["resumed_from"] == 8
    assert losses(rows_of(ctx, "metrics.jsonl")) == before
    assert again["val"] == figures["val"]
    assert all(torch.equal(weights(ctx)[name], tensor) for name, tensor in kept.items())


def kill_at_rename_of_step_8(ctx: StageContext) -> None:
    """Train, and die as by kill -9 when the checkpoint of step 8 is written and not yet named."""
    rename = Path.rename

    def die_instead(self: Path, target: Path) -> Path:
        if self.name == ".partial-step-8":
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, target)

    Path.rename = die_instead  # type: ignore[method-assign]
    train.run(ctx)


def test_a_kill_between_the_writing_and_the_naming_of_a_checkpoint_costs_no_more_than_its_steps(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    unbroken = toy_run(run="unbroken")
    train.run(unbroken)
    killed = toy_run(run="killed")
    process = multiprocessing.get_context("fork").Process(target=kill_at_rename_of_step_8, args=(killed,))
    process.start()
    process.join(100)
    assert process.exitcode == -signal.SIGKILL
    assert checkpoints(killed) == {"step-4", ".partial-step-8"}
    resumed = toy_run(run="killed")
    assert train.run(resumed)["resumed_from"] == 4
    assert losses(rows_of(resumed, "metrics.jsonl")) == losses(rows_of(unbroken, "metrics.jsonl"))
    assert all(torch.equal(weights(resumed)[name], tensor) for name, tensor in weights(unbroken).items())
    assert checkpoints(resumed) == {"step-8", "step-12"}


def test_a_training_that_was_only_not_finished_is_not_repeated(toy_run: Callable[..., StageContext], rows_of: Rows) -> None:
    first = train.run(toy_run(max_steps=4))
    ctx = toy_run(max_steps=4)
    count = len(rows_of(ctx, "metrics.jsonl"))
    again = train.run(ctx)
    assert again["resumed_from"] == 4 and again["val"] == first["val"] and again["loss"] == first["loss"]
    assert [row["split"] for row in rows_of(ctx, "metrics.jsonl")[count:]] == ["val"]


def test_other_settings_start_anew(toy_run: Callable[..., StageContext]) -> None:
    train.run(toy_run(max_steps=4))
    assert train.run(toy_run(max_steps=4, learning_rate=2e-3))["resumed_from"] is None


def test_a_loss_that_is_not_finite_stops_the_training_and_keeps_the_checkpoint(toy_run: Callable[..., StageContext]) -> None:
    ctx = toy_run(warmup_steps=0, checkpoint_every_steps=1)
    # A spec may not say so; what a rate beyond all bounds does, others do too.
    ctx.spec = ctx.spec.model_copy(update={"train": ctx.spec.train.model_copy(update={"learning_rate": 1e37})})
    with pytest.raises(StageError, match="not a finite number at step"):
        train.run(ctx)
    kept = sorted((ctx.run_dir / "train" / "checkpoints").glob("step-*"))
    assert kept
    assert all(tensor.isfinite().all() for tensor in load_file(kept[-1] / "weights.safetensors").values())


def test_states_that_were_made_again_start_anew(toy_run: Callable[..., StageContext]) -> None:
    ctx = toy_run(max_steps=4)
    manifest = ctx.run_dir / "states" / "manifest.jsonl"
    manifest.write_text('{"index": 0, "sha256": "a"}\n')
    train.run(ctx)
    assert train.run(toy_run(max_steps=4))["resumed_from"] == 4
    manifest.write_text('{"index": 0, "sha256": "b"}\n')
    assert train.run(toy_run(max_steps=4))["resumed_from"] is None


def test_a_stop_during_a_validation_saves_the_step_before_it_ends(
    toy_run: Callable[..., StageContext], rows_of: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3.training import heldout

    ctx = toy_run(checkpoint_every_steps=100)
    asked = False
    ctx.stop_requested = lambda: asked
    evaluate = heldout.evaluate

    def stop_in_the_middle(*args: Any) -> Any:
        nonlocal asked
        asked = bool(losses(rows_of(ctx, "metrics.jsonl"))) if (ctx.run_dir / "metrics.jsonl").exists() else False
        return evaluate(*args)

    monkeypatch.setattr(heldout, "evaluate", stop_in_the_middle)
    with pytest.raises(Stopped):
        train.run(ctx)
    assert checkpoints(ctx) == {"step-6"}
    assert "Training stopped after step 6 of 12; it is saved." in (ctx.run_dir / "events.jsonl").read_text()


def test_a_stop_while_the_packages_load_ends_before_anything_is_built(toy_run: Callable[..., StageContext]) -> None:
    ctx = toy_run(stop_after=0)
    with pytest.raises(Stopped):
        train.run(ctx)
    assert not (ctx.run_dir / "train").exists()


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_answers_that_all_lie_beyond_the_pack_are_refused_and_not_trained_past(
    toy_run: Callable[..., StageContext], split: str
) -> None:
    ctx = toy_run(pack_tokens=8)
    file = ctx.run_dir / "data" / "samples.jsonl"
    samples = [json.loads(row) for row in file.read_text().splitlines()]
    for sample in samples:
        if sample["split"] == split:
            sample["loss_mask"] = [0] * 10 + sample["loss_mask"][10:]
    file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    with pytest.raises(StageError, match=rf"All \d+ {split} samples have their answers beyond the first 8 tokens"):
        train.run(ctx)


@pytest.mark.parametrize("name", ["untrained/model.safetensors", "untrained/config.json", "floor.json"])
def test_an_untrained_draft_that_is_cut_short_is_made_again_as_it_was(toy_run: Callable[..., StageContext], name: str) -> None:
    ctx = toy_run(max_steps=4)
    figures = train.run(ctx)
    left = {path: path.read_bytes() for path in (ctx.run_dir / "train").glob("untrained/*")}
    path = ctx.run_dir / "train" / name
    path.write_bytes(path.read_bytes()[:-9])
    again = train.run(ctx)
    assert again["resumed_from"] == 4 and again["untrained"] == figures["untrained"]
    assert {path: path.read_bytes() for path in left} == left


def forked(parent: StageContext, child: StageContext, step: int, *changed: str) -> None:
    """Give the run ``child`` the parent's data and its checkpoint, as a fork does."""
    for name in ("data", "states", "vocabulary", f"train/checkpoints/step-{step}", "train/untrained"):
        shutil.rmtree(child.run_dir / name, ignore_errors=True)
        shutil.copytree(parent.run_dir / name, child.run_dir / name)
    lineage = {"v": 1, "run_id": "parent", "checkpoint": step, "changed": list(changed)}
    (child.run_dir / "fork.json").write_text(json.dumps(lineage))


def test_a_fork_goes_on_from_a_checkpoint_with_its_own_learning_rate(toy_run: Callable[..., StageContext], rows_of: Rows) -> None:
    parent = toy_run(run="parent", max_steps=8, checkpoint_every_steps=4)
    train.run(parent)
    child = toy_run(run="child", max_steps=8, checkpoint_every_steps=4, learning_rate=1e-5)
    forked(parent, child, 4, "train.learning_rate")
    figures = train.run(child)
    theirs, ours = rows_of(parent, "metrics.jsonl"), rows_of(child, "metrics.jsonl")
    assert figures["resumed_from"] == 4
    assert list(losses(ours)) == [5, 6, 7, 8]
    assert losses(ours)[5] == losses(theirs)[5], "the weights and the order of the samples are the checkpoint's"
    rates = {row["step"]: row["lr"] for row in ours if row["split"] == "train"}
    before = {row["step"]: row["lr"] for row in theirs if row["split"] == "train"}
    for step in rates:
        assert rates[step] / 1e-5 == pytest.approx(before[step] / parent.spec.train.learning_rate)


def test_a_fork_that_changes_nothing_repeats_the_parents_losses_exactly(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    parent = toy_run(run="parent", max_steps=6, checkpoint_every_steps=3)
    train.run(parent)
    child = toy_run(run="child", max_steps=6, checkpoint_every_steps=3)
    forked(parent, child, 3)
    train.run(child)
    theirs = losses(rows_of(parent, "metrics.jsonl"))
    assert losses(rows_of(child, "metrics.jsonl")) == {step: theirs[step] for step in (4, 5, 6)}


def test_a_fork_whose_checkpoint_is_torn_says_so_and_does_not_start_from_nothing(toy_run: Callable[..., StageContext]) -> None:
    parent = toy_run(run="parent", max_steps=4, checkpoint_every_steps=2)
    train.run(parent)
    child = toy_run(run="child", max_steps=4, learning_rate=1e-5)
    forked(parent, child, 2, "train.learning_rate")
    (child.run_dir / "train" / "checkpoints" / "step-2" / "state.pt").write_bytes(b"torn")
    with pytest.raises(StageError, match="The checkpoint of step 2 that this run was forked from is gone or not whole"):
        train.run(child)


def test_the_targets_preset_gives_the_draft_its_head_size(toy_run: Callable[..., StageContext]) -> None:
    from eagle3.training import draft

    ctx = toy_run()
    shape = ctx.spec.target.draft.model_copy(update={"head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 3})
    spec = ctx.spec.model_copy(update={"target": ctx.spec.target.model_copy(update={"draft": shape})})
    layer = draft.build(spec, ctx.model_dir, ctx.run_dir / "vocabulary").layers[0]
    assert layer.self_attn.q_proj.weight.shape[0] == 3 * 32
    assert layer.self_attn.o_proj.weight.shape[1] == 3 * 32


def test_a_paused_training_is_saved_first_holds_and_then_learns_as_if_nothing_had_been(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    unbroken = toy_run(run="unbroken", max_steps=4)
    train.run(unbroken)
    ctx = toy_run(run="paused", max_steps=4)
    control = ctx.run_dir / "control.json"
    orders = {"v": 1, "attempt": 1, "pause": {"by": "ann", "t": 1.0}, "checkpoint": {"by": "bob", "t": 2.0}}
    control.write_text(json.dumps(orders))
    seen: list[set[str]] = []

    def let_it_go_on() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            told = (ctx.run_dir / "events.jsonl").exists() and rows_of(ctx, "events.jsonl")
            if told and any(row["kind"] == "paused" for row in told):
                seen.append(checkpoints(ctx))
                break
            time.sleep(0.02)
        control.write_text(json.dumps(orders | {"pause": None}))

    helper = threading.Thread(target=let_it_go_on)
    helper.start()
    figures = train.run(ctx)
    helper.join()
    assert seen == [{"step-1"}]
    assert figures["steps"] == 4
    assert losses(rows_of(ctx, "metrics.jsonl")) == losses(rows_of(unbroken, "metrics.jsonl"))
    told = [row["text"] for row in rows_of(ctx, "events.jsonl") if row["kind"] in ("checkpoint", "resumed")]
    assert told[0] == "Step 1 is saved, as bob asked."
    assert len(told) == 2, "an order is obeyed once"


def test_a_guard_that_asks_for_a_stop_ends_the_training_with_everything_saved(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    flat = {"flat_loss": "stop", "flat_loss_steps": 6, "flat_loss_share": 1.0}
    ctx = toy_run(max_steps=12, checkpoint_every_steps=100, guards=flat)
    with pytest.raises(StageError, match="The loss fell by"):
        train.run(ctx)
    event = the_guard(rows_of(ctx, "events.jsonl"), "flat-loss")
    assert event["level"] == "error" and event["guard"]["threshold"] == 1.0 and event["guard"]["counts"] == {"steps": 6.0}
    assert checkpoints(ctx) == {"step-6"}


def test_a_guard_that_asks_for_a_pause_holds_the_run_until_somebody_lets_it_go_on(
    toy_run: Callable[..., StageContext], rows_of: Rows
) -> None:
    flat = {"flat_loss": "pause", "flat_loss_steps": 4, "flat_loss_share": 1.0}
    ctx = toy_run(max_steps=6, guards=flat)
    let_go = threading.Thread(target=_let_go_when_paused, args=(ctx,))
    let_go.start()
    train.run(ctx)
    let_go.join(60)
    kinds = [row["kind"] for row in rows_of(ctx, "events.jsonl")]
    assert kinds.index("guard-flat-loss") < kinds.index("paused") < kinds.index("resumed")
    assert list(losses(rows_of(ctx, "metrics.jsonl"))) == [1, 2, 3, 4, 5, 6]


def _let_go_when_paused(ctx: StageContext) -> None:
    path, deadline = ctx.run_dir / "events.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and "Paused by the guard flat-loss" in path.read_text():
            (ctx.run_dir / "control.json").write_text(json.dumps({"v": 1, "attempt": 1, "pause": None}))
            return
        time.sleep(0.05)
