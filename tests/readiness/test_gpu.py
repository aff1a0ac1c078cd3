"""The GPUs: the real nvidia-ml-py asks a compiled driver library whose cards fall ill, one fault at a time, and get well."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.spec import RunSpec
from eagle3.core.spec.service import Service
from eagle3.runner import proctable, state
from eagle3.runner.launch import launch
from tests.readiness.environments import environment, torch
from tests.readiness.light import ON_GPUS, SMOL, changed, fault, gathered, judged, mended, unclear
from tests.runner.support import kill_supervisor, shell, started, summary, wait_for
from tests.support.processes import begun

SPREAD = ON_GPUS.model_copy(update={"server": ON_GPUS.server.model_copy(update={"tensor_parallel": 4})})


@pytest.fixture
def cards(gpu_control: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that makes the eight cards ill; see fake_nvml.c for its words."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return gpu_control


ILL = [
    ("gpu.ecc", "uncorrected 3 2", "2 uncorrected errors", "fail", "gpu.ecc:3"),
    ("gpu.ecc", "remap 5 1", "wait for a reset", "warn", "gpu.ecc:5"),
    ("gpu.ecc", "remap 6 2", "could not be remapped", "fail", "gpu.ecc:6"),
    ("gpu.throttle", "throttle 2 72", "too hot (hardware slowdown)", "warn", "gpu.throttle:2"),
    ("gpu.power", "default-power 1 2200", "limit 1100 W of 2200 W", "warn", "gpu.power:1"),
    ("gpu.mode", "mode 4 3", "exclusive process", "warn", "gpu.mode:4"),
    ("gpu.mode", "mode 2 2", "prohibited", "fail", "gpu.mode:2"),
    ("gpu.mode", "mig 6 1", "MIG", "warn", "gpu.mode:6"),
    ("gpu.count", "lost 7 1", "1 of them lost (GPU 7)", "warn", "gpu.count"),
    ("gpu.topology", "nvlink 0 5\npeer 0 1", "GPU 0 and 1: the chipset does not support it", "warn", "gpu.topology"),
]


def test_each_ill_card_of_eight_is_named_and_all_are_well_again_when_mended(cards: Path) -> None:
    cards.write_text("\n".join(line[1] for line in ILL) + "\n")
    ill = gathered("gpu")
    for id, _, words, status, told_as in ILL:
        assert fault(id, ill, words, status=status).id == told_as
    cards.write_text("")
    well = gathered("gpu")
    for id in ("gpu.ecc", "gpu.throttle", "gpu.power", "gpu.mode", "gpu.count", "gpu.topology"):
        mended(id, well)


def test_eight_well_cards_are_one_line_each_check(cards: Path) -> None:
    facts = gathered("gpu", "python")
    for id in ("gpu.driver", "gpu.count", "gpu.memory", "gpu.holders", "gpu.ecc", "gpu.throttle", "gpu.power", "gpu.mode"):
        assert [c.id for c in judged(id, facts)] == [id]
    assert "8 × NVIDIA B300; driver 580.95, CUDA 13.0" in mended("gpu.driver", facts)[0].evidence
    assert "on all 8" in mended("gpu.ecc", facts)[0].evidence
    assert "28 pairs over NVLink" in mended("gpu.topology", facts)[0].evidence


def test_what_an_old_driver_does_not_tell_is_unknown_never_ok(fake_nvml: Path) -> None:
    facts = gathered("gpu")
    unclear("gpu.ecc", facts, "does not tell of errors")
    unclear("gpu.throttle", facts, "does not say")
    unclear("gpu.power", facts, "does not tell")
    unclear("gpu.mode", facts, "does not tell")
    unclear("gpu.topology", facts, "does not tell how they are joined")
    mended("gpu.driver", facts)


def test_a_driver_that_hangs_is_unknown_and_nothing_else_is_said_of_the_gpus(
    fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the library and nvidia-smi hang, as they do when the driver is wedged."""
    monkeypatch.setenv("FAKE_HANG", "1")
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    facts = gathered("gpu", patience=0.1)
    unclear("gpu.driver", facts, "did not answer", ON_GPUS)
    assert judged("gpu.ecc", facts) == judged("gpu.memory", facts) == []


def test_a_machine_without_gpus_fails_only_a_run_that_needs_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = gathered("gpu")
    facts["gpu"].update(status="none", text="NVML: NVML Shared Library Not Found", gpus=[])
    fault("gpu.driver", facts, "no GPU", ON_GPUS, status="fail")
    assert [c.status for c in judged("gpu.driver", facts, SMOL)] == ["skipped"]


