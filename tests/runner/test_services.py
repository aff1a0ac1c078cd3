"""What holds the device yields only by consent, and is started again exactly once, whatever becomes of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3.cli import app
from eagle3.core.records import RunSummary, Services
from eagle3.runner import identity, rundir, verbs
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from eagle3.runner.services import servers
from eagle3.runner.stop import stop
from tests.runner.stand_ins import SECRET, Serving, Systemd, serving, systemd
from tests.runner.support import (
    RUNNER,
    Channel,
    events,
    files_with,
    kill_supervisor,
    old_python,
    plan,
    shell,
    started,
    state_is,
    summary,
    wait_end,
    wait_for,
)

__all__ = ["serving", "systemd"]  # fixtures

CONSENT = {"consented_by": "ann", "consent": "not needed before Monday", "grace_s": 0.5}
UNIT = {"unit": "vllm.service", **CONSENT}


def restored(run_dir: Path, attempt: int = 1) -> list[dict[str, Any]]:
    found = wait_for(lambda: rundir.read_json(run_dir / f"attempts/{attempt}/restored.json"))
    return list(found["services"])


def test_the_server_is_gone_before_the_worker_starts_and_back_as_it_was_when_it_has_ended(
    workspace: Path, serving: Serving
) -> None:
    before = serving.start("--engine")
    known = servers.record(identity.stat(before["pid"]))  # type: ignore[arg-type]
    assert known is not None
    script = f"ls -l attempts/1 > seen; test ! -e /proc/{before['pid']} || grep -q 'State:.Z' /proc/{before['pid']}/status"
    run_dir = Path(launch(workspace, "r", "", shell(script, services=[{**serving.wish, **CONSENT}]), actor="bob")["run_dir"])
    assert wait_end(run_dir)["code"] == 0, "the server still lived beside the worker"
    assert "yielded.json" in (run_dir / "seen").read_text()
    [outcome] = restored(run_dir)
    assert outcome["outcome"] == "restored" and outcome["pid"] != before["pid"]
    again = servers.record(identity.stat(outcome["pid"]))  # type: ignore[arg-type]
    assert again == known, "command line, environment, folder, outputs and umask"
    wait_for(lambda: serving.log.read_text() == "serving\n" * 2)
    assert len(serving.started()) == 2 and len(serving.alive()) == 1
    stopping, back = events(run_dir, "service_stopping", "service_restored")
    assert stopping["actor"] == "ann" and CONSENT["consent"] in stopping["text"] and back["actor"] == "supervisor"
    [told] = RunSummary.model_validate(summary(run_dir)).services
    assert (told.state, told.consented_by) == ("restored", "ann")


def test_what_is_needed_to_start_it_again_is_for_this_user_only_and_forgotten_afterwards(
    workspace: Path, serving: Serving, channel: Channel
) -> None:
    serving.start()
    worker = shell("while [ ! -e go ]; do sleep 0.02; done", services=[{**serving.wish, **CONSENT}], group="")
    run_dir = Path(launch(workspace, "r", "", worker)["run_dir"])
    holding = [workspace / name for name in files_with(SECRET, workspace)]
    assert [path.name for path in holding] == [".yielded-1-0.json"] and holding[0].stat().st_mode & 0o777 == 0o600
    name = str(holding[0].relative_to(run_dir))
    error = channel.ask("read", workspace=str(workspace), run_id="r", files=[{"name": name}])["error"]
    assert error["code"] == "usage" and SECRET not in json.dumps(error)
    (run_dir / "go").touch()
    restored(run_dir)
    wait_for(lambda: not holding[0].exists())
    assert files_with(SECRET, workspace) == []


@pytest.mark.parametrize("end", ["crash", "killed", "stop", "time limit", "no start", "no start of the supervisor's"])
def test_it_is_restored_however_the_run_ends(workspace: Path, serving: Serving, tmp_path: Path, end: str) -> None:
    serving.start()
    more: dict[str, Any] = {"services": [{**serving.wish, **CONSENT}]}
    if end == "time limit":
        more["time_limit_s"] = 0.2
    worker = shell("exit 3" if end == "crash" else "exec sleep 600", **more)
    if end == "no start":
        program = tmp_path / "program"
        program.write_bytes(b"\x7fELF nonsense")
        program.chmod(0o755)
        worker["argv"] = [str(program)]
    run_dir = workspace / "runs/r"
    if end.startswith("no start"):
        if end != "no start":
            worker["services"] = [{**serving.wish, **CONSENT}, {"unit": "no-such.service", **CONSENT}]
        with pytest.raises(VerbError):
            launch(workspace, "r", "", worker)
        if end != "no start":
            assert not run_dir.exists() and len(serving.started()) == 1, "refused before anything was touched"
            return
    else:
        launch(workspace, "r", "", worker)
    if end == "killed":
        os.kill(started(run_dir)["pid"], signal.SIGKILL)
    if end == "stop":
        stop(run_dir, "now", actor="bob")
    ended = wait_end(run_dir)
    assert ended.get("by") == {"stop": "bob", "time limit": "the time limit of 0 s"}.get(end)
    assert [outcome["outcome"] for outcome in restored(run_dir)] == ["restored"]
    wait_for(lambda: len(serving.started()) == 2)
    assert len(serving.alive()) == 1


def test_without_consent_the_launch_is_refused_and_names_what_holds_the_device(workspace: Path, serving: Serving) -> None:
    server = serving.start()
    for wish in (serving.wish, {**serving.wish, **CONSENT, "consent": " "}, {**serving.wish, **CONSENT, "consented_by": ""}):
        with pytest.raises(VerbError, match=rf"vLLM server {server['pid']} .*since 20.*nobody has agreed") as caught:
            launch(workspace, "r", "", shell("true", services=[wish]))
        assert caught.value.code == "busy" and "consent" in caught.value.remedy and SECRET not in caught.value.text
    assert not workspace.exists() and serving.alive() == [server["pid"]]


def test_a_description_that_fits_two_servers_stops_neither(workspace: Path, serving: Serving) -> None:
    pids = sorted(serving.start()["pid"] for _ in range(2))
    with pytest.raises(VerbError, match="fits several") as caught:
        launch(workspace, "r", "", shell("true", services=[{**serving.wish, **CONSENT}]))
    assert all(str(pid) in caught.value.text for pid in pids) and serving.alive() == pids


def test_a_server_of_another_user_is_never_touched(workspace: Path, serving: Serving) -> None:
    server = serving.start("--user", "65534")
    with pytest.raises(VerbError, match="belongs to another user") as caught:
        launch(workspace, "r", "", shell("true", services=[{**serving.wish, **CONSENT}]))
    assert caught.value.code == "permission" and serving.alive() == [server["pid"]]


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({}, "unit or by its command line"),
        ({"unit": "a", "process": "b"}, "unit or by its command line"),
        ({"unit": "--now"}, "not the name"),
        ("vllm", "list of objects"),
    ],
)
def test_a_service_that_is_not_described_is_wrong_usage(workspace: Path, wish: Any, words: str) -> None:
    with pytest.raises(VerbError, match=words) as caught:
        launch(workspace, "r", "", shell("true", services=[wish]))
    assert caught.value.code == "usage" and not workspace.exists()


def test_a_service_that_does_not_run_needs_no_consent(workspace: Path, serving: Serving) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exit 0", services=[serving.wish]))["run_dir"])
    wait_end(run_dir)
    assert summary(run_dir)["services"] == [] and not serving.started()


def test_a_server_that_does_not_end_by_term_is_killed_and_restored(workspace: Path, serving: Serving) -> None:
    serving.start("--deaf", "--engine")
    run_dir = Path(launch(workspace, "r", "", shell("exit 0", services=[{**serving.wish, **CONSENT, "grace_s": 0.1}]))["run_dir"])
    assert wait_end(run_dir)["code"] == 0 and [o["outcome"] for o in restored(run_dir)] == ["restored"]


def test_a_server_that_something_keeps_alive_fails_the_start_in_words(workspace: Path, serving: Serving) -> None:
    server = " ".join(f"'{word}'" for word in serving.argv("--kept"))
    keeps = f"{server} & while [ ! -e {serving.starts}.told ]; do sleep 0.01; done; {server} & wait"
    keeper = subprocess.Popen(["/bin/sh", "-c", keeps], env=serving.env, cwd=serving.folder)
    try:
        wait_for(lambda: len(serving.started()) == 1)
        with pytest.raises(VerbError, match="came back by itself"):
            launch(workspace, "r", "", shell("touch worked", services=[{**serving.wish, **CONSENT, "grace_s": 60}]))
    finally:
        keeper.kill()
        keeper.wait()
    assert [outcome["outcome"] for outcome in restored(workspace / "runs/r")] == ["running already"]
    assert not (workspace / "runs/r/worked").exists() and len(serving.alive()) == 1


def test_a_stop_while_the_service_is_being_stopped_means_that_the_worker_never_starts(workspace: Path, serving: Serving) -> None:
    server = serving.start("--deaf")
    worker = json.dumps(shell("touch worked; exec sleep 600", services=[{**serving.wish, **CONSENT, "grace_s": 110}]))
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from eagle3.runner.launch import launch;"
        "launch(sys.argv[2], 'r', '', json.loads(sys.argv[3]))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(RUNNER.parents[1]), str(workspace), worker], stderr=-3)
    run_dir = workspace / "runs/r"
    wait_for(lambda: (run_dir / "attempts/1/yielded.json").exists())
    assert summary(run_dir)["state"] == "starting" and "is being stopped for it first" in summary(run_dir)["state_text"]
    stop(run_dir, "now", actor="bob")
    os.kill(server["pid"], signal.SIGKILL)  # the end of its grace, which comes after the stop however slow the machine is
    ended = wait_end(run_dir)
    assert ended["stopped"] and ended["by"] == "bob" and not (run_dir / "worked").exists()
    assert restored(run_dir)[0]["outcome"] == "restored"
    caller.wait(timeout=60)


def test_a_launch_whose_service_takes_long_to_stop_is_accepted_and_starts_by_itself(
    workspace: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_it_is_being_stopped(*_: Any) -> tuple[list[int], list[int], list[int]]:
        """The launcher's patience, which ends while the service has its grace, however slow the machine is."""
        wait_for((workspace / "runs/r/attempts/1/yielded.json").exists)
        return [], [], []

    monkeypatch.setattr("eagle3.runner.launch.select", SimpleNamespace(select=until_it_is_being_stopped))
    server = serving.start("--deaf")
    worker = shell("exit 0", services=[{**serving.wish, **CONSENT, "grace_s": 110}])
    first = launch(workspace, "r", "", worker)
    assert (first["state"], first["started"], first["already"]) == ("starting", {}, False)
    monkeypatch.setattr("eagle3.runner.launch.START_WAIT_S", 0.5)
    assert launch(workspace, "r", "", worker) == {**first, "already": True}, "asking again starts nothing more"
    os.kill(server["pid"], signal.SIGKILL)  # the end of its grace
    assert wait_end(Path(first["run_dir"]))["code"] == 0
    assert [outcome["outcome"] for outcome in restored(Path(first["run_dir"]))] == ["restored"]


