"""How much of the CPU others took while something was measured."""

import os
import time

import pytest

from eagle3.stages.cpu_share import CpuTimes, CpuWatch, read


@pytest.mark.parametrize(
    ("later", "share"),
    [
        (CpuTimes(busy=20, total=30, own=15), 0.0),
        (CpuTimes(busy=20, total=30, own=10), 0.25),
        (CpuTimes(busy=30, total=30, own=5), 1.0),
        # The machine and the processes are not read at the same instant, so their difference may be less than nothing.
        (CpuTimes(busy=12, total=30, own=20), 0.0),
        (CpuTimes(busy=10, total=10, own=5), 0.0),
    ],
)
def test_what_is_busy_and_not_ones_own_is_others(later: CpuTimes, share: float) -> None:
    readings = iter([CpuTimes(busy=10, total=10, own=5), later])
    assert CpuWatch(1, lambda pids: next(readings)).others() == share


def test_ones_own_work_is_counted_as_ones_own_and_once() -> None:
    before = read([os.getpid(), os.getpid()])
    until = time.process_time() + 0.2
    while time.process_time() < until:
        sum(range(1000))
    after = read([os.getpid(), os.getpid()])
    assert after.own - before.own >= 0.15
    assert after.own - before.own <= (after.total - before.total) + 0.1


def test_a_process_that_has_ended_counts_for_nothing() -> None:
    assert read([2**22 - 1]).own == 0.0
