"""A secret reaches the worker's environment and no other place, whatever happens to the run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.journal import Journal
from eagle3.runner import jobs, proctable, rundir
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from tests.runner.support import (
    RUNNER,
    Channel,
    files_with,
    kill_supervisor,
    old_python,
    shell,
    started,
    state_is,
    summary,
    wait_end,
    wait_for,
    wait_programs,
)

SECRET = f"correct-horse-battery-staple-{os.getpid()}"
"""Of no known make: nothing but its value tells that it is one."""


def holders(of: str, what: str) -> set[int]:
    """The processes whose ``cmdline`` or ``environ`` holds the text."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if of.encode() in (entry / what).read_bytes():
                    found.add(int(entry.name))
    return found


def test_only_the_workers_own_processes_hold_a_secret(workspace: Path, tmp_path: Path, channel: Channel) -> None:
    place = tmp_path / "hook"
    hooks = {"command": ["/bin/sh", "-c", f"env > {place}.part; cat >> {place}.part; mv {place}.part {place}"], "on": ["failure"]}
    checks = '[ "$EAGLE3_SECRETS" = HF_TOKEN ] && [ -n "$HF_TOKEN" ] || exit 4'
    script = f"{checks}; mkfifo go; sleep 600 & touch ready; read word < go; exit 3"
    answer = channel.result(
        "launch", workspace=str(workspace), run_id="r", launch=shell(script, hooks=hooks), secret_env={"HF_TOKEN": SECRET}
    )
    run_dir = Path(answer["run_dir"])
    wait_for((run_dir / "ready").exists)
    workers = wait_programs(run_dir, "sh", "sleep")
    assert holders(SECRET, "environ") == workers
    assert holders(SECRET, "cmdline") == set()
    assert files_with(SECRET, workspace) == [] and SECRET not in json.dumps(answer)
    assert rundir.read_object(run_dir / "launch.json")["secret_env"] == ["HF_TOKEN"], (
        "its name is kept, so that it can be asked for"
    )
    for verb in ("list", "probe"):
        assert SECRET not in json.dumps(channel.result(verb, workspace=str(workspace)))
    (run_dir / "go").write_text("on\n")
    wait_end(run_dir)
    wait_for(place.exists)
    assert files_with(SECRET, tmp_path) == [], "nor in what the hook was told, or its environment"


def test_a_secret_that_the_worker_prints_stays_in_its_log(workspace: Path, tmp_path: Path) -> None:
    place = tmp_path / "told"
    hooks = {"command": ["/bin/sh", "-c", f"cat > {place}.part; mv {place}.part {place}"], "on": ["failure"]}
    # It leaves only when the other has its own command line: until exec it bears its parent's, and amid it none.
    left = 'sh -c ": > left; sleep 600; : a-word-to-cut-in-it $MY_KEY" & while [ ! -e left ]; do sleep 0.02; done'
    script = f'echo "GET failed: $MY_KEY is not valid"; {left}; exit 1'
    run_dir = Path(launch(workspace, "r", "", shell(script, hooks=hooks), secret_env={"MY_KEY": SECRET})["run_dir"])
    wait_end(run_dir)
    wait_for(place.exists)
    assert "GET failed: [hidden] is not valid" in json.loads(place.read_text())["detail"]
    events = (run_dir / "events.jsonl").read_text()
    assert "sleep 600; : a-word-to-cut-in-it [hid" in events, "a process that was left behind is named by its command line"
    assert files_with(SECRET[:8], workspace) == ["runs/r/attempts/1/run.log"], "the log is as the worker wrote it"


def test_a_secret_of_the_shell_that_starts_a_run_is_not_the_supervisors(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    run_dir = Path(launch(workspace, "r", "", shell("touch ready; exec sleep 600"), secret_env={"HF_TOKEN": SECRET})["run_dir"])
    wait_for((run_dir / "ready").exists)
    assert wait_programs(run_dir, "sleep") == {started(run_dir)["pid"]}
    assert holders(SECRET, "environ") - {os.getpid()} == {started(run_dir)["pid"]}


def test_of_a_shakedown_only_the_command_holds_a_secret(workspace: Path, tmp_path: Path, channel: Channel) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\nmkfifo go; touch ready; read word < go\n"
        'printf \'{"text": "%s", "asked": "%s"}\n\' "$(printf %s "$HF_TOKEN" | sha256sum)" "$*"\n'
    )
    python.chmod(0o755)
    asked = {"workspace": str(workspace), "run_id": "shakedown-s", "spec": {"worker_python": str(python)}}
    channel.result("shakedown", **asked, secret_env={"HF_TOKEN": SECRET})
    folder = workspace / "checks" / "shakedown-s"
    wait_for((folder / "ready").exists)
    # The shell alone: what it started to say that it is ready may still be there.
    command = wait_for(lambda: found if len(found := jobs.bearers(folder)) == 2 else None)
    assert holders(SECRET, "environ") == {pid for pid, _ in command} - {started_job(folder)}
    assert holders(SECRET, "cmdline") == set() and files_with(SECRET, tmp_path) == []
    (folder / "go").write_text("on\n")
    done = wait_for(lambda: found if (found := jobs.read(workspace, "shakedown-s"))["done"] else None)
    told = json.loads(done["lines"][0])
    assert told["text"].split()[0] == hashlib.sha256(SECRET.encode()).hexdigest()
    assert "--secret=HF_TOKEN" in told["asked"]
    assert files_with(SECRET, tmp_path) == []