def test_the_next_helpers_restore_exactly_once_and_only_when_the_worker_is_gone(workspace: Path, serving: Serving) -> None:
    serving.start()
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", services=[{**serving.wish, **CONSENT}]))["run_dir"])
    kill_supervisor(run_dir)
    verbs.handle("probe", {"workspace": str(workspace)})
    assert summary(run_dir)["state"] == "unsupervised" and not serving.alive(), "the worker still has the device"
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    channels = [Channel(old_python(), "-I", "-S", str(RUNNER)) for _ in range(6)]
    for channel in channels:
        channel.send(json.dumps({"id": 1, "verb": "hello", "args": {"actor": "eve", "workspace": str(workspace)}}).encode())
    for channel in channels:
        assert channel.receive()["ok"]
        channel.close()
    assert [outcome["outcome"] for outcome in restored(run_dir)] == ["restored"]
    wait_for(lambda: len(serving.started()) == 2)
    verbs.handle("list", {"workspace": str(workspace)})
    assert len(serving.started()) == 2 and len(serving.alive()) == 1
    [event] = events(run_dir, "service_restored")
    assert event["actor"] == "eve"


def test_a_stop_without_a_supervisor_restores(workspace: Path, serving: Serving) -> None:
    serving.start()
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", services=[{**serving.wish, **CONSENT}]))["run_dir"])
    kill_supervisor(run_dir)
    stop(run_dir, "now", actor="bob", grace_s=0.2)
    assert [outcome["outcome"] for outcome in restored(run_dir)] == ["restored"]
    assert [e["actor"] for e in events(run_dir, "stop_asked", "attempt_ended", "service_restored")] == ["bob"] * 3


