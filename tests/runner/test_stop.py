"""A stop ends every process of the run, in every condition of its supervisor, and is written down."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from eagle3.runner import identity, rundir
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from eagle3.runner.stop import stop
from tests.runner.support import kill_supervisor, plan, shell, started, state_is, summary, wait_end, wait_for

GRANDCHILD = (
    "import os, signal, subprocess, sys, time\n"
    "{leader}\n"
    'code = \'import signal, sys, time\\n{child}\\nopen(sys.argv[1], "w").write("up")\\ntime.sleep(600)\'\n'
    "child = subprocess.Popen([sys.executable, '-S', '-c', code, 'up'], start_new_session=True, env={env})\n"
    "open('child.tmp', 'w').write(str(child.pid)); os.rename('child.tmp', 'child')\n"
    "{then}\n"
)
"""A worker with a child in a session of its own, as vLLM's engine and torchrun's workers are."""

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def tree(leader: str = "", child: str = "", then: str = "time.sleep(600)", env: str = "os.environ") -> str:
    return GRANDCHILD.format(leader=leader, child=child, then=then, env=env)


def child_of(run_dir: Path) -> identity.Identity:
    wait_for(lambda: (run_dir / "child").exists() and (run_dir / "up").exists())
    return identity.of(int((run_dir / "child").read_text()))


def test_a_stop_ends_the_worker_and_its_grandchild_in_another_session(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", plan(tree()))["run_dir"])
    worker, child = started(run_dir), child_of(run_dir)
    answer = stop(run_dir, "now", actor="ann")
    assert (answer["attempt"], answer["already"]) == (1, False)
    ended = wait_end(run_dir)
    assert (ended["signal"], ended["stopped"], ended["survivors"]) == (signal.SIGTERM, True, [])
    assert not identity.alive(worker) and not identity.alive(child)
    found = summary(run_dir)
    assert (found["state"], found["state_text"], found["stop_by"]) == ("stopped", "stopped by ann", "ann")
    assert "TERM" in (run_dir / "events.jsonl").read_text()
    assert stop(run_dir, "now")["already"]


def test_processes_deaf_to_term_are_killed_after_the_grace(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", plan(tree(leader=DEAF, child=DEAF)))["run_dir"])
    worker, child = started(run_dir), child_of(run_dir)
    stop(run_dir, "now", grace_s=0.2)
    ended = wait_end(run_dir)
    assert (ended["signal"], ended["stopped"], ended["survivors"]) == (signal.SIGKILL, True, [])
    assert not identity.alive(worker) and not identity.alive(child)


@pytest.mark.parametrize("env", ["os.environ", "{}"])
def test_what_a_finished_worker_leaves_running_is_ended_and_does_not_spoil_its_success(workspace: Path, env: str) -> None:
    then = "import pathlib\nwhile not pathlib.Path('up').exists(): time.sleep(0.01)"
    run_dir = Path(launch(workspace, "r", "", plan(tree(child=DEAF, then=then, env=env)))["run_dir"])
    child = child_of(run_dir)
    ended = wait_end(run_dir)
    assert (ended["code"], ended["stopped"], ended["survivors"]) == (0, False, [])
    assert not identity.alive(child) and summary(run_dir)["state"] == "finished"


def test_a_worker_that_saves_and_says_75_is_stopped(workspace: Path) -> None:
    script = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); open('up', 'w'); time.sleep(600)"
    run_dir = Path(launch(workspace, "r", "", plan(script, grace_s=30))["run_dir"])
    wait_for(lambda: (run_dir / "up").exists())
    stop(run_dir, "now")
    ended = wait_end(run_dir)
    assert (ended["code"], ended["signal"], ended["stopped"]) == (75, None, True)


def test_a_stop_after_the_checkpoint_is_the_workers_to_honour(workspace: Path) -> None:
    script = "import pathlib, sys, time\nwhile not pathlib.Path('stop.json').exists(): time.sleep(0.02)\nsys.exit(75)"
    run_dir = Path(launch(workspace, "r", "", plan(script))["run_dir"])
    stop(run_dir, "after-checkpoint", actor="bob")
    assert wait_end(run_dir)["code"] == 75
    assert summary(run_dir)["state"] == "stopped"


def test_a_crash_while_stopping_after_the_checkpoint_is_still_a_failure(workspace: Path) -> None:
    script = "import pathlib, sys, time\nwhile not pathlib.Path('stop.json').exists(): time.sleep(0.02)\nsys.exit(1)"
    run_dir = Path(launch(workspace, "r", "", plan(script))["run_dir"])
    stop(run_dir, "after-checkpoint")
    assert wait_end(run_dir)["stopped"] is False
    assert summary(run_dir)["state"] == "failed"


def test_a_stop_now_is_not_softened_by_a_later_wish(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", plan(f"import signal, time\n{DEAF}\nopen('up', 'w')\ntime.sleep(600)"))["run_dir"])
    wait_for(lambda: (run_dir / "up").exists())
    supervisor = started(run_dir)["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGSTOP)  # else the run may have ended before the last wish
    stop(run_dir, "after-checkpoint")
    stop(run_dir, "now", grace_s=1)
    assert stop(run_dir, "after-checkpoint")["mode"] == "now"
    os.kill(supervisor, signal.SIGCONT)
    assert wait_end(run_dir)["signal"] == signal.SIGKILL


def test_an_old_stop_does_not_stop_the_resumed_run(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600"))["run_dir"])
    stop(run_dir, "now", actor="ann")
    wait_end(run_dir)
    launch(workspace, "r", "", shell("exec sleep 2"), resume=True)
    assert summary(run_dir)["stop_mode"] is None
    assert wait_end(run_dir, 2)["code"] == 0


def test_a_run_whose_supervisor_was_killed_goes_on_unsupervised_and_can_be_stopped(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", plan(tree(child=DEAF)))["run_dir"])
    worker, child = started(run_dir), child_of(run_dir)
    kill_supervisor(run_dir)
    assert summary(run_dir)["state"] == "unsupervised" and identity.alive(worker)
    assert stop(run_dir, "now", actor="ann", grace_s=0.3)["state"] == "unsupervised"
    ended = wait_end(run_dir)
    assert (ended["code"], ended["signal"], ended["stopped"], ended["survivors"]) == (None, None, True, [])
    assert not identity.alive(worker) and not identity.alive(child)
    assert summary(run_dir)["state"] == "stopped"


def test_what_a_run_of_unknown_end_left_alive_is_named_and_can_be_stopped(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", plan(tree(), heartbeat_s=0.1))["run_dir"])
    child = child_of(run_dir)
    wait_for(
        lambda: child["pid"] in [p[0] for p in rundir.read_object(run_dir / "attempts/1/heartbeat.json").get("processes", [])]
    )
    worker = started(run_dir)
    kill_supervisor(run_dir)
    os.kill(worker["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    assert str(child["pid"]) in summary(run_dir)["state_text"]
    stop(run_dir, "now", grace_s=0.3)
    assert wait_end(run_dir)["survivors"] == []
    assert not identity.alive(child)


def test_a_resume_waits_for_what_the_last_attempt_left_alive(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", plan(tree()))["run_dir"])
    worker, child = started(run_dir), child_of(run_dir)
    kill_supervisor(run_dir)
    os.kill(worker["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    with pytest.raises(VerbError, match=str(child["pid"])) as caught:
        launch(workspace, "r", "", {}, resume=True)
    assert caught.value.code == "busy" and "Stop" in caught.value.remedy
    assert not stop(run_dir, "now", grace_s=0.2)["already"]
    wait_for(lambda: not identity.alive(child))
    wait_end(run_dir)
    assert launch(workspace, "r", "", shell("true"), resume=True)["attempt"] == 2


def test_a_signal_to_the_supervisor_is_a_stop(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600"))["run_dir"])
    os.kill(started(run_dir)["supervisor"]["pid"], signal.SIGTERM)
    ended = wait_end(run_dir)
    assert ended["stopped"] and summary(run_dir)["state"] == "stopped"


def test_an_unmarked_process_is_never_signalled(workspace: Path) -> None:
    # The pid of a dead worker, given to somebody else: here ours.
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600"))["run_dir"])
    worker = started(run_dir)
    kill_supervisor(run_dir)
    stranger = identity.of(os.getppid())
    rundir.write_json(run_dir / "attempts/1/started.json", {**worker, "pid": stranger["pid"]})
    stop(run_dir, "now", grace_s=0.2)
    wait_end(run_dir)
    assert identity.alive(stranger) and not identity.alive(worker), "the worker bears the marker, whatever is written down"


def test_a_stop_of_nothing_or_in_no_known_way_is_refused(workspace: Path) -> None:
    with pytest.raises(VerbError) as caught:
        stop(workspace / "runs/nope", "now")
    assert caught.value.code == "not_found"
    with pytest.raises(VerbError) as caught:
        stop(workspace / "runs/nope", "gently")
    assert caught.value.code == "usage"