def started_job(folder: Path) -> int:
    return int(rundir.read_json(folder / "started.json")["pid"])


def ended_with_secrets(workspace: Path) -> Path:
    script = '[ "$HF_TOKEN$OTHER" = ab ] || exit 9; [ $EAGLE3_ATTEMPT = 1 ] && exit 75; exit 0'
    secrets = {"HF_TOKEN": "a", "OTHER": "b"}
    run_dir = Path(launch(workspace, "r", "", shell(script), secret_env=secrets)["run_dir"])
    wait_end(run_dir)
    return run_dir


@pytest.mark.parametrize(
    ("given", "missing"), [(None, "HF_TOKEN, OTHER"), ({"HF_TOKEN": "a"}, "OTHER"), ({"WRONG": "a"}, "HF_TOKEN, OTHER")]
)
def test_a_resume_without_the_secrets_is_refused_by_their_names(
    workspace: Path, given: dict[str, str] | None, missing: str
) -> None:
    run_dir = ended_with_secrets(workspace)
    with pytest.raises(VerbError) as caught:
        launch(workspace, "r", "", {}, resume=True, secret_env=given)
    assert caught.value.code == "usage" and f"now they are missing: {missing}." in caught.value.text
    assert caught.value.remedy == f"Give {missing} again."
    assert summary(run_dir)["attempt"] == 1 and not (run_dir / "attempts/2").exists(), "nothing was begun"


def test_a_resume_with_the_secrets_goes_on_and_asking_again_needs_none(workspace: Path) -> None:
    run_dir = ended_with_secrets(workspace)
    launch(workspace, "r", "", {}, resume=True, secret_env={"HF_TOKEN": "a", "OTHER": "b"}, attempt=2)
    assert wait_end(run_dir, 2)["code"] == 0
    assert launch(workspace, "r", "", {}, resume=True, attempt=2)["already"], "the same question has the same answer"


def test_a_start_that_was_interrupted_is_not_made_again_without_its_secrets(workspace: Path) -> None:
    run_dir = ended_with_secrets(workspace)
    folder = run_dir / "attempts/2"
    folder.mkdir()
    os.utime(folder, (0, 0))
    with pytest.raises(VerbError, match="now they are missing: HF_TOKEN, OTHER"):
        launch(workspace, "r", "", {}, resume=True, attempt=2)
    assert launch(workspace, "r", "", {}, resume=True, attempt=2, secret_env={"HF_TOKEN": "a", "OTHER": "b"})["attempt"] == 2
    assert wait_end(run_dir, 2)["code"] == 0


def test_a_batch_job_takes_the_secrets_from_its_own_environment_and_names_the_missing(workspace: Path) -> None:
    run_dir = ended_with_secrets(workspace)
    command = [old_python(), "-I", "-S", str(RUNNER), "supervise", str(run_dir), "--foreground"]
    env = {"PATH": os.environ["PATH"], "HF_TOKEN": "a"}
    refused = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2 and "now they are missing: OTHER." in refused.stderr
    assert subprocess.run(command, env={**env, "OTHER": "b"}, timeout=60, check=False).returncode == 0
    assert wait_end(run_dir, 2)["code"] == 0


def test_a_dead_supervisor_leaves_no_secret_behind(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("exec sleep 600"), secret_env={"HF_TOKEN": SECRET})["run_dir"])
    kill_supervisor(run_dir)
    os.kill(started(run_dir)["pid"], signal.SIGKILL)
    wait_for(state_is(run_dir, "unknown"))
    assert files_with(SECRET, workspace) == [] and holders(SECRET, "environ") == set()


