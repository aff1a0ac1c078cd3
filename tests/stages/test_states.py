"""States are checked as they land, and none that has changed is trusted again. The server is an edge fake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file

from eagle3.rows import Row, read_rows, write_rows
from eagle3.stages import extract
from eagle3.stages.context import StageContext, StageError
from eagle3.store import StateError, StateStore, check
from tests.stages.fake_vllm import FakeVllm, Reply
from tests.stages.runs import context

LAYERS, HIDDEN = 4, 576


def sample(index: int, tokens: int = 5) -> Row:
    return {"index": index, "id": f"s-{index}", "split": "train", "input_ids": [10 + index + i for i in range(tokens)]}


def states(tokens: int = 5) -> torch.Tensor:
    return torch.randn(tokens, LAYERS, HIDDEN, generator=torch.Generator().manual_seed(tokens))


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "states", layers=[2, 15, 27, 30], hidden_size=HIDDEN)


def content(ids: list[int], hidden: torch.Tensor) -> bytes:
    return bytes(save({"hidden_states": hidden, "token_ids": torch.tensor(ids)}))


def nan(hidden: torch.Tensor) -> torch.Tensor:
    hidden[2, 1, 3] = float("nan")
    return hidden


def constant(hidden: torch.Tensor) -> torch.Tensor:
    hidden[:, 2] = 0.5
    return hidden


def zero_row(hidden: torch.Tensor) -> torch.Tensor:
    hidden[4, 3] = 0
    return hidden


def copied(hidden: torch.Tensor) -> torch.Tensor:
    hidden[:, 3] = hidden[:, 2]
    return hidden


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (content([1, 2, 3, 4, 6], states()), "token ids are not the 5 asked for"),
        (content([1, 2, 3, 4, 5], states(4)), r"shape \[4, 4, 576\], not \[5, 4, 576\]"),
        (content([1, 2, 3, 4, 5], states()[:, :3].contiguous()), r"shape \[5, 3, 576\], not \[5, 4, 576\]"),
        (content([1, 2, 3, 4, 5], nan(states())), "NaN or infinite"),
        (content([1, 2, 3, 4, 5], constant(states())), "layer 2 of 4 is constant"),
        (content([1, 2, 3, 4, 5], zero_row(states())), "layer 3 of 4 is all zero at a token"),
        (content([1, 2, 3, 4, 5], copied(states())), "layers 2 and 3 are the same"),
        (content([1, 2, 3, 4, 5], states())[:-50], "not a whole safetensors file"),
        (bytes(save({"token_ids": torch.tensor([1])})), "lacks hidden_states"),
    ],
)
def test_every_way_to_be_wrong_is_found_and_named(wrong: bytes, said: str) -> None:
    with pytest.raises(StateError, match=said):
        check(wrong, [1, 2, 3, 4, 5], layers=LAYERS, hidden_size=HIDDEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_states_pass_and_keep_their_dtype(store: StateStore, dtype: torch.dtype) -> None:
    row = store.write(sample(0), states().to(dtype))
    assert store.load(0)["hidden_states"].dtype == dtype
    assert row.bytes == store.path(0).stat().st_size <= store.bytes_of(5, 1, str(dtype).removeprefix("torch."))


def test_the_loader_that_trains_reads_them(store: StateStore) -> None:
    from hs_connectors.transfer import FileTransfer
    from speculators.data_generation.offline import check_hidden_states

    store.write(sample(3), states())
    read = FileTransfer(store.folder).get_cached(3)
    assert read is not None
    check_hidden_states(read, sample(3)["input_ids"])


def test_a_file_that_changed_vanished_or_belongs_to_other_tokens_is_made_again(store: StateStore) -> None:
    for index in range(5):
        store.write(sample(index), states())
    flipped = bytearray(store.path(1).read_bytes())
    flipped[-1] ^= 1
    store.path(1).write_bytes(bytes(flipped))
    store.path(2).unlink()
    store.path(3).write_bytes(store.path(3).read_bytes()[:-1])
    other = sample(4) | {"input_ids": [9, 9, 9, 9, 9]}
    assert set(store.whole([*map(sample, range(4)), other])) == {0}
    assert [row["index"] for row in read_rows(store.manifest)] == [0]
    assert sorted(path.name for path in store.folder.glob("hs_*")) == ["hs_0.safetensors"]


def test_a_torn_manifest_costs_only_its_last_row(store: StateStore) -> None:
    for index in range(3):
        store.write(sample(index), states())
    store.manifest.write_bytes(store.manifest.read_bytes()[:-7])
    assert set(store.whole(map(sample, range(3)))) == {0, 1}


def test_a_manifest_that_is_garbage_vouches_for_nothing(store: StateStore) -> None:
    store.write(sample(0), states())
    store.manifest.write_bytes(b"garbage\n")
    assert store.whole([sample(0)]) == {}


# ---------------------------------------------------------------- the stage's asking, against an edge fake


class Extractor:
    """Writes what a connector would write for each request. ``spoil`` names the samples whose first files are wrong."""

    def __init__(self, store: StateStore, spoil: Mapping[int, int] | None = None) -> None:
        self._raw = store.raw
        self._spoil = dict(spoil or {})

    def __call__(self, number: int, body: Mapping[str, Any]) -> Reply:
        ids = body["prompt"]
        hidden = states(len(ids))
        if self._spoil.get(ids[0], 0) > 0:
            self._spoil[ids[0]] -= 1
            hidden = nan(hidden)
        path = self._raw / f"cmpl-{number}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.lock").touch()
        save_file({"hidden_states": hidden, "token_ids": torch.tensor(ids)}, path)
        return Reply(body=json.dumps({"choices": [{}], "kv_transfer_params": {"hidden_states_path": str(path)}}).encode())


def run(ctx: StageContext, spoil: Mapping[int, int] | None = None) -> tuple[StateStore, FakeVllm]:
    """One attempt of the stage but for the server's start."""
    samples = read_rows(ctx.run_dir / "data" / "samples.jsonl")
    store = extract.open_store(ctx)
    done = store.whole(samples)
    with FakeVllm(Extractor(store, spoil)) as server:
        missing = [row for row in samples if row["index"] not in done]
        asyncio.run(extract.extract_all(ctx, server, store, missing, done))  # type: ignore[arg-type]
    store.seal(done)
    return store, server


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    found = context(tmp_path)
    write_rows(tmp_path / "data" / "samples.jsonl", [sample(index) for index in range(6)])
    return found


