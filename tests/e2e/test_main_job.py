"""The main job on real parts: OpenSSH, vLLM, speculators' trainer, a real small model, at smoke size.

One run goes the whole way: launched over SSH, its link cut, found again by a second console, killed with SIGKILL once in
every stage, resumed each time, and measured at the end. What it must prove is listed in the asserts.
"""

from __future__ import annotations

import getpass
import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from eagle3.core.presets import resolve
from eagle3.core.spec import STAGES
from eagle3.targets import obtain
from remote.container import Container, Settings
from tests.support.rows import RowTable
from tests.support.sshd import Sshd
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

REPO = Path(__file__).parent.parent.parent

KILLED_AT = {"prepare": 1, "regenerate": 6, "extract": 6, "vocabulary": 1, "train": 30, "evaluate": 4, "export": 1}
"""In each stage, how many reports the worker makes before it dies: in the middle of the stage's work."""


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    server = Sshd(tmp_path / "sshd").start()
    yield server
    server.stop()


@pytest.fixture
def settings(tmp_path: Path, sshd: Sshd) -> Settings:
    config, known = tmp_path / "ssh_config", tmp_path / "known_hosts"
    sshd.write_client_config(config, "")
    known.write_text(f"{sshd.known_name} {sshd.public_key()}\n")
    return Settings(state_dir=tmp_path / "state", ssh_config=config, known_hosts=known)


def dying_python(folder: Path) -> Path:
    """An interpreter for the worker that carries out KILLED_AT."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps({stage: ("worker", reports) for stage, reports in KILLED_AT.items()}))
    script = folder / "dying-python"
    worker = REPO / "tests" / "e2e" / "dying_worker.py"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{worker}" "{plan}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def marked_processes(run_id: str) -> list[str]:
    """Command lines of processes that bear the run's marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"EAGLE3_RUN_ID={run_id}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue  # it ended while we looked
    return found


async def test_a_run_over_ssh_killed_in_every_stage_ends_with_a_measured_draft(
    tmp_path: Path, sshd: Sshd, settings: Settings
) -> None:
    workspace = tmp_path / "workspace"
    spec = resolve(
        "smoke",
        "smollm2-135m",
        "cpu",
        {
            "worker_python": str(dying_python(tmp_path)),
            "server_python": sys.executable,
            # The session's home is the test's, so the cache there is empty.
            "target.model": str(obtain("smollm2-135m", print)),
        },
    )
    host = f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}"

    def console() -> Container:
        return Container(host, workspace=str(workspace), python=sys.executable, settings=settings)

    run_id = "e2e-smoke"
    async with console() as first:
        ack = await first.launch(spec, run_id, actor="first")
        assert ack["attempt"] == 1
        assert (await first.launch(spec, run_id, actor="first"))["already"]
    # The first console is gone, and its connection with it. A second one finds the run.
    table, log, events = RowTable(), [], []
    async with console() as second:
        assert [run.run_id for run in await second.runs()] == [run_id]
        for attempt in range(1, len(STAGES) + 1):
            await until_ended(second, run_id)
            summary = await second.summary(run_id)
            assert (summary.attempt, summary.state, summary.exit_signal) == (attempt, "failed", 9), summary
            assert list(summary.stages) == list(STAGES[: attempt - 1])
            await until(lambda: not marked_processes(run_id), "every process of the killed attempt is gone")
            await second.launch(spec, run_id, actor="second", resume=True)
        async for news in second.follow(run_id, poll_s=0.5):
            table.add(news.rows)
            events += news.events
            log.append(news.log)
        summary, result = news.summary, news.result
    run_dir = workspace / "runs" / run_id
    errors = [event.text for event in events if event.level == "error"]
    assert summary.state == "finished", (errors, log_tail(run_dir))
    assert result is not None

    # No finished stage was repeated: stage i was killed in attempt i and finished in attempt i + 1.
    records = {name: json.loads((run_dir / "stages" / f"{name}.json").read_text()) for name in STAGES}
    assert {name: record["attempt"] for name, record in records.items()} == {name: i + 2 for i, name in enumerate(STAGES)}
    assert records["train"]["figures"]["resumed_from"] > 0
    check_data(run_dir, spec.data.train_prompts, spec.data.heldout_prompts)
    check_result(json.loads(result.model_dump_json()), spec)
    check_export(run_dir)
    made_from = json.loads((run_dir / "result.json").read_text())["made_from"]
    assert made_from == json.loads((run_dir / "attempts" / str(len(STAGES) + 1) / "made_from.json").read_text())
    assert made_from["target"]["fingerprint"] and made_from["versions"]["torch"]
    await until(lambda: not marked_processes(run_id), "every process of the run is gone")
    assert not list((run_dir / "servers").glob("*.json"))
    assert run_dir.stat().st_mode & 0o777 == 0o700


