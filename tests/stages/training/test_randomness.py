"""Where the random numbers of a rank stand, on machines with more and with fewer GPUs than are here: torch's own calls are
replaced by a machine of so many cards, which refuses one that it has not, as torch does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagle3.training.randomness import random_state, set_random_state


class Cards:
    """The generators of a machine's cards; each state is a number."""

    def __init__(self, states: list[int]) -> None:
        self.states = states

    def get(self, device: torch.device) -> torch.Tensor:
        return torch.tensor(self.states[device.index or 0])

    def set(self, state: torch.Tensor, device: torch.device) -> None:
        self.states[device.index or 0] = int(state)

    def set_all(self, states: list[torch.Tensor]) -> None:
        for index, state in enumerate(states):
            self.set(state, torch.device("cuda", index))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cards]:
    def make(*states: int) -> Cards:
        cards = Cards(list(states))
        monkeypatch.setattr(torch.cuda, "get_rng_state", cards.get)
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.tensor(state) for state in cards.states])
        monkeypatch.setattr(torch.cuda, "set_rng_state", cards.set)
        monkeypatch.setattr(torch.cuda, "set_rng_state_all", cards.set_all)
        return cards

    return make


def gpu(index: int) -> torch.device:
    return torch.device("cuda", index)


def test_what_eight_gpus_have_saved_four_go_on_from(machine: Callable[..., Cards]) -> None:
    machine(*range(10, 18))
    saved = random_state(gpu(0))
    four = machine(0, 0, 0, 0)
    set_random_state(saved, gpu(3), of_rank=0)
    assert four.states == [0, 0, 0, 10]


@pytest.mark.parametrize(("of_rank", "expected"), [(0, [10, 0, 0, 0]), (3, [0, 0, 0, 13])])
def test_a_checkpoint_of_an_earlier_version_holds_every_card_and_a_rank_takes_its_own(
    machine: Callable[..., Cards], of_rank: int, expected: list[int]
) -> None:
    machine()
    every: dict[str, Any] = random_state(torch.device("cpu")) | {"cuda": [torch.tensor(state) for state in range(10, 18)]}
    four = machine(0, 0, 0, 0)
    set_random_state(every, gpu(of_rank), of_rank)
    assert four.states == expected


def test_a_rank_goes_on_with_the_numbers_that_it_would_have_drawn(machine: Callable[..., Cards]) -> None:
    cards = machine(5, 6)
    saved = random_state(gpu(1))
    assert [int(state) for state in saved["cuda"]] == [6], "of the cards its own alone"
    drawn = random.random(), torch.rand(3).tolist()
    cards.states[:] = [7, 8]
    set_random_state(saved, gpu(1), of_rank=1)
    assert (random.random(), torch.rand(3).tolist()) == drawn
    assert cards.states == [7, 6]
