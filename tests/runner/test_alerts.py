"""The operator is told without a console, each fact once, and no hook can hurt the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.spec import Alerts
from eagle3.runner import identity, proctable, rundir, settling, verbs
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from eagle3.runner.watch import settle
from tests.runner.receiver import Receiver
from tests.runner.support import (
    events,
    files_with,
    kill_supervisor,
    rows,
    shell,
    started,
    state_is,
    wait_end,
    wait_for,
    wait_gone,
)
from tests.support.guards import the_guard


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def hooks(**more: Any) -> dict[str, Any]:
    """All kinds, with intervals and waits that a test has time for."""
    return {"timeout_s": 10, "min_interval_s": 0, "retry_s": 0.05, **more}


def told(run_dir: Path, attempt: int = 1) -> list[dict[str, Any]]:
    """The rows of the attempt's ledger."""
    return rows(run_dir / "attempts" / str(attempt) / "alerts.jsonl")


def statuses(run_dir: Path, fact: str, attempt: int = 1) -> list[str]:
    return [row["status"] for row in told(run_dir, attempt) if row["id"] == fact]


def settled(run_dir: Path, fact: str, attempt: int = 1) -> Callable[[], bool]:
    return lambda: bool({"sent", "failed", "dropped"} & set(statuses(run_dir, fact, attempt)))


def noting(place: Path) -> list[str]:
    """A command that adds a line for every alert it gets."""
    return ["/bin/sh", "-c", f'echo "$EAGLE3_ALERT_ID" >> {place}']


GUARD = """printf '{"v":1,"attempt":1,"kind":"guard-loss","level":"warn","text":"the loss is not finite"}\\n' >> events.jsonl"""


def test_a_command_gets_the_end_of_the_run_on_its_stdin_and_in_its_environment(workspace: Path, tmp_path: Path) -> None:
    place = tmp_path / "alert"
    command = ["/bin/sh", "-c", "env > $0.env; cat > $0.part; mv $0.part $0.json", str(place)]
    label = {"size": "smoke"}
    run_dir = Path(launch(workspace, "r", "", shell("exit 0", hooks=hooks(command=command), label=label))["run_dir"])
    wait_for(settled(run_dir, "end-1"))
    alert = json.loads(Path(f"{place}.json").read_text())
    assert (alert["kind"], alert["level"], alert["run_id"], alert["attempt"]) == ("finish", "info", "r", 1)
    assert alert["text"] == "finished" and alert["label"] == label and alert["host"] and alert["t"] > 0
    env = dict(line.split("=", 1) for line in Path(f"{place}.env").read_text().splitlines() if "=" in line)
    assert (env["EAGLE3_ALERT_KIND"], env["EAGLE3_ALERT_RUN_ID"]) == ("finish", "r")
    assert "EAGLE3_RUN_DIR" not in env, "it is no process of the run"
    assert statuses(run_dir, "end-1") == ["due", "sending", "sent"]


def test_a_webhook_gets_a_failure_with_the_end_of_the_log_and_no_secret_in_it(workspace: Path, receiver: Receiver) -> None:
    script = "echo 'using HF_TOKEN=hf_abcdefghijklmnop'; echo out of memory; exit 3"
    run_dir = Path(launch(workspace, "r", "", shell(script, hooks=hooks(webhook=f"{receiver.url}/x")))["run_dir"])
    wait_for(settled(run_dir, "end-1"))
    [alert] = receiver.bodies
    assert (alert["kind"], alert["level"], alert["text"]) == ("failure", "error", "failed with exit code 3")
    assert "out of memory" in alert["detail"] and "hf_abc" not in json.dumps(alert)
    assert receiver.headers[0]["Content-Type"] == "application/json"


def test_a_stop_is_told_as_a_stop_and_only_where_it_was_asked_for(workspace: Path, receiver: Receiver) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exit 75", hooks=hooks(webhook=receiver.url, on=["stop"])))["run_dir"])
    wait_for(settled(run_dir, "end-1"))
    other = Path(launch(workspace, "q", "", shell("exit 0", hooks=hooks(webhook=receiver.url, on=["stop"])))["run_dir"])
    wait_end(other)
    wait_gone(other)
    assert [alert["kind"] for alert in receiver.bodies] == ["stop"] and told(other) == []


