"""GPUs are reported as the driver tells, in time, and "none" only where there is none."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.records import GpuReport
from eagle3.runner import gpu, proctable, rundir
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from eagle3.runner.probe import cards
from eagle3.runner.services import plan
from tests.runner.support import RUNNER, Channel, old_python, shell, wait_for

PATIENT_S = 60.0
"""The runner's own deadline is short; what answers needs the start of an interpreter, on a machine that is busy elsewhere."""


def in_time(report: dict[str, Any]) -> dict[str, Any]:
    """The report, empty where the child that was asked came too late: then one asks again, as a console does."""
    return {} if "did not answer" in report["text"] else report


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path on which there is no nvidia-smi."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))


@pytest.mark.usefixtures("no_gpu")
def test_a_machine_without_a_driver_has_none(channel: Channel) -> None:
    for report in (gpu.report(PATIENT_S), wait_for(lambda: in_time(channel.result("gpu")))):
        found = GpuReport.model_validate(report)
        assert found.gpus == []
        assert found.status == ("unknown" if gpu.has_devices() else "none") and found.text


def test_eight_cards_of_96_gib_are_reported_by_the_real_pynvml(fake_nvml: Path) -> None:
    found = GpuReport.model_validate(gpu.report(PATIENT_S))
    assert (found.status, found.source, found.driver, len(found.gpus)) == ("ok", "nvml", "580.95", 8)
    card = found.gpus[7]
    assert (card.index, card.name, card.uuid) == (7, "NVIDIA B300", "GPU-7")
    assert (card.memory_total_bytes, card.memory_used_bytes) == (96 << 30, 1 << 30)
    assert card.utilization_pct is None and card.temperature_c is None and card.power_w is None, (
        "what the driver lacks is unknown"
    )


@pytest.mark.usefixtures("fake_nvml", "no_gpu")
def test_a_driver_that_hangs_is_given_up_and_said_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HANG", "1")
    report = gpu.report(deadline_s=1)
    assert report["status"] == "unknown" and "did not answer" in report["text"]


def smi(folder: Path, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "nvidia-smi").chmod(0o755)


def without_pynvml(folder: Path) -> dict[str, Any]:
    """The report of a Python that has no pynvml, with ``folder`` first on the path."""
    channel = Channel(old_python(), "-I", "-S", str(RUNNER), env={"PATH": f"{folder}:{os.environ['PATH']}"})
    report = wait_for(lambda: in_time(channel.result("gpu")))
    channel.close()
    return report


def test_nvidia_smi_answers_where_pynvml_cannot(tmp_path: Path) -> None:
    smi(
        tmp_path / "tool",
        'case "$*" in *compute-apps*) echo "4242, 1024"; echo "4243, [N/A]";; '
        '*) echo "0, NVIDIA H100, GPU-a, 81559, 1024, 5, 41, [N/A], 550.1";; esac',
    )
    found = GpuReport.model_validate(without_pynvml(tmp_path / "tool"))
    assert (found.status, found.source, found.driver) == ("ok", "nvidia-smi", "550.1")
    card = found.gpus[0]
    assert (card.memory_total_bytes, card.power_w, card.temperature_c) == (81559 << 20, None, 41)
    assert card.processes == [{"pid": 4242, "used_bytes": 1 << 30}, {"pid": 4243, "used_bytes": None}]


def test_a_broken_driver_is_unknown_and_quoted(tmp_path: Path) -> None:
    smi(tmp_path / "tool", "echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    report = without_pynvml(tmp_path / "tool")
    assert report["status"] == "unknown" and "Failed to initialize NVML" in report["text"]


def test_the_heartbeat_counts_the_gpu_memory_of_its_own_processes(
    fake_nvml: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("FAKE_PID_FILE", str(pid_file))
    run_dir = Path(launch(workspace, "r", "", shell(f"echo $$ > {pid_file}; exec sleep 600", heartbeat_s=0.2))["run_dir"])
    wait_for(lambda: rundir.read_object(run_dir / "attempts/1/heartbeat.json").get("gpu_bytes") == 3 << 30)
    pid_file.write_text("1")
    wait_for(lambda: rundir.read_object(run_dir / "attempts/1/heartbeat.json").get("gpu_bytes") == 0)


@pytest.mark.usefixtures("fake_nvml")
def test_a_gpu_in_somebodys_hands_is_a_reason_not_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = subprocess.Popen(["sleep", "600"])

    def refusal() -> VerbError | None:
        try:
            plan.require_consent({"device": "cuda"})
        except VerbError as error:
            return error
        return None

    try:
        (tmp_path / "pid").write_text(str(holder.pid))
        monkeypatch.setenv("FAKE_PID_FILE", str(tmp_path / "pid"))
        found = wait_for(refusal)
        assert found.code == "busy" and f"GPU 0 is held by pid {holder.pid} of " in found.text and "3.0 GiB" in found.text
        assert "sleep 600" in found.text and "share_device" in found.remedy
        for free in ({"device": "cpu"}, {"device": "cuda", "share_device": True}, {"device": "cuda", "gpus": [1, 2]}):
            plan.require_consent(free)
    finally:
        holder.kill()
        holder.wait()


def test_the_overview_tells_which_run_holds_a_card(
    fake_nvml: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("FAKE_PID_FILE", str(pid_file))
    launch(workspace, "pilot-1", "", shell(f"echo $$ > {pid_file}; exec sleep 600"))
    wait_for(lambda: pid_file.exists() and pid_file.read_text().strip())
    pid = int(pid_file.read_text())
    wait_for(lambda: proctable.short_name(pid) == "sleep")  # it says its number before it becomes that
    held = wait_for(lambda: holders(pid))
    assert (held[0]["run_id"], held[0]["name"]) == ("pilot-1", "sleep")
    pid_file.write_text("999999999")  # a number of the host's: nobody here
    strangers = wait_for(lambda: holders(999999999))
    assert not {"run_id", "name"} & set(strangers[0])


def holders(pid: int) -> list[dict[str, Any]]:
    """The entries of the process among the cards, none where the driver was not in time."""
    return [process for card in cards()["gpus"] for process in card["processes"] if process["pid"] == pid]


def test_an_answer_asked_for_ahead_is_taken_once_and_only_while_it_is_fresh() -> None:
    gpu.ask_ahead()
    child = gpu._asked_ahead()
    assert child is not None
    done = gpu.run_child([], 60.0, child)
    assert json.loads(done.stdout)["status"] in {"ok", "none", "unknown"}
    assert gpu._asked_ahead() is None
    gpu.ask_ahead()
    begun, late = gpu._ahead.pop()
    gpu._ahead.append((begun - 2 * gpu.AHEAD_S, late))
    assert gpu._asked_ahead() is None
    wait_for(lambda: late.poll() is not None)
