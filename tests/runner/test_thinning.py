"""A long file of rows is seen in a few of them: spikes, ends and the rare kinds of rows stay."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3.runner import increments, thinning
from eagle3.runner.thinning import picture

Rows = list[dict[str, Any]]
Open = Callable[[bytes], tuple[int, int]]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    descriptors: list[int] = []

    def open_(content: bytes) -> tuple[int, int]:
        path = tmp_path / "rows"
        path.write_bytes(content)
        descriptors.append(os.open(path, os.O_RDONLY))
        return descriptors[-1], len(content)

    yield open_
    for descriptor in descriptors:
        os.close(descriptor)


def row(step: int, loss: float | None, attempt: int = 1, split: str = "train") -> dict[str, Any]:
    return {
        "v": 1,
        "attempt": attempt,
        "seq": step,
        "t": 1.0,
        "stage": "train",
        "split": split,
        "step": step,
        "loss": loss,
        "lr": 1,
    }


def text(rows: Rows) -> bytes:
    """As the journal writes it."""
    return b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in rows)


def kept(lines: list[bytes]) -> list[tuple[int, int, str]]:
    found = [json.loads(line) for line in lines]
    return [(one["attempt"], one["step"], one["split"]) for one in found]


def test_spikes_ends_and_rare_rows_stay(opened: Open) -> None:
    rows = [row(step, 5.0 + (step % 7) / 10) for step in range(20_000)]
    rows[7_654]["loss"], rows[12_345]["loss"] = 900.0, -3.0
    for step in range(0, 20_000, 1_000):
        rows.insert(step + step // 1_000, row(step, 6.0, split="val"))
    descriptor, size = opened(text(rows))
    found = picture(descriptor, 0, size, 200)
    steps = kept(found.lines)
    assert {(1, 7_654, "train"), (1, 12_345, "train"), (1, 0, "train"), (1, 19_999, "train")} <= set(steps)
    assert [step for _, step, split in steps if split == "val"] == list(range(0, 20_000, 1_000))
    assert [step for _, step, split in steps if split == "train"] == sorted({s for _, s, split in steps if split == "train"})
    assert (found.seen, found.hasty, found.end) == (20_020, False, len(text(rows)))
    assert len(steps) <= 200 + 20 + 2


def test_each_attempts_first_and_last_row_stay(opened: Open) -> None:
    rows = [*(row(step, 1.0) for step in range(3_000)), *(row(step, 1.0, attempt=2) for step in range(2_500, 9_000))]
    descriptor, size = opened(text(rows))
    steps = {(attempt, step) for attempt, step, _ in kept(picture(descriptor, 0, size, 50).lines)}
    assert {(1, 0), (1, 2_999), (2, 2_500), (2, 8_999)} <= steps


def test_a_half_line_is_left_for_later_and_reading_begins_where_it_is_told(opened: Open) -> None:
    head, body, half = text([row(1, 9.0)]), text([row(step, 1.0) for step in range(2, 50)]), b'{"v":1,"attempt"'
    descriptor, size = opened(head + body + half)
    found = picture(descriptor, len(head), size, 1000)
    assert b"\n".join(found.lines) + b"\n" == body
    assert (found.end, found.seen) == (len(head + body), 48)


def test_when_time_is_up_the_rest_is_only_glanced_at_and_that_is_said(opened: Open) -> None:
    rows = [row(step, 1.0) for step in range(100_000)]
    descriptor, size = opened(text(rows))
    ticks = iter(range(1_000_000))
    found = picture(descriptor, 0, size, 50, limit_s=3.0, clock=lambda: float(next(ticks)))
    assert found.hasty and found.end == size and found.seen < 100_000
    last = [step for _, step, _ in kept(found.lines)]
    assert last == sorted(last) and last[-1] > 95_000


ODD = st.one_of(
    st.binary(max_size=30).filter(lambda b: b"\n" not in b),
    st.sampled_from([b"null", b"[1]", b'{"loss": 1e999}', b'{"step":3,"stage":"train","attempt":1,"loss":2}', b"", b"[" * 3000]),
    st.builds(
        lambda n, loss, attempt, split: text([row(n, loss, attempt, split)])[:-1],
        st.integers(0, 99),
        st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        st.integers(1, 3),
        st.sampled_from(["train", "val"]),
    ),
)


@given(st.lists(ODD, max_size=60), st.integers(1, 40))
@settings(max_examples=60)
def test_whatever_the_lines_are_those_kept_are_lines_of_the_file_in_order(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], target: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows"
    content = b"".join(line + b"\n" for line in lines)
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = picture(descriptor, 0, len(content), target)
    finally:
        os.close(descriptor)
    rest = iter([line for line in lines if line])
    assert all(any(line == other for other in rest) for line in found.lines)
    assert found.seen == sum(bool(line) for line in lines)
    assert found.end == len(content)


def test_the_quick_way_and_the_slow_way_see_the_same() -> None:
    rows = text([row(step, float(step % 5), split="val" if step % 3 else "train") for step in range(50)]).splitlines()
    assert thinning._all_alike(rows) == thinning._one_by_one(rows)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    place = tmp_path / "runs" / "r"
    place.mkdir(parents=True)
    return place


def test_a_backlog_comes_thinned_and_what_follows_whole(run_dir: Path) -> None:
    rows = [row(step, 2.0) for step in range(1, 12_001)]
    (run_dir / "metrics.jsonl").write_bytes(text(rows))
    first = increments.read(run_dir, "metrics.jsonl", None, 1000, False, False, thin=100)
    assert first["thinned"]["rows"] == 12_000 and first["thinned"]["kept"] == len(first["text"].splitlines()) < 150
    assert not first["more"]
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(text([row(12_001, 2.0)]))
    second = increments.read(run_dir, "metrics.jsonl", first["token"], 1000, False, False, thin=100)
    assert second["text"].encode() == text([row(12_001, 2.0)]) and "thinned" not in second


def test_a_short_backlog_is_not_thinned(run_dir: Path) -> None:
    content = text([row(step, 2.0) for step in range(100)])
    (run_dir / "metrics.jsonl").write_bytes(content)
    assert increments.read(run_dir, "metrics.jsonl", None, 1 << 20, False, False, thin=2)["text"].encode() == content


def test_a_long_log_is_read_from_near_its_end_and_goes_on_from_there(run_dir: Path) -> None:
    content = "".join(f"line {number} äöü\n" for number in range(2_000)).encode()
    (run_dir / "a.log").write_bytes(content)
    found = increments.read(run_dir, "a.log", None, 1 << 20, False, False, tail_bytes=1_000)
    tail = found["text"].encode()
    assert 900 < len(tail) <= 1_000 and content.endswith(tail) and found["skipped_bytes"] + len(tail) == len(content)
    assert found["text"].startswith("line ")
    with (run_dir / "a.log").open("a") as file:
        file.write("more\n")
    again = increments.read(run_dir, "a.log", found["token"], 1 << 20, False, False, tail_bytes=1_000)
    assert again["text"] == "more\n" and "skipped_bytes" not in again


def test_a_short_log_and_one_without_lines_are_read_too(run_dir: Path) -> None:
    (run_dir / "a.log").write_bytes(b"one\n")
    assert increments.read(run_dir, "a.log", None, 100, False, False, tail_bytes=50)["text"] == "one\n"
    (run_dir / "a.log").write_bytes(b"\r50%" * 1000)
    found = increments.read(run_dir, "a.log", None, 100, False, True, tail_bytes=50)
    assert found["skipped_bytes"] == 3_950 and len(found["text"]) == 50
