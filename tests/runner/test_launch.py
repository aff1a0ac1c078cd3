"""A run starts once, whoever asks and however often, or leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagle3.runner import identity, rundir, state
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from tests.runner.support import (
    ROOT,
    RUNNER,
    Channel,
    events,
    old_python,
    shell,
    started,
    state_is,
    summary,
    wait_end,
    wait_for,
    wait_gone,
)


def wait_starts(run_dir: Path) -> str:
    """What the worker has written at its start, once it is written: the shell makes the file empty first."""
    return wait_for(lambda: (run_dir / "starts").exists() and (run_dir / "starts").read_text())


def test_a_launch_is_answered_when_the_worker_runs(workspace: Path) -> None:
    answer = launch(
        workspace, "r", "a = 1\n", shell("exec sleep 600", label={"size": "smoke"}), report={"verdict": "ok"}, actor="--ann"
    )
    run_dir = Path(answer["run_dir"])
    assert answer["run_id"] == "r" and answer["attempt"] == 1 and not answer["already"] and answer["state"] == "running"
    assert identity.alive(answer["started"]) and identity.alive(answer["started"]["supervisor"])
    assert (run_dir / "spec.toml").read_text() == "a = 1\n"
    assert rundir.read_json(run_dir / "report.json") == {"verdict": "ok"}
    found = summary(run_dir)
    assert (found["label"], found["actor"], found["attempt"]) == ({"size": "smoke"}, "--ann", 1)


def test_the_run_directory_is_for_its_user_only_and_the_worker_knows_its_run(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the worker's comes before it
    script = 'umask; echo "$EAGLE3_RUN_ID $EAGLE3_ATTEMPT $EAGLE3_RUN_DIR $PYTHONPATH $X"; pwd; cat; touch made'
    answer = launch(workspace, "r", "", shell(script, env={"X": "y"}, pythonpath="/lib/site"))
    run_dir = Path(answer["run_dir"])
    assert wait_end(run_dir)["code"] == 0
    log = (run_dir / "attempts/1/run.log").read_text()
    assert log.splitlines() == ["0077", f"r 1 {run_dir} /lib/site y", str(run_dir)]
    wait_gone(run_dir)  # after the end its supervisor removes a file of its own
    assert not [p for p in [run_dir, *run_dir.rglob("*")] if p.stat().st_mode & 0o077]


def test_a_second_launch_gives_the_first_ones_answer(workspace: Path) -> None:
    first = launch(workspace, "r", "a = 1", shell("sleep 60"))
    second = launch(workspace, "r", "a = 1", shell("sleep 60"))
    assert second == {**first, "already": True}
    assert state.attempts(Path(first["run_dir"])) == [1]


def test_a_launch_of_an_ended_run_starts_nothing(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exit 3"))["run_dir"])
    wait_end(run_dir)
    again = launch(workspace, "r", "", shell("exit 3"))
    assert again["already"] and again["state"] == "failed" and state.attempts(run_dir) == [1]


def test_a_run_id_is_not_given_to_another_spec(workspace: Path) -> None:
    launch(workspace, "r", "a = 1", shell("sleep 60"))
    with pytest.raises(VerbError, match="another spec") as caught:
        launch(workspace, "r", "a = 2", shell("sleep 60"))
    assert caught.value.code == "usage"


def test_six_concurrent_launches_make_one_start(workspace: Path) -> None:
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from eagle3.runner.launch import launch; sys.stdin.readline();"
        "print(json.dumps(launch(sys.argv[2], 'r', 'a = 1', json.loads(sys.argv[3]))))"
    )
    worker = json.dumps(shell("echo started >> starts; exec sleep 60"))
    command = [old_python(), "-I", "-S", "-c", code, str(ROOT), str(workspace), worker]
    callers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        outputs = list(pool.map(lambda caller: caller.communicate(b"go\n", timeout=60)[0], callers))
    answers = [json.loads(output) for output in outputs]
    assert sorted(answer.pop("already") for answer in answers) == [False, True, True, True, True, True]
    assert all(answer == answers[0] for answer in answers)
    run_dir = workspace / "runs" / "r"
    assert wait_starts(run_dir) == "started\n"
    assert [p.name for p in (workspace / "runs").iterdir()] == ["r"]


def test_six_concurrent_resumes_make_one_attempt(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("[ $EAGLE3_ATTEMPT = 1 ] || exec sleep 60"))["run_dir"])
    wait_end(run_dir)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: launch(workspace, "r", "", {}, resume=True), range(6)))
    assert [answer["attempt"] for answer in answers] == [2] * 6
    assert sorted(answer["already"] for answer in answers) == [False, True, True, True, True, True]


def test_a_resume_makes_the_next_attempt_only_when_the_last_has_ended(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 60"))["run_dir"])
    assert launch(workspace, "r", "", {}, resume=True)["attempt"] == 1
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    assert wait_end(run_dir)["signal"] == signal.SIGKILL
    assert summary(run_dir)["state"] == "failed"
    again = launch(workspace, "r", "", shell("echo changed; exit 0"), resume=True, actor="bob")
    assert (again["attempt"], again["already"]) == (2, False)
    assert wait_end(run_dir, 2)["code"] == 0
    assert (run_dir / "attempts/2/run.log").read_text() == "changed\n"
    assert summary(run_dir)["actor"] == "bob"
    assert launch(workspace, "r", "", {}, resume=True, attempt=2)["already"], "a resume that names its attempt can be repeated"


def test_a_resume_of_an_unknown_run_is_refused(workspace: Path) -> None:
    with pytest.raises(VerbError) as caught:
        launch(workspace, "nope", "", {}, resume=True)
    assert caught.value.code == "not_found"
    assert not workspace.exists()


@pytest.mark.parametrize("program", ["/no/such/python", "~/no-such-python", "no-such-program", "/etc/passwd", "/tmp", ""])
def test_a_program_that_cannot_run_is_named_before_anything_is_made(workspace: Path, program: str) -> None:
    with pytest.raises(VerbError, match="cannot be run in this container") as caught:
        launch(workspace, "r", "", {"argv": [program, "-m", "eagle3"]})
    assert repr(program) in caught.value.text and caught.value.code == "usage" and caught.value.remedy
    assert not workspace.exists()


def test_a_program_of_the_wrong_format_is_a_failed_start_with_its_reason(workspace: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    for _ in range(2):
        with pytest.raises(VerbError, match="could not be started: Exec format error") as caught:
            launch(workspace, "r", "", {"argv": [str(program)]})
        assert caught.value.code == "failed"
    assert summary(workspace / "runs/r")["state"] == "failed"


@pytest.mark.parametrize("run_id", ["", "..", "../x", "A", "a/b", "a" * 65, "a\n", "a b", "/etc"])
def test_a_run_id_that_is_none_is_refused(workspace: Path, run_id: str) -> None:
    with pytest.raises(VerbError) as caught:
        launch(workspace, run_id, "", shell("true"))
    assert caught.value.code == "usage" and not workspace.exists()


def test_a_claim_whose_launcher_died_is_taken_over(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exit 0"))["run_dir"])
    wait_end(run_dir)
    # What a crash between the claim and the start leaves: the folder, and perhaps the word of a process that is gone.
    folder = run_dir / "attempts" / "2"
    folder.mkdir()
    gone = {**identity.of(os.getpid()), "start_ticks": 1}
    rundir.write_json(folder / "starting.json", {"v": 1, "t": 0, "launcher": gone})
    os.utime(folder, (0, 0))
    assert summary(run_dir)["state"] == "unknown"
    answer = launch(workspace, "r", "", shell("exit 0"))
    assert (answer["attempt"], answer["already"]) == (2, False)
    assert wait_end(run_dir, 2)["code"] == 0


@pytest.mark.parametrize(
    "moment", ["r", "r/attempts/1", "r/attempts/1/starting.json", "r/attempts/1/run.log", "r/attempts/1/lock"]
)
def test_a_launcher_killed_at_any_moment_leaves_exactly_one_start_to_the_next(workspace: Path, moment: str) -> None:
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from eagle3.runner.launch import launch;"
        "launch(sys.argv[2], 'r', '', json.loads(sys.argv[3]))"
    )
    worker = shell("echo started >> starts; exec sleep 600")
    command = [old_python(), "-I", "-S", "-c", code, str(ROOT), str(workspace), json.dumps(worker)]
    launcher = subprocess.Popen(command)
    wait_for((workspace / "runs" / moment).exists)
    launcher.kill()
    launcher.wait()
    run_dir = Path(launch(workspace, "r", "", worker)["run_dir"])
    assert wait_starts(run_dir) == "started\n" and summary(run_dir)["state"] == "running"


def test_what_killed_launches_left_half_made_is_no_run_and_is_swept_away(workspace: Path) -> None:
    for name in (".new-q-0", ".new-q-1"):
        (workspace / "runs" / name).mkdir(parents=True)
        (workspace / "runs" / name / "launch.json").write_text("{}")
    os.utime(workspace / "runs/.new-q-0", (0, 0))
    launch(workspace, "r", "", shell("true"))
    assert [p.name for p in rundir.runs(workspace)] == ["r"]
    assert sorted(p.name for p in (workspace / "runs").iterdir()) == [".new-q-1", "r"]


def test_a_worker_that_was_never_written_down_is_found_instead_of_started_again(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("echo started >> starts; exec sleep 60"))["run_dir"])
    wait_starts(run_dir)
    pid = started(run_dir)["pid"]
    os.kill(started(run_dir)["supervisor"]["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unsupervised"))
    (run_dir / "attempts/1/started.json").unlink()
    os.utime(run_dir / "attempts/1", (0, 0))
    answer = launch(workspace, "r", "", shell("echo started >> starts; exec sleep 60"))
    assert answer["already"] and answer["state"] == "unsupervised" and answer["started"]["pid"] == pid
    assert (run_dir / "starts").read_text() == "started\n"


def test_a_secret_among_the_plain_variables_is_refused(workspace: Path) -> None:
    with pytest.raises(VerbError, match="HF_TOKEN looks like a secret"):
        launch(workspace, "r", "", shell("true", env={"HF_TOKEN": "x", "TOKENIZERS_PARALLELISM": "false"}))
    assert not workspace.exists()


def test_a_run_outlives_the_channel_that_started_it(workspace: Path, channel: Channel) -> None:
    answer = channel.result("launch", workspace=str(workspace), run_id="r", spec_toml="", launch=shell("sleep 60"))
    assert channel.close() == 0
    run_dir = Path(answer["run_dir"])
    assert summary(run_dir)["state"] == "running"
    pid, supervisor = answer["started"]["pid"], answer["started"]["supervisor"]["pid"]
    own, sessions = os.getsid(0), {os.getsid(pid), os.getsid(supervisor)}
    assert len(sessions) == 2 and own not in sessions and supervisor not in sessions


def test_the_zipapp_supervises_from_itself(workspace: Path, tmp_path: Path) -> None:
    import zipfile

    archive = tmp_path / "runner.pyz"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(ROOT / "eagle3/__init__.py", "eagle3/__init__.py")
        for file in RUNNER.rglob("*.py"):
            packed.write(file, f"eagle3/runner/{file.relative_to(RUNNER)}")
        packed.writestr("__main__.py", "import sys\nfrom eagle3.runner.__main__ import main\nsys.exit(main())\n")
    channel = Channel(old_python(), "-I", "-S", str(archive))
    answer = channel.result("launch", workspace=str(workspace), run_id="r", spec_toml="", launch=shell("sleep 60"))
    assert channel.result("gpu")["status"] in ("none", "ok", "unknown")
    channel.close()
    command = Path(f"/proc/{answer['started']['supervisor']['pid']}/cmdline").read_bytes()
    assert str(archive).encode() in command


def test_a_foreground_supervisor_claims_for_itself_and_ends_with_the_workers_code(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exit 7"))["run_dir"])
    wait_end(run_dir)
    command = [sys.executable, "-I", "-S", str(RUNNER), "supervise", str(run_dir), "--foreground"]
    assert subprocess.run(command, timeout=60).returncode == 7
    assert wait_end(run_dir, 2)["code"] == 7


def test_the_runners_own_question_to_the_gpus_is_nothing_that_a_worker_left_behind(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exit 0"))["run_dir"])
    assert wait_end(run_dir)["code"] == 0
    assert [row["kind"] for row in events(run_dir)] == ["attempt_started", "attempt_ended"]


def test_prompts_that_are_not_there_are_refused_before_services_yield(workspace: Path) -> None:
    with pytest.raises(VerbError, match=r"The prompts file /no/such\.jsonl cannot be read \(No such file or directory\)"):
        launch(workspace, "r", "", shell("exit 0", prompts="/no/such.jsonl"))
    assert not (workspace / "runs" / "r").exists()
    assert launch(workspace, "r", "", shell("exit 0", prompts="builtin"))["attempt"] == 1
