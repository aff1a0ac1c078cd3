"""A stop reaches what leaves its parent: torchrun's ranks in their own sessions, an engine that forked twice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from eagle3.runner import identity, proctable, rundir
from eagle3.runner.launch import launch
from eagle3.runner.stop import stop
from tests.runner.support import plan, shell, state_is, summary, wait_end, wait_for

RANK = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
total = __import__("torch").ones(1)
dist.all_reduce(total)
place = os.path.join(sys.argv[1], f"rank{dist.get_rank()}")
with open(place + ".new", "w") as file:
    file.write(f"{os.getpid()} {os.getsid(0)} {int(total.item())}")
os.rename(place + ".new", place)
while True:
    time.sleep(1)
"""

ENGINE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import time; open('engine', 'w').write('up'); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-S", "-c", code], {})
    os._exit(0)
os.wait()
while not os.path.exists("engine"):
    time.sleep(0.01)
"""
"""An engine as vLLM's can be: forked twice, a session of its own, deaf to TERM, and without the environment of the run."""


@pytest.mark.slow
def test_a_torchrun_tree_with_ranks_in_sessions_of_their_own_is_gone(workspace: Path, tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program), "{run_dir}"]
    worker = {"argv": torchrun, "grace_s": 0.2, "heartbeat_s": 0.5, "env": {"OMP_NUM_THREADS": "1"}}
    run_dir = Path(launch(workspace, "r", "", worker)["run_dir"])
    ranks = [run_dir / f"rank{number}" for number in range(2)]
    wait_for(lambda: all(rank.exists() for rank in ranks), deadline_s=110)
    told = [[int(word) for word in rank.read_text().split()] for rank in ranks]
    assert [total for _, _, total in told] == [2, 2], "the ranks have spoken with each other"
    processes = [identity.of(pid) for pid, _, _ in told]
    assert len({session for _, session, _ in told}) == 2
    beat = wait_for(lambda: _beat_with(run_dir, [p["pid"] for p in processes]))
    assert beat["rss_bytes"] > sum(_rss(p["pid"]) for p in processes) // 2 and beat["cpu_s"] > 0 and beat["disk_free_bytes"] > 0
    stop(run_dir, "now", actor="ann")
    assert wait_end(run_dir)["survivors"] == []
    assert not [p for p in processes if identity.alive(p)]
    wait_for(lambda: not proctable.marked(str(run_dir), 1))


def _beat_with(run_dir: Path, pids: list[int]) -> dict[str, float]:
    beat: dict[str, float] = rundir.read_object(run_dir / "attempts/1/heartbeat.json")
    seen = [pid for pid, _ in beat.get("processes", [])]  # type: ignore[attr-defined]
    return beat if set(pids) <= set(seen) else {}


def _rss(pid: int) -> int:
    found = identity.stat(pid)
    return found.rss_bytes if found else 0


@pytest.mark.parametrize("end", ["stop", "by itself"])
def test_an_engine_that_forked_twice_and_left_everything_of_its_parent_is_gone(workspace: Path, end: str) -> None:
    script = ENGINE + ("" if end == "by itself" else "while True: time.sleep(600)\n")
    run_dir = Path(launch(workspace, "r", "", plan(script))["run_dir"])
    wait_for(lambda: (run_dir / "engine").exists())
    if end == "stop":
        stop(run_dir, "now", grace_s=0.2)
    ended = wait_end(run_dir)
    assert ended["survivors"] == []
    # Its supervisor itself needs a moment more after it has written down the end.
    wait_for(lambda: not [p for p in proctable.snapshot().values() if _works_in(p.pid, run_dir)])
    assert summary(run_dir)["state"] == ("stopped" if end == "stop" else "finished")


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink()) == str(folder)
    except OSError:
        return False


def test_a_process_that_may_not_be_ended_is_named(workspace: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a process of another user")
    # What this user may not signal stands for what nobody can, a process in uninterruptible sleep: both outlive KILL.
    script = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n    os.setuid(65534)\n    time.sleep(600)\n"
        "open('up', 'w').close()\ntime.sleep(600)"
    )
    run_dir = Path(launch(workspace, "r", "", plan(script))["run_dir"])
    wait_for(lambda: (run_dir / "up").exists())
    child = wait_for(lambda: [p for p in proctable.snapshot().values() if _is_foreign(p, run_dir)])[0]
    try:
        stop(run_dir, "now", actor="ann", grace_s=0.1)
        ended = wait_end(run_dir)
        assert [survivor["pid"] for survivor in ended["survivors"]] == [child.pid] and ended["survivors"][0]["name"]
        assert f"still alive: {child.pid}" in summary(run_dir)["state_text"]
        assert f"still alive: {child.pid}" in (run_dir / "events.jsonl").read_text()
        assert identity.is_running(child.pid, child.start_ticks), "another user's process is never killed"
    finally:
        os.kill(child.pid, 9)


def _is_foreign(process: identity.Stat, run_dir: Path) -> bool:
    return proctable.owner(process.pid) == 65534 and str(run_dir) in proctable.command_line(process.pid)


def test_an_attempt_that_takes_longer_than_its_limit_is_stopped(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", time_limit_s=0.1))["run_dir"])
    assert wait_end(run_dir)["stopped"]
    wait_for(state_is(run_dir, "stopped"))
    assert summary(run_dir)["state_text"] == "stopped by the time limit of 0 s"
