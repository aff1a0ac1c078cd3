"""A server that lives and answers nothing counts as dead, and one that is only slow does not."""

from __future__ import annotations

import pytest

from eagle3.core.pulse import Look, Pulse


def judged(looks: list[Look], silent_s: float = 60) -> list[str]:
    pulse = Pulse(silent_s)
    return [pulse.take(look) for look in looks]


def well(t: float, *, running: float | None = 1, tokens: float | None) -> Look:
    return Look(t, "ok", running, tokens)


def test_three_failed_health_checks_in_a_row_are_a_dead_server() -> None:
    ill = [Look(t, "ill", said="status 503") for t in (0, 5, 10)]
    assert judged(ill)[:2] == ["", ""]
    assert judged(ill)[2] == "its health check failed 3 times in a row (status 503)"


def test_a_good_look_in_between_starts_the_count_anew() -> None:
    looks = [Look(0, "ill"), Look(5, "ill"), well(10, running=0, tokens=1), Look(15, "ill"), Look(20, "ill")]
    assert judged(looks) == [""] * 5


def test_tokens_that_stand_still_while_requests_run_are_a_dead_server_after_the_limit() -> None:
    found = judged([well(t, running=2, tokens=100) for t in range(0, 71, 10)])
    assert found[:7] == [""] * 7
    assert found[7] == "2 requests run and no token has come for 60 s (server.silent_timeout_s)"


@pytest.mark.parametrize(
    "looks",
    [
        [well(t, tokens=100 + t) for t in range(0, 500, 10)],
        [well(t, running=0, tokens=100) for t in range(0, 500, 10)],
        [well(t, running=None, tokens=None) for t in range(0, 500, 10)],
        [Look(t, "slow") if t % 50 else well(t, tokens=t) for t in range(0, 500, 10)],
    ],
    ids=["tokens come", "nothing runs", "it has no counters", "slow, and tokens come in between"],
)
def test_a_server_that_works_or_waits_is_alive(looks: list[Look]) -> None:
    assert not any(judged(looks))


def test_a_server_that_answers_no_look_at_all_is_dead_after_the_limit() -> None:
    assert "answered no look for 60 s" in judged([Look(t, "slow") for t in range(0, 61, 10)])[-1]
