"""What the Overview says of a machine in few words: the host in a line, and what is wrong with a disk. Pure.

Whether a run can be started is judged elsewhere, by ``eagle3.core.readiness``; these are the words of a probe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tui.formats import bytes_label, clean_line, pair_label, share

if TYPE_CHECKING:
    from eagle3.core.records import Disk

LOW_DISK_BYTES = 2 << 30
LOW_SHARE = 0.05
LOW_INODES = 50_000


def disk_warning(disk: Disk) -> str:
    """What is wrong with a disk in two or three words, or nothing."""
    if disk.error:
        return clean_line(disk.error)
    if disk.read_only:
        return "read-only"
    if disk.free_inodes is not None and 0 < disk.free_inodes < LOW_INODES:
        return f"only {disk.free_inodes:,} files more"
    free = share(disk.free_bytes, disk.total_bytes)
    if free is not None and disk.free_bytes is not None and (disk.free_bytes < LOW_DISK_BYTES or free < LOW_SHARE):
        return "nearly full"
    return ""


def host_words(facts: dict[str, Any]) -> str:
    """The machine in a line: name, system, processors, load, memory."""
    words = [clean_line(str(facts[key])) for key in ("hostname", "os") if facts.get(key)]
    if facts.get("cpus"):
        words.append(f"{facts['cpus']} CPUs")
    load = facts.get("load")
    if isinstance(load, list) and load:
        words.append(f"load {load[0]}")
    limit, total, free = (facts.get(f"memory_{key}_bytes") for key in ("limit", "total", "available"))
    if isinstance(total, int) and isinstance(free, int):
        words.append(f"memory {pair_label(total - free, total).replace(' / ', ' of ')} used")
    if isinstance(limit, int) and isinstance(total, int) and limit < total:
        words.append(f"limited to {bytes_label(limit)}")
    return " · ".join(words)
