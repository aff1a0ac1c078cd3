"""Which sample a server dies of, by who was with it at its deaths. Pure but for the file."""

from __future__ import annotations

from pathlib import Path

from eagle3.engines.blame import NAME, Blame
from eagle3.rows import Row
from tests.stages.extraction import sample

ALL = [sample(index) for index in range(8)]


def died(blame: Blame, *indices: int, landed: int) -> bool:
    return blame.died([ALL[index] for index in indices], landed=landed, attempt=1, now=0.0)


def suspects(blame: Blame, samples: list[Row] = ALL) -> list[int]:
    return [row["index"] for row in blame.suspects(samples)]


def test_one_death_makes_nobody_a_suspect_and_the_second_those_who_were_at_both(tmp_path: Path) -> None:
    blame = Blame(tmp_path, 3)
    assert not died(blame, 1, 2, 3, landed=1)
    assert suspects(blame) == []
    assert not died(blame, 2, 3, 4, landed=3)
    assert suspects(blame) == [2, 3] and blame.guilty(ALL) == frozenset()


def test_however_often_it_was_there_with_others_a_sample_is_guilty_only_once_it_was_alone(tmp_path: Path) -> None:
    blame = Blame(tmp_path, 3)
    for _ in range(5):
        assert not died(blame, 2, 3, landed=4)
    assert blame.guilty(ALL) == frozenset()
    assert died(blame, 3, landed=7)
    assert blame.guilty(ALL) == {3}


def test_where_nothing_lands_between_two_deaths_it_takes_two_alone_and_does_not_clear_the_server(tmp_path: Path) -> None:
    blame = Blame(tmp_path, 2)
    died(blame, 2, 3, landed=6)
    died(blame, 2, 3, landed=6)
    assert died(blame, 2, landed=6) and blame.guilty(ALL) == {2}
    assert not died(blame, 3, landed=6)
    assert blame.guilty(ALL) == {2}, "the server may have died of itself"
    assert not died(blame, 3, landed=6), "whoever is to blame, it has served nobody since"
    assert blame.guilty(ALL) == {2, 3}


def test_who_has_died_alone_already_comes_after_the_other_suspects(tmp_path: Path) -> None:
    blame = Blame(tmp_path, 9)
    died(blame, 2, 3, landed=6)
    died(blame, 2, 3, landed=6)
    died(blame, 2, landed=6)
    assert suspects(blame) == [3, 2]


def test_what_is_on_disk_counts_in_the_next_attempt_but_not_against_another_sample_of_the_same_index(tmp_path: Path) -> None:
    for _ in range(3):
        died(Blame(tmp_path, 3), 3, landed=5)
    other = sample(3, tokens=9)
    assert Blame(tmp_path, 3).guilty([ALL[3]]) == {3}
    assert Blame(tmp_path, 3).guilty([other]) == frozenset() and suspects(Blame(tmp_path, 3), [other]) == []


def test_a_spoilt_line_costs_that_death_alone(tmp_path: Path) -> None:
    blame = Blame(tmp_path, 3)
    for _ in range(2):
        died(blame, 3, landed=5)
    file = tmp_path / NAME
    file.write_text(file.read_text() + "{torn\n[]\n" + '{"in_flight": 7}\n')
    assert Blame(tmp_path, 3).deaths(ALL[3]) == 2
    died(Blame(tmp_path, 3), 3, landed=6)
    assert Blame(tmp_path, 3).guilty(ALL) == {3}


def test_a_death_with_nobody_there_is_nobodys_and_leaves_no_file(tmp_path: Path) -> None:
    assert not Blame(tmp_path, 1).died([], landed=3, attempt=1, now=0.0)
    assert not (tmp_path / NAME).exists()