def test_too_few_cards_or_hidden_ones_stop_a_server_that_spreads(cards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards.write_text("count 0 2\n")
    fault("gpu.count", gathered("gpu"), "2 there; the run uses 4", SPREAD, status="fail")
    cards.write_text("")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    fault("gpu.count", gathered("gpu"), "shows 2; the run uses 4", SPREAD, status="fail")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    mended("gpu.count", gathered("gpu"), SPREAD)


BUILDS = [
    ("13.0", "2.13.0+cu130", "12080", "fail"),
    ("13.2", "2.13.0+cu132", "13000", "warn"),
    ("", "2.13.0+cpu", "13000", "fail"),
    ("12.8", "2.9.0+cu128", "13000", "ok"),
    ("13.0", "2.13.0+cu130", "13000", "ok"),
]


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"gpu_name": "H100"}, "is of H100, here are NVIDIA B300"), ({"gpu_memory_bytes": 288 * 10**9}, "has 96.0 GiB")],
)
def test_other_cards_than_the_machine_preset_counts_on_are_told(cards: Path, changes: dict[str, Any], words: str) -> None:
    hardware = {"gpus": 8, "gpu_name": "B300", "gpu_memory_bytes": 96 << 30}
    facts = gathered("gpu")

    def of(**more: Any) -> RunSpec:
        return ON_GPUS.model_copy(update={"hardware": ON_GPUS.hardware.model_copy(update={**hardware, **more})})

    fault("gpu.count", facts, words, of(**changes))
    mended("gpu.count", facts, of())


@pytest.mark.parametrize(("built", "version", "driver", "status"), BUILDS)
def test_what_torch_was_built_for_is_held_against_the_driver(
    cards: Path, tmp_path: Path, built: str, version: str, driver: str, status: str
) -> None:
    home = environment(tmp_path / "env", torch(version, built))
    cards.write_text(f"cuda 0 {driver}\n")
    facts = gathered("gpu", "python", pythons={"worker": home, "server": home})
    if status == "ok":
        mended("gpu.cuda", facts, ON_GPUS)
    else:
        fault("gpu.cuda", facts, f"torch {version}", ON_GPUS, status=status)
    assert judged("gpu.cuda", facts, SMOL) == []


@pytest.fixture
def held(gpu_control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the pid of a process that holds 3 GiB of the first card."""
    place = tmp_path / "holder"
    monkeypatch.setenv("FAKE_PID_FILE", str(place))
    return place


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"])
    yield begun(child)
    child.kill()
    child.wait()


def test_memory_held_by_a_stranger_s_process_is_told_with_its_pid_and_size(held: Path, stranger: subprocess.Popen[bytes]) -> None:
    held.write_text(str(stranger.pid))
    fault("gpu.holders", gathered("gpu"), f"PID {stranger.pid} of", status="warn")
    fault("gpu.holders", gathered("gpu"), "holds 3.0 GiB on GPU 0 and no run owns it: sleep 600")
    held.write_text(str(2**22 - 7))
    fault("gpu.holders", gathered("gpu"), "it is not in this container")
    held.unlink()
    assert "nobody" in mended("gpu.holders", gathered("gpu"))[0].evidence


def test_a_live_run_owns_what_it_holds_and_what_it_leaves_behind_can_be_ended(held: Path, workspace: Path) -> None:
    script = f"(setsid sh -c 'echo $$ > {held}; exec sleep 600' &); while :; do sleep 0.05; done"
    run_dir = Path(launch(workspace, "r", "", shell(script))["run_dir"])
    left = int(wait_for(lambda: held.exists() and held.read_text().strip()))
    wait_for(lambda: proctable.command_line(left)[:1] == ["sleep"])
    mended("gpu.holders", gathered("gpu"))
    worker = started(run_dir)["pid"]
    kill_supervisor(run_dir)
    os.kill(worker, 9)
    wait_for(lambda: summary(run_dir)["state"] not in state.LIVE)
    facts = gathered("gpu")
    told = fault(
        "gpu.holders", facts, f"PID {left} holds 3.0 GiB on GPU 0 and no run owns it: its run r is", ON_GPUS, status="fail"
    )
    assert told.action is not None and told.action.verb == "free_gpu" and told.action.args == {"pids": [left]}
    assert told.action.confirm and told.action.command == f"kill {left}"


def test_memory_that_no_process_tells_of_is_told_by_card(cards: Path) -> None:
    facts = changed(gathered("gpu"), "gpu.gpus.5.memory_used_bytes", 40 << 30)
    fault("gpu.holders", facts, "40.0 GiB are in use and no process tells of it")


def test_a_card_with_less_free_memory_than_the_server_takes_fails(cards: Path) -> None:
    facts = gathered("gpu")
    mended("gpu.memory", facts, ON_GPUS)
    full = changed(facts, "gpu.gpus.2.memory_used_bytes", 60 << 30)
    assert fault("gpu.memory", full, "36.0 GiB free of 96.0 GiB", ON_GPUS, status="fail").id == "gpu.memory:2"
    fault("gpu.memory", full, "36.0 GiB free", status="warn")
    stages = ("regenerate", "extract", "train", "evaluate")
    elsewhere = ON_GPUS.devices.model_copy(update={stage: [4, 5] for stage in stages})
    fault("gpu.memory", full, "36.0 GiB free", ON_GPUS.model_copy(update={"devices": elsewhere}), status="warn")
    agreed = Service(unit="vllm.service", consented_by="ann", consent="not needed before Monday")
    for excuse in ({"share_device": True}, {"services": [agreed]}):
        fault("gpu.memory", full, "and the server takes", ON_GPUS.model_copy(update=excuse), status="warn")
    unclear("gpu.memory", changed(facts, "gpu.gpus.2.memory_used_bytes", None), "does not say")