async def until_ended(container: Container, run_id: str) -> None:
    async for _ in container.follow(run_id, poll_s=0.5):
        pass


def log_tail(run_dir: Path) -> str:
    logs = sorted(run_dir.glob("attempts/*/run.log"), key=lambda path: int(path.parent.name))
    return logs[-1].read_text(errors="replace")[-3000:]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_data(run_dir: Path, train: int, heldout: int) -> None:
    """Train and held-out are disjoint, masks cover answers, and every sample has its states."""
    samples = rows(run_dir / "data" / "samples.jsonl")
    by_split = {split: [s for s in samples if s["split"] == split] for split in ("train", "heldout")}
    assert len(by_split["heldout"]) == heldout
    # Degenerate answers may be left out of training, a few at most.
    assert train - 4 <= len(by_split["train"]) <= train
    assert not {s["hash"] for s in by_split["train"]} & {s["hash"] for s in by_split["heldout"]}
    assert all(0 < sum(s["loss_mask"]) < len(s["input_ids"]) for s in samples)
    manifest = rows(run_dir / "states" / "manifest.jsonl")
    assert sorted(entry["index"] for entry in manifest) == [s["index"] for s in samples]
    first = samples[0]
    with safe_open(run_dir / "states" / f"hs_{first['index']}.safetensors", "pt") as file:
        assert list(file.get_tensor("hidden_states").shape) == [len(first["input_ids"]), 4, 576]
        assert file.get_tensor("token_ids").tolist() == first["input_ids"]


def check_result(result: dict[str, Any], spec: Any) -> None:
    assert result["state"] == "finished"
    assert set(result["stages"]) == set(STAGES)
    served, val, untrained = result["served"], result["val"], result["untrained"]
    assert served["prompts"] == spec.evaluate.prompts
    assert served["drafts"] > 0
    assert len(served["acc_pos"]) == spec.evaluate.num_speculative_tokens
    assert served["accept_len"] == pytest.approx(1 + sum(served["acc_pos"]), abs=0.01)
    assert served["tok_s"] > 0
    assert served["tok_s_no_draft"] > 0
    assert val["accept_len"] == pytest.approx(1 + sum(val["acc_pos"]), abs=0.01)
    # Even two dozen steps must beat a draft that was never trained.
    assert val["acc_pos"][0] > untrained["acc_pos"][0]
    lossless = result["lossless"]
    assert lossless["of"] == spec.evaluate.lossless_prompts
    assert 0 <= lossless["identical"] <= lossless["of"]
    assert result["verdict"]


def check_export(run_dir: Path) -> None:
    export = run_dir / "export"
    config = json.loads((export / "config.json").read_text())
    assert "Eagle3" in str(config.get("architectures")) or config.get("speculators_model_type") == "eagle3", config
    assert str(run_dir) not in (export / "config.json").read_text()
    assert (export / "model.safetensors").stat().st_size > 1_000_000
    assert "accept" in (export / "README.md").read_text().lower()
