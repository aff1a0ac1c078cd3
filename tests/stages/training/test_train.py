"""Real trainings of a tiny draft: it learns, says what it does, and refuses to go astray."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.stages import train
from eagle3.stages.context import StageContext, StageError
from eagle3.states.packing import pack
from eagle3.states.quarantine import Quarantine
from tests.stages.training.left import Rows, losses

pytestmark = pytest.mark.slow


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
    tokens = [row["tokens"] for row in rows_of(ctx, "metrics.jsonl") if row["split"] == "train"]
    assert sum(tokens) == 12 * 15, "an epoch of 12 samples, each without its first token, and no padding"
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


def test_a_scoring_of_the_held_out_samples_is_heard_of_pack_by_pack(
    toy_run: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = toy_run(max_steps=2, validate_every_steps=1, pack_tokens=16)
    told: list[tuple[float, str]] = []
    monkeypatch.setattr(ctx.journal, "progress", lambda stage, done, *_, reason="", **__: told.append((done, reason)))
    train.run(ctx)
    scored = [done for done, reason in told if reason == "scoring the held-out samples"]
    packs = 4
    assert scored == [0] * packs + [1] * packs + [2] * packs, "one held-out sample a pack"


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


def test_a_loss_that_is_not_finite_stops_the_training_and_keeps_the_checkpoint(toy_run: Callable[..., StageContext]) -> None:
    ctx = toy_run(warmup_steps=0, checkpoint_every_steps=1)
    # A spec may not say so; what a rate beyond all bounds does, others do too.
    ctx.spec = ctx.spec.model_copy(update={"train": ctx.spec.train.model_copy(update={"learning_rate": 1e37})})
    with pytest.raises(StageError, match="not a finite number at step"):
        train.run(ctx)
    kept = sorted((ctx.run_dir / "train" / "checkpoints").glob("step-*"))
    assert kept
    assert all(tensor.isfinite().all() for tensor in load_file(kept[-1] / "weights.safetensors").values())


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


def test_the_targets_preset_gives_the_draft_its_head_size(toy_run: Callable[..., StageContext]) -> None:
    from eagle3.training import draft

    ctx = toy_run()
    shape = ctx.spec.target.draft.model_copy(update={"head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 3})
    spec = ctx.spec.model_copy(update={"target": ctx.spec.target.model_copy(update={"draft": shape})})
    layer = draft.build(spec, ctx.model_dir, ctx.run_dir / "vocabulary").layers[0]
    assert layer.self_attn.q_proj.weight.shape[0] == 3 * 32
    assert layer.self_attn.o_proj.weight.shape[1] == 3 * 32
