"""A card that fails is named once, with what was seen and what to do, while the run goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.records import GpuReport
from eagle3.runner import gpu, proctable
from eagle3.runner.gpu_faults import CLEAN_REPORTS, Faults, xid_fault
from eagle3.runner.launch import launch
from eagle3.runner.nvml import throttle_words
from tests.runner.support import events, kill_supervisor, shell, started, state_is, wait_end, wait_for

PATIENT_S = 60.0
"""The runner's own deadline is short; what answers needs the start of an interpreter, on a machine that is busy elsewhere."""


def card(index: int, **more: Any) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "throttle": [], "ecc_uncorrected": 0, "lost": False, **more}


def report(*cards: dict[str, Any]) -> dict[str, Any]:
    return {"status": "ok", "text": "", "gpus": list(cards)}


def test_the_report_tells_what_the_driver_knows_of_faults(gpu_control: Path) -> None:
    gpu_control.write_text("uncorrected 3 2\ncorrected 3 40\nremap 3 1\nthrottle 3 68\n")
    found = GpuReport.model_validate(gpu.report(PATIENT_S))
    ill, well = found.gpus[3], found.gpus[4]
    assert (ill.ecc_uncorrected, ill.ecc_corrected, ill.remap_pending, ill.remap_failed) == (2, 40, True, False)
    assert ill.throttle == ["power limit (software)", "too hot (hardware slowdown)"] and ill.power_limit_w == 1100
    assert (well.ecc_uncorrected, well.remap_pending, well.throttle, well.lost) == (0, False, [], False)
    assert well.retired_pending is None, "what the driver lacks is unknown"


def test_a_card_that_the_driver_has_lost_is_reported_as_lost(gpu_control: Path) -> None:
    gpu_control.write_text("lost 5 1\n")
    found = GpuReport.model_validate(gpu.report(PATIENT_S))
    assert found.status == "ok" and [c.index for c in found.gpus if c.lost] == [5] and "lost" in found.gpus[5].name


def test_a_run_names_each_fault_once_and_alerts_where_a_card_is_broken(
    workspace: Path, tmp_path: Path, gpu_control: Path
) -> None:
    place = tmp_path / "told"
    hooks = {"command": ["/bin/sh", "-c", f'echo "$EAGLE3_ALERT_TEXT" >> {place}'], "on": ["gpu_fault"], "min_interval_s": 0}
    plan = shell("while [ ! -e go ]; do sleep 0.05; done", heartbeat_s=0.1, hooks=hooks)
    run_dir = Path(launch(workspace, "r", "", plan)["run_dir"])

    def faults() -> list[dict[str, Any]]:
        # On a machine that is busy elsewhere the driver's child may be late, which is said too and is not meant here.
        return [row for row in events(run_dir, "gpu_fault") if "do not answer" not in row["text"]]

    def make_ill(lines: str) -> None:
        (tmp_path / "next").write_text(lines)
        (tmp_path / "next").replace(gpu_control)

    wait_for(lambda: b"xid" in b" ".join(_command_lines(run_dir)))
    make_ill("throttle 2 64\n")
    wait_for(lambda: len(faults()) == 1)
    make_ill("throttle 2 64\nxid 1 31\nxid 7 79\nlost 7 1\n")
    wait_for(lambda: len(faults()) == 4)
    make_ill("throttle 2 64\nxid 1 31\nxid 7 79\ncount 0 6\n")
    wait_for(lambda: len(faults()) == 5)
    assert state_is(run_dir, "running")()
    found = sorted((row["level"], row["text"]) for row in faults())
    assert [level for level, _ in found] == ["error"] * 3 + ["warn"] * 2
    texts = [text for _, text in found]
    assert texts[0] == (
        "GPU 6 (GPU-6): it is gone: NVML listed 8 GPUs and lists 6. "
        "Cordon the node; reboot it, and have the card checked when it happens again."
    )
    assert "GPU 7 (GPU-7): NVML says that the GPU is lost" in texts[1]
    assert "GPU 7 (GPU-7): Xid 79, the GPU has fallen off the bus" in texts[2]
    assert "GPU 1 (GPU-1): Xid 31" in texts[3] and "slowed: too hot" in texts[4]
    wait_for(lambda: place.exists() and len(place.read_text().splitlines()) == 3)
    assert sorted(place.read_text().splitlines()) == texts[:3]
    children = [p.pid for p in proctable.descendants([started(run_dir)["supervisor"]["pid"]], proctable.snapshot())]
    (run_dir / "go").touch()
    assert wait_end(run_dir)["survivors"] == []
    assert "ending" not in (run_dir / "events.jsonl").read_text(), "the watch for Xids is nothing that the worker left behind"
    wait_for(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])


