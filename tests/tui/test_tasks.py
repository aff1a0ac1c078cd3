"""What operators come for, each from Overview at 80×24, by keys that the footer or the help in front names at that moment."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from eagle3.core.records import Probe
from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.facts import LITTLE, facts
from tests.tui.support.folders import NOW, lines, metric, write_run
from tui.keymap import KEYS, key_label
from tui.screens.help import help_text

SIZE = (80, 24)
MIB = 1 << 20


async def does(pilot: Pilot[int], where: str, action: str, *, then: str = "") -> None:
    """Press the key of an action, which the footer or the help of the screen in front must name; wait for ``then``."""
    key = next(key for key in KEYS if key.where == where and key.action == action)
    here = getattr(pilot.app.screen, "HERE", "")
    said = " ".join(help_text(here).plain.split())
    assert f"{key_label(key.keys)} {key.label}" in seen(pilot.app) or " ".join(key.help.split()) in said  # type: ignore[arg-type]
    await pilot.press(key.keys.split(",")[0])
    if then:
        await until_seen(pilot, then)


async def test_why_a_container_is_not_ready(container: FakeContainer, make_app: MakeApp) -> None:
    container.known = facts(**LITTLE)
    async with make_app().run_test(size=SIZE) as pilot:
        await until_seen(pilot, "no GPU")
        await does(pilot, "everywhere", "go('readiness')")
        await until_seen(pilot, "✗ not ready", "Memory", "1.0 GiB available of 24.0 GiB", "To do")


async def test_launch_the_pilot(container: FakeContainer, make_app: MakeApp) -> None:
    async with make_app().run_test(size=SIZE) as pilot:
        await until_seen(pilot, "no GPU")
        await does(pilot, "everywhere", "pilot", then="Launch the pilot?")
        await until(pilot, lambda: "ready" in seen(pilot.app), "the verdict")  # type: ignore[arg-type]
        await pilot.press("y")
        await until(pilot, lambda: bool(container.launches), "the launch")
        assert container.launches[0][1] == "pilot"
        await until_seen(pilot, "● running", "Stages")


async def test_whether_the_loss_flattened_in_the_last_hour(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", steps=0)
    lines(run / "metrics.jsonl", [metric(step, t=NOW - 7200 + step * 60) for step in range(1, 121)])
    async with make_app().run_test(size=SIZE) as pilot:
        await until_seen(pilot, "run-a")
        await pilot.press("enter")
        await until_seen(pilot, "Loss", "⠒")
        await does(pilot, "run", "look('hour')", then="last hour")
        await until_seen(pilot, "59m00", "1h59")


async def test_compare_two_runs(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "finished", steps=180)
    write_run(container.root, "run-b", "failed", steps=40)
    async with make_app().run_test(size=SIZE) as pilot:
        await until_seen(pilot, "run-a", "run-b")
        await does(pilot, "everywhere", "go('runs')", then="live first")
        await does(pilot, "runs", "mark", then="1 marked")
        await pilot.press("down")
        await does(pilot, "runs", "mark", then="2 marked")
        await does(pilot, "runs", "compare")
        await until_seen(pilot, "━ run-a", "━ run-b", "Figures", "Training loss")


async def test_the_first_error_of_a_log(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", "failed")
    body = [f"INFO step {n}" for n in range(3000)]
    body[1200] = "ValueError: hidden size 576 is not 1024"
    (run / "attempts/1/run.log").write_text("\n".join(body) + "\n")
    async with make_app().run_test(size=SIZE) as pilot:
        await until_seen(pilot, "run-a")
        await pilot.press("enter")
        await until_seen(pilot, "✗ failed", "Stages")
        await does(pilot, "everywhere", "go('logs')", then="INFO step 2999")
        await does(pilot, "logs", "errors", then="ValueError: hidden size 576 is not 1024")


async def test_stop_after_a_checkpoint(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a")
    async with make_app().run_test(size=SIZE) as pilot:
        await until_seen(pilot, "run-a")
        await pilot.press("enter")
        await until_seen(pilot, "● running", "Stages")
        await does(pilot, "run", "stop")
        await until_seen(pilot, "Stop the run?", "After the checkpoint  c")
        await pilot.press("c")
        await until(pilot, lambda: container.stops == [("run-a", "after-checkpoint")], "the stop")


async def test_when_the_disk_is_full(container: FakeContainer, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = container.probe

    async def filling() -> Probe:
        """A minute and 50 MiB later at each look."""
        nonlocal looks
        looks, probe = looks + 1, await look()
        disks = [disk.model_copy(update={"free_bytes": (disk.free_bytes or 0) - looks * 50 * MIB}) for disk in probe.disks]
        return probe.model_copy(update={"now": NOW + 60 * looks, "disks": disks})

    monkeypatch.setattr(container, "probe", filling)
    async with make_app().run_test(size=SIZE) as pilot:
        await until_seen(pilot, "Disks", "full in 12 h", "at 2.9 GiB/h")


async def test_take_over_a_colleagues_run(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", "stopped", actor="ann")
    async with make_app().run_test(size=SIZE) as pilot:
        await until_seen(pilot, "■ stopped", "run-a")
        await pilot.press("enter")
        await until_seen(pilot, "■ stopped", "Stages")
        await until_seen(pilot, "launched by ann")
        await does(pilot, "run", "resume", then="Resume the run?")
        await pilot.press("y")
        await until(pilot, lambda: bool(container.launches) and container.launches[0][2], "the resume")
