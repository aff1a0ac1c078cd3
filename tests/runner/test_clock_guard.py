"""A clock that is set in the middle of a run is a guard of its own, in whatever stage; then the run goes on, is held, or ends.

The clock of this machine is left alone: a library preloaded into the run's processes sets theirs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner import rundir
from eagle3.runner.clock_jumps import ClockJumps, clocks
from eagle3.runner.control import control
from eagle3.runner.heartbeat import Heartbeat
from eagle3.runner.launch import launch
from eagle3.runner.watch import Watch
from tests.runner.support import events, shell, state_is, summary, wait_end, wait_for
from tests.support.guards import of_guard, the_guard


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the clock of what is started from now on by so many seconds, or has it sleep. The file is replaced whole, for it is
    read all the time."""
    library, place = tmp_path / "set_clock.so", tmp_path / "clock"
    source = Path(__file__).parent / "set_clock.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    place.write_text("0 0")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAKE_CLOCK", str(place))

    def to(seconds: int, *, slept: int = 0) -> None:
        (tmp_path / "new").write_text(f"{seconds} {slept}")
        (tmp_path / "new").rename(place)

    return to


def begun(workspace: Path, heartbeat_s: float = 0.1, **clock: Any) -> Path:
    script = "touch ready; exec sleep 600"
    run_dir = Path(launch(workspace, "r", "", shell(script, heartbeat_s=heartbeat_s, **clock))["run_dir"])
    wait_for((run_dir / "ready").exists)
    wait_for((run_dir / "attempts/1/heartbeat.json").exists)
    return run_dir


def test_it_is_told_with_its_numbers_and_anew_once_the_clock_has_kept_still_and_the_run_goes_on(
    workspace: Path, set_clock: Callable[..., None]
) -> None:
    run_dir = begun(workspace)
    set_clock(7200)
    wait_for(lambda: of_guard(events(run_dir), "clock"))
    event = the_guard(events(run_dir), "clock")
    assert event["actor"] == "supervisor" and event["guard"]["threshold"] == 60.0 and event["guard"]["response"] == "warn"
    assert abs(event["guard"]["value"] - 7200) < 60 and "jumped by +7" in event["text"]
    wait_for(lambda: events(run_dir, "clock_still"))
    set_clock(0)
    wait_for(lambda: len(of_guard(events(run_dir), "clock")) == 2)
    assert of_guard(events(run_dir), "clock")[1]["guard"]["value"] < -7100, "set back is told too"
    assert of_guard(events(run_dir), "stall") == [] and not (run_dir / "stop.json").exists()


def test_time_daemons_that_fight_are_one_thing_to_tell_and_hold_the_run_once(
    workspace: Path, set_clock: Callable[..., None]
) -> None:
    # The clock counts as still after thirty heartbeats, and no turn of the loop may take that long on a busy machine.
    run_dir = begun(workspace, heartbeat_s=0.4, clock={"response": "pause", "jump_s": 60.0})

    def beats() -> int:
        return int(rundir.read_object(run_dir / "attempts/1/heartbeat.json").get("seq") or 0)

    for turn in range(4):
        set_clock(7200 * (1 - turn % 2))
        before = beats()
        # Two: the first may have looked at the clock before it was set.
        wait_for(lambda: beats() > before + 1)  # noqa: B023 - asked in this turn of the loop alone
        if turn == 1:
            assert [hold["guard"] for hold in wait_for(lambda: summary(run_dir)["paused"])] == ["clock"]
            control(run_dir, "go-on")
    assert len(of_guard(events(run_dir), "clock")) == 1
    assert len(events(run_dir, "clock")) <= 1, "and one word of the time that is missing"
    assert summary(run_dir)["paused"] == [], "who let it go on knows of the fight"


def test_a_pause_for_which_there_was_no_room_is_asked_for_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attempts/1").mkdir(parents=True)
    plan, walls = {"clock": {"response": "pause", "jump_s": 60.0}}, iter([0.0, 7200.0, 7200.0])
    monkeypatch.setattr("eagle3.runner.watch.clocks", lambda: (next(walls), 0.0))
    watch = Watch(tmp_path, 1, plan, {}, Heartbeat(tmp_path, 1), lambda *about, **more: None, print)
    (tmp_path / "control.json").mkdir()  # what is asked for cannot be put there, as on a full disk
    with pytest.raises(OSError, match=r"control\.json"):
        watch._look_at_clock()
    (tmp_path / "control.json").rmdir()
    watch._look_at_clock()
    assert rundir.read_object(tmp_path / "control.json")["pause"]["by"] == "the guard clock"


