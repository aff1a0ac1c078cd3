"""Metric rows as columns: what comes back is what was taken, and what stays of very many."""

from __future__ import annotations

import math

from eagle3.core.records import MetricRow
from tui.plotting.rows import Column, Metrics


def row(step: int, loss: float | None = 1.0, **more: object) -> MetricRow:
    return MetricRow.model_validate(
        {"stage": "train", "split": "train", "step": step, "seq": step, "t": 100.0 + step, "loss": loss} | more
    )


def test_a_row_comes_back_as_it_was() -> None:
    metrics = Metrics()
    rows = [row(1, lr=1e-3, acc_pos=[0.2, 0.1], tok_s=3.5), row(2, None), row(3, acc_pos=[0.3, None, 0.1], loss_pos=[4.0])]
    metrics.take(rows)
    assert metrics.rows("train", "train") == rows
    assert metrics.last("train", "train") == rows[-1] and metrics.last_t == 103.0 and metrics.begun == 101.0


def test_a_step_that_is_repeated_counts_once_and_one_that_comes_late_finds_its_place() -> None:
    metrics = Metrics()
    metrics.take([row(1), row(3), row(2, 2.0), row(3, 9.0, attempt=2), row(3, 5.0)])
    assert [(r.step, r.loss) for r in metrics.rows("train", "train")] == [(1, 1.0), (2, 2.0), (3, 9.0)]


def test_of_a_million_rows_few_stay_the_newest_whole_and_every_spike() -> None:
    metrics = Metrics(kept=1000)
    metrics.take(row(step, 50.0 if step == 777 else 1.0 + step % 3) for step in range(20_000))
    kept = metrics.rows("train", "train")
    assert len(kept) <= 1000 and metrics.thinned and metrics.taken == 20_000
    assert [r.step for r in kept[-200:]] == list(range(19_800, 20_000))
    assert kept[0].step < 100 and max(r.loss or 0 for r in kept) == 50.0


def test_rows_without_a_number_are_thinned_too_and_stay_gaps() -> None:
    column = Column("train", "train", kept=40)
    for step in range(200):
        column.take(row(step, math.nan if step % 2 else None))
    assert len(column) <= 40 and all(math.isnan(value) for value in column.values("loss"))


def test_an_attempt_that_begins_at_an_earlier_step_takes_the_later_ones_of_the_attempt_before_away() -> None:
    metrics = Metrics()
    metrics.take([row(step, 9.0) for step in range(1, 501)] + [row(step, 8.0, split="val") for step in (250, 500)])
    metrics.take([row(step, 5.0, attempt=2, t=5000.0 + step) for step in range(251, 261)])
    assert [(r.step, r.loss) for r in metrics.rows("train", "train")[-11:]] == [(250, 9.0)] + [(s, 5.0) for s in range(251, 261)]
    newest, held_out = metrics.last("train", "train"), metrics.last("train", "val")
    assert newest is not None and (newest.step, newest.attempt) == (260, 2)
    assert held_out is not None and held_out.step == 250, "the one that the attempt began from"
    assert not metrics.thinned and metrics.taken == len(metrics) == 261
    times = metrics.places(metrics.column("train", "train"), "time")
    assert times == sorted(times), "the axis of time goes one way"


def test_the_steps_by_time_are_made_once_for_all_who_ask_and_anew_with_new_rows() -> None:
    metrics = Metrics()
    metrics.take([row(1), row(2)])
    reached = metrics.reached
    assert metrics.reached is reached and reached.at(102.5) == 2.0
    metrics.take([row(3)])
    assert metrics.reached.at(103.0) == 3.0


def test_a_copy_for_a_thread_is_not_changed_by_what_comes() -> None:
    metrics = Metrics()
    metrics.take([row(1), row(2)])
    copy = metrics.copy()
    metrics.take([row(3), row(1, 9.0, attempt=2)])
    assert [(r.step, r.loss) for r in copy.all_rows()] == [(1, 1.0), (2, 1.0)]
