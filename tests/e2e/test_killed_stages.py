"""In every stage each process of the run is killed at each moment; the resumed run is the unbroken one, bit for bit.

A case is one run, which is struck in each of its stages in turn; the assertions name the stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.spec import STAGES
from tests.e2e.mortal_run import MortalRun, Plan
from tests.runner.support import wait_for
from tests.stages.tiny_models import tiny_llama

pytestmark = [pytest.mark.timeout(900)]

MIDDLE = {"prepare": 1, "regenerate": 4, "extract": 4, "vocabulary": 1, "train": 16, "evaluate": 4, "export": 1}
"""How many reports a stage makes before it is in the middle of its work."""

SERVING = ("regenerate", "extract", "evaluate")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target") / "tiny-llama")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, target: Path) -> dict[str, Any]:
    """What the run gives when nothing happens to it."""
    run = MortalRun(tmp_path_factory.mktemp("unbroken"), target)
    try:
        run.attempt()
        assert run.wait_until("finished", "failed", "stopped") == "finished", run.errors()
        return run.made()
    finally:
        run.close()


@pytest.fixture
def run(tmp_path: Path, target: Path) -> Iterator[MortalRun]:
    found = MortalRun(tmp_path, target)
    yield found
    found.close()


def plan_of(who: str, when: str, stages: tuple[str, ...] = STAGES) -> Plan:
    return {stage: (who, MIDDLE[stage] if when == "middle" else when) for stage in stages}


def after(run: MortalRun, stage: str, when: str) -> dict[str, bytes]:
    """What stands after a kill in ``stage``: nothing alive, and the records of just the stages that were finished."""
    wait_for(lambda: not run.processes(), deadline_s=60)
    records = run.records()
    finished = STAGES[: STAGES.index(stage) + (when == "recorded")]
    assert tuple(records) == finished, (stage, run.errors())
    return records


def ends_as(run: MortalRun, unbroken: dict[str, Any], kept: dict[str, bytes]) -> None:
    """The run has finished, no stage that was finished has been repeated, and everything is as in the unbroken run."""
    assert run.wait_until("finished", "failed", "stopped") == "finished", run.errors()
    assert run.exit()["code"] == 0
    wait_for(lambda: not run.processes(), deadline_s=60)
    records = run.records()
    assert {name: records[name] for name in kept} == kept
    found = run.made()
    for name, value in unbroken.items():
        assert found[name] == value, name


WORKER = [pytest.param(when, marks=pytest.mark.long, id=f"worker-{when}") for when in ("began", "middle", "worked", "recorded")]
SUPERVISOR = [pytest.param(when, marks=pytest.mark.long, id=f"supervisor-{when}") for when in ("began", "middle", "recorded")]


@pytest.mark.parametrize("when", WORKER)
def test_a_worker_killed_in_each_stage(run: MortalRun, unbroken: dict[str, Any], when: str) -> None:
    plan, kept = plan_of("worker", when), {}
    for stage in STAGES:
        run.attempt(plan)
        assert run.wait_until("finished", "failed", "stopped") == "failed", stage
        assert run.exit()["signal"] == 9, stage
        plan = run.left_of(plan)
        assert stage not in plan, f"{stage} was not struck"
        records = after(run, stage, when)
        assert {name: records[name] for name in kept} == kept, f"{stage}: a finished stage was repeated"
        kept = records
    run.attempt()
    ends_as(run, unbroken, kept)


@pytest.mark.parametrize("when", SUPERVISOR)
def test_a_supervisor_killed_in_each_stage(run: MortalRun, unbroken: dict[str, Any], when: str) -> None:
    plan, kept = plan_of("supervisor", when), {}
    for stage in STAGES:
        run.attempt(plan)
        assert run.wait_until("unsupervised", "finished", "failed") == "unsupervised", stage
        plan = run.left_of(plan)
        run.stop()
        assert run.wait_until("stopped", "finished", "failed") == "stopped", stage
        assert run.exit()["code"] is None, "only a parent learns it"
        wait_for(lambda: not run.processes(), deadline_s=60)
        records = run.records()
        assert {name: records[name] for name in kept} == kept, f"{stage}: a finished stage was repeated"
        kept = records
    run.attempt()
    ends_as(run, unbroken, kept)


@pytest.mark.long
def test_a_server_killed_as_it_loads_fails_the_attempt_with_its_log(run: MortalRun, unbroken: dict[str, Any]) -> None:
    plan = plan_of("server", "began", SERVING)
    for stage in SERVING:
        run.attempt(plan)
        assert run.wait_until("finished", "failed", "stopped") == "failed", stage
        plan = run.left_of(plan)
        assert run.exit()["code"] == 1
        last = run.errors()[-1]
        assert last.startswith(f"{stage}: The ") and "ended by signal 9 while it was loading" in last and "logs/server-" in last
        kept = after(run, stage, "began")
    run.attempt()
    ends_as(run, unbroken, kept)


@pytest.mark.long
def test_a_server_killed_at_work_is_started_again_within_the_attempt(run: MortalRun, unbroken: dict[str, Any]) -> None:
    plan = plan_of("server", "middle", SERVING)
    run.attempt(plan)
    ends_as(run, unbroken, {})
    assert run.left_of(plan) == {} and run.attempts == 1


@pytest.mark.long
@pytest.mark.parametrize("who", ["rank-0", "rank-1"])
@pytest.mark.parametrize("when", ["began", "middle"])
def test_a_rank_killed_ends_the_training_by_its_name(tmp_path: Path, target: Path, who: str, when: str) -> None:
    how: dict[str, Any] = {"train__ranks": 2, "max_steps": 60}
    whole, broken = MortalRun(tmp_path / "whole", target, **how), MortalRun(tmp_path / "broken", target, **how)
    try:
        whole.attempt()
        broken.attempt({"train": (who, 8 if when == "middle" else when)})
        assert broken.wait_until("finished", "failed", "stopped") == "failed"
        assert broken.exit()["code"] == 1
        assert f"Rank {who[5:]} of 2 of the training failed: it was killed by SIGKILL" in broken.errors()[-1]
        kept = after(broken, "train", when)
        assert whole.wait_until("finished", "failed", "stopped") == "finished", whole.errors()
        broken.attempt()
        ends_as(broken, whole.made(), kept)
    finally:
        whole.close()
        broken.close()
