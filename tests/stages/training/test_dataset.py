"""States become packs: split by the samples' own field, whole, and refused where they would poison the training."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.stages.context import StageContext, StageError
from eagle3.states.packing import FLOAT8_RELATIVE, pack
from eagle3.training.dataset import Collate, StatesDataset, fixed_packs, train_loader
from eagle3.training.samples import Sample, read_samples

PACK = 40


@pytest.fixture
def folders(toy_run: Callable[..., StageContext]) -> Path:
    return toy_run().run_dir


def dataset(run_dir: Path, split: str = "train", pack: int = PACK) -> StatesDataset:
    samples = read_samples(run_dir / "data" / "samples.jsonl")
    return StatesDataset(samples[split], run_dir / "states", pack, torch.float32)


def test_the_split_is_the_samples_own_and_not_their_position(folders: Path) -> None:
    assert [sample.index for sample in dataset(folders, "heldout").samples] == [0, 4, 8, 12]
    assert len(dataset(folders, "train")) == 12


def test_a_sample_gives_the_auxiliary_layers_side_by_side_and_the_last_one_apart(folders: Path) -> None:
    first = dataset(folders).samples[0]
    states = load_file(folders / "states" / f"hs_{first.index}.safetensors")["hidden_states"]
    row = dataset(folders)[0]
    assert torch.equal(row["hidden_states"], torch.cat([states[:, 0], states[:, 1], states[:, 2]], dim=-1))
    assert torch.equal(row["verifier_last_hidden_states"], states[:, 3])
    assert row["loss_mask"].tolist() == [bool(mask) for mask in first.loss_mask]


def test_states_of_eight_bits_are_trained_on_in_what_the_training_computes_in(folders: Path) -> None:
    exact = dataset(folders)[0]
    path = folders / "states" / f"hs_{dataset(folders).samples[0].index}.safetensors"
    save_file(pack(load_file(path), "float8_e4m3"), path)
    row = dataset(folders)[0]
    assert row["hidden_states"].dtype == torch.float32 and row["hidden_states"].shape == exact["hidden_states"].shape
    assert torch.allclose(row["hidden_states"], exact["hidden_states"], rtol=FLOAT8_RELATIVE, atol=1e-4)
    assert not torch.equal(row["hidden_states"], exact["hidden_states"])


def test_every_epoch_packs_each_sample_once_and_no_pack_overflows(folders: Path) -> None:
    data = dataset(folders)
    loader = train_loader(data, Collate(PACK, 32, torch.float32, trim=True), seed=3, workers=0)
    packs = [pack.tolist() for pack in loader.batch_sampler]
    assert sorted(index for pack in packs for index in pack) == list(range(len(data)))
    assert all(sum(data.approx_lengths[index] for index in pack) <= PACK for pack in packs)


def test_trimming_drops_padding_and_nothing_else(folders: Path) -> None:
    rows = [dataset(folders)[0], dataset(folders)[1]]
    padded = Collate(PACK, 32, torch.float32, trim=False)([dict(row) for row in rows])
    trimmed = Collate(PACK, 32, torch.float32, trim=True)([dict(row) for row in rows])
    used = trimmed["input_ids"].shape[1]
    assert padded["input_ids"].shape[1] == PACK and used == 2 * 15
    assert torch.equal(trimmed["hidden_states"], padded["hidden_states"][:, :used])
    assert (padded["document_ids"][:, used:] == -1).all()


def test_the_evaluators_packs_are_in_order_and_hold_every_sample(folders: Path) -> None:
    assert fixed_packs(dataset(folders, pack=40)) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def missing(path: Path) -> None:
    path.unlink()


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def not_finite(path: Path) -> None:
    tensors = load_file(path)
    tensors["hidden_states"][2, 1, 5] = float("nan")
    save_file(tensors, path)


def of_other_tokens(path: Path) -> None:
    tensors = load_file(path)
    tensors["token_ids"][3] += 1
    save_file(tensors, path)


@pytest.mark.parametrize("spoil", [missing, torn, not_finite, of_other_tokens])
def test_states_that_cannot_be_trained_on_are_named(folders: Path, spoil: Callable[[Path], None]) -> None:
    data = dataset(folders)
    path = folders / "states" / f"hs_{data.samples[0].index}.safetensors"
    spoil(path)
    with pytest.raises(StageError, match=f"{path.name} cannot be trained on"):
        data[0]


def test_a_line_that_is_no_sample_is_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"index": 0, "split": "train", "input_ids": [1, 2], "loss_mask": [1]}\n')
    with pytest.raises(StageError, match="Line 1"):
        read_samples(path)


@pytest.mark.parametrize("ids", ['["a", 2]', "[1e99, 2]", "[99999999999, 2]", '{"0": 1, "1": 2}', "null"])
def test_a_line_whose_tokens_are_no_numbers_is_named(tmp_path: Path, ids: str) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(f'{{"index": 0, "split": "train", "input_ids": {ids}, "loss_mask": [0, 1]}}\n')
    with pytest.raises(StageError, match="Line 1"):
        read_samples(path)


def test_samples_are_kept_small_since_every_rank_and_loader_holds_them_all(tmp_path: Path) -> None:
    tokens, count = 1000, 40
    row = {"split": "train", "input_ids": list(range(100_000, 100_000 + tokens)), "loss_mask": [0, 1] * (tokens // 2)}
    lines = [json.dumps(row | {"index": number}) for number in range(count)]
    lines.append(json.dumps(row | {"index": count, "split": "heldout"}))
    (tmp_path / "samples.jsonl").write_text("".join(f"{line}\n" for line in lines))
    tracemalloc.start()
    try:
        held = read_samples(tmp_path / "samples.jsonl")
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held["train"]) == count
    assert used < 8 * tokens * (count + 1), "lists of numbers take 46 bytes a token"


def test_supervised_tokens_are_those_under_the_mask() -> None:
    assert Sample(0, "train", [5, 6, 7], [0, 1, 1]).supervised == [6, 7]


def steps_of(run_dir: Path, packs: int, ranks: int, epoch: int = 0) -> list[list[list[int]]]:
    """The packs of each step, of all ranks together in their order."""
    own = dataset(run_dir)
    collate = Collate(PACK, 32, torch.float32, trim=True)
    shares = []
    for rank in range(ranks):
        sampler = train_loader(own, collate, seed=3, workers=0, packs=packs, rank=rank, ranks=ranks).batch_sampler
        sampler.set_epoch(epoch)
        shares.append([pack.tolist() for pack in sampler])
    share = packs // ranks
    steps = len(shares[0]) // share
    return [[pack for of_rank in shares for pack in of_rank[step * share : (step + 1) * share]] for step in range(steps)]


@pytest.mark.parametrize("packs", [2, 4])
def test_the_packs_of_a_step_do_not_depend_on_the_number_of_ranks(folders: Path, packs: int) -> None:
    alone = steps_of(folders, packs, 1)
    assert all(steps_of(folders, packs, ranks) == alone for ranks in (2, packs))
    used = [index for step in alone for pack in step for index in pack]
    assert len(used) == len(set(used)) and all(len(step) == packs and all(step) for step in alone)
    assert steps_of(folders, packs, 1, epoch=1) != alone


def test_fewer_samples_than_the_packs_of_a_step_are_refused(folders: Path) -> None:
    with pytest.raises(StageError, match="12 training samples do not fill the 13 packs of a step; use more prompts, or lower"):
        train_loader(dataset(folders), Collate(PACK, 32, torch.float32, trim=True), seed=0, workers=0, packs=13)
