"""The disks: file systems that are too small, used up, read-only, noexec or far away, and the same ones mended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.estimate import estimate
from eagle3.core.wording import bytes_label
from eagle3.runner.facts import disk
from eagle3.runner.launch import launch
from tests.readiness.light import ON_GPUS, SMOL, asked, changed, fault, gathered, judged, mended, tree, unclear, with_mounts
from tests.runner.support import shell, wait_end

MIB = 1 << 20


def on_tmpfs(
    tmp_path: Path, options: str, *more: str, spec: Any = None, paths: list[str] | None = None, taken: Sequence[str] = ()
) -> dict[str, Any]:
    """Facts of a workspace on a tmpfs of its own, after the shell lines ``more``."""
    place = tmp_path / "disk"
    place.mkdir(exist_ok=True)
    workspace = f"{place}/ws"
    wanted = {**asked(spec, workspace, taken), "paths": [workspace, *(paths or [])]}
    return with_mounts(["disk"], [f"mount -t tmpfs -o {options} tmpfs {place}", *more], wants=wanted)


def test_a_disk_that_is_full_fails_as_the_workspace_and_warns_elsewhere(tmp_path: Path) -> None:
    facts = on_tmpfs(tmp_path, "size=48m")
    fault("disk.free", facts, "48.0 MiB free of 48.0 MiB", status="fail")
    elsewhere = changed(facts, "disk.paths", [gathered("disk")["disk"]["paths"][0], *facts["disk"]["paths"]])
    fault("disk.free", elsewhere, "48.0 MiB free", status="warn")
    silent = {"asked": "/far", "path": "/far", "error": "/far did not answer"}
    fault("disk.free", changed(facts, "disk.paths", [silent, *facts["disk"]["paths"]]), "48.0 MiB free", status="warn")
    mended("disk.free", on_tmpfs(tmp_path, "size=4g"))


def test_inodes_that_are_used_up_are_told_though_bytes_are_free(tmp_path: Path) -> None:
    used_up = on_tmpfs(tmp_path, "size=4g,nr_inodes=40", f"touch {tmp_path}/disk/1 {tmp_path}/disk/2")
    fault("disk.inodes", used_up, "free on", status="fail")
    few = on_tmpfs(tmp_path, "size=4g,nr_inodes=400", spec=SMOL)
    fault("disk.inodes", few, "wanted by the run", SMOL, status="fail")
    fault("disk.inodes", on_tmpfs(tmp_path, "size=4g,nr_inodes=4000"), "free on", status="warn")
    mended("disk.inodes", on_tmpfs(tmp_path, "size=4g,nr_inodes=900000", spec=SMOL), SMOL)
    mended("disk.inodes", on_tmpfs(tmp_path, "size=4g,nr_inodes=0"))


def test_a_read_only_mount_fails_the_workspace(tmp_path: Path) -> None:
    place = f"{tmp_path}/disk"
    fault("disk.writable", on_tmpfs(tmp_path, "size=64m", f"mount -o remount,ro {place}"), "mounted read-only", status="fail")
    mended("disk.writable", on_tmpfs(tmp_path, "size=64m"))


def test_a_file_in_the_way_and_a_place_that_does_not_answer_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    here = gathered("disk", paths=[str(tmp_path)], workspace=str(tmp_path / "ws"))
    mended("disk.writable", here)
    fault("disk.writable", gathered("disk", workspace=str(tmp_path / "file" / "ws"), paths=[]), "is a file", status="fail")
    fault("disk.writable", changed(here, "disk.paths.0.writable", False), "may not write", status="fail")
    late = {"asked": "/far", "path": "/far", "error": "/far did not answer within 3 s; its server may be gone"}
    unclear("disk.writable", changed(here, "disk.paths", [*here["disk"]["paths"], late]), "did not answer")


def test_a_run_that_is_too_large_for_the_disk_is_told_with_the_arithmetic(tmp_path: Path) -> None:
    wanted = sum(int(need["bytes"]) for need in asked(SMOL, "/ws")["needs"] if not need["unless"])
    floor = SMOL.disk_floor_bytes

    def with_free(free_bytes: float) -> dict[str, Any]:
        return on_tmpfs(tmp_path, f"size={int(free_bytes) >> 12 << 12}", spec=SMOL)

    told = fault("disk.needs", with_free(floor + wanted / 2), f"on {tmp_path}/disk", SMOL, status="fail")
    for part in (
        f"{bytes_label(wanted)} for hidden states",
        f"{bytes_label(floor + wanted / 2)} free",
        f"− {bytes_label(floor)} kept free",
    ):
        assert part in told.evidence
    assert told.id == f"disk.needs:{tmp_path}/disk" and "choose another workspace" in told.remedy
    fault("disk.needs", with_free(floor + wanted / 0.9), "to use", SMOL, status="warn")
    mended("disk.needs", with_free(floor + 2 * wanted), SMOL)


def test_a_fork_fits_where_the_whole_run_would_not(tmp_path: Path) -> None:
    """Four hidden layers of every token are linked; what is trained and exported is new."""
    long = SMOL.model_copy(update={"data": SMOL.data.model_copy(update={"train_prompts": 2048})})
    taken = ("prepare", "regenerate", "extract", "vocabulary")
    whole, forked = (estimate(long, taken=stages).peak_bytes for stages in ((), taken))
    size = f"size={(long.disk_floor_bytes + (whole + 2 * forked) // 3) >> 12 << 12}"
    fault("disk.needs", on_tmpfs(tmp_path, size, spec=long), "for hidden states", long, status="fail")
    mended("disk.needs", on_tmpfs(tmp_path, size, spec=long, taken=taken), long)


def test_what_is_there_already_need_not_be_fetched(tmp_path: Path) -> None:
    need = {"path": str(tmp_path), "bytes": 5, "inodes": 1, "what": "the target", "unless": str(tmp_path)}
    facts = gathered("disk", needs=[need, {**need, "unless": str(tmp_path / "no"), "what": "the other"}])
    assert [n["what"] for n in facts["disk"]["needs"]] == ["the other"]


def test_a_place_from_which_no_code_may_be_loaded_is_told(tmp_path: Path) -> None:
    strict = on_tmpfs(tmp_path, "size=64m,noexec")
    fault("disk.exec", strict, "mounted noexec", status="warn")
    fault("disk.exec", strict, "mounted noexec", ON_GPUS, status="fail")
    mended("disk.exec", on_tmpfs(tmp_path, "size=64m"))


def mountinfo(point: Path, fstype: str, options: str, source: str = "filer:/home") -> str:
    return f"22 1 8:1 / / rw,relatime - ext4 /dev/sda rw\n91 22 0:50 / {point} rw,relatime - {fstype} {source} rw,{options}\n"


NETWORKS = [
    ("nfs4", "vers=4.2,hard", "on nfs4 from filer:/home"), ("nfs", "nolock,soft", "nolock"),
    ("lustre", "lazystatfs", "without flock"), ("fuse.sshfs", "user_id=0", "fuse.sshfs"),
]  # fmt: skip


@pytest.mark.parametrize(("fstype", "options", "words"), NETWORKS, ids=[line[0] for line in NETWORKS])
def test_a_network_file_system_is_told_with_what_its_locks_lack(tmp_path: Path, fstype: str, options: str, words: str) -> None:
    place = tmp_path / "home"
    place.mkdir()
    root = tree(tmp_path / "root", {"proc/self/mountinfo": mountinfo(place, fstype, options)})
    facts = gathered("disk", root=root, spec=SMOL, workspace=str(place), paths=[])
    fault("disk.network", facts, words, SMOL)
    unclear("disk.quota", facts, "told by its own tool only", SMOL)
    tree(root, {"proc/self/mountinfo": mountinfo(place, "ext4", "errors=remount-ro")})
    local = gathered("disk", root=root, spec=SMOL, workspace=str(place), paths=[])
    mended("disk.network", local, SMOL)
    mended("disk.quota", local, SMOL)


def test_a_quota_is_read_from_the_command_that_tells_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "QUOTA_LIMIT_S", 30.0)
    place = tmp_path / "home"
    place.mkdir()
    root = tree(tmp_path / "root", {"proc/self/mountinfo": mountinfo(place, "ext4", "usrquota")})

    def told(lines: str) -> dict[str, Any]:
        tool = tree(tmp_path / "bin", {"quota": f"#!/bin/sh\ncat <<'E'\n{lines}\nE\n"}) / "quota"
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
        return gathered("disk", root=root, spec=SMOL, workspace=str(place), paths=[])

    head = "Disk quotas for user me (uid 1000):\n Filesystem blocks quota limit grace files quota limit grace"
    fault("disk.quota", told(f"{head}\n{place} 10480000* 9000000 10485760 6days 20 0 0"), "the run wants", SMOL, status="fail")
    fault("disk.quota", told(f"{head}\n{place} 99000000 0 104857600 0 20 0 0 0"), "94.4 GiB used of 100 GiB", SMOL, status="warn")
    fault("disk.quota", told(f"{head}\n{place} 1000 0 0 0 99990 0 100000 0"), "99,990 files of 100,000", SMOL, status="fail")
    mended("disk.quota", told(f"{head}\n{place} 1000 0 104857600 0 20 0 0 0"), SMOL)
    unclear("disk.quota", told(""), "mounted with quotas", SMOL)


def test_what_could_be_freed_is_found_with_its_sizes_and_live_runs_are_left_out(workspace: Path) -> None:
    ended, live = (
        Path(launch(workspace, name, "", shell(script))["run_dir"])
        for name, script in (("old", "exit 0"), ("new", "exec sleep 600"))
    )
    wait_end(ended)
    tree(workspace, {"lib/1/runner.pyz": b"x" * 4096, "lib/2/runner.pyz": b"x" * 4096, "env/abc/bin/python": b"x" * 8192})
    tree(ended, {"states/raw/a.safetensors": b"x" * (2 * MIB)})
    tree(live, {"states/raw/b.safetensors": b"x" * (2 * MIB)})
    facts = gathered("disk", workspace=str(workspace), paths=[])
    found = {item["path"]: item for item in facts["disk"]["freeable"]["items"]}
    assert str(live) not in found and found[str(ended)]["bytes"] >= 2 * MIB and found[str(ended)]["what"].startswith("run, ")
    assert found[str(ended / "states/raw")]["leftover"] and str(workspace / "env/abc") in found
    assert facts["disk"]["freeable"]["complete"] and facts["disk"]["freeable"]["versions"] == 2
    mended("disk.leftovers", facts)
    [told] = judged("disk.leftovers", facts)
    assert told.action is not None and told.action.verb == "clean_leftovers"
    fault("disk.leftovers", changed(facts, "disk.freeable.versions", 30), "30 versions of the helper")


def test_left_overs_larger_than_what_is_free_are_told_with_a_way_to_pick(tmp_path: Path) -> None:
    place = f"{tmp_path}/disk/ws"
    make = f"mkdir -p {place}/lib/1 {place}/lib/2 && head -c 40000000 /dev/zero | tee {place}/lib/1/a > {place}/lib/2/b"
    told = fault("disk.leftovers", on_tmpfs(tmp_path, "size=100m", make), "of left-overs")
    assert told.action is not None and told.action.verb == "delete" and told.action.args["paths"] and "helper" in told.detail
    unclear("disk.leftovers", changed(on_tmpfs(tmp_path, "size=100m"), "disk.freeable", None), "could not be looked through")


def test_a_check_of_a_run_is_silent_where_no_run_is_planned(tmp_path: Path) -> None:
    assert judged("disk.needs", gathered("disk", workspace=str(tmp_path))) == []
