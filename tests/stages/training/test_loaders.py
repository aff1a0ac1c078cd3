"""Packs that other processes read, as on a GPU: the same ones in the same order, and an error in its own words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from eagle3.stages import train
from eagle3.stages.context import StageContext, StageError, Stopped
from eagle3.training import session
from eagle3.training.dataset import Collate, StatesDataset, train_loader
from eagle3.training.samples import read_samples
from tests.stages.training.left import Rows, losses, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PACK = 40


def dataset(ctx: StageContext) -> StatesDataset:
    samples = read_samples(ctx.run_dir / "data" / "samples.jsonl")["train"]
    return StatesDataset(samples, ctx.run_dir / "states", PACK, torch.float32)


@pytest.fixture(params=["fork", pytest.param("spawn", marks=pytest.mark.long)])
def loader(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """The training's own loader, with one process. A fork spares it the seconds in which a new one imports torch."""

    made: list[Any] = []

    def end() -> None:
        # A process that is forked later must not inherit a loader whose processes are not its children.
        for one in made:
            if one._iterator is not None:
                one._iterator._shutdown_workers()
        made.clear()

    def make(*args: Any, workers: int, **how: Any) -> Any:
        end()
        found = train_loader(*args, workers=1, **how)
        assert found.multiprocessing_context.get_start_method() == "spawn"
        found.multiprocessing_context = request.param
        made.append(found)
        return found

    yield make
    end()


def test_a_torn_file_is_told_in_the_same_words_whoever_reads_it(
    toy_run: Callable[..., StageContext], loader: Callable[..., Any]
) -> None:
    ctx = toy_run()
    for file in (ctx.run_dir / "states").glob("hs_*.safetensors"):
        file.write_bytes(b"torn")
    assert refused(ctx, loader) == refused(ctx, train_loader)


def refused(ctx: StageContext, loader: Callable[..., Any]) -> tuple[str, str]:
    """What reading the packs of a training fails with: the sentence for the operator, and what the reading said."""
    with pytest.raises(StageError, match=r"^\S+hs_\d+.safetensors cannot be trained on; delete it and resume") as caught:
        list(loader(dataset(ctx), Collate(PACK, 32, torch.float32, trim=True), seed=3, workers=0))
    assert caught.value.detail
    return str(caught.value), caught.value.detail


def test_a_training_that_a_process_reads_for_is_the_same_to_the_last_bit_also_over_a_resume(
    toy_run: Callable[..., StageContext], rows_of: Rows, monkeypatch: pytest.MonkeyPatch, loader: Callable[..., Any]
) -> None:
    itself = toy_run(run="itself")
    train.run(itself)
    # On a CPU a training reads by itself.
    monkeypatch.setattr(session, "train_loader", loader)
    with pytest.raises(Stopped):
        train.run(toy_run(run="read", stop_after=4))
    resumed = toy_run(run="read")
    assert train.run(resumed)["resumed_from"] == 4
    assert losses(rows_of(resumed, "metrics.jsonl")) == losses(rows_of(itself, "metrics.jsonl"))
    assert all(torch.equal(weights(resumed)[name], tensor) for name, tensor in weights(itself).items())


def test_packs_for_a_gpu_wait_in_memory_that_it_copies_from_by_itself(toy_run: Callable[..., StageContext]) -> None:
    data = dataset(toy_run())
    collate = Collate(PACK, 32, torch.float32, trim=False)
    pinned = train_loader(data, collate, seed=3, workers=1, pin=True)
    assert pinned.pin_memory and not train_loader(data, collate, seed=3, workers=1).pin_memory
