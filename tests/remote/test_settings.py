"""How long a console waits before it dials again."""

from __future__ import annotations

import random

from remote.settings import Settings


def test_the_wait_between_dials_grows_from_one_second_to_thirty() -> None:
    longest = Settings(random=lambda: 1.0)
    assert [longest.backoff(failures) for failures in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert longest.backoff(100_000) == 30


def test_the_wait_is_drawn_from_all_of_its_range_so_that_consoles_do_not_dial_together() -> None:
    draw = random.Random(1)
    waits = [Settings(random=draw.random).backoff(10) for _ in range(2000)]
    assert min(waits) < 1 and max(waits) > 29
    assert 14 < sum(waits) / len(waits) < 16
    assert Settings(random=lambda: 0.0).backoff(3) > 0
