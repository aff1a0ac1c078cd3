"""Disks as they are: a folder of this machine, a read-only mount, a full one, and a libc that makes one slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.readiness import sections
from tests.readiness.support import ROOT, judged, status, tree, wants

SLOW_LIBC = """
#include <unistd.h>
extern "C" int fsync(int) { usleep(90000); return 0; }
extern "C" int flock(int, int) { return 0; }
"""


def test_a_good_folder_is_measured_and_nothing_of_it_stays(tmp_path: Path) -> None:
    facts = sections.disk(wants(tmp_path, paths=[str(tmp_path), str(tmp_path / "not" / "made" / "yet")]), tmp_path)
    assert tree(tmp_path) == []
    first, second, third = [*facts["paths"], None]
    assert (second["same_as"], third) == (str(tmp_path), None), "one file system is asked once"
    assert first["write_bytes"] > 0 and first["fsyncs"] > 0
    assert status("deep.disk", facts)[f"disk.locks_hold:{tmp_path}"] == "ok", facts


def on_tmpfs(tmp_path: Path, options: str, remount: str = "true") -> dict[str, Any]:
    """The deep facts of a workspace on a tmpfs of its own, in a mount namespace of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = f"mount -t tmpfs -o {options} tmpfs {disk}"
    script = (
        "import json, sys; from pathlib import Path; from eagle3.readiness import sections; "
        "print(json.dumps(sections.disk({'workspace': sys.argv[1]}, Path('/'))))"
    )
    command = [*unshare, "sh", "-c", f'{mount} && {remount} && exec "$0" -c "$1" {disk}', sys.executable, script]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, timeout=90)
    assert done.returncode == 0, "this user may not mount a tmpfs, so the fault cannot be made"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_read_only_mount_is_a_failure_that_says_so(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    [check] = judged("deep.disk", on_tmpfs(tmp_path, "size=8m", f"mount -o remount,ro {disk}")).values()
    assert (check.id, check.status) == (f"disk.write_speed:{disk}", "fail")
    assert "Read-only file system" in check.evidence


def test_a_small_disk_is_measured_within_its_space_and_a_quick_one_is_ok(tmp_path: Path) -> None:
    facts = on_tmpfs(tmp_path, "size=64m")
    [place] = facts["paths"]
    assert 0 < place["write_bytes"] <= 20 << 20, "at most about a quarter of what is free"
    # In memory: what this machine's disk takes while others write to it is no finding.
    told = status("deep.disk", facts)
    assert (told[f"disk.fsync_time:{tmp_path}/disk"], told[f"disk.locks_hold:{tmp_path}/disk"]) == ("ok", "ok"), facts
    assert place["fsyncs"] == sections.FSYNCS


def test_a_slow_fsync_and_a_lock_that_holds_nobody_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, library = tmp_path / "slow.cpp", tmp_path / "slow.so"
    source.write_text(SLOW_LIBC)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    facts = sections.disk(wants(tmp_path), tmp_path)
    monkeypatch.delenv("LD_PRELOAD")
    told = judged("deep.disk", facts)
    assert told[f"disk.fsync_time:{tmp_path}"].status == "warn", facts
    assert told[f"disk.locks_hold:{tmp_path}"].status == "fail"


@pytest.mark.parametrize(("speed", "expected"), [(400e6, "ok"), (20e6, "warn"), (1e6, "fail")])
def test_the_slower_the_disk_the_worse_the_word(speed: float, expected: str) -> None:
    place = {"path": "/data", "write_bytes": 100e6, "write_s": 100e6 / speed, "fsync_median_s": 0.001, "fsync_worst_s": 0.002}
    facts = {"paths": [{**place, "fsyncs": 20, "lock": "holds"}]}
    assert status("deep.disk", facts)["disk.write_speed:/data"] == expected
