"""The words of a probe on the Overview."""

from __future__ import annotations

from eagle3.core.records import Disk
from tests.tui.support.container import GIB
from tui.machine_words import disk_warning, host_words


def test_a_low_disk_a_lack_of_inodes_and_a_read_only_mount_warn() -> None:
    whole = Disk(path="/", total_bytes=100 * GIB, free_bytes=50 * GIB, free_inodes=10**6)
    assert disk_warning(whole) == ""
    assert disk_warning(whole.model_copy(update={"free_bytes": GIB})) == "nearly full"
    assert disk_warning(whole.model_copy(update={"free_inodes": 12})) == "only 12 files more"
    assert disk_warning(whole.model_copy(update={"read_only": True})) == "read-only"
    assert disk_warning(whole.model_copy(update={"error": "it hangs\x1b[0m"})) == "it hangs"
    assert disk_warning(whole.model_copy(update={"free_inodes": 0})) == ""  # a file system without a fixed number of them


def test_the_memory_of_the_host_is_said_in_words() -> None:
    facts = {"memory_total_bytes": 24 * GIB, "memory_available_bytes": 20 * GIB}
    assert host_words(facts) == "memory 4.0 of 24.0 GiB used"