def test_every_sample_gets_its_states_and_the_servers_files_are_gone(ctx: StageContext) -> None:
    store, _ = run(ctx)
    assert [row["index"] for row in read_rows(store.manifest)] == list(range(6))
    assert list(store.raw.iterdir()) == []
    assert sorted(path.name for path in store.folder.glob("hs_*")) == [f"hs_{index}.safetensors" for index in range(6)]


def test_wrong_states_are_asked_for_once_more_and_said(ctx: StageContext) -> None:
    _, server = run(ctx, spoil={12: 1})
    assert len(server.requests) == 7
    assert "sample 2 ('s-2') are wrong: some of its states are NaN" in (ctx.run_dir / "events.jsonl").read_text()


def test_states_wrong_twice_end_the_stage_naming_the_sample_and_the_others_stay(ctx: StageContext) -> None:
    with pytest.raises(
        StageError, match=r"1 of 6 samples have no states, sample 2 \('s-2'\) first: its states were wrong 2 times"
    ):
        run(ctx, spoil={12: 2})
    assert len(run(ctx)[1].requests) == 1


def test_a_corrupt_file_is_made_again_on_resume(ctx: StageContext) -> None:
    store, _ = run(ctx)
    store.path(4).write_bytes(store.path(4).read_bytes()[:-3] + b"abc")
    assert [request["prompt"] for request in run(ctx)[1].requests] == [sample(4)["input_ids"]]


def test_a_finished_stage_is_taken_over_only_while_every_state_is_what_it_left(ctx: StageContext) -> None:
    store, _ = run(ctx)
    assert extract.whole(ctx) == ""
    store.path(1).unlink()
    assert extract.whole(ctx) == "1 of 6 states are gone or changed"


def test_a_disk_that_is_too_full_ends_the_stage_before_it_fills(tmp_path: Path) -> None:
    ctx = context(tmp_path, disk_floor_bytes=1 << 60)
    write_rows(tmp_path / "data" / "samples.jsonl", [sample(0)])
    with pytest.raises(StageError, match=r"GiB free.*resume the run"):
        extract.run(ctx)


def test_what_a_killed_server_left_behind_is_cleared(ctx: StageContext) -> None:
    store = extract.open_store(ctx)
    store.raw.mkdir()
    (store.raw / "old.safetensors.lock").touch()
    assert store.clear_raw() == 1 and not store.raw.exists()


@pytest.mark.parametrize("change", [{"made_with": "another model"}, {"layers": [3, 15, 27, 30]}])
def test_states_of_another_model_or_of_other_layers_are_made_again(tmp_path: Path, change: dict[str, Any]) -> None:
    made: dict[str, Any] = {"layers": [2, 15, 27, 30], "made_with": "a model"}
    StateStore(tmp_path, hidden_size=HIDDEN, **made).write(sample(0), states())
    assert list(StateStore(tmp_path, hidden_size=HIDDEN, **made).whole([sample(0)])) == [0]
    assert StateStore(tmp_path, hidden_size=HIDDEN, **made | change).whole([sample(0)]) == {}