def test_a_webhook_whose_address_is_a_secret_stands_nowhere(workspace: Path, receiver: Receiver) -> None:
    receiver.behave = 500
    address = f"{receiver.url.replace('://', '://bot:s3cr3tPassw0rd@')}/services/T0/verysecretpath"
    script = 'echo "${HOOK:-the worker has none}"'
    plan = shell(script, hooks=hooks(webhook_env="HOOK", retry_s=0.01))
    run_dir = Path(launch(workspace, "r", "", plan, secret_env={"HOOK": address})["run_dir"])
    wait_for(settled(run_dir, "end-1"))
    assert receiver.paths == ["/services/T0/verysecretpath"] * 3
    assert receiver.headers[0]["Authorization"].startswith("Basic ")
    assert (run_dir / "attempts/1/run.log").read_text() == "the worker has none\n"
    [event] = events(run_dir, "alert_failed")
    assert "answered 500" in event["text"] and "127.0.0.1" in event["text"]
    assert files_with("answered 500", workspace) and not files_with("verysecretpath", workspace) + files_with("s3cr3t", workspace)


@pytest.mark.parametrize("behave", ["hang", "drip", 302])
def test_a_webhook_that_hangs_drips_or_leads_elsewhere_is_given_up_in_time(
    workspace: Path, receiver: Receiver, behave: int | str
) -> None:
    receiver.behave = behave
    # An answer needs some time on a machine that is busy elsewhere; one that never comes may be given up soon.
    plan = shell("exit 0", hooks=hooks(webhook=receiver.url, timeout_s=10 if behave == 302 else 0.5))
    run_dir = Path(launch(workspace, "r", "", plan)["run_dir"])
    assert wait_end(run_dir)["code"] == 0, "the end is on disk before anybody is told of it"
    wait_for(settled(run_dir, "end-1"))
    words = "answered 302" if behave == 302 else "did not answer"
    assert words in told(run_dir)[-1]["error"] and statuses(run_dir, "end-1")[-1] == "failed"
    assert "/elsewhere" not in receiver.paths


def test_a_command_that_hangs_is_ended_with_all_it_started_and_delays_nothing(workspace: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = ["/bin/sh", "-c", f"setsid sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; exec sleep 600"]
    script = f"{GUARD}; while [ ! -e go ]; do sleep 0.05; done"
    plan = shell(script, heartbeat_s=0.1, hooks=hooks(command=command, timeout_s=0.7, on=["guard"]))
    run_dir = Path(launch(workspace, "r", "", plan)["run_dir"])
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) >= 2)
    (run_dir / "go").touch()
    assert wait_end(run_dir) | {"t": 0} == {
        "v": 1, "attempt": 1, "code": 0, "signal": None, "stopped": False, "t": 0, "survivors": [],
    }  # fmt: skip
    assert events(run_dir, "ending") == [], "a hook is nothing that the worker left behind"
    wait_for(lambda: told(run_dir)[-1]["status"] == "failed")
    wait_for(lambda: not [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()])
    assert "did not end within" in events(run_dir, "alert_failed")[0]["text"]


