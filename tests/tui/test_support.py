"""The bundle for a bug report: what helps is in it, and nothing that is secret."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3.core.presets import resolve
from eagle3.runner import rundir
from remote.container import Container, ContainerError
from tests.support.waiting import until
from tui.oneshot import Place, Talk
from tui.support import compose, support

FAKE_WORKER = Path(__file__).parent / "support" / "fake_worker.py"

TOKEN = "hf_" + "Sup3rSecretTokenValue99"
BEARER = "abcdefBEARERvalue0123456789"
URL_PASSWORD = "pa55-in-url"
HOOK = "T000/B000/hookpathsecret"
VAULT = "plain words without any shape"
KEY_BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"
PROMPT = "Write a limerick about the unannounced merger"
ANSWER = "There once was a merger untold"
SECRETS = (TOKEN, BEARER, URL_PASSWORD, HOOK, VAULT, KEY_BODY, PROMPT, ANSWER)

LINES = (
    f"downloading with {TOKEN} now",
    f"Authorization: Bearer {BEARER}",
    f"cloning https://ada:{URL_PASSWORD}@example.org/x.git",
    f"posting to https://hooks.example.com/services/{HOOK}",
    f"VAULT_KEY is {VAULT} as you asked",
    f"-----BEGIN PRIVATE KEY-----\n{KEY_BODY}\n-----END PRIVATE KEY-----",
    f"INFO Received request cmpl-1: prompt: '{PROMPT}', params: SamplingParams(n=1)",
)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "eagle3"
    folder.mkdir()
    (folder / "hold").touch()
    yield folder
    (folder / "hold").unlink(missing_ok=True)


def plant(run: Path) -> None:
    """Secrets, prompts and answers wherever somebody could have left them."""
    poison = " ".join(LINES[:5])
    for name in ("data", "states", "evaluate", "train", "logs", "stages", "attempts/1"):
        (run / name).mkdir(parents=True, exist_ok=True)
    (run / "data" / "prompts.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": PROMPT}]}) + "\n")
    (run / "evaluate" / "lossless.json").write_text(json.dumps({"without": ANSWER}))
    (run / "states" / "hs_0.safetensors").write_bytes(os.urandom(2048))
    (run / "NOTES.md").write_text(f"remember {TOKEN}\n")
    figures = {"note": poison, "divergences": [{"context": ANSWER}], "loss": 1.5, "api_key": VAULT}
    rundir.write_json(run / "stages" / "evaluate.json", {"v": 1, "stage": "evaluate", "figures": figures})
    rundir.write_json(run / "result.json", {"v": 1, "verdict_text": poison, "run_id": run.name})
    rundir.append_line(run / "events.jsonl", {"v": 1, "kind": "warn", "level": "warn", "text": poison, "detail": LINES[5]})
    rundir.append_line(run / "events.jsonl", {"v": 1, "kind": "lossless", "level": "info", "text": f"parts at {ANSWER!r}"})
    with (run / "events.jsonl").open("a") as file:
        file.write(f"no json, {TOKEN}\n")
    filler = "".join(f"step {number} of many\n" for number in range(30_000))
    everything = "\n".join(LINES)
    (run / "logs" / "server-plain.log").write_text(f"first words\n{everything}\n{filler}{everything}\nlast words\n")
    # Where a cut could fall: a long line before the end, and a key of which only the end is left.
    long = f"{TOKEN} " * 20_000
    (run / "logs" / "server-long.log").write_text(f"begin\n{filler}{long}\n")
    body = f"{'A' * (64 << 10)}\n{KEY_BODY}\n{'x' * (127 << 10)}\n{KEY_BODY}"
    tail = f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\nend\n"
    (run / "logs" / "server-key.log").write_text(f"begin\n{filler}{tail}")
    (run / "logs" / "server-link.log").symlink_to(run / "NOTES.md")


def bundle_of(path: Path) -> dict[str, str]:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert all(member.isfile() and ".." not in member.name and not member.name.startswith("/") for member in members)
        found: dict[str, str] = {}
        for member in members:
            stream = archive.extractfile(member)
            assert stream
            found[member.name.partition("/")[2]] = stream.read().decode()
    return found


async def collected(container: Container, workspace: Path, run_id: str, out: Path) -> dict[str, str]:
    talk = Talk(container, Place("", True, str(workspace)), as_json=True)
    assert await support(talk, run_id, out) == 0
    return bundle_of(out)


async def test_no_planted_secret_and_no_prompt_is_in_the_bundle_of_a_live_run(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = resolve("smoke", "smollm2-135m", "cpu", {"worker_python": str(FAKE_WORKER)})
    container = Container(local=True, workspace=str(workspace))
    await container.open()
    try:
        await container.launch(spec, "live", secret_env={"VAULT_KEY": VAULT, "HF_TOKEN": TOKEN})
        run = workspace / "runs" / "live"
        await until(lambda: (run / "attempts/1/heartbeat.json").exists() and (run / "progress.json").exists(), "the run")
        plant(run)
        with (run / "attempts" / "1" / "run.log").open("a") as log:
            log.write("\n".join(LINES) + "\nafter the secrets\n")
        files = await collected(container, workspace, "live", tmp_path / "live.tar.gz")
    finally:
        await container.stop("live")
        await container.close()
    leaks = {name: secret for name, text in files.items() for secret in SECRETS if secret in text}
    assert leaks == {}

    assert {"MANIFEST.json", "host.json", "console.json", "versions.json", "summary.json"} < set(files)
    assert {"run/spec.toml", "run/launch.json", "run/attempts/1/started.json", "run/attempts/1/heartbeat.json"} < set(files)
    assert {"run/events.jsonl", "run/stages/evaluate.json", "run/progress.json", "run/result.json"} < set(files)
    assert "after the secrets" in files["run/attempts/1/run.log"] and "[hidden]" in files["run/attempts/1/run.log"]
    log = files["run/logs/server-plain.log"]
    assert log.startswith("first words\n") and log.endswith("last words\n") and "bytes are left out here]" in log
    assert json.loads(files["run/stages/evaluate.json"])["figures"]["loss"] == 1.5
    assert json.loads(files["summary.json"])["state"] == "running"
    assert json.loads(files["host.json"])["disks"] and json.loads(files["console.json"])["packages"]["asyncssh"]

    manifest = json.loads(files["MANIFEST.json"])
    assert manifest["secret_names"] == ["HF_TOKEN", "VAULT_KEY"]
    left = {entry["name"]: entry["why"] for entry in manifest["left_out"]}
    assert "prompts" in left["data/"] and "hidden states" in left["states/"] and "people" in left["NOTES.md"]
    assert left["logs/server-link.log"]
    assert {name for name in files if name.startswith("run/")} == {entry["name"] for entry in manifest["files"]}
    said = json.loads(capsys.readouterr().out)
    assert said["path"].endswith("live.tar.gz") and said["bytes"] == (tmp_path / "live.tar.gz").stat().st_size


def finished(run: Path) -> None:
    rundir.write_json(run / "launch.json", {"v": 1, "argv": [sys.executable, "-m", "eagle3", "work", str(run)], "label": {}})
    rundir.write_json(run / "attempts/1/started.json", {"v": 1, "attempt": 1, "t": time.time(), "pid": 1})
    rundir.write_json(run / "attempts/1/exit.json", {"v": 1, "attempt": 1, "code": 0, "signal": None, "stopped": False, "t": 1.0})


def damaged(run: Path) -> None:
    (run / "launch.json").write_text("[1, 2")
    (run / "attempts/1/started.json").write_text('["no object"]')
    (run / "attempts/1/exit.json").write_bytes(b"\xff\xfe")


def without_a_launch(run: Path) -> None:
    (run / "spec.toml").write_text("size = 'pilot'\n")


async def test_the_bundle_is_made_of_a_run_in_any_state(workspace: Path, tmp_path: Path) -> None:
    container = Container(local=True, workspace=str(workspace))
    await container.open()
    try:
        for make in (finished, damaged, without_a_launch):
            run = workspace / "runs" / make.__name__.replace("_", "-")
            plant(run)
            make(run)
            files = await collected(container, workspace, run.name, tmp_path / f"{run.name}.tar.gz")
            shaped = [secret for secret in SECRETS if secret != VAULT]
            assert {name: secret for name, text in files.items() for secret in shaped if secret in text} == {}, make.__name__
            assert "run/logs/server-plain.log" in files and "run/result.json" in files
        with pytest.raises(ContainerError) as caught:
            await container.collect("no-such-run")
        assert caught.value.code == "not_found"
    finally:
        await container.close()
    assert json.loads(bundle_of(tmp_path / "finished.tar.gz")["versions.json"])["torch"]


def test_what_the_operators_environment_knows_is_hidden_and_names_cannot_leave_the_folder() -> None:
    found = {
        "files": [
            {"name": "logs/a.log", "text": f'said "{VAULT}" and {json.dumps(VAULT + chr(34))}'},
            {"name": "../../x", "text": "y"},
        ],
        "summary": {"state_text": VAULT},
        "secret_names": ["VAULT_KEY", "no name"],
    }  # fmt: skip
    files = compose("run-a", found, {}, {}, [VAULT, VAULT + '"'], 1.0)
    assert not any(VAULT in text for text in files.values())
    assert set(files) == {"run/logs/a.log", "summary.json", "versions.json", "host.json", "console.json", "MANIFEST.json"}
    assert json.loads(files["MANIFEST.json"])["secret_names"] == ["VAULT_KEY"]


def test_the_command_writes_the_bundle_and_says_what_it_left_out(workspace: Path, tmp_path: Path) -> None:
    run = workspace / "runs" / "run-a"
    plant(run)
    finished(run)

    def command(*more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "tui", "support", "--local", "--workspace", str(workspace), "run-a", *more]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=100)

    done = command()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Wrote support-run-a.tar.gz: ")
    assert "data/ (prompts and the target's answers)" in done.stdout and "Look through the files" in done.stdout
    assert "run/spec.toml" not in bundle_of(tmp_path / "support-run-a.tar.gz")
    wrong = command("--out", str(tmp_path))
    assert wrong.returncode == 1 and "cannot be written" in wrong.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
