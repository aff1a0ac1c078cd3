"""The light sweep over the wire: one round trip, under the container's own python3, and nothing in it can harm a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from eagle3.core.presets import resolve
from eagle3.core.readiness.judge import judge
from eagle3.core.readiness.wants import wants
from remote.channel import HelperChannel, Reply
from remote.container import Container
from tests.remote.conftest import Open, Quick
from tests.support.sshd import Sshd

SPEC = resolve("smoke", "smollm2-135m", "cpu")


async def test_a_sweep_costs_one_round_trip_and_is_judged_with_the_clocks(
    sshd: Sshd, quick: Quick, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No pings: on a busy machine a late answer to them would count as a lost link, and the question would be asked again.
    container: Container = await opened(sshd.url, settings=quick(sshd, ping_every_s=60.0))
    asked: list[str] = []
    request = HelperChannel.request

    async def counted(self: HelperChannel, verb: str, args: dict[str, Any], limit_s: float) -> Reply:
        asked.append(verb)
        return await request(self, verb, args, limit_s)

    monkeypatch.setattr(HelperChannel, "request", counted)
    facts = await container.facts({**wants(SPEC, container.workspace), "patience": 10.0})
    assert [verb for verb in asked if verb != "hello"] == ["facts"]
    clocks: Mapping[str, float] = {"local_now": facts["local_now"], "round_trip_s": facts["round_trip_s"]}
    report = judge(facts, SPEC, host=container.host, deep=False, **clocks)
    found = {check.id: check for check in report.checks}
    assert found["host.clock"].status == "ok" and "give or take" in found["host.clock"].evidence
    assert facts["python"]["worker"]["asked"] == container.python, "what the spec leaves open is this container's interpreter"
    assert facts["disk"]["paths"][0]["path"].startswith(str(sshd.home))
    assert report.verdict in ("ready with warnings", "not ready"), "its python3 is no environment for a run"


async def test_one_section_can_be_asked_again(sshd: Sshd, quick: Quick, opened: Open) -> None:
    container: Container = await opened(sshd.url, settings=quick(sshd))
    facts = await container.facts(wants(SPEC, container.workspace), ["disk"])
    assert "disk" in facts and "host" not in facts
    report = judge(facts, SPEC, host="h", deep=False, asked=["disk"])
    assert {check.group for check in report.checks} == {"disk"}


async def test_control_characters_of_the_far_side_are_taken_out(sshd: Sshd, quick: Quick, opened: Open) -> None:
    container: Container = await opened(sshd.url, settings=quick(sshd))
    name = sshd.home / "mod\x1b[2Jel\x07"
    name.mkdir()
    facts = await container.facts({**wants(None, container.workspace), "model": str(name)}, ["model"])
    assert facts["model"]["folder"] == str(sshd.home / "model")
