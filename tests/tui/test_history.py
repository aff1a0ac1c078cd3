"""The last minutes of a machine: sparklines, when a disk is full, what a server served; nothing that was not measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.records import Disk, Gpu, GpuReport, Probe, VllmServer
from tui.history import History, Rates, slope, sparkline
from tui.widgets.disks import disks_text
from tui.widgets.gpus import gpu_text
from tui.widgets.vllm import vllm_text

GIB = 1 << 30
URL = "http://127.0.0.1:8000"


def disk_history(*free_gib: float, every_s: float = 60.0) -> tuple[History, Disk]:
    history = History()
    for n, free in enumerate(free_gib):
        disk = Disk(path="/d", mount="/d", total_bytes=500 * GIB, free_bytes=int(free * GIB))
        history.take(Probe(now=n * every_s, disks=[disk]))
    return history, disk


def test_a_disk_that_fills_says_when_it_is_full() -> None:
    history, disk = disk_history(100, 98, 96, 94)
    assert history.disk_rate(disk) == pytest.approx(-2 * GIB / 60)
    assert history.full_in_s(disk) == pytest.approx(47 * 60)
    assert "full in 47 min 00 s at 120 GiB/h" in disks_text([disk], 60, history).plain


@pytest.mark.parametrize("free", [(100, 101, 102), (100, 100, 100), (100,), (100, 99)])
def test_a_disk_that_does_not_fill_or_is_not_known_long_enough_says_nothing(free: tuple[float, ...]) -> None:
    history, disk = disk_history(*free)
    assert history.full_in_s(disk) is None
    assert "full in" not in disks_text([disk], 60, history).plain


def server_history(*servers: VllmServer, every_s: float = 5.0) -> History:
    history = History()
    for n, server in enumerate(servers):
        history.take(Probe(now=n * every_s, vllm=[server]))
    return history


def server(generated: float, drafts: float, accepted: float, positions: list[float], **more: object) -> VllmServer:
    return VllmServer(
        url=URL, health="ok", pid=7, generation_tokens=generated, drafts=drafts, accepted_tokens=accepted,
        accepted_per_pos=positions, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_served_acceptance_is_of_the_last_minute_and_agrees_with_its_positions() -> None:
    history = server_history(server(0, 100, 500, [90, 90, 90]), server(100, 140, 520, [104, 94, 92]))
    rates = history.rates(URL)
    assert rates.tok_s == 20
    assert rates.accept_len == pytest.approx(1.5)
    assert rates.acc_pos == pytest.approx((14 / 40, 4 / 40, 2 / 40))
    assert sum(rates.acc_pos) == pytest.approx(rates.accept_len - 1)
    words = vllm_text([server(100, 140, 520, [104, 94, 92], kv_cache_usage=0.42)], 120, history).plain
    assert "20.00 tokens/s" in words and "KV cache 42%" in words and "served length 1.50 over 40 drafts" in words


def test_a_server_that_was_started_again_begins_a_new_window() -> None:
    history = server_history(server(1000, 10, 5, [5]), server(3, 0, 0, [0]), server(13, 0, 0, [0]))
    assert history.rates(URL).tok_s == 2
    assert history.rates(URL).accept_len is None
    assert server_history(server(5, 1, 1, [1])).rates(URL) == Rates()


def test_acceptance_is_never_shown_of_a_server_that_extracts() -> None:
    history = server_history(server(0, 0, 0, [0], extracting=True), server(10, 10, 10, [10], extracting=True))
    assert history.rates(URL).accept_len is None
    words = vllm_text([server(10, 10, 10, [10], extracting=True)], 120, history).plain
    assert "served" not in words and "extracts hidden states" in words


def test_the_last_minutes_of_a_gpu_are_one_column_a_probe() -> None:
    history = History()
    for n, busy in enumerate((0.0, 50.0, 100.0)):
        history.take(Probe(now=n, gpu=GpuReport(status="ok", gpus=[Gpu(index=0, utilization_pct=busy)])))
    assert history.spark(0, 5) == "   ▄█"
    assert history.spark(9, 3) == "   "
    gpu = Gpu(index=0, utilization_pct=100, memory_total_bytes=80 * GIB, memory_used_bytes=GIB,
              processes=[{"pid": 12, "used_bytes": GIB, "run_id": "run-a"}])  # fmt: skip
    words = gpu_text(GpuReport(status="ok", gpus=[gpu]), 90, history, roomy=True).plain
    assert "100%           ▄█" in words and "run-a 1.0 GiB" in words


@given(st.lists(st.floats(0, 100), max_size=50), st.integers(0, 30))
def test_a_sparkline_is_as_wide_as_asked(values: list[float], width: int) -> None:
    assert len(sparkline(values, width, top=100.0)) == width


@given(st.floats(-1e3, 1e3), st.floats(-1e6, 1e6))
def test_a_straight_line_has_its_own_slope(rate: float, start: float) -> None:
    assert slope([(t, start + rate * t) for t in (0.0, 1.0, 2.0, 5.0)]) == pytest.approx(rate, abs=1e-6, rel=1e-6)