@pytest.mark.usefixtures("gpu_control")
def test_the_watch_for_xids_ends_with_its_supervisor(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", heartbeat_s=0.1))["run_dir"])
    wait_for(lambda: b"xid" in b" ".join(_command_lines(run_dir)))
    tree = proctable.descendants([started(run_dir)["supervisor"]["pid"]], proctable.snapshot())
    watchers = [p.pid for p in tree if p.pid != started(run_dir)["pid"]]
    kill_supervisor(run_dir)
    wait_for(lambda: not [pid for pid in watchers if Path(f"/proc/{pid}").exists()])


def _command_lines(run_dir: Path) -> list[bytes]:
    tree = proctable.descendants([started(run_dir)["supervisor"]["pid"]], proctable.snapshot())
    found = []
    for process in tree:
        with contextlib.suppress(OSError):  # it has just ended
            found.append(Path(f"/proc/{process.pid}/cmdline").read_bytes())
    return found


def test_errors_from_before_the_run_are_no_faults_of_it_and_each_new_one_is() -> None:
    faults = Faults()
    assert faults.look(report(card(0, ecc_uncorrected=7))) == []
    [fault] = faults.look(report(card(0, ecc_uncorrected=9)))
    assert fault.level == "error" and "2 new uncorrectable ECC errors (9 since" in fault.text
    assert faults.look(report(card(0, ecc_uncorrected=9))) == []


def test_a_card_that_flickers_is_slowed_once_and_again_only_after_it_was_well() -> None:
    faults, slow = Faults(), report(card(0, throttle=["hardware slowdown"], temperature_c=91, power_w=700.0))
    [fault] = faults.look(slow)
    assert fault.level == "warn" and "hardware slowdown (91 °C, 700 W)" in fault.text
    assert faults.look(report(card(0))) + faults.look(slow) == []
    for _ in range(CLEAN_REPORTS):
        faults.look(report(card(0)))
    assert len(faults.look(slow)) == 1


def test_a_card_at_its_power_limit_is_busy_and_not_ill() -> None:
    assert Faults().look(report(card(0, throttle=throttle_words(0x4 | 0x1 | 0x2)))) == []


def test_a_driver_that_stops_answering_is_said_once_and_one_that_never_did_is_not() -> None:
    silent = {"status": "unknown", "text": "NVML did not answer within 6 s", "gpus": []}
    assert Faults().look(silent) == []
    faults = Faults()
    faults.look(report(card(0)))
    [fault] = faults.look(silent)
    assert fault.level == "warn" and "did not answer" in fault.text
    assert faults.look(silent) == []


def test_nvidia_smis_word_for_a_lost_card_is_understood() -> None:
    words = "nvidia-smi says: Unable to determine the device handle for GPU0: 0000:3B:00.0: GPU is lost. Reboot the system"
    [fault] = Faults().look({"status": "unknown", "text": words, "gpus": []})
    assert fault.level == "error" and "0000:3B" in fault.text


@given(st.integers(0, 200), st.one_of(st.none(), st.integers(0, 15)))
def test_every_xid_has_a_level_a_meaning_and_a_next_step(xid: int, index: int | None) -> None:
    fault = xid_fault({"xid": xid, "index": index}, 1)
    assert fault.level in ("warn", "error") and f"Xid {xid}, " in fault.text and fault.text.endswith(".")


@given(st.lists(st.lists(st.integers(0, 7), unique=True), max_size=8))
def test_no_card_is_missed_and_none_is_named_twice(reports: list[list[int]]) -> None:
    faults, seen, gone = Faults(), set[int](), set[int]()
    for present in reports:
        found = faults.look(report(*map(card, present)))
        seen |= set(present)
        new = seen - set(present) - gone
        assert len(found) == len(new) and all(any(f"GPU {i} " in f.text for f in found) for i in new)
        gone |= new
