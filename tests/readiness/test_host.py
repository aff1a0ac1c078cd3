"""The machine: each check is shown a container that truly has the fault, and the same one mended."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.presets import resolve
from eagle3.runner.facts import host
from tests.readiness.light import ON_GPUS, ROOT, SMOL, changed, fault, gathered, in_process, judged, mended, tree, unclear
from tests.readiness.light import with_mounts as mounted
from tests.readiness.support import gone
from tests.runner.support import RUNNER, Channel, wait_for

GIB = 1 << 30


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """The facts of this machine, with nothing else going on."""
    return changed(gathered("host"), "host.load", [0.0, 0.0, 0.0])


def test_a_clock_that_is_off_is_told_less_what_the_round_trip_may_hide(here: dict[str, Any]) -> None:
    now = here["now"]
    assert fault("host.clock", here, "-300.0 s", local_now=now + 300.1, round_trip_s=0.2).status == "warn"
    assert fault("host.clock", here, "+7200.0 s", local_now=now - 7200, round_trip_s=0.1).status == "fail"
    mended("host.clock", here, local_now=now + 2, round_trip_s=0.5)
    mended("host.clock", here, local_now=now + 75, round_trip_s=60.0)
    assert [c.status for c in judged("host.clock", here)] == ["skipped"], "on the machine itself there is nothing to compare"


@pytest.mark.parametrize("version", ["glibc 2.17", "musl"])
def test_a_c_library_that_no_wheel_is_built_for_fails(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(host, "libc", lambda: version)
    fault("host.libc", gathered("host"), version, status="fail")


def test_this_machine_s_c_library_is_read_and_a_strange_one_is_unknown(here: dict[str, Any]) -> None:
    mended("host.libc", here)
    unclear("host.libc", changed(here, "host.libc", ""), "C library unknown")


CGROUPS = {
    "version 2": {
        "proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "{limit}", "sys/fs/cgroup/memory.current": "1073741824",
        "sys/fs/cgroup/cpu.max": "{cpu} 100000", "sys/fs/cgroup/memory.events": "low 0\noom_kill {kills}\n",
    },
    "version 2, a limit above the session": {
        "proc/self/cgroup": "0::/user.slice/session-3.scope", "sys/fs/cgroup/user.slice/memory.max": "{limit}",
        "sys/fs/cgroup/user.slice/memory.current": "1073741824", "sys/fs/cgroup/user.slice/cpu.max": "{cpu} 100000",
        "sys/fs/cgroup/user.slice/session-3.scope/memory.max": "max",
        "sys/fs/cgroup/user.slice/memory.events": "low 0\noom_kill {kills}\n",
    },
    "version 1": {
        "proc/self/cgroup": "9:memory:/\n4:cpu,cpuacct:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "{limit}",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1073741824", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "{cpu}",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000", "sys/fs/cgroup/memory/memory.oom_control": "oom_kill {kills}\n",
    },
}  # fmt: skip


@pytest.mark.parametrize("layout", CGROUPS)
def test_the_container_s_own_limits_are_found_in_every_kind_of_control_group(tmp_path: Path, layout: str) -> None:
    def machine(name: str, limit: int, cpu: int, kills: int = 0) -> dict[str, Any]:
        meminfo = {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB\n"}
        files = {place: text.format(limit=limit, cpu=cpu, kills=kills) for place, text in CGROUPS[layout].items()}
        facts = gathered("host", root=tree(tmp_path / name, {**meminfo, **files}))
        return changed(changed(facts, "host.load", [0.0]), "host.cpus", 4)

    tight = machine("tight", 3 * GIB, 150_000)
    assert "limited to 3.0 GiB" in fault("host.memory", tight, "60.0 GiB available of 64.0 GiB", status="fail").evidence
    fault("host.cpus", tight, "limited to 1.5 of them")
    fault("host.memory", machine("killed", 40 * GIB, 400_000, kills=2), "2 killed for memory")
    roomy = machine("roomy", 40 * GIB, 400_000)
    mended("host.memory", roomy)
    mended("host.cpus", roomy)


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    bare = gathered("host", root=tree(tmp_path, {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB\n"}))
    assert bare["host"]["memory_limit_bytes"] is None and bare["host"]["cpu_limit"] is None
    mended("host.memory", bare)
    unclear("host.memory", gathered("host", root=tmp_path / "nothing"), "does not say")


def test_a_machine_that_others_keep_busy_is_told(here: dict[str, Any]) -> None:
    fault("host.cpus", changed(here, "host.load", [99.0]), "load 99.0", SMOL)


def test_a_small_shared_memory_is_a_failure_for_gpus_only(tmp_path: Path, here: dict[str, Any]) -> None:
    (tmp_path / "shm").mkdir()
    small = mounted(["host"], [f"mount -t tmpfs -o size=64m shm {tmp_path}/shm"], shm=str(tmp_path / "shm"))
    fault("host.shm", small, "64.0 MiB free of 64.0 MiB", ON_GPUS, status="fail")
    mended("host.shm", small, SMOL)
    fault("host.shm", gathered("host", shm=str(tmp_path / "none")), "No such file")
    mended("host.shm", changed(here, "host.shm.free_bytes", 16 * GIB), ON_GPUS)
    # Eight ranks, four loaders each, two packs of 8,192 tokens of 57,344 bytes.
    kimi = resolve("full", "kimi-k2.5", "8x-rtx-pro-6000")
    told = fault("host.shm", changed(here, "host.shm.free_bytes", 16 * GIB), "28.0 GiB of packs wait there", kimi, status="fail")
    assert "--shm-size=29g" in told.remedy
    mended("host.shm", changed(here, "host.shm.free_bytes", 29 * GIB), kimi)


def test_limits_that_are_too_low_are_inherited_and_told(tmp_path: Path) -> None:
    def limited(files: int) -> dict[str, Any]:
        lower = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))"
        found = in_process(["host"], lower)
        return changed(found, "host.tasks", {"limit": None, "used": None})

    fault("host.limits", limited(256), "open files 256", status="fail")
    fault("host.limits", limited(1024), "open files 1,024", status="warn")
    roomy = changed(limited(8192), "host.limits.nproc", None)
    mended("host.limits", roomy)
    few = tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/pids.max": "100", "sys/fs/cgroup/pids.current": "90"})
    fault("host.limits", gathered("host", root=few), "90 of 100 tasks", status="fail")


def test_a_locale_that_is_not_utf_8_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}.items():
        monkeypatch.setenv(name, value)
    fault("host.locale", gathered("python"), "ANSI_X3.4-1968")
    monkeypatch.setenv("PYTHONUTF8", "1")
    mended("host.locale", gathered("python"))
    unclear("host.locale", gathered("python", pythons={"worker": "/no/python", "server": ""}), "does not say")


def test_a_login_shell_that_prints_waits_or_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_CLIENT", "192.0.2.1 5000 22")
    startup = tmp_path / ".bashrc"
    startup.write_text("echo Welcome to the cluster\necho 'module: not found' >&2\n")
    told = fault("host.shell", gathered("host", shell="/bin/bash"), "Welcome to the cluster")
    assert "module: not found" in told.evidence
    waited_for = tmp_path / "pid"
    startup.write_text(f"sleep 600 & echo $! > {waited_for}\nwait\n")
    assert "did not end within 5 s" in host.login_shell("/bin/bash", limit_s=5)["error"]
    assert gone(int(waited_for.read_text())), "nothing of the shell is left"
    fault("host.shell", gathered("host", shell="/no/shell"), "cannot be run")
    startup.write_text("export NOTHING=1\n")
    quiet = gathered("host", shell="/bin/bash")
    fault("host.shell", changed(quiet, "host.shell.took_s", 9.0), "9000 ms")
    mended("host.shell", changed(quiet, "host.shell.took_s", 0.03))


def test_a_proxy_that_catches_this_machine_s_own_requests_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(n for p in ("http", "https", "all") for n in (f"{p}_proxy", f"{p.upper()}_PROXY")), "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    mended("host.proxy", gathered("host"))
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@proxy:3128")
    told = fault("host.proxy", gathered("host"), "proxy:3128")
    assert "secret" not in told.evidence and "secret" not in str(gathered("host"))
    monkeypatch.setenv("NO_PROXY", "localhost, 127.0.0.1,.cluster")
    mended("host.proxy", gathered("host"))


def utmp(*entries: tuple[int, str, str, str]) -> bytes:
    """A utmp file: (kind, user, line, from); kind 7 is a login, 8 one that has ended."""
    form = struct.Struct("<h2xi32s4s32s256s2h3i4i20s")
    return b"".join(
        form.pack(kind, 100, line.encode(), b"1", user.encode(), where.encode(), 0, 0, 0, 1_700_000_000, 0, 0, 0, 0, 0, b"")
        for kind, user, line, where in entries
    )


def test_who_else_is_logged_in_is_read_from_utmp(tmp_path: Path, here: dict[str, Any]) -> None:
    root = tree(
        tmp_path, {"var/run/utmp": utmp((7, "alice", "pts/1", "10.0.0.9"), (8, "bob", "pts/2", ""), (2, "reboot", "~", ""))}
    )
    facts = changed(gathered("host", root=root), "host.helpers", [])
    assert "bob" not in fault("host.company", facts, "alice from 10.0.0.9").evidence
    alone = changed(changed(here, "host.helpers", []), "host.sessions", [])
    mended("host.company", alone)


def test_another_console_s_helper_is_seen_while_it_lives() -> None:
    other = Channel(sys.executable, "-I", "-S", str(RUNNER))
    other.ask("hello")
    facts = gathered("host")
    seen = [h for h in facts["host"]["helpers"] if h["pid"] == other.process.pid]
    assert len(seen) == 1 and not seen[0]["orphan"]
    fault("host.company", changed(facts, "host.helpers", seen), "watching: ")
    fault("host.company", changed(facts, "host.helpers", [{**seen[0], "orphan": True}]), f"pid {other.process.pid}")
    other.close()
    assert other.process.pid not in [h["pid"] for h in gathered("host")["host"]["helpers"]]


VFORK = r"""
#include <unistd.h>
int main(void) { if (vfork() == 0) { execlp("sleep-that-is-not-there", "x", (char *)0); sleep(60); _exit(0); } return 0; }
"""


@pytest.fixture
def waiting_in_the_kernel(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in state D: a parent that has vforked waits so until its child ends."""
    (tmp_path / "vfork.c").write_text(VFORK)
    subprocess.run(["gcc", "-w", "-o", str(tmp_path / "stuck"), str(tmp_path / "vfork.c")], check=True)
    child = subprocess.Popen([str(tmp_path / "stuck")], start_new_session=True)
    yield child
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def test_a_process_that_waits_in_the_kernel_is_told_by_name(waiting_in_the_kernel: subprocess.Popen[bytes]) -> None:
    pid = waiting_in_the_kernel.pid
    wait_for(lambda: pid in [p["pid"] for p in host.stuck(0.05)])
    facts = gathered("host")
    only = [p for p in facts["host"]["stuck"] if p["pid"] == pid]
    fault("host.stuck", changed(facts, "host.stuck", only), f"(pid {pid})")


def test_many_dead_processes_are_told_with_the_parent_that_does_not_reap() -> None:
    script = "import os, sys\nfor _ in range(60):\n    os.fork() or os._exit(0)\nprint('made', flush=True)\nsys.stdin.read()"
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout and parent.stdin and parent.stdout.readline() == b"made\n"
    wait_for(lambda: host.zombies()["count"] >= 60)
    facts = gathered("host")
    fault("host.stuck", changed(facts, "host.stuck", []), f"(pid {parent.pid})")
    parent.stdin.close()
    parent.wait()
    parent.stdout.close()
    clean = changed(changed(gathered("host"), "host.stuck", []), "host.zombies", {"count": 0, "parents": {}})
    mended("host.stuck", clean)
