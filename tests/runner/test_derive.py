"""What is said about a run follows from what is known of it: every row of the table of states, and the border between them."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.run_states import LIVE_STATES, RESUMABLE_STATES
from eagle3.runner import derive
from eagle3.runner.derive import FOREIGN_BEAT_S, QUIET_AT_LEAST_S, QUIET_GAPS, START_DEADLINE_S, Facts

NOW = 1_000_000.0
STARTED = {"t": NOW - 10.0, "host": "here", "boot_id": "b"}
BOTH = {"worker_lives": True, "supervisor_lives": True}


def facts(**known: Any) -> Facts:
    return Facts(**{"now": NOW, "host": "here", "boot_id": "b", **known})


def alive(**known: Any) -> Facts:
    return facts(**{"started": STARTED, **BOTH, **known})


ENDS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"code": 0}, {}, "finished", "finished"),
    ({"code": 0}, {"stop": {"mode": "now", "by": "ann"}}, "finished", "finished"),
    ({"code": 75, "stopped": True}, {"stop": {"by": "ann"}}, "stopped", "stopped by ann"),
    ({"code": None, "signal": 15, "stopped": True, "by": "the time limit"}, {}, "stopped", "stopped by the time limit"),
    ({"code": 1}, {}, "failed", "failed with exit code 1"),
    ({"code": 1}, {"reason": "The disk is full."}, "failed", "The disk is full."),
    ({"code": None, "signal": signal.SIGSEGV}, {}, "failed", "ended by SIGSEGV"),
    ({"code": None, "signal": signal.SIGKILL}, {}, "failed", "ended by SIGKILL (often: out of memory)"),
    ({"code": None, "signal": 200}, {}, "failed", "ended by signal 200"),
    ({"code": None, "error": "no such program"}, {}, "failed", "no such program"),
    ({"code": 0, "survivors": [{"pid": 7, "name": "x"}]}, {}, "finished", "finished; still alive: 7"),
]


@pytest.mark.parametrize(("ended", "more", "word", "text"), ENDS)
def test_only_the_exit_record_tells_of_an_end(ended: dict[str, Any], more: dict[str, Any], word: str, text: str) -> None:
    assert derive.state(facts(started=STARTED, ended=ended, **more)) == (word, text)
    assert derive.state(alive(ended=ended, **more)) == (word, text), "whatever else seems to be alive"


LIVES: list[tuple[Facts, str, str]] = [
    (alive(), "running", "running"),
    (alive(progress={"quiet_until": NOW + 9, "reason": "a model loads"}), "running", "a model loads"),
    (alive(stop={"mode": "now"}), "running", "stopping now"),
    (alive(stop={"mode": "after-checkpoint"}), "running", "stopping after the next checkpoint"),
    (alive(worker_lives=False), "running", "ending: the worker is gone"),
    (alive(supervisor_lives=False), "unsupervised", "running, unsupervised"),
    (alive(worker_lives=False, supervisor_lives=False), "unknown", "ended, exit unknown"),
    (alive(worker_lives=False, supervisor_lives=False, left=(5, 6)), "unknown", "still alive (5, 6)"),
    (alive(same_world=False, worker_lives=False), "lost", "container was restarted"),
    (alive(same_world=False, started={**STARTED, "boot_id": "a"}), "lost", "machine was restarted"),
    (facts(), "unknown", "never started; resume it to start it"),
    (facts(claimed_t=NOW - 1), "starting", "starting"),
    (facts(claimed_t=NOW - START_DEADLINE_S), "unknown", "interrupted"),
    (facts(claimed_t=NOW + 0.01), "starting", "starting"),
    (facts(claimed_t=NOW + START_DEADLINE_S), "unknown", "interrupted"),
    (facts(starting={"t": NOW - 1}), "starting", "starting"),
    (facts(starting={"t": NOW - 1}, starter_here=False), "unknown", "interrupted"),
    (facts(starting={"t": NOW - 9e9}, starter_lives=True), "starting", "starting"),
    (facts(starting={"t": NOW}, starter_lives=True, yielding="vllm.service"), "starting", "vllm.service is being stopped"),
]


@pytest.mark.parametrize(("known", "word", "words"), LIVES, ids=lambda value: value if isinstance(value, str) else "")
def test_without_an_exit_record_the_processes_tell(known: Facts, word: str, words: str) -> None:
    state, text = derive.state(known)
    assert state == word and words in text
    assert state in LIVE_STATES or ("resume" in text or "stop the run" in text)


@pytest.mark.parametrize(("gap_s", "allowed_s"), [(None, QUIET_AT_LEAST_S), (1.0, QUIET_AT_LEAST_S), (100.0, QUIET_GAPS * 100.0)])
@pytest.mark.parametrize("sign", ["started", "progress", "row"])
def test_a_stall_is_silence_past_the_quiet_longer_than_ten_gaps_and_five_minutes(
    sign: str, gap_s: float | None, allowed_s: float
) -> None:
    def silent(silent_s: float, quiet_until: float | None = None) -> str:
        heard = NOW - silent_s
        known = alive(
            started={**STARTED, "t": heard if sign == "started" else 0.0},
            progress={"t": heard if sign == "progress" else 0.0, "quiet_until": quiet_until},
            row_t=heard if sign == "row" else None,
            gap_s=gap_s,
        )
        return derive.state(known)[0]

    assert silent(allowed_s) == "running" and silent(allowed_s + 1) == "stalled"
    assert silent(allowed_s + 1, NOW) == "running" and silent(allowed_s + 1, NOW - 1) == "stalled"


def test_signs_ahead_of_a_clock_that_was_set_back_hide_no_stall_from_who_watches_by_a_steady_one() -> None:
    ahead = {"t": NOW + 7200, "quiet_until": NOW + 7260}
    for unheard_s, word in ((QUIET_AT_LEAST_S, "running"), (QUIET_AT_LEAST_S + 1, "stalled")):
        assert derive.state(alive(progress=ahead, unheard_s=unheard_s))[0] == word
    announced = {"t": NOW + 7200, "quiet_until": NOW + 7200 + 900}
    for unheard_s, word in ((900, "running"), (901, "stalled")):
        assert derive.state(alive(progress=announced, unheard_s=unheard_s))[0] == word


@pytest.mark.parametrize(("age_s", "word"), [(FOREIGN_BEAT_S - 1, "running"), (FOREIGN_BEAT_S, "lost"), (None, "lost")])
def test_a_run_on_another_host_lives_as_long_as_its_heartbeat(age_s: float | None, word: str) -> None:
    started = {**STARTED, "host": "there", "boot_id": "a"}
    beat_t = None if age_s is None else NOW - age_s
    assert derive.state(facts(started=started, same_world=False, beat_t=beat_t))[0] == word
    assert derive.state(facts(started={**started, "host": "here"}, same_world=False, beat_t=NOW))[0] == "lost"


RECORDS = st.dictionaries(
    st.sampled_from(["t", "code", "signal", "stopped", "error", "mode", "by", "host", "boot_id"]), st.none()
)


@given(RECORDS, RECORDS, RECORDS, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_whatever_is_known_there_is_one_state_and_a_sentence(
    ended: dict[str, Any],
    started: dict[str, Any],
    stop: dict[str, Any],
    worker_lives: bool,
    supervisor_lives: bool,
    same_world: bool,
    starter_lives: bool,
) -> None:
    word, text = derive.state(
        facts(
            ended=ended,
            started=started,
            stop=stop,
            worker_lives=worker_lives,
            supervisor_lives=supervisor_lives,
            same_world=same_world,
            starter_lives=starter_lives,
        )
    )
    assert word in LIVE_STATES | RESUMABLE_STATES | {"finished"} and text
