"""The held-out packs are shared out to the ranks and read ahead."""

from __future__ import annotations

import threading

import pytest

from eagle3.stages.context import StageError
from eagle3.training.group import Group
from eagle3.training.heldout import ahead, turns


@pytest.mark.parametrize(("packs", "ranks"), [(7, 1), (7, 3), (8, 4), (1, 2), (2, 8)])
def test_every_pack_is_one_ranks_and_all_ranks_make_as_many_passes(packs: int, ranks: int) -> None:
    shares = [turns(packs, Group(rank, ranks)) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(number for share in shares for number in share if number < packs) == list(range(packs))


def test_the_next_packs_are_read_while_one_is_worked_on_and_come_in_order() -> None:
    begun = [threading.Event() for _ in range(6)]

    def read(number: int) -> str:
        begun[number].set()
        return f"pack {number}"

    seen = []
    for number, pack in ahead(read, range(6), readers=2):
        assert all(event.wait(30) for event in begun[number + 1 : number + 3]), "nobody waits for this one to be over"
        assert not any(event.is_set() for event in begun[number + 3 :]), "no more than so many lie in memory"
        seen.append(pack)
    assert seen == [f"pack {number}" for number in range(6)]


def test_an_error_of_reading_ahead_arrives_as_it_was_when_its_turn_comes() -> None:
    def read(number: int) -> int:
        if number == 2:
            raise StageError("hs_2 is torn.", detail="at byte 7")
        return number

    packs = ahead(read, range(6), readers=3)
    assert [next(packs), next(packs)] == [(0, 0), (1, 1)]
    with pytest.raises(StageError) as caught:
        next(packs)
    assert (str(caught.value), caught.value.detail) == ("hs_2 is torn.", "at byte 7")
