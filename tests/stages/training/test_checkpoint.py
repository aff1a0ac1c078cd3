"""Checkpoints are whole or absent, exact, and never cost what is not theirs."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagle3.training.checkpoint import MARKER, CheckpointStore

CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", signature="abc", keep_last=2)


def save(store: CheckpointStore, step: int) -> Path:
    return store.save(step, {"layer.weight": torch.full((3,), step + 1e-7)}, {"global_step": step}).path


def names(store: CheckpointStore) -> set[str]:
    return {path.name for path in store.folder.iterdir()}


def test_what_was_saved_comes_back_bit_for_bit(store: CheckpointStore) -> None:
    weights = {"w": torch.randn(5, 3)}
    state = {"global_step": 257, "optimizers": [{"step": torch.tensor(257.0), "exp_avg": torch.randn(5, 3)}]}
    store.save(257, weights, state)
    found = store.newest()
    assert found is not None and found.step == 257
    loaded, resumed = found.load(CPU)
    assert torch.equal(loaded["w"], weights["w"])
    assert resumed["optimizers"][0]["step"] == 257
    assert torch.equal(resumed["optimizers"][0]["exp_avg"], state["optimizers"][0]["exp_avg"])


def test_there_is_none_before_the_first(store: CheckpointStore) -> None:
    assert store.newest() is None


def truncate_weights(path: Path) -> None:
    file = path / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-2])


def flip_a_bit(path: Path) -> None:
    file = path / "state.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "tear",
    [truncate_weights, flip_a_bit, lambda path: (path / MARKER).unlink(), lambda path: (path / "state.pt").unlink()],
    ids=["half a file", "a flipped bit", "no marker", "a file gone"],
)
def test_a_torn_checkpoint_is_passed_over(store: CheckpointStore, tear: Callable[[Path], None]) -> None:
    save(store, 4)
    tear(save(store, 8))
    found = store.newest()
    assert found is not None and found.step == 4


def test_a_save_that_dies_halfway_leaves_the_one_before(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 4)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", die)
        with pytest.raises(KeyboardInterrupt):
            save(store, 8)
    found = store.newest()
    assert found is not None and found.step == 4
    save(store, 12)
    assert names(store) == {"step-4", "step-12"}


def test_only_the_last_are_kept_and_nothing_foreign_is_deleted(store: CheckpointStore) -> None:
    store.folder.mkdir()
    (store.folder / "step-1").mkdir()
    (store.folder / "best").mkdir()
    (store.folder / "step-2").mkdir()
    (store.folder / "step-2" / MARKER).write_text('{"kind": "somebody else\'s", "step": 2}')
    for step in (4, 8, 12, 16):
        save(store, step)
    assert names(store) == {"step-1", "step-2", "best", "step-12", "step-16"}


def test_a_foreign_folder_in_the_way_is_put_aside(store: CheckpointStore) -> None:
    (store.folder / "step-4").mkdir(parents=True)
    (store.folder / "step-4" / "notes.txt").write_text("mine")
    save(store, 4)
    (aside,) = store.folder.glob("step-4.aside-*")
    assert (aside / "notes.txt").read_text() == "mine"


def test_a_checkpoint_of_other_data_is_not_gone_on_from(store: CheckpointStore) -> None:
    save(store, 4)
    assert CheckpointStore(store.folder, signature="xyz", keep_last=2).newest() is None


def test_checkpoints_of_an_earlier_training_never_cost_the_ones_of_this(store: CheckpointStore) -> None:
    for step in (150, 200):
        save(store, step)
    now = CheckpointStore(store.folder, signature="xyz", keep_last=2)
    save(now, 50)
    found = now.newest()
    assert found is not None and found.step == 50
    save(now, 100)
    assert names(now) == {"step-50", "step-100"}


def test_a_save_without_room_gives_back_what_it_took(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 4)

    def no_room(*_: object) -> None:
        raise RuntimeError("unexpected pos 64 vs 0")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", no_room)
        with pytest.raises(RuntimeError):
            save(store, 8)
    assert names(store) == {"step-4"}


def kill_at_the_first_file_deleted(store: CheckpointStore) -> None:
    """Save a third checkpoint, and die as by kill -9 once the first file of the oldest one is deleted: its marker."""
    delete = shutil.rmtree

    def die_halfway(path: Path, **how: bool) -> None:
        if Path(path).exists():
            (Path(path) / MARKER).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        delete(path, **how)

    shutil.rmtree = die_halfway  # type: ignore[assignment]
    save(store, 12)


def test_what_a_kill_leaves_of_a_checkpoint_that_was_being_deleted_is_removed_by_the_next_save(store: CheckpointStore) -> None:
    save(store, 4)
    save(store, 8)
    process = multiprocessing.get_context("fork").Process(target=kill_at_the_first_file_deleted, args=(store,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(names(store)) == 3, "two whole ones and what is left of the third"
    save(store, 16)
    assert names(store) == {"step-12", "step-16"}
