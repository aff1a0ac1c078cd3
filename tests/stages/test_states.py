"""States are checked as they land, and none that has changed is trusted again."""

from __future__ import annotations

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from eagle3.rows import Row, read_rows, write_rows
from eagle3.states.beside import beside
from eagle3.states.checking import MixedUp, StateError, check, parse
from eagle3.store import StateStore

LAYERS, HIDDEN = 4, 576


def sample(index: int, tokens: int = 5) -> Row:
    return {"index": index, "id": f"s-{index}", "split": "train", "input_ids": [10 + index + i for i in range(tokens)]}


def states(tokens: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, LAYERS, HIDDEN, generator=torch.Generator().manual_seed(seed))


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
        check(parse(wrong), [1, 2, 3, 4, 5], layers=LAYERS, hidden_size=HIDDEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_no_number_is_found_in_every_precision(dtype: torch.dtype, value: float) -> None:
    hidden = states().to(dtype)
    hidden[4, 3, HIDDEN - 1] = value
    with pytest.raises(StateError, match="NaN or infinite"):
        check(parse(content([1, 2, 3, 4, 5], hidden)), [1, 2, 3, 4, 5], layers=LAYERS, hidden_size=HIDDEN)


def test_states_that_share_only_their_extremes_are_no_copies() -> None:
    hidden = states().clamp(-1, 1)
    hidden[..., 0], hidden[..., 1] = 1.5, -1.5
    assert all(len(set(extremes.flatten().tolist())) == 1 for extremes in (hidden.amin(-1), hidden.amax(-1)))
    check(parse(content([1, 2, 3, 4, 5], hidden)), [1, 2, 3, 4, 5], layers=LAYERS, hidden_size=HIDDEN)
    hidden[:, 3] = hidden[:, 2]
    with pytest.raises(StateError, match="layers 2 and 3 are the same"):
        check(parse(content([1, 2, 3, 4, 5], hidden)), [1, 2, 3, 4, 5], layers=LAYERS, hidden_size=HIDDEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_states_pass_and_keep_their_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    store = StateStore(tmp_path, layers=[2, 15, 27, 30], hidden_size=HIDDEN, dtype=str(dtype).removeprefix("torch."))
    row = store.write(sample(0), states().to(dtype))
    assert store.load(0)["hidden_states"].dtype == dtype
    assert row.bytes == store.path(0).stat().st_size <= store.bytes_of(5, 1) == store.landing_bytes(5)


def test_the_loader_that_trains_reads_them(store: StateStore) -> None:
    from hs_connectors.transfer import FileTransfer
    from speculators.data_generation.offline import check_hidden_states

    store.write(sample(3), states())
    read = FileTransfer(store.folder).get_cached(3)
    assert read is not None
    check_hidden_states(read, sample(3)["input_ids"])


def test_a_file_that_changed_vanished_or_belongs_to_other_tokens_is_made_again(store: StateStore) -> None:
    for index in range(5):
        store.write(sample(index), states(seed=index))
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
        store.write(sample(index), states(seed=index))
    store.manifest.write_bytes(store.manifest.read_bytes()[:-7])
    assert set(store.whole(map(sample, range(3)))) == {0, 1}


def test_a_spoilt_line_of_the_manifest_costs_that_sample_alone(store: StateStore) -> None:
    samples = [sample(index, 5 + index) for index in range(3)]
    for row in samples:
        store.write(row, states(len(row["input_ids"])))
    first, _, last = store.manifest.read_bytes().splitlines(keepends=True)
    store.manifest.write_bytes(first + b'{"index": 1, "i\n' + last)
    assert set(store.whole(samples)) == {0, 2}


def test_a_manifest_that_is_garbage_vouches_for_nothing(store: StateStore) -> None:
    store.write(sample(0), states())
    store.manifest.write_bytes(b"garbage\n")
    assert store.whole([sample(0)]) == {}


def test_what_a_killed_server_left_behind_is_cleared(store: StateStore) -> None:
    store.raw.mkdir()
    (store.raw / "old.safetensors.lock").touch()
    assert store.clear_raw() == 1 and not store.raw.exists()


@pytest.mark.parametrize("change", [{"made_with": "another model"}, {"layers": [3, 15, 27, 30]}])
def test_states_of_another_model_or_of_other_layers_are_made_again(tmp_path: Path, change: dict[str, Any]) -> None:
    made: dict[str, Any] = {"layers": [2, 15, 27, 30], "made_with": "a model"}
    StateStore(tmp_path, hidden_size=HIDDEN, **made).write(sample(0), states())
    assert list(StateStore(tmp_path, hidden_size=HIDDEN, **made).whole([sample(0)])) == [0]
    assert StateStore(tmp_path, hidden_size=HIDDEN, **made | change).whole([sample(0)]) == {}


def same_everywhere(hidden: torch.Tensor) -> torch.Tensor:
    hidden[:, 1] = hidden[0, 1]
    return hidden


def test_a_layer_that_is_the_same_at_every_token_is_found(store: StateStore) -> None:
    with pytest.raises(StateError, match="layer 1 of 4 is the same at every token"):
        store.write(sample(0), same_everywhere(states()))


def test_states_of_another_precision_than_the_target_runs_in_are_found(tmp_path: Path) -> None:
    store = StateStore(tmp_path, layers=[2, 15, 27, 30], hidden_size=HIDDEN, dtype="float32")
    with pytest.raises(StateError, match="its states are bfloat16, and the target runs in float32"):
        store.write(sample(0), states().to(torch.bfloat16))


def test_the_states_of_a_neighbour_are_found_even_after_a_resume(store: StateStore) -> None:
    store.write(sample(0), states(seed=1))
    resumed = StateStore(store.folder, layers=[2, 15, 27, 30], hidden_size=HIDDEN)
    resumed.whole([sample(0)])
    with pytest.raises(MixedUp, match="those of sample 0") as caught:
        resumed.write(sample(1), states(seed=1))
    assert caught.value.other == 0


def test_two_samples_of_the_same_tokens_may_have_the_same_states(store: StateStore) -> None:
    twin = sample(1) | {"input_ids": sample(0)["input_ids"]}
    assert store.write(sample(0), states()).mark == store.write(twin, states()).mark


def test_a_manifest_of_an_older_version_stays_byte_for_byte_what_it_was(store: StateStore) -> None:
    row = store.write(sample(0), states()).as_row()
    del row["mark"]
    write_rows(store.manifest, [row])
    before = store.manifest.read_bytes()
    assert set(store.whole([sample(0)])) == {0}
    assert store.manifest.read_bytes() == before


def test_a_look_at_much_is_told_and_can_be_ended(store: StateStore) -> None:
    sizes = [store.write(sample(index), states(seed=index)).bytes for index in range(3)]
    told: list[tuple[int, int]] = []
    store.whole(map(sample, range(3)), tell=lambda seen, total: told.append((seen, total)))
    assert told == [(sum(sizes[:seen]), sum(sizes)) for seen in range(4)]

    def stop(seen: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.whole(map(sample, range(3)), tell=stop)
    assert len(read_rows(store.manifest)) == 3, "an unfinished look changes nothing"


def test_what_has_not_changed_since_the_last_look_is_not_read_again_where_that_is_asked_for(store: StateStore) -> None:
    for index in range(3):
        store.write(sample(index), states(seed=index))
    store.whole(map(sample, range(3)))
    about = store.path(1).stat()
    flipped = bytearray(store.path(1).read_bytes())
    flipped[-1] ^= 1
    store.path(1).write_bytes(bytes(flipped))
    os.utime(store.path(1), ns=(about.st_atime_ns, about.st_mtime_ns))
    assert set(store.whole(map(sample, range(3)), rehash=False)) == {0, 1, 2}, "such a change is what it cannot see"
    assert set(store.whole(map(sample, range(3)))) == {0, 2}
    before = store.path(2).stat()
    while store.path(2).stat().st_mtime_ns == before.st_mtime_ns:  # the clock of a file system ticks a few hundred times a second
        store.path(2).write_bytes(b"x" * before.st_size)
    assert set(store.whole(map(sample, range(3)), rehash=False)) == {0}


def test_a_file_on_another_file_system_is_taken_too(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.raw.mkdir()
    raw = store.raw / "cmpl-1.safetensors"
    raw.write_bytes(content(sample(0)["input_ids"], states()))
    rename = Path.replace

    def across(self: Path, target: Path) -> Path:
        if self == raw:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", across)
    assert store.adopt(raw, sample(0)).index == 0
    assert set(store.whole([sample(0)])) == {0}


def test_states_are_looked_at_by_one_thread_each_and_nothing_else_changes_its_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with beside(2) as threads:
            assert threads.submit(torch.get_num_threads).result() == 1
            assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)


def test_states_are_remembered_as_they_landed_so_that_the_first_resume_reads_none_again(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {index: store.write(sample(index), states(seed=index)) for index in range(3)}
    store.seal(rows)

    def never(*args: Any) -> None:
        raise AssertionError("a file was read again")

    monkeypatch.setattr(hashlib, "file_digest", never)
    assert set(store.whole(map(sample, range(3)), rehash=False)) == {0, 1, 2}
    assert set(store.whole(map(sample, range(3)), rehash=False)) == {0, 1, 2}, "a look forgets nothing"