def test_a_hooks_daemon_is_ended_with_the_hook(workspace: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = ["/bin/sh", "-c", f"setsid sleep 600 > /dev/null 2>&1 & echo $! > {pid_file}"]
    run_dir = Path(launch(workspace, "r", "", shell("exit 0", hooks=hooks(command=command)))["run_dir"])
    wait_for(settled(run_dir, "end-1"))
    assert statuses(run_dir, "end-1")[-1] == "sent"
    daemon = identity.stat(int(pid_file.read_text()))
    assert daemon is None or not proctable.is_live(daemon), "nobody need have waited for it yet"


def test_a_hook_that_floods_its_output_is_quoted_by_its_last_line(workspace: Path) -> None:
    command = [
        sys.executable,
        "-S",
        "-c",
        "import sys; print('x' * (8 << 20)); print('token=abcdefghijkl no route'); sys.exit(9)",
    ]
    run_dir = Path(launch(workspace, "r", "", shell("exit 0", hooks=hooks(command=command, retry_s=0.01)))["run_dir"])
    wait_for(settled(run_dir, "end-1"))
    assert told(run_dir)[-1]["error"].endswith("ended with 9: token=[hidden] no route")
    [event] = events(run_dir, "alert_failed")
    assert event["level"] == "warn" and "(finish)" in event["text"], "three failures are one warning"


def test_a_guard_and_a_low_disk_are_told_while_the_run_goes_on(workspace: Path, receiver: Receiver) -> None:
    plan = shell(f"{GUARD}; exec sleep 600", heartbeat_s=0.1, disk_floor_bytes=1 << 60, hooks=hooks(webhook=receiver.url))
    run_dir = Path(launch(workspace, "r", "", plan)["run_dir"])
    wait_for(lambda: len(receiver.bodies) >= 2)
    found = {alert["kind"]: alert for alert in receiver.bodies}
    assert found["guard"]["text"] == "the loss is not finite" and found["guard"]["level"] == "warn"
    assert "disk is low" in found["disk_low"]["text"] and len(events(run_dir, "guard-disk")) == 1
    low = the_guard(events(run_dir, "guard-disk"), "disk")
    assert low["guard"]["threshold"] == 1.25 * (1 << 60) and low["guard"]["counts"] == {"floor_bytes": 1 << 60}
    assert state_is(run_dir, "running")()


def test_an_error_of_the_worker_is_a_guard_but_its_last_word_is_the_failure(workspace: Path, receiver: Receiver) -> None:
    line = '{"v":1,"attempt":1,"kind":"%s","level":"error","actor":"worker","text":"%s"}'
    script = f"printf '{line}\\n{line}\\n' oops 'rows are lost' failed 'train: it broke' >> events.jsonl; exit 1"
    run_dir = Path(launch(workspace, "r", "", shell(script, hooks=hooks(webhook=receiver.url)))["run_dir"])
    wait_for(settled(run_dir, "end-1"))
    wait_for(lambda: len(receiver.bodies) == 2)
    assert [(a["kind"], a["text"]) for a in receiver.bodies] == [("failure", "train: it broke"), ("guard", "rows are lost")], (
        "the end is told first"
    )


def test_many_of_a_kind_are_told_together(workspace: Path, receiver: Receiver) -> None:
    script = f"{GUARD}; {GUARD}; {GUARD}; while [ ! -e go ]; do sleep 0.05; done"
    plan = shell(script, heartbeat_s=0.1, hooks=hooks(webhook=receiver.url, min_interval_s=600))
    run_dir = Path(launch(workspace, "r", "", plan)["run_dir"])
    wait_for(lambda: receiver.bodies)
    (run_dir / "go").touch()
    wait_for(settled(run_dir, "end-1"))
    wait_for(lambda: len(receiver.bodies) == 3)
    texts = [alert["text"] for alert in receiver.bodies if alert["kind"] == "guard"]
    assert texts == ["the loss is not finite", "the loss is not finite (and 1 more of this kind)"]


def test_each_fact_is_told_once_although_the_supervisor_dies(workspace: Path, tmp_path: Path) -> None:
    place = tmp_path / "told"
    plan = shell(
        f"[ $EAGLE3_ATTEMPT = 2 ] && exit 0; {GUARD}; exec sleep 600", heartbeat_s=0.1, hooks=hooks(command=noting(place))
    )
    run_dir = Path(launch(workspace, "r", "", plan)["run_dir"])
    wait_for(lambda: any(row["status"] == "sent" for row in told(run_dir)))
    kill_supervisor(run_dir)
    settle(run_dir, 1, {})
    assert statuses(run_dir, "end-1") == [], "the worker lives: the attempt has not ended"
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    launch(workspace, "r", "", {}, resume=True)
    wait_for(settled(run_dir, "end-2", 2))
    wait_for(settled(run_dir, "end-1"))
    settle(run_dir, 1, {})
    facts = place.read_text().split()
    assert sorted(facts) == ["end-1", "end-2", facts[0]] and facts[0].startswith("guard-1-")
    assert next(row["kind"] for row in told(run_dir) if row["id"] == "end-1") == "failure"


def test_what_was_due_is_told_once_by_whoever_comes_and_what_may_have_arrived_is_not_repeated(
    workspace: Path, tmp_path: Path
) -> None:
    place = tmp_path / "told"
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", hooks=hooks(command=noting(place))))["run_dir"])
    kill_supervisor(run_dir)
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    for fact, status in [("stall-1-1", "due"), ("disk-1-1", "due"), ("disk-1-1", "sending")]:
        alert = {"id": fact, "kind": "stall", "text": "x", "level": "warn"}
        row = {"v": 1, "id": fact, "kind": "stall", "status": status, **({"alert": alert} if status == "due" else {})}
        rundir.append_line(run_dir / "attempts/1/alerts.jsonl", row)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: settle(run_dir, 1, {}), range(4)))
    wait_for(settled(run_dir, "stall-1-1"))
    wait_for(settled(run_dir, "end-1"))
    assert sorted(place.read_text().split()) == ["end-1", "stall-1-1"]