def test_a_machine_that_falls_asleep_between_a_look_at_the_one_clock_and_at_the_other_has_had_no_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walls, steadies = iter([100.0, 7300.0]), iter([10.0, 7210.0, 7210.0, 7210.0])
    asleep = SimpleNamespace(time=lambda: next(walls), clock_gettime=lambda _: next(steadies), CLOCK_BOOTTIME=7)
    monkeypatch.setattr("eagle3.runner.clock_jumps.time", asleep)
    assert clocks() == (7300.0, 7210.0)


STEPS = st.lists(st.sampled_from([0.0, 7200.0, -7200.0, 40.0, 20.0]), max_size=80)


@given(STEPS)
def test_whatever_a_clock_does_an_excursion_is_told_once_and_over_once(steps: list[float]) -> None:
    clock, wall, steady, told = ClockJumps(60.0, (0.0, 0.0), 300.0), 0.0, 0.0, []
    for step in [*steps, *[0.0] * 30]:
        steady += 10.0
        wall += 10.0 + step
        found = clock.look((wall, steady))
        assert clock.jump_s == pytest.approx(step)
        if found is not None:
            told.append(found)
    assert told == [True, False] * (len(told) // 2), "each that begins ends, and no second begins before"
    assert bool(told) == any(abs(step) > 60.0 for step in steps)


def test_in_an_excursion_half_a_jump_still_counts_as_moving() -> None:
    clock = ClockJumps(60.0, (0.0, 0.0), 300.0)
    assert clock.look((110.0, 10.0)) is True
    found = [clock.look((110.0 + 10.0 * n + 40.0 * (n >= 29), 10.0 + 10.0 * n)) for n in range(1, 60)]
    assert found == [None] * 58 + [False] and clock.moves == 2 and clock.net_s == pytest.approx(140.0)


def test_a_jump_below_the_specs_threshold_and_one_that_it_does_not_mind_are_no_event(
    workspace: Path, set_clock: Callable[..., None]
) -> None:
    run_dir = begun(workspace, clock={"response": "pause", "jump_s": 9000.0})
    set_clock(7200)
    wait_for(lambda: events(run_dir, "clock"))
    set_clock(0)
    set_clock(100_000)
    wait_for(lambda: of_guard(events(run_dir), "clock"))
    assert the_guard(events(run_dir), "clock")["guard"]["value"] > 9000


def test_where_the_spec_says_pause_the_worker_is_asked_to_hold(workspace: Path, set_clock: Callable[..., None]) -> None:
    run_dir = begun(workspace, clock={"response": "pause", "jump_s": 60.0})
    set_clock(7200)
    wait_for((run_dir / "control.json").exists)
    assert rundir.read_object(run_dir / "control.json")["pause"]["by"] == "the guard clock"
    assert the_guard(events(run_dir), "clock")["guard"]["response"] == "pause" and state_is(run_dir, "running")()


def test_where_the_spec_says_stop_the_run_ends_and_can_be_resumed(workspace: Path, set_clock: Callable[..., None]) -> None:
    run_dir = begun(workspace, clock={"response": "stop", "jump_s": 60.0})
    set_clock(7200)
    ended = wait_end(run_dir)
    assert ended["stopped"] and ended["by"] == "the guard clock"
    event = the_guard(events(run_dir), "clock")
    assert event["level"] == "error" and event["guard"]["response"] == "stop"


def test_a_machine_that_slept_is_no_jump_and_ends_no_run(workspace: Path, set_clock: Callable[..., None]) -> None:
    run_dir = begun(workspace, clock={"response": "stop", "jump_s": 60.0})
    set_clock(0, slept=7200)
    wait_for(lambda: events(run_dir, "clock"))  # its silence counts anew; looked at after the guard
    assert of_guard(events(run_dir), "clock") == [] and not (run_dir / "stop.json").exists()
    set_clock(600, slept=7200)
    assert wait_end(run_dir)["by"] == "the guard clock"
    assert 540 < the_guard(events(run_dir), "clock")["guard"]["value"] < 660
