"""What is said where facts are missing, late or strange: never ok. And one question gathers them all."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.presets import resolve
from eagle3.core.readiness.judge import judge
from eagle3.core.readiness.registry import Context, Finding, Registry
from eagle3.core.readiness.statuses import Status
from eagle3.core.readiness.wants import wants, with_pythons
from eagle3.runner.errors import VerbError
from eagle3.runner.facts import SECTIONS, gather
from tests.readiness.light import SMOL, asked
from tests.runner.support import Channel


def registry(status: Status = "ok", *, deep: bool = False, section: str = "host") -> Registry:
    found = Registry()

    @found.check("host.x", title="X", why="w", catches="c", proof="real", needs=(section,), deep=deep)
    def _(facts: Any, context: Context) -> list[Finding]:
        return [Finding(status, str(facts[section]["value"]))]

    return found


def statuses(known: Registry, facts: dict[str, Any], **context: Any) -> list[tuple[str, str]]:
    report = known.report(facts, Context(**context), host="h", deep=bool(context.get("deep")))
    return [(check.status, check.evidence) for check in report.checks]


def test_a_section_that_failed_or_is_missing_makes_its_checks_unknown_and_never_ok() -> None:
    known = registry()
    assert statuses(known, {"host": {"value": 1}}) == [("ok", "1")]
    assert statuses(known, {"host": {"error": "it hung"}}) == [("unknown", "it hung")]
    assert statuses(known, {}) == [("unknown", "no answer about host")]
    assert statuses(known, {"host": {}})[0][0] == "unknown", "a fact that is missing is a finding of its own"


def test_only_what_was_asked_again_is_judged_again() -> None:
    known = registry()
    assert statuses(known, {}, asked=frozenset({"gpu"})) == []
    assert statuses(known, {}, asked=frozenset({"host"})) == [("unknown", "no answer about host")]


def test_a_deep_check_that_was_not_run_is_skipped_and_one_that_did_not_answer_is_unknown() -> None:
    known = registry(deep=True, section="deep.kernels")
    assert statuses(known, {}) == [("skipped", "not run")]
    assert statuses(known, {}, deep=True) == [("unknown", "no answer about deep.kernels")]
    assert statuses(known, {"deep.kernels": {"value": 2}}, deep=True) == [("ok", "2")]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("ok", "ready"),
        ("skipped", "ready"),
        ("warn", "ready with warnings"),
        ("unknown", "ready with warnings"),
        ("fail", "not ready"),
    ],
)
def test_the_verdict_is_the_worst_that_was_found(status: Status, verdict: str) -> None:
    report = registry(status).report({"host": {"value": 1}}, Context(), host="h", deep=False)
    assert report.verdict == verdict
    assert report.first_fix == ("" if status in ("ok", "skipped") else "host.x")


def test_a_report_of_nothing_is_not_ready() -> None:
    assert judge({"now": 1.0}, None, host="h", deep=False, asked=()).verdict == "not ready"


def test_one_question_gathers_every_section_under_the_oldest_python_and_all_of_it_is_judged(channel: Channel) -> None:
    answer = channel.result("facts", wants=asked(SMOL, "/nowhere/eagle3", watch_s=0.1))
    assert set(SECTIONS) < set(answer) and all(answer[name]["took_s"] >= 0 for name in SECTIONS)
    report = judge(answer, SMOL, host="here", deep=False)
    groups = {check.group for check in report.checks}
    assert groups >= {"host", "gpu", "disk", "python", "model", "vllm"}
    strange = [c for c in report.checks if "cannot be understood" in c.evidence or "no answer" in c.evidence]
    assert strange == []
    assert all(c.why and (c.remedy or c.status in ("ok", "skipped")) for c in report.checks), "each says why, and what to do"
    assert report.about == {"size": "smoke", "target": "smollm2-135m", "machine": "cpu"} and report.as_of == answer["now"]


def test_without_a_spec_the_machine_alone_is_looked_at(channel: Channel) -> None:
    answer = channel.result(
        "facts", wants=with_pythons(wants(None, "/nowhere/eagle3"), sys.executable), sections=["model", "disk"]
    )
    assert set(answer) == {"now", "pid", "model", "disk"}
    report = judge(answer, None, host="here", deep=False, asked=["model", "disk"])
    assert {c.id for c in report.checks if c.group == "model"} == {"model.found"} and report.about == {}
    refused = channel.ask("facts", wants={}, sections=["weather"])
    assert refused["error"]["code"] == "usage" and "weather" in refused["error"]["text"]


def test_a_section_that_hangs_or_breaks_holds_up_no_other() -> None:
    never = threading.Event()

    def hangs(*_: Any) -> dict[str, Any]:
        never.wait()
        return {}

    def breaks(*_: Any) -> dict[str, Any]:
        raise ZeroDivisionError("no such machine")

    known = {"host": hangs, "gpu": breaks, "disk": lambda *_: {"value": 1}}
    facts = gather({}, limits_s={"host": 0.2, "gpu": 60, "disk": 60}, known=known)
    never.set()
    assert facts["host"]["error"] == "the container gave no answer about host within 0 s"
    assert "ZeroDivisionError: no such machine" in facts["gpu"]["error"]
    assert facts["disk"]["value"] == 1 and facts["disk"]["took_s"] < 60
    with pytest.raises(VerbError, match="weather"):
        gather({}, ["weather"])


def test_what_is_asked_is_plain_json_and_follows_the_spec() -> None:
    spec = resolve("pilot", "smollm2-135m", "cpu", {"worker_python": "/env/bin/python", "server.port": 8123})
    told = wants(spec, "/data/eagle3", urls=["http://127.0.0.1:8000"])
    assert json.loads(json.dumps(told)) == told
    assert told["pythons"] == {"worker": "/env/bin/python", "server": "/env/bin/python"} and told["port"] == 8123
    assert told["expect"]["captured_layers"] == [2, 15, 27, 30] and told["gpus"] == 0
    assert told["paths"][0] == "/data/eagle3" and told["needs"][0]["path"] == "/data/eagle3"
    assert [need["unless"] for need in told["needs"]] == ["", spec.target.model], (
        "the target is fetched only where it is not there"
    )
    assert with_pythons(wants(None, "~/eagle3"), "python3")["pythons"] == {"worker": "python3", "server": "python3"}


def test_the_container_fills_in_its_own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    facts = gather({"workspace": str(tmp_path), "paths": ["{tmp}", "{hf_cache}", "{cache}/targets"]}, ["disk"])
    assert [entry["path"] for entry in facts["disk"]["paths"]] == [
        str(tmp_path), f"{tmp_path}/tmp", f"{tmp_path}/hf/hub", f"{tmp_path}/cache/targets"
    ]  # fmt: skip
