"""A probe as a report."""

from __future__ import annotations

from typing import Any

import pytest

from eagle3.core.records import Disk, GpuReport, Probe
from tests.tui.support.container import DISKS, GIB, NO_GPU, SERVERS, eight_gpus
from tui.report import disk_warning, gpu_words, host_words, lines, report


def test_no_gpu_is_said_plainly_and_is_no_failure() -> None:
    found = report("box", Probe(gpu=NO_GPU, disks=DISKS[:1]))
    assert found["verdict"] == "ok"
    assert "no GPU" in "\n".join(lines(found))


def test_an_unknown_gpu_says_why_and_what_to_do() -> None:
    assert gpu_words(GpuReport(status="unknown", text="NVML hung for 5 s")) == "unknown: NVML hung for 5 s"
    found = report("box", Probe(gpu=GpuReport(status="unknown", text="NVML hung for 5 s")))
    assert found["verdict"] == "warn"
    assert "nvidia-smi" in "\n".join(lines(found))


def test_gpus_are_counted_with_their_memory() -> None:
    assert gpu_words(eight_gpus()) == "8 × NVIDIA H200, 0.5 / 1.1 TiB used"


def test_a_low_disk_a_lack_of_inodes_and_a_read_only_mount_warn() -> None:
    whole = Disk(path="/", total_bytes=100 * GIB, free_bytes=50 * GIB, free_inodes=10**6)
    assert disk_warning(whole) == ""
    assert disk_warning(whole.model_copy(update={"free_bytes": GIB})) == "nearly full"
    assert disk_warning(whole.model_copy(update={"free_inodes": 12})) == "only 12 files more"
    assert disk_warning(whole.model_copy(update={"read_only": True})) == "read-only"
    assert disk_warning(whole.model_copy(update={"error": "it hangs\x1b[0m"})) == "it hangs"
    assert disk_warning(whole.model_copy(update={"free_inodes": 0})) == ""  # a file system without a fixed number of them


@pytest.mark.parametrize(
    "change", [{"read_only": True}, {"error": "it cannot be asked"}, {"free_bytes": 7 << 20}, {"free_inodes": 63}]
)
def test_a_workspace_that_cannot_be_written_fails_and_another_disk_only_warns(change: dict[str, Any]) -> None:
    whole = Disk(path="/w", total_bytes=100 * GIB, free_bytes=50 * GIB, free_inodes=10**6)
    bad = whole.model_copy(update=change)
    assert report("box", Probe(gpu=NO_GPU, disks=[bad, whole]))["verdict"] == "fail"
    assert report("box", Probe(gpu=NO_GPU, disks=[whole, bad]))["verdict"] == "warn"


def test_the_memory_of_the_host_is_said_in_words() -> None:
    facts = {"memory_total_bytes": 24 * GIB, "memory_available_bytes": 20 * GIB}
    assert host_words(facts) == "memory 4.0 of 24.0 GiB used"


def test_a_server_that_is_down_warns_and_one_that_is_absent_does_not() -> None:
    assert report("box", Probe(gpu=NO_GPU, vllm=SERVERS))["verdict"] == "warn"
    words = "\n".join(lines(report("box", Probe(gpu=NO_GPU))))
    assert "no server is running" in words