def test_a_resume_takes_over_what_a_dead_attempt_has_stopped(workspace: Path, serving: Serving) -> None:
    serving.start()
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", services=[{**serving.wish, **CONSENT}]))["run_dir"])
    kill_supervisor(run_dir)
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    launch(workspace, "r", "", {}, resume=True)
    assert [o["outcome"] for o in restored(run_dir)] == ["handed over"] and len(serving.started()) == 1
    verbs.handle("list", {"workspace": str(workspace)})
    stop(run_dir, "now")
    assert [o["outcome"] for o in restored(run_dir, 2)] == ["restored"]
    wait_for(lambda: len(serving.started()) == 2)
    assert len(serving.alive()) == 1


def test_another_run_waits_until_what_a_dead_one_has_stopped_is_back(workspace: Path, serving: Serving) -> None:
    serving.start()
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", services=[{**serving.wish, **CONSENT}]))["run_dir"])
    kill_supervisor(run_dir)
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    with pytest.raises(VerbError, match="nobody has agreed"):
        launch(workspace, "q", "", shell("true", services=[serving.wish]))
    assert [o["outcome"] for o in restored(run_dir)] == ["restored"] and not (workspace / "runs/q").exists()


def test_a_unit_is_stopped_and_started_by_systemctl(workspace: Path, serving: Serving, systemd: Systemd) -> None:
    systemd.add("vllm.service", serving)
    systemd("start", "vllm.service")
    pid = systemd.pid("vllm.service")
    run_dir = Path(launch(workspace, "r", "", plan("import sys; sys.exit(4)", services=[UNIT]))["run_dir"])
    assert wait_end(run_dir)["code"] == 4
    [outcome] = restored(run_dir)
    assert outcome == {"name": "vllm.service", "outcome": "restored", "text": "", "pid": systemd.pid("vllm.service")}
    assert systemd.pid("vllm.service") != pid and serving.alive() == [systemd.pid("vllm.service")]


