"""States become packs: split by the samples' own field, whole, and refused where they would poison the training."""

from __future__ import annotations

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


def test_supervised_tokens_are_those_under_the_mask() -> None:
    assert Sample(0, "train", [5, 6, 7], [0, 1, 1]).supervised == [6, 7]