def test_a_stop_without_a_supervisor_tells_the_end(workspace: Path, tmp_path: Path) -> None:
    from eagle3.runner.stop import stop

    place = tmp_path / "told"
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", hooks=hooks(command=noting(place))))["run_dir"])
    kill_supervisor(run_dir)
    stop(run_dir, "now")
    wait_for(settled(run_dir, "end-1"))
    assert place.read_text() == "end-1\n" and told(run_dir)[0]["kind"] == "stop"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"command": ["/no/such/program"]}, "'/no/such/program' cannot be run"),
        ({"command": "mail me"}, "must be a list"),
        ({"webhook": "ftp://host/secretpath"}, "ftp://host/… is no http"),
        ({"webhook_env": "HOOK"}, "is the secret HOOK, which was not given"),
        ({"command": ["/bin/true"], "on": ["full_moon"]}, "no alert 'full_moon'"),
    ],
)
def test_hooks_that_cannot_work_are_refused_before_anything_is_made(workspace: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(VerbError) as caught:
        launch(workspace, "r", "", shell("true", hooks=wrong))
    assert words in caught.value.text and caught.value.code == "usage" and not workspace.exists()


@pytest.mark.parametrize(
    "wrong", [{"webhook": "https://me:word@host/x"}, {"webhook": "host/x"}, {"webhook": "https://h/x", "webhook_env": "X"}]
)
def test_a_spec_refuses_a_webhook_that_would_give_a_password_away_or_lead_nowhere(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="webhook"):
        Alerts.model_validate(wrong)


def test_the_command_line_starts_a_run_that_tells(workspace: Path, tmp_path: Path) -> None:
    place = tmp_path / "told"
    worker = tmp_path / "worker"  # stands for the interpreter; how a run works is not what this is about
    worker.write_text("#!/bin/sh\nexit 1\n")
    worker.chmod(0o755)
    settings = [f"worker_python={worker}", f"alerts.command={json.dumps(noting(place))}", "alerts.min_interval_s=0"]
    command = [sys.executable, "-m", "eagle3", "run", "--workspace", str(workspace), "--run-id", "r", "--anyway", "--detach"]
    subprocess.run([*command, *(part for item in settings for part in ("--set", item))], check=True, timeout=60)
    wait_for(lambda: place.exists() and place.read_text() == "end-1\n")
    assert rundir.read_object(workspace / "runs/r/launch.json")["disk_floor_bytes"] == 1 << 30


def test_the_end_of_a_run_whose_supervisor_was_killed_is_told_when_somebody_next_looks(workspace: Path, tmp_path: Path) -> None:
    place = tmp_path / "ids"
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", hooks=hooks(command=noting(place))))["run_dir"])
    assert not settling.is_due(run_dir), "its supervisor lives"
    kill_supervisor(run_dir)
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(lambda: settling.is_due(run_dir))
    verbs.handle("list", {"workspace": str(workspace)})
    wait_for(settled(run_dir, "end-1"))
    assert place.read_text().split() == ["end-1"]
    assert not settling.is_due(run_dir)
