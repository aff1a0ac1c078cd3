"""A long run is opened: a picture first, everything on demand, and what comes meanwhile whole."""

from __future__ import annotations

import json
from pathlib import Path

from eagle3.core.spec import RunSpec
from remote.container import Container
from remote.follow import LOG_TAIL_BYTES
from tests.remote.conftest import Open, Quick
from tests.remote.watching import Watch
from tests.support.sshd import Sshd
from tests.support.waiting import until

ROWS = 12_000
SPIKE = 7_777


async def long_run(container: Container, spec: RunSpec) -> Path:
    """A run that has thousands of rows and a long log before its worker, the fake one, goes on writing."""
    run_dir = Path((await container.launch(spec, "long"))["run_dir"])
    await until((run_dir / "metrics.jsonl").exists, "the first row")
    await container.stop("long")
    await until((run_dir / "attempts" / "1" / "exit.json").exists, "its end")
    rows = [
        {"v": 1, "attempt": 1, "seq": n, "t": 1.0, "stage": "train", "split": "train", "step": n, "loss": 1 + n % 7, "lr": 0.1}
        for n in range(1, ROWS + 1)
    ]
    rows[SPIKE - 1]["loss"] = 1e6
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    with (run_dir / "attempts" / "1" / "run.log").open("a") as log:
        log.writelines(f"an old line {n}\n" for n in range(40_000))
    return run_dir


async def test_the_picture_comes_first_spikes_in_it_and_everything_on_demand(
    sshd: Sshd, quick: Quick, opened: Open, spec: RunSpec
) -> None:
    container = await opened(sshd.url, settings=quick(sshd))
    run_dir = await long_run(container, spec)
    await container.launch(spec, "long", resume=True)
    watch = Watch(container, "long")
    await until(lambda: watch.rows > 0, "the picture")
    first = watch.news[0]
    assert first.thinned is not None and first.thinned.rows >= ROWS and len(first.rows) < ROWS / 4
    assert {1, SPIKE, ROWS} <= {row.step for row in first.rows}

    seen = watch.rows
    await until(lambda: watch.rows > seen + 3, "rows after the picture")
    later = [row.step for piece in watch.news[1:] for row in piece.rows]
    assert later == list(range(later[0], later[0] + len(later)))
    await until(lambda: any(piece.probe is not None for piece in watch.news), "a probe, which may come with a later poll")
    (run_dir / "finish").touch()
    await watch.end()
    written = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    last = watch.news[-1]
    assert last.thinned is not None and last.thinned.rows == len(written)
    assert last.thinned.kept == watch.rows
    assert any(piece.probe is not None and piece.probe.runs[0].run_id == "long" for piece in watch.news)

    pieces = [piece async for piece in container.complete("long")]
    assert [row.seq for piece in pieces for row in piece.rows] == [row["seq"] for row in written]
    assert len(pieces) > 1
    assert [piece.done_bytes for piece in pieces] == sorted(piece.done_bytes for piece in pieces)
    assert pieces[-1].done_bytes == pieces[-1].total_bytes == (run_dir / "metrics.jsonl").stat().st_size


async def test_a_long_log_is_told_from_near_its_end_and_what_lies_before_it_on_demand(
    sshd: Sshd, quick: Quick, opened: Open, spec: RunSpec
) -> None:
    container = await opened(sshd.url, settings=quick(sshd))
    run_dir = await long_run(container, spec)
    watch = Watch(container, "long")
    await watch.end()
    told, skipped_bytes = "".join(piece.log for piece in watch.news), watch.news[-1].log_skipped_bytes
    whole = (run_dir / "attempts" / "1" / "run.log").read_text()
    assert 0 < len(told) <= LOG_TAIL_BYTES and skipped_bytes + len(told) == len(whole) and whole.endswith(told)
    page = await container.log_page("long", "run.log", skipped_bytes, before=10)
    assert [line.text for line in page.lines][-10:] == whole[:skipped_bytes].splitlines()[-10:]