def test_a_unit_that_cannot_be_started_again_is_an_event_and_a_later_order_starts_it(
    workspace: Path, serving: Serving, systemd: Systemd
) -> None:
    systemd.add("vllm.service", serving)
    systemd("start", "vllm.service")
    run_dir = Path(launch(workspace, "r", "", shell("while [ ! -e go ]; do sleep 0.02; done", services=[UNIT]))["run_dir"])
    place = {"workspace": str(workspace), "run_id": "r", "actor": "bob"}
    with pytest.raises(VerbError, match="is alive and needs"):
        verbs.handle("restore", place)
    (systemd.units / "broken").touch()
    (run_dir / "go").touch()
    [outcome] = restored(run_dir)
    assert outcome["outcome"] == "failed" and "bad unit file setting" in outcome["text"]
    [event] = wait_for(lambda: events(run_dir, "service_failed"))
    assert event["level"] == "error" and "by hand" in event["text"]
    verbs.handle("list", {"workspace": str(workspace)})
    assert summary(run_dir)["services"][0]["state"] == "failed", "nobody tries again without being asked"
    (systemd.units / "broken").unlink()
    assert verbs.handle("restore", place) == {"run_id": "r", "services": ["vllm.service"], "already": False}
    wait_for(lambda: summary(run_dir)["services"][0]["state"] == "restored")
    assert events(run_dir, "service_restored")[-1]["actor"] == "bob" and len(serving.alive()) == 1
    done = CliRunner().invoke(app, ["restore", "r", "--workspace", str(workspace)])
    assert done.exit_code == 0 and "Nothing that was stopped for r waits" in done.output


