"""Each process of a run is killed at each moment of its life: it is alive or ended, said so rightly, and never started twice.

The name of a case is the process, the moment and the seed that chose when exactly: an even seed kills while the run is held
at that moment, an odd one within 50 ms after it. KILL_SEED (even) chooses others; the long tests give each cell five more.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3.runner import rundir, state
from eagle3.runner.services import records
from tests.runner.kill_world import World, held_runner
from tests.runner.stand_ins import Serving, serving
from tests.runner.support import RUNNER, Channel, old_python, wait_for

__all__ = ["serving"]  # a fixture

ANY = ("console", "launcher", "helper")
"""The console's own process, its helper that launches, and another operator's helper."""
MOMENTS: dict[str, tuple[str, ...]] = {
    "before claim": ANY,
    "after claim": ANY,
    "after starting": ANY,
    "while yielding": (*ANY, "supervisor"),
    "after spawn": (*ANY, "supervisor", "worker"),
    "after started": (*ANY, "supervisor", "worker"),
    "mid-run": (*ANY, "supervisor", "worker"),
    "while stopping": (*ANY, "supervisor", "worker"),
    "while ending": (*ANY, "supervisor"),
    "while restoring": (*ANY, "supervisor"),
}
"""Who lives at each moment; the others cannot be killed there."""

BASE = int(os.environ.get("KILL_SEED", "3000"))
CELLS = [(role, moment) for moment, roles in MOMENTS.items() for role in roles]


def cases(rounds: range) -> list[object]:
    found = []
    for round_ in rounds:
        for number, (role, moment) in enumerate(CELLS):
            seed = BASE + 1001 * round_ + 2 * number
            name = f"{role}-{moment.replace(' ', '_')}-seed{seed}"
            found.append(pytest.param(role, moment, seed, id=name, marks=[pytest.mark.long] if round_ or number % 2 else []))
    return found


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return held_runner(tmp_path_factory.mktemp("held"))


@pytest.fixture
def fresh() -> Iterator[Channel]:
    """The helper of whoever comes next, with the runner as it is."""
    channel = Channel(old_python(), "-I", "-S", str(RUNNER))
    yield channel
    channel.close()


@pytest.mark.parametrize(("role", "moment", "seed"), cases(range(6)))
def test_a_killed_process_leaves_the_run_rightly_described_and_started_at_most_once(
    tmp_path: Path, runner: Path, workspace: Path, serving: Serving, fresh: Channel, role: str, moment: str, seed: int
) -> None:
    world = World(tmp_path, runner, workspace, serving, moment)
    try:
        lead_to(world, moment, fresh)
        kill(world, role, seed)
        judge(world, role, moment, fresh)
    finally:
        world.close()


def lead_to(world: World, moment: str, fresh: Channel) -> None:
    """Bring the run to the moment at which it is held."""
    if moment in ("mid-run", "while stopping", "while ending", "while restoring"):
        wait_for(lambda: world.starts() and (world.run_dir / "attempts/1/heartbeat.json").exists())
    if moment == "while stopping":
        fresh.result("stop", workspace=str(world.workspace), run_id="r", actor="bob")
    if moment in ("while ending", "while restoring"):
        (world.run_dir / "end").touch()
    if moment != "mid-run":
        wait_for(world.reached)


def kill(world: World, role: str, seed: int) -> None:
    """Kill while the run is held, or within 50 ms after it was let go, as ``seed`` wants it."""
    pid = world.pid(role)
    if seed % 2:
        world.go_on()
        time.sleep(random.Random(seed).uniform(0.0, 0.05))
    with contextlib.suppress(ProcessLookupError):  # it ended by itself within those 50 ms: as good a kill as any
        os.kill(pid, signal.SIGKILL)
    world.go_on()


def judge(world: World, role: str, moment: str, fresh: Channel) -> None:
    """What whoever comes next finds, does and leaves."""
    place = {"workspace": str(world.workspace)}
    wait_for(lambda: (world.run_dir / "launch.json").exists())
    world.described(fresh)

    # The console sends its launch again, as it does after every lost link: the same key, so never a second start.
    def launched() -> bool:
        reply = fresh.ask("launch", **world.request)
        return bool(reply["ok"]) or reply["error"]["code"] == "failed"

    wait_for(launched)
    assert world.starts() <= 1 and state.attempts(world.run_dir) == [1]
    found = world.described(fresh)
    if role in ("console", "launcher", "helper") and moment not in ("while stopping", "while ending", "while restoring"):
        assert found == "running", "nobody who only asks or looks takes the run with them"
    if role == "supervisor" and moment in ("after spawn", "after started", "mid-run"):
        assert found == "unsupervised" and world.workers(), "the worker lives on and is known to"
    if found in state.LIVE and world.workers():
        wait_for(lambda: world.starts() == 1)
    assert not serving_is_back(world) or not world.workers(), "the server runs beside the worker"

    # It is ended, if it has not, and nothing of it is left; what yielded is back, once.
    fresh.ask("stop", **place, run_id="r", actor="bob", grace_s=0.2)
    wait_for(lambda: not world.left())
    wait_for(lambda: world.described(fresh) not in state.LIVE)
    wait_for(lambda: not records.outstanding(world.run_dir))
    wait_for(lambda: len(world.serving.alive()) == 1)
    assert (world.run_dir / "attempts/1/exit.json").exists()
    assert world.starts() <= 1 and world.described(fresh) in ("finished", "failed", "stopped")
    wait_for(lambda: world.described(fresh) and not list(world.run_dir.glob("attempts/*/.yielded-*")))  # the secrets of it
    assert rundir.read_object(world.run_dir / "attempts/1/exit.json").get("survivors", []) == []


def serving_is_back(world: World) -> bool:
    return bool(world.serving.alive()) and (world.run_dir / "attempts/1/restored.json").exists()


def test_every_moment_has_everybody_who_can_be_killed_there() -> None:
    assert len(CELLS) == len(set(CELLS)) == 41
    assert {role for role, _ in CELLS} == {*ANY, "supervisor", "worker"}
