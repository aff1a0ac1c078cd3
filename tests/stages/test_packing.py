"""Stored states come back within the bound that is stated, in what the training computes in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle3.core.presets import resolve
from eagle3.core.shape import draft_size
from eagle3.rows import Row
from eagle3.states.checking import StateError
from eagle3.states.packing import BFLOAT16_RELATIVE, FLOAT8_OF_LARGEST, FLOAT8_RELATIVE, pack, unpack
from eagle3.store import StateStore

TOKENS, LAYERS, HIDDEN = 48, 4, 96
SAMPLE: Row = {"index": 0, "id": "s", "split": "train", "input_ids": list(range(TOKENS))}
ROUNDING = 1e-6
"""Of the scale, the division and the product in float32."""


def states(*, outlier: float = 1.0) -> torch.Tensor:
    """Layers of very different size, and one channel that is ``outlier`` times the others, as the first tokens of real models
    have."""
    random = torch.randn(TOKENS, LAYERS, HIDDEN, generator=torch.Generator().manual_seed(3))
    random *= torch.tensor([1e-3, 1.0, 30.0, 4e3])[None, :, None]
    random[0, :, 7] *= outlier
    return random


def stored(hidden: torch.Tensor, storage: str) -> dict[str, torch.Tensor]:
    return pack({"hidden_states": hidden, "token_ids": torch.arange(TOKENS)}, storage)


@pytest.mark.parametrize("outlier", [1.0, 1000.0])
def test_eight_bits_come_back_within_the_stated_bound(outlier: float) -> None:
    exact = states(outlier=outlier)
    back = unpack(stored(exact, "float8_e4m3"))["hidden_states"]
    largest = exact.abs().amax(dim=(0, 2))[None, :, None]
    bound = torch.maximum(FLOAT8_RELATIVE * exact.abs(), FLOAT8_OF_LARGEST * largest) * (1 + ROUNDING) + ROUNDING * exact.abs()
    assert bool(((back - exact).abs() <= bound).all())
    assert bool((back != exact).any())


def test_bfloat16_comes_back_within_the_stated_bound() -> None:
    exact = states()
    back = unpack(stored(exact, "bfloat16"))["hidden_states"].to(torch.float32)
    assert bool(((back - exact).abs() <= BFLOAT16_RELATIVE * exact.abs()).all())


def test_reading_back_gives_what_is_computed_in() -> None:
    assert unpack(stored(states(), "float8_e4m3"), torch.bfloat16)["hidden_states"].dtype == torch.bfloat16
    assert unpack(stored(states(), "target"), torch.bfloat16)["hidden_states"].dtype == torch.bfloat16
    assert "scale" not in unpack(stored(states(), "float8_e4m3"))


def test_eight_bits_without_their_scale_are_refused() -> None:
    tensors = stored(states(), "float8_e4m3")
    del tensors["scale"]
    with pytest.raises(StateError, match="no scale for each layer"):
        unpack(tensors)


@pytest.mark.parametrize(("storage", "bytes_a_value"), [("target", 4), ("bfloat16", 2), ("float8_e4m3", 1)])
def test_the_room_that_is_asked_for_is_what_the_file_takes(tmp_path: Path, storage: str, bytes_a_value: int) -> None:
    store = StateStore(tmp_path, layers=[1, 2, 3, 4], hidden_size=HIDDEN, dtype="float32", storage=storage)
    row = store.write(SAMPLE, states())
    assert 0 <= store.bytes_of(TOKENS, 1) - row.bytes <= 4096
    assert row.bytes >= TOKENS * LAYERS * HIDDEN * bytes_a_value
    assert set(store.whole([SAMPLE])) == {0}
    assert torch.allclose(store.load(0)["hidden_states"].to(torch.float32), states(), rtol=0.07, atol=0.05)


@pytest.mark.parametrize(("storage", "part"), [("target", 1.0), ("bfloat16", 0.5), ("float8_e4m3", 0.25)])
def test_the_estimate_follows_the_storage(storage: str, part: float) -> None:
    plain = draft_size(resolve("pilot", "smollm2-135m", "cpu"))
    other = draft_size(resolve("pilot", "smollm2-135m", "cpu", {"extract.storage": storage}))
    assert other.state_bytes_a_token == plain.state_bytes_a_token * part
    assert (other.saved_bytes, other.parameters) == (plain.saved_bytes, plain.parameters), "the draft stays as large"