def test_what_was_stopped_under_another_host_name_is_started_by_nobody_here_and_the_host_is_named(
    workspace: Path, serving: Serving
) -> None:
    serving.start()
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600", services=[{**serving.wish, **CONSENT}]))["run_dir"])
    kill_supervisor(run_dir)
    yielded = run_dir / "attempts/1/yielded.json"
    rundir.write_json(yielded, {**rundir.read_object(yielded), "host": "the-old-container"})
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    verbs.handle("list", {"workspace": str(workspace)})
    [told] = summary(run_dir)["services"]
    assert (told["state"], "it was stopped on the-old-container" in told["text"]) == ("stopped", True)
    assert CliRunner().invoke(app, ["restore", "r", "--workspace", str(workspace)]).exit_code == 2
    with pytest.raises(VerbError, match=r"on another host than this, .* \(on the-old-container\)"):
        verbs.handle("restore", {"workspace": str(workspace), "run_id": "r"})
    assert len(serving.started()) == 1, "nobody has started it"


def test_services_are_told_with_state_and_age_and_without_secrets(
    serving: Serving, systemd: Systemd, channel: Channel, tmp_path: Path
) -> None:
    systemd.add("vllm.service", serving)
    systemd("start", "vllm.service")
    other = Serving(tmp_path / "other")
    other.start()
    try:
        answer = channel.result("service")
        found = {service.name: service for service in Services.model_validate(answer).services}
        unit, process = found["vllm.service"], found[f"vLLM server {other.alive()[0]}"]
        assert (unit.kind, unit.state, unit.live, unit.pid) == ("unit", "active (running)", True, systemd.pid("vllm.service"))
        assert (process.kind, process.state, process.url) == ("process", "running", "http://127.0.0.1:8123")
        for service in (unit, process):
            assert service.environment["PLAIN"] == "plain" and service.environment["HF_TOKEN"] == "[hidden]"
            assert service.command[-2:] == ["--api-key", "[hidden]"] and service.user
            assert service.since is not None and 0 <= identity_now() - service.since < 120
        assert answer["systemd"] == "" and SECRET not in json.dumps(answer)
        systemd("stop", "vllm.service")
        (systemd.units / "old").touch()  # a systemd that prints a table where JSON was asked for
        [unit] = [s for s in Services.model_validate(channel.result("service")).services if s.kind == "unit"]
        assert (unit.live, unit.pid, unit.state) == (False, None, "inactive (dead)")
        assert unit.environment == {"HF_TOKEN": "[hidden]", "PLAIN": "y"} and unit.command[2] == str(serving.program)
    finally:
        other.end()


def identity_now() -> float:
    import time

    return time.time()


def test_without_systemd_the_process_table_still_tells(serving: Serving, channel: Channel) -> None:
    server = serving.start()
    answer = Services.model_validate(channel.result("service"))
    assert answer.systemd and server["pid"] in [service.pid for service in answer.services]
