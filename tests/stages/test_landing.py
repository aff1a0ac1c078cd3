"""Samples on their way to the disk: asked for again, put aside with a reason, waited for. The server is an edge fake."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.engines.completions import RequestFailed
from eagle3.rows import Row, read_rows
from eagle3.runner.handed import Handed
from eagle3.stages import extract, landing, vocabulary
from eagle3.stages.context import StageContext, StageError, Stopped
from eagle3.stages.hold import Hold
from eagle3.stages.landing import Landing, limit_s
from eagle3.stages.room import SLACK, DiskRoom
from eagle3.states.quarantine import Quarantine, put_aside
from eagle3.store import StateRow, StateStore
from eagle3.training.samples import read_samples
from tests.stages.extraction import Answer, Extractor, made, nan, run, sample, states
from tests.stages.fake_vllm import FakeVllm, Reply
from tests.stages.runs import context, rows
from tests.stages.tiny_models import tiny_llama
from tests.support.guards import of_guard, the_guard
from tests.support.ports import held_port
from tests.support.tmpfs import on_tmpfs


def events(ctx: StageContext, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows(ctx.run_dir, "events.jsonl") if row["kind"] == kind]


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    return made(tmp_path)


def only(index: int, times: int, what: Callable[[list[int]], Reply | torch.Tensor]) -> Answer:
    return lambda before, ids: what(ids) if ids[0] == 10 + index and before < times else None


def test_every_sample_gets_its_states_and_the_servers_files_are_gone(ctx: StageContext) -> None:
    store, _ = run(ctx)
    assert [row["index"] for row in read_rows(store.manifest)] == list(range(6))
    assert list(store.raw.iterdir()) == []
    assert sorted(path.name for path in store.folder.glob("hs_*")) == [f"hs_{index}.safetensors" for index in range(6)]
    assert put_aside(ctx.run_dir) == frozenset()


def test_the_silence_before_a_cold_models_first_sample_is_announced_and_over_with_it(tmp_path: Path) -> None:
    ctx = made(tmp_path, 2, extract__request_timeout_s=1500, extract__concurrency=1)
    told: list[dict[str, Any]] = []

    def first(before: int, ids: list[int]) -> None:
        told.append(json.loads((tmp_path / "progress.json").read_text()))

    run(ctx, first)
    assert told[0]["quiet_until"] - told[0]["t"] == 1500 and "first samples" in told[0]["reason"]
    assert json.loads((tmp_path / "progress.json").read_text())["quiet_until"] is None


@pytest.mark.parametrize("wrong", [nan, lambda ids: Reply(500), lambda ids: Reply(body=b"[]"), lambda ids: Reply(close=True)])
def test_a_sample_that_fails_is_asked_for_again_and_said(
    ctx: StageContext, wrong: Callable[[list[int]], Reply | torch.Tensor]
) -> None:
    _, server = run(ctx, only(2, 2, wrong))
    assert len(server.requests) == 8
    assert [row["text"].startswith("Sample 2 ('s-2'): ") for row in events(ctx, "integrity")] == [True, True]
    assert put_aside(ctx.run_dir) == frozenset()


def test_a_sample_that_fails_every_time_is_put_aside_with_its_reason_and_the_others_are_trained_on(tmp_path: Path) -> None:
    ctx = made(tmp_path, guards__quarantined_share=0.2)
    run(ctx, only(2, 99, nan))
    (row,) = read_rows(tmp_path / "states" / "quarantine.jsonl")
    assert (row["index"], row["id"], row["tries"]) == (2, "s-2", 3) and "NaN" in row["reason"]
    told = events(ctx, "quarantine")[-1]
    assert (told["quarantined"], told["samples"]) == (1, 6)
    assert "1 of 6 samples have no usable states and are left out of the training: sample 2 " in told["text"]
    left = read_samples(tmp_path / "data" / "samples.jsonl", without=put_aside(tmp_path))
    assert [one.index for one in left["heldout"]] == [5] and [one.index for one in left["train"]] == [0, 1, 3, 4]
    assert extract.whole(ctx) == "", "the stage is finished: what was put aside is not missing"


def test_what_was_put_aside_makes_the_vocabulary_be_counted_again_and_nothing_does_nothing(tmp_path: Path) -> None:
    ctx = made(tmp_path, guards__quarantined_share=0.2)
    run(ctx)
    assert vocabulary.besides(ctx) == {}, "so that the records of older runs stay true"
    (tmp_path / "states" / "hs_2.safetensors").unlink()
    run(ctx, only(2, 99, nan))
    assert vocabulary.besides(ctx) == {"put_aside": [2]}


def test_a_resume_tries_what_was_put_aside_once_more(tmp_path: Path) -> None:
    ctx = made(tmp_path, guards__quarantined="warn")
    run(ctx, only(2, 99, nan))
    _, server = run(ctx)
    assert [request["prompt"] for request in server.requests] == [sample(2)["input_ids"]]
    assert put_aside(tmp_path) == frozenset() and not (tmp_path / "states" / "quarantine.jsonl").exists()


def test_a_sample_that_the_server_refuses_is_not_asked_for_again(tmp_path: Path) -> None:
    ctx = made(tmp_path, guards__quarantined="warn")
    refusal = Reply(400, b'{"error": {"message": "longer than the model allows"}}')
    _, server = run(ctx, only(4, 99, lambda ids: refusal))
    assert len(server.requests) == 6
    assert "longer than the model allows" in read_rows(tmp_path / "states" / "quarantine.jsonl")[0]["reason"]


def test_too_many_put_aside_stop_the_stage_as_soon_as_enough_were_asked_for(tmp_path: Path) -> None:
    ctx = made(tmp_path, 60, guards__quarantined_at_least=10, extract__concurrency=1, extract__tries=1)
    with pytest.raises(StageError, match=r"2 of 10 samples have no usable states \(sample 0 .*mend it, then resume the run"):
        run(ctx, lambda before, ids: nan(ids) if ids[0] in (10, 11) else None)
    guard = the_guard(rows(tmp_path, "events.jsonl"), "quarantined")
    assert guard["guard"]["counts"] == {"samples": 10.0, "quarantined": 2.0} and guard["guard"]["threshold"] == 0.05
    landed = [row["index"] for row in rows(tmp_path, "states/manifest.jsonl")]
    assert landed[:8] == list(range(2, 10)), "what has landed stays"
    assert landed[8:] in ([], [10]), "one more may have been on its way"


def test_the_guard_that_ends_the_stage_says_so_once_though_others_are_put_aside_in_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = made(tmp_path, 4, guards__quarantined_at_least=1, extract__concurrency=4, extract__tries=1)
    adopt, tell, together, looked_at = StateStore.adopt, Landing._tell, threading.Barrier(4), threading.Semaphore(0)

    def adopt_and_say(*about: Any) -> StateRow:
        together.wait(60)
        try:
            return adopt(*about)
        finally:
            looked_at.release()

    def tell_when_all_are_looked_at(*about: Any, **how: Any) -> None:
        assert all(looked_at.acquire(timeout=60) for _ in range(4))
        looked_at.release(4)
        tell(*about, **how)

    monkeypatch.setattr(StateStore, "adopt", adopt_and_say)
    monkeypatch.setattr(Landing, "_tell", tell_when_all_are_looked_at)
    with pytest.raises(StageError, match="1 of 1 samples have no usable states"):
        run(ctx, lambda before, ids: nan(ids))
    the_guard(rows(tmp_path, "events.jsonl"), "quarantined")


def test_at_the_end_few_samples_are_judged_too(ctx: StageContext) -> None:
    with pytest.raises(StageError, match="1 of 6 samples have no usable states"):
        run(ctx, only(2, 99, nan))


def test_when_none_is_whole_the_stage_ends_whatever_the_guard_says(tmp_path: Path) -> None:
    ctx = made(tmp_path, guards__quarantined="off")
    with pytest.raises(StageError, match=r"None of the 6 samples has usable states \(sample 0"):
        run(ctx, lambda before, ids: nan(ids))


def test_two_samples_with_the_same_states_are_both_asked_for_again(ctx: StageContext) -> None:
    def swapped(before: int, ids: list[int]) -> torch.Tensor | None:
        return states(sample(3)["input_ids"]) if ids[0] == 11 and not before else None

    store, server = run(ctx, swapped)
    asked = [request["prompt"][0] - 10 for request in server.requests]
    assert sorted(asked) == [0, 1, 1, 2, 3, 3, 4, 5]
    for index in (1, 3):
        assert torch.equal(store.load(index)["hidden_states"], states(sample(index)["input_ids"]))


def test_what_a_server_has_handed_over_when_it_dies_lands_all_the_same_and_was_not_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = made(tmp_path, 4, extract__concurrency=2)
    samples, store, broken_off = read_rows(tmp_path / "data" / "samples.jsonl"), extract.open_store(ctx), threading.Event()
    extractor, adopt, beside = Extractor(store.raw), store.adopt, landing.beside

    def third_kills(number: int, body: Mapping[str, Any]) -> Reply:
        if number < 3:
            return extractor(number, body)
        server.dead = "The extract server is gone."
        return Reply(close=True)

    def adopt_later(raw: Path, row: Row) -> StateRow:
        assert broken_off.wait(60)
        return adopt(raw, row)

    @contextlib.contextmanager
    def told(most: int) -> Iterator[ThreadPoolExecutor]:
        with beside(most) as threads:
            try:
                yield threads
            finally:
                broken_off.set()

    monkeypatch.setattr(store, "adopt", adopt_later)
    monkeypatch.setattr(landing, "beside", told)
    with FakeVllm(third_kills) as server:
        server.handed = Handed(store.raw, "The extract server")
        under_way = Landing(ctx, server, store, {}, Quarantine(store.folder))
        with pytest.raises(StageError, match="is gone"):
            asyncio.run(under_way.all(samples))
    under_way.died()
    assert sorted(under_way.done) == sorted(row["index"] for row in rows(tmp_path, "states/manifest.jsonl")) == [0, 1]
    (death,) = rows(tmp_path, "states/deaths.jsonl")
    assert death["landed"] == 2 and {one["index"] for one in death["in_flight"]} <= {2, 3}
    assert list(store.raw.iterdir()) == []


def test_a_server_that_is_not_in_extraction_mode_ends_the_stage_at_once(ctx: StageContext) -> None:
    with pytest.raises(StageError, match="names no file of hidden states, so it is not in extraction mode"):
        run(ctx, lambda before, ids: Reply(body=b'{"choices": [{}]}'))


def test_the_limit_of_a_sample_grows_with_its_length(tmp_path: Path) -> None:
    ctx = made(tmp_path, extract__request_timeout_s=10, extract__slowest_tok_s=50)
    assert (limit_s(ctx, 5), limit_s(ctx, 5000)) == (10.1, 110.0)


def test_a_corrupt_file_is_made_again_on_resume(ctx: StageContext) -> None:
    store, _ = run(ctx)
    store.path(4).write_bytes(store.path(4).read_bytes()[:-3] + b"abc")
    assert [request["prompt"] for request in run(ctx)[1].requests] == [sample(4)["input_ids"]]


def test_a_finished_stage_is_taken_over_only_while_every_state_is_what_it_left(ctx: StageContext) -> None:
    store, _ = run(ctx)
    assert extract.whole(ctx) == ""
    told = json.loads((ctx.run_dir / "progress.json").read_text())
    assert (told["unit"], told["reason"]) == ("MiB", "holding the states on disk against the manifest")
    store.path(1).unlink()
    assert extract.whole(ctx) == "1 of 6 states are gone or changed"


def test_the_server_has_the_next_request_while_the_states_of_the_last_one_are_written_and_looked_at(tmp_path: Path) -> None:
    ctx = made(tmp_path, 2, extract__concurrency=1)
    raw, locks = extract.open_store(ctx).raw, []

    def answer(before: int, ids: list[int]) -> None:
        if ids[0] == 10:
            raw.mkdir(parents=True, exist_ok=True)
            for number in range(4):
                locks.append((raw / f"cmpl-{number}.safetensors.lock").open("w"))
                fcntl.flock(locks[-1], fcntl.LOCK_EX)
        for lock in locks if ids[0] != 10 else []:
            lock.close()

    store, server = run(ctx, answer)
    assert [row["index"] for row in read_rows(store.manifest)] == [0, 1]
    assert (len(server.requests), server.most_in_flight) == (2, 1)


def test_requests_in_flight_are_halved_when_answers_come_late_and_it_is_said(tmp_path: Path) -> None:
    ctx = made(tmp_path, 60, extract__p95_factor=4.0, extract__concurrency=4)
    now, lock = [0.0], threading.Lock()

    def slower(before: int, ids: list[int]) -> None:
        with lock:
            now[0] += 0.01 if ids[0] < 10 + 25 else 1.0

    _, server = run(ctx, slower, clock=lambda: now[0])
    told = events(ctx, "backing-off")
    assert told and "2 requests in flight instead of 4" in told[0]["text"] and "ms a token" in told[0]["text"]
    assert len(server.requests) == 60 and server.most_in_flight <= 4


def test_at_a_server_that_others_use_its_own_figure_alone_limits_the_requests_in_flight(tmp_path: Path) -> None:
    ctx = made(tmp_path, 60, extract__p95_factor=4.0, extract__concurrency=4)
    now, lock = [0.0], threading.Lock()

    def slower(before: int, ids: list[int]) -> None:
        with lock:
            now[0] += 0.01 if ids[0] < 10 + 25 else 1.0

    _, server = run(ctx, slower, clock=lambda: now[0], shared_limit=3)
    assert len(server.requests) == 60 and server.most_in_flight <= 3
    assert events(ctx, "backing-off") == [], "the samples' own times halve nothing there"


def test_a_server_that_cannot_be_reached_is_waited_for_and_then_ends_the_stage_blaming_no_sample(ctx: StageContext) -> None:
    samples, store = read_rows(ctx.run_dir / "data" / "samples.jsonl"), extract.open_store(ctx)
    ticks = itertools.count(0.0, 20.0)
    server, match = FakeVllm(), r"cannot be reached for 120 s though it runs .*resume the run"
    with held_port() as port, pytest.raises(StageError, match=match):
        server.base_url = f"http://127.0.0.1:{port}"
        asyncio.run(Landing(ctx, server, store, {}, Quarantine(store.folder), clock=lambda: next(ticks)).all(samples))
    assert put_aside(ctx.run_dir) == frozenset() and events(ctx, "integrity") == []


# ---------------------------------------------------------------- shares


def test_the_shares_together_are_the_whole_with_the_same_ids_and_hashes(tmp_path: Path) -> None:
    alone, _ = run(made(tmp_path / "alone", 7))
    shares = [run(made(tmp_path / f"{rank}", 7, extract__rank=rank, extract__world=3))[0] for rank in range(3)]
    found = sorted((row for store in shares for row in read_rows(store.manifest)), key=lambda row: row["index"])
    assert found == read_rows(alone.manifest)
    assert [len(read_rows(store.manifest)) for store in shares] == [3, 2, 2]


def test_a_server_that_could_not_be_reached_for_a_moment_has_its_whole_patience_again_once_it_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = made(tmp_path, extract__concurrency=1)
    now, asked, real = [0.0], [0], landing.request

    async def request(client: Any, server: Any, sample: Any, limit_s: float) -> Path:
        asked[0] += 1
        if asked[0] in (1, 3):
            now[0] += 200.0  # long after the last time
            raise RequestFailed("connection refused", unreachable=True)
        if asked[0] == 2:
            raise RequestFailed("status 500")
        return await real(client, server, sample, limit_s)

    monkeypatch.setattr(landing, "request", request)
    monkeypatch.setattr(landing, "_WAIT_S", 0.0)
    store, _ = run(ctx, clock=lambda: now[0])
    assert [row["index"] for row in read_rows(store.manifest)] == list(range(6))


# ---------------------------------------------------------------- the disk


def test_on_a_disk_that_is_full_to_the_last_byte_it_waits_all_the_same(tmp_path: Path) -> None:
    script = """
