"""A guard that tripped is told as an event; then the run goes on, is held, or ends, as its spec says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3.core.guards import Finding
from eagle3.stages import guarding
from eagle3.stages.context import StageError
from tests.stages.runs import context, rows


def finding(response: str, kind: str = "memory") -> Finding:
    return Finding(kind, f"{kind} tripped;", "do this.", 0.2, 0.1, {"step": 7.0}, response)  # type: ignore[arg-type]


def test_a_warning_is_an_event_with_its_numbers_and_the_run_goes_on(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    assert guarding.act(ctx, [finding("warn")]) is False
    (event,) = rows(tmp_path, "events.jsonl")
    assert (event["kind"], event["level"], event["text"]) == ("guard-memory", "warn", "memory tripped; do this.")
    numbers = {"value": 0.2, "threshold": 0.1, "counts": {"step": 7.0}}
    assert event["guard"] == {"name": "memory", **numbers, "response": "warn", "action": "do this."}
    assert not (tmp_path / "control.json").exists()


def test_a_pause_is_asked_for_in_the_guards_name_after_saving(tmp_path: Path) -> None:
    ctx, saved = context(tmp_path), []
    assert guarding.act(ctx, [finding("pause")], lambda: saved.append(True)) is True
    assert json.loads((tmp_path / "control.json").read_text())["pause"]["by"] == "the guard memory"
    assert saved == [True] and ctx.order("pause")


def test_of_two_guards_that_pause_both_are_told(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    assert guarding.act(ctx, [finding("pause"), finding("pause", "gradient")]) is True
    assert [hold["by"] for hold in ctx.holds()] == ["the guard memory", "the guard gradient"]


def test_a_stop_is_raised_after_everything_was_told_and_saved(tmp_path: Path) -> None:
    ctx, saved = context(tmp_path), []
    with pytest.raises(StageError, match="nan tripped"):
        guarding.act(ctx, [finding("warn"), finding("stop", "nan"), finding("pause", "clock")], lambda: saved.append(True))
    assert [row["kind"] for row in rows(tmp_path, "events.jsonl")] == ["guard-memory", "guard-nan", "guard-clock"]
    assert saved == [True] and not ctx.order("pause")