def test_the_command_line_takes_a_secret_by_its_name_only(workspace: Path) -> None:
    def run(*more: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "eagle3",
            "run",
            "--workspace",
            str(workspace),
            "--run-id",
            "r",
            "--anyway",
            "--detach",
            *more,
        ]
        clean = {key: value for key, value in os.environ.items() if key != "HF_TOKEN"}
        return subprocess.run(command, env={**clean, **env}, capture_output=True, text=True, timeout=60, check=False)

    refused = run("--secret", "HF_TOKEN")
    assert refused.returncode == 2 and "The secret HF_TOKEN is not set in this shell" in refused.stderr
    assert not workspace.exists()
    # A worker that is no Python of ours: only how it is started matters here.
    worker = workspace.parent / "worker"
    worker.write_text('#!/bin/sh\n[ -n "$HF_TOKEN" ] && touch "$4/ready"\nexec sleep 600\n')
    worker.chmod(0o755)
    done = run("--secret", "HF_TOKEN", "--set", f"worker_python={worker}", HF_TOKEN=SECRET)
    assert done.returncode == 0, done.stderr
    run_dir = workspace / "runs/r"
    wait_for((run_dir / "ready").exists)
    assert wait_programs(run_dir, "sleep") == {started(run_dir)["pid"]}
    assert holders(SECRET, "environ") == {started(run_dir)["pid"]} and files_with(SECRET, workspace) == []


SERVING_WORKER = """#!{python}
import signal, sys; sys.path.insert(0, {root!r})
from pathlib import Path
from eagle3.engines.vllm_server import VllmServer
from tests.stages.runs import context
ctx = context(Path(sys.argv[-1]) / "work", server__start_timeout_s=60, server__env={{"HF_HOME": "/models"}})
ctx.server_python = {server!r}
with VllmServer(ctx, "plain"):
    Path("ready").touch()
    signal.pause()
"""
SERVER = """#!{python}
import signal, sys; sys.path.insert(0, {root!r})
from tests.stages.fake_vllm import FakeVllm
with FakeVllm(port=int(sys.argv[sys.argv.index("--port") + 1])):
    signal.pause()
"""


def test_what_the_shell_has_exported_and_nobody_named_reaches_neither_supervisor_nor_worker_nor_server(
    workspace: Path, tmp_path: Path
) -> None:
    root, programs = str(Path(__file__).parents[2]), {"worker": SERVING_WORKER, "server": SERVER}
    for name, text in programs.items():
        (tmp_path / name).write_text(text.format(python=sys.executable, root=root, server=str(tmp_path / "server")))
        (tmp_path / name).chmod(0o755)
    unnamed = {
        "OTHER_TOKEN": f"{SECRET}-2", "VAULT_KEY": f"{SECRET}-3", "PGPASSWORD": f"{SECRET}-4",
        "ORDINARY": f"hf_{os.getpid():010d}abcdefghijklmnopqrstuvwx", "SSH_AUTH_SOCK": f"/agent-{os.getpid()}",
    }  # fmt: skip
    plain = {"NCCL_ALGO": "Ring", "https_proxy": "http://me:pass@proxy:3128", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "eagle3", "run", "--workspace", str(workspace), "--run-id", "r", "--anyway", "--detach"]
    command += ["--secret", "HF_TOKEN", "--set", f"worker_python={tmp_path / 'worker'}"]
    env = {**os.environ, "HF_TOKEN": f"{SECRET}-1", **unnamed, **plain}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    run_dir = workspace / "runs/r"
    wait_for((run_dir / "ready").exists)
    supervisor, worker = started(run_dir)["supervisor"]["pid"], started(run_dir)["pid"]
    server = rundir.read_object(run_dir / "work/servers/plain.json")["pid"]
    seen = {pid: proctable.environment(pid) for pid in (supervisor, worker, server)}
    assert {pid: [name for name in (*unnamed, "HF_TOKEN") if name in had] for pid, had in seen.items()} == {
        supervisor: [], worker: ["HF_TOKEN"], server: [],
    }  # fmt: skip
    for value in unnamed.values():
        assert holders(value, "environ") == set()
    assert holders(f"{SECRET}-1", "environ") == {worker}, "and the server, which needs none, has not even what was named"
    assert all(plain.items() <= had.items() for had in seen.values()), "what the work needs is inherited as ever"
    assert seen[server]["HF_HOME"] == "/models" and "EAGLE3_SECRETS" not in seen[server]


def test_the_worker_says_no_secret_in_its_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE3_SECRETS", "MY_KEY")
    monkeypatch.setenv("MY_KEY", SECRET)
    Journal(tmp_path, 1).event("note", f"the server said: {SECRET}?")
    assert "the server said: [hidden]?" in (tmp_path / "events.jsonl").read_text()
    (tmp_path / "events.jsonl").unlink()
    Journal(tmp_path, 1).event(
        "failed", "401 for hf_abcdefghijklmnop", level="error", detail="Authorization: Bearer abcdefghijkl"
    )
    row: dict[str, Any] = json.loads((tmp_path / "events.jsonl").read_text())
    assert (row["text"], row["detail"]) == ("401 for hf_[hidden]", "Authorization: Bearer [hidden]")
    assert "hf_abcdefghijklmnop" in capsys.readouterr().out, "its log is raw"
