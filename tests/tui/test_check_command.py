"""``eagle3-tui check`` and the check before a launch, without a screen."""

from __future__ import annotations

import json

import pytest

from eagle3.core.presets import SpecError
from remote.errors import ContainerError
from tests.tui.support.container import FakeContainer
from tests.tui.support.facts import LITTLE, facts
from tests.tui.test_oneshot import talk
from tests.tui.test_readiness import BROKEN, IMPORTS
from tui import check_command, oneshot
from tui.check_command import Judged
from tui.oneshot import Wanted

PILOT = Judged("pilot", "", "")


async def test_a_host_that_is_not_ready_is_1_and_the_json_is_the_report(
    container: FakeContainer, capsys: pytest.CaptureFixture[str]
) -> None:
    container.known = facts(**LITTLE)
    assert await check_command.check(talk(container), PILOT, False, False) == 1
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == "" and out.count("\n") == 1
    assert (answer["verdict"], answer["first_fix"], answer["host"]) == ("not ready", "host.memory", "box")
    assert answer["about"]["size"] == "pilot" and answer["about"]["machine"] == "cpu"
    assert len(container.asked) == 1, "one round trip"


async def test_warnings_are_no_failure(container: FakeContainer, capsys: pytest.CaptureFixture[str]) -> None:
    assert await check_command.check(talk(container, as_json=False), PILOT, False, False) == 0
    assert capsys.readouterr().out.startswith("box: ▲ ready with warnings: ")


async def test_deep_progress_goes_to_stderr_as_it_comes_and_stdout_holds_the_answer(
    container: FakeContainer, capsys: pytest.CaptureFixture[str]
) -> None:
    container.deep = [("deep.imports.worker", BROKEN), ("deep.imports.server", IMPORTS)]
    assert await check_command.check(talk(container), PILOT, True, False) == 1
    out, err = capsys.readouterr()
    begun, failed, second, good = err.splitlines()
    assert begun == "◌ deep.imports.worker… (at most 2 min 00 s)"
    assert failed.startswith("✗ deep.imports.worker  2.5 s  import speculators: ModuleNotFoundError")
    assert second.startswith("◌ deep.imports.server") and good.startswith("✓ deep.imports.server  2.5 s")
    answer = json.loads(out)
    assert answer["deep"] and answer["first_fix"] == "python.imports_worker:speculators"
    unheard = [c for c in answer["checks"] if c["id"] == "extraction.layers"]
    assert [c["status"] for c in unheard] == ["unknown"], "what a deep check left out is never taken for ok"


async def test_markdown_is_for_a_ticket(container: FakeContainer, capsys: pytest.CaptureFixture[str]) -> None:
    container.known = facts(**LITTLE)
    assert await check_command.check(talk(container, as_json=False), PILOT, False, True) == 1
    assert capsys.readouterr().out.startswith("## Readiness of box: not ready\n")


async def test_an_unknown_size_is_wrong_usage(container: FakeContainer) -> None:
    with pytest.raises(SpecError, match="There is no size called 'pilt'; did you mean 'pilot'"):
        await check_command.check(talk(container), Judged("pilt", "", ""), False, False)


async def test_a_launch_on_red_is_refused_naming_what_fails_and_nothing_starts(container: FakeContainer) -> None:
    container.known = facts(**LITTLE)
    with pytest.raises(ContainerError, match=r"box is not ready for the pilot: host\.memory: 1\.0 GiB available") as refused:
        await oneshot.launch(talk(container), Wanted("pilot", "", "", (), "", False))
    assert refused.value.code == "not_ready" and "--anyway" in refused.value.remedy
    assert container.launches == []


async def test_anyway_launches_and_the_run_keeps_the_red_report(
    container: FakeContainer, capsys: pytest.CaptureFixture[str]
) -> None:
    container.known = facts(**LITTLE)
    assert await oneshot.launch(talk(container), Wanted("pilot", "", "", (), "", False, anyway=True)) == 0
    assert "host.memory" in capsys.readouterr().err
    assert len(container.launches) == 1
    assert container.reports[0] is not None and container.reports[0]["verdict"] == "not ready"


async def test_asking_for_a_run_that_is_there_needs_no_readiness(container: FakeContainer) -> None:
    assert await oneshot.launch(talk(container), Wanted("pilot", "", "", (), "run-a", False)) == 0
    container.known = facts(**LITTLE)
    assert await oneshot.launch(talk(container), Wanted("pilot", "", "", (), "run-a", False)) == 0
    assert [run_id for run_id, _, _ in container.launches] == ["run-a", "run-a"]
