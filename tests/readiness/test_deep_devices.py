"""Kernels and all-reduce on what is here, and what somebody works on is left alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.presets import resolve
from eagle3.core.readiness.wants import wants as asked_of
from eagle3.readiness import asking, devices, probe, sections
from eagle3.runner.launch import launch
from tests.readiness.support import judged, status, wants
from tests.runner.support import end_everything, shell, state_is, wait_for

RANK_1_NEVER_JOINS = """
import os, time
if os.environ.get("EAGLE3_RANK") == "1":
    time.sleep(2)  # later than the other rank by more than the limit, as on a busy machine
    import torch.distributed
    torch.distributed.init_process_group = lambda *_, **__: time.sleep(600)
"""
RANK_1_NEVER_STARTS = "import os, time\nif os.environ.get('EAGLE3_RANK') == '1': time.sleep(600)\n"


def test_the_processor_computes_what_it_should(tmp_path: Path) -> None:
    facts = sections.kernels(wants(tmp_path), tmp_path)
    check = judged("deep.kernels", facts)["gpu.kernel:cpu"]
    assert check.status == "ok" and "attention bfloat16" in check.evidence
    assert {op["ok"] for op in facts["devices"][0]["ops"]} == {True}


def test_a_torch_that_sees_no_gpu_fails_on_a_gpu_machine(tmp_path: Path) -> None:
    outcome = asking.script(sys.executable, "kernels", {"device": "cuda:0"}, limit_s=60, cwd=tmp_path)
    check = judged("deep.kernels", {"devices": [{"device": "cuda:0", **(outcome.answer or {})}]})["gpu.kernel:cuda:0"]
    assert check.status == "fail" and "sees no GPU here" in check.evidence


def test_a_result_that_is_wrong_fails_with_its_device_and_what_torch_was_built_for() -> None:
    op = {"op": "matmul", "dtype": "bfloat16", "ok": False, "error": "its result is off by 3", "max_error": 3.0}
    card = {"device": "cuda:3", "name": "RTX PRO 6000", "capability": "12.0", "torch": "2.9", "build": "12.8"}
    facts = {"devices": [{**card, "architectures": ["sm_90"], "ops": [op]}]}
    check = judged("deep.kernels", facts)["gpu.kernel:cuda:3"]
    assert check.status == "fail" and "sm_90" in check.remedy and "12.0" in check.remedy


def test_the_ranks_have_the_environment_that_the_runs_own_processes_will_have(tmp_path: Path) -> None:
    kimi = resolve("full", "kimi-k2.5", "8x-rtx-pro-6000")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "@eagle3 {\\"ok\\": true, \\"said\\": \\"$NCCL_PROTO $NCCL_ALGO\\"}"\n')
    python.chmod(0o755)
    expect = asked_of(kimi, str(tmp_path))["expect"] | {"device": "cpu", "rank_counts": [2]}
    asked = wants(tmp_path, expect=expect, pythons={"worker": str(python), "server": str(python)})
    (told,) = sections.allreduce(asked, tmp_path)["counts"]
    assert told["said"] == "LL Ring", "without these its all-reduce is one that no run does, and hangs there"


def test_a_kernel_that_gives_no_answer_is_a_failure_not_a_wait() -> None:
    facts = {"devices": [{"device": "cuda:1", "error": "gave no answer in 120 s", "timed_out": True}]}
    assert status("deep.kernels", facts) == {"gpu.kernel:cuda:1": "fail"}


def test_two_ranks_add_up_over_gloo(tmp_path: Path) -> None:
    facts = sections.allreduce(wants(tmp_path), tmp_path)
    assert judged("deep.allreduce", facts)["gpu.allreduce:2"].status == "ok", facts


@pytest.fixture
def customized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What each interpreter started here runs first."""
    (tmp_path / "site").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return tmp_path / "site" / "sitecustomize.py"


def test_a_rank_that_never_joins_ends_at_the_limit_and_is_named(customized: Path, tmp_path: Path) -> None:
    customized.write_text(RANK_1_NEVER_JOINS)
    facts = sections.allreduce(wants(tmp_path), tmp_path, limit_s=1, start_s=100)
    [tried] = facts["counts"]
    assert (tried["started"], tried["hanging"], 1 in tried["joined"], tried["reduced"]) == ([0, 1], [0, 1], False, []), tried
    check = judged("deep.allreduce", facts)["gpu.allreduce:2"]
    assert check.status == "fail" and "no end within 1 s; rank 0, 1 hangs" in check.evidence


def test_a_rank_that_does_not_even_start_is_told_apart(customized: Path, tmp_path: Path) -> None:
    customized.write_text(RANK_1_NEVER_STARTS)
    facts = sections.allreduce(wants(tmp_path), tmp_path, start_s=1)
    check = judged("deep.allreduce", facts)["gpu.allreduce:2"]
    assert check.status == "fail" and "1 did not start within 1 s" in check.evidence


def test_more_ranks_than_devices_are_skipped_and_say_why(tmp_path: Path) -> None:
    expect = {"device": "cpu", "rank_counts": [4096]}
    told = judged("deep.allreduce", sections.allreduce(wants(tmp_path, expect=expect), tmp_path))
    assert told["gpu.allreduce:4096"].status == "skipped" and "processor cores are here" in told["gpu.allreduce:4096"].evidence


@pytest.fixture
def running(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A workspace in which a run works."""
    workspace = tmp_path / "ws"
    launch(workspace, "busy", "", shell("exec sleep 600"))
    wait_for(state_is(workspace / "runs" / "busy", "running"))
    yield wants(workspace, spec_toml="never read")
    end_everything(workspace)


def test_a_live_run_keeps_the_canary_away(running: dict[str, Any], tmp_path: Path) -> None:
    begun = time.monotonic()
    facts = probe.canary(running, tmp_path)
    assert "the run busy works here" in facts["skipped"] and time.monotonic() >= begun
    told = status("deep.canary", facts)
    assert set(told.values()) == {"skipped"} and len(told) == 8, "no server was started, and each check says so"


def test_a_gpu_that_somebody_holds_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [
        {"index": 0, "memory_used_bytes": 90 << 30, "processes": [{"pid": 1, "used_bytes": 90 << 30}]},
        {"index": 1, "memory_used_bytes": 40 << 30, "processes": []},
        {"index": 2, "memory_used_bytes": 500 << 20, "processes": []},
    ]
    # The lowest edge: NVML's answer, since no GPU is here.
    monkeypatch.setattr(devices.gpu, "report", lambda: {"status": "ok", "text": "", "gpus": cards})
    asked = wants(tmp_path, expect={"device": "cuda", "rank_counts": [2]}, pythons={"worker": "/no/python"})
    held = devices.held(asked)
    assert sorted(held) == ["cuda:0", "cuda:1"] and "cannot be seen from here" in held["cuda:1"]
    told = judged("deep.kernels", sections.kernels(asked, tmp_path))
    assert (told["gpu.kernel:cuda:0"].status, told["gpu.kernel:cuda:1"].status) == ("skipped", "skipped")
    assert judged("deep.allreduce", sections.allreduce(asked, tmp_path))["gpu.allreduce:2"].status == "skipped"