import json, sys
from pathlib import Path
from eagle3.stages.hold import Hold
from eagle3.stages.room import DiskRoom
from tests.stages.runs import context
place = Path(sys.argv[1])
sys.stdout = (place / "run.log").open("w")
ctx, filler = context(place / "run", disk_floor_bytes=1 << 20), place / "filler"
hold = Hold(ctx, "extract", "samples")
room = DiskRoom(ctx, hold)
with filler.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
waits = [room.take(4096) for _ in range(3)]
filler.unlink()
print(json.dumps([waits, room.take(4096), json.loads((place / "run/progress.json").read_text())["reason"]]), file=sys.__stdout__)
"""
    done = on_tmpfs(tmp_path / "disk", "size=8M", [sys.executable, "-c", script, str(tmp_path / "disk")])
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == [[False, False, False], True, ""]


def test_it_waits_at_the_floor_says_so_and_goes_on_when_there_is_room_and_a_little_more(tmp_path: Path) -> None:
    floor = 1000
    ctx, free, now = context(tmp_path, disk_floor_bytes=floor), [1600], [0.0]
    hold = Hold(ctx, "extract", "samples", clock=lambda: now[0])
    room = DiskRoom(ctx, hold, clock=lambda: now[0], free_bytes=lambda: free[0])
    assert room.take(500)
    assert not room.take(500), "the first file is not there yet, but it is counted"
    room.give(500)
    free[0] = 1500 + int(SLACK * floor) - 1
    now[0] += 11
    assert not room.take(500), "at the brink it would stop again at once"
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert progress["reason"].startswith("Paused for want of space") and progress["quiet_until"] > progress["t"]
    free[0] += 1
    now[0] += 20
    assert room.take(500)
    guard = the_guard(rows(tmp_path, "events.jsonl"), "disk")
    assert guard["guard"]["response"] == "pause" and "eagle3 prune" in guard["text"] and "guards.disk_wait_s" in guard["text"]
    assert (hold.seconds, ctx.paused_s) == (31.0, 31.0)
    assert events(ctx, "resumed")[0]["text"].endswith("after 31 s.")


def test_it_gives_up_after_its_time_and_at_once_where_that_is_none(tmp_path: Path) -> None:
    now = [0.0]

    def room(folder: Path, wait_s: float) -> DiskRoom:
        ctx = context(folder, disk_floor_bytes=1000, guards__disk_wait_s=wait_s)
        return DiskRoom(ctx, Hold(ctx, "extract"), clock=lambda: now[0], free_bytes=lambda: 0)

    with pytest.raises(StageError, match=r"keeps 1\.0 KiB free.*resume the run"):
        room(tmp_path / "none", 0).take(1)
    patient = room(tmp_path / "some", 60)
    assert not patient.take(1)
    now[0] += 61
    with pytest.raises(StageError, match="There was no space for 1 min"):
        patient.take(1)
    told = {name: of_guard(rows(tmp_path / name, "events.jsonl"), "disk") for name in ("none", "some")}
    responses = {name: [event["guard"]["response"] for event in found] for name, found in told.items()}
    assert responses == {"none": ["stop"], "some": ["pause", "stop"]}


@pytest.mark.parametrize(("patience_s", "responses"), [(0, ["stop"]), (0.5, ["pause", "stop"])])
def test_that_no_space_has_come_is_told_once_however_many_samples_wait_for_it(
    tmp_path: Path, patience_s: float, responses: list[str]
) -> None:
    ctx = made(tmp_path, guards__disk_wait_s=patience_s)
    with pytest.raises(StageError, match="resume the run"):
        run(ctx, free_bytes=lambda: 0)
    told = of_guard(rows(tmp_path, "events.jsonl"), "disk")
    assert [event["guard"]["response"] for event in told] == responses


def test_a_stop_is_obeyed_while_it_waits_for_space(tmp_path: Path) -> None:
    ctx = made(tmp_path)
    told = tmp_path / "events.jsonl"
    ctx.stop_requested = lambda: told.exists() and "guard-disk" in told.read_text()
    with pytest.raises(Stopped):
        run(ctx, free_bytes=lambda: 0)
    assert rows(tmp_path, "states/manifest.jsonl") == []


def test_a_server_that_fails_for_want_of_space_is_waited_for_and_the_sample_not_blamed(tmp_path: Path) -> None:
    ctx, full = made(tmp_path, extract__tries=1), [False]

    def fails(before: int, ids: list[int]) -> Reply | None:
        if ids[0] != 12 or before:
            return None
        full[0] = True
        return Reply(500)

    def free_bytes() -> int:
        return 0 if full[0] and not events(ctx, "guard-disk") else 1 << 40

    store, _ = run(ctx, fails, free_bytes=free_bytes)
    assert [row["index"] for row in read_rows(store.manifest)] == list(range(6))
    assert [row["kind"] for row in rows(tmp_path, "events.jsonl")] == ["guard-disk", "resumed"]


def on_a_small_disk(place: Path, *model: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.stages.small_disk", str(place), *model]
    done = on_tmpfs(place, "size=24M", command, timeout_s=300)
    assert done.returncode == 0, done.stderr.decode()
    told: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return told


def is_as_unbroken(told: dict[str, Any]) -> None:
    """Space that goes in the middle: a pause at the floor, a stop in it, a resume that meets a full disk; and the same states."""
    assert told["under_way"] == 2 * told["places"], "twice as many samples are under way as the server has places"
    stopped, resumed = told["after_stop"], told["after_resume"]
    assert told["stopped"] and 0 < len(stopped["states"]) < told["samples"]
    assert stopped["states"] == stopped["manifest"], "no state without its row, no row without its state"
    assert stopped["half"] == resumed["half"] == []
    assert told["kinds"] == ["guard-disk", "guard-disk", "resumed"], "once in each attempt, and the second one goes on"
    assert resumed["states"] == resumed["manifest"] == list(range(told["samples"])) and told["put_aside"] == []
    assert told["same"], "the same sample ids and hashes as without any of it"


@pytest.mark.timeout(400)
def test_on_a_real_small_disk_it_waits_stops_whole_and_a_resume_through_a_full_disk_ends_as_unbroken(tmp_path: Path) -> None:
    told = on_a_small_disk(tmp_path / "disk")
    is_as_unbroken(told)
    assert told["least_free_bytes"] >= told["floor_bytes"], "what is under way has its room: the floor is never broken"
    assert told["floor_same"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_same_with_a_real_server_on_a_real_model(tmp_path: Path) -> None:
    told = on_a_small_disk(tmp_path / "disk", str(tiny_llama(tmp_path / "tiny-llama")))
    is_as_unbroken(told)
    assert told["after_stop"]["raw"] == told["after_resume"]["raw"] == 0, "what the server left is gone"
