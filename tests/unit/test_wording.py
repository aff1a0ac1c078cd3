"""What is said of a run on one line."""

from __future__ import annotations

from eagle3.core.records import Progress, RunSummary
from eagle3.core.wording import bytes_label, duration_label, progress_line, rate_label, result_of

PROGRESS = Progress(stage="train", done=42, total=180, unit="steps", rate=1.2, eta_s=115.0)


def summary(state: str, **more: object) -> RunSummary:
    return RunSummary.model_validate(
        {"run_id": "pilot-1", "state": state, "progress": PROGRESS, "stages": {"prepare": 1.0, "extract": 64.0}, **more}
    )


def test_a_running_run_says_its_progress_rate_and_time_left() -> None:
    line = progress_line(summary("running"))
    assert line == "● running · pilot-1 · 2 of 7 stages done · train 42/180 steps · 1.2 steps/s · 1 min 55 s left"


def test_an_ended_run_shows_no_time_left() -> None:
    line = progress_line(summary("stopped"))
    assert line == "■ stopped · pilot-1 · 2 of 7 stages done · 1 min 05 s in stages"


def test_a_slow_rate_is_said_as_seconds_a_unit() -> None:
    assert rate_label(0.25, "steps") == "4.0 s per step"
    assert rate_label(0.0, "steps") == ""


def test_what_is_not_known_is_a_dash_and_never_a_zero() -> None:
    assert duration_label(None) == "–"
    assert bytes_label(float("nan")) == "–"


def test_a_run_without_a_result_still_has_a_last_line() -> None:
    result = result_of(summary("failed", state_text="failed with exit code 1", created_at=10.0, ended_at=75.0), None)
    assert (result.state, result.wall_s, result.verdict_text) == ("failed", 65.0, "failed with exit code 1")
    assert result.stages == {"prepare": 1.0, "extract": 64.0}
