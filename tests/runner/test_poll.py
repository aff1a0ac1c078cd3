"""A poll brings what changed, once; whoever missed something, or is new, gets all of it."""

from __future__ import annotations

import copy
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner import delta, polling, rundir, verbs
from eagle3.runner.errors import VerbError
from eagle3.runner.launch import launch
from tests.runner.support import Channel, shell, wait_end, wait_for

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, 2.5, math.inf]), st.text(max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)),
    max_leaves=20,
)


def exactly(value: Any) -> str:
    """Tells 1 from 1.0 and true, as JSON does and == does not."""
    return json.dumps(value, sort_keys=True)


@given(JSON, JSON)
def test_a_change_makes_the_new_of_the_old_and_there_is_none_where_nothing_changed(old: Any, new: Any) -> None:
    before = copy.deepcopy(old)
    change = json.loads(json.dumps(delta.diff(old, new)))
    assert exactly(delta.patched(old, change)) == exactly(new)
    assert (change is None) == (exactly(old) == exactly(new))
    assert exactly(old) == exactly(before)


@given(st.lists(JSON, min_size=1, max_size=12), st.data())
def test_whatever_answers_get_lost_the_other_end_holds_what_was_last_told_to_it(values: list[Any], data: st.DataObject) -> None:
    memory, held = delta.Memory(), delta.Held()
    for value in values:
        answer = json.loads(json.dumps(memory.answer(held.token, value)))
        if data.draw(st.booleans()):
            assert exactly(held.take(answer)) == exactly(value)
        if data.draw(st.integers(0, 5)) == 0:
            memory = delta.Memory()  # the helper of another connection


def test_a_change_that_fits_nothing_is_refused() -> None:
    for change in (["{", {}, []], ["[", {"7": ["=", 1]}, 1], ["?"], ["{"], [], ["[", {}, "x"]):
        with pytest.raises(ValueError):
            delta.patched([1], change)


RUN: dict[str, Any] = {"run_id": "r", "state": "running", "last_row_age_s": 2.5, "now": 100.0, "progress": {"done": 3}}


def test_time_alone_is_no_news() -> None:
    later = {**RUN, "last_row_age_s": 7.5, "now": 105.0}
    assert polling.still(RUN) == polling.still(later)
    assert polling.aged(polling.still(RUN), 105.0) == later
    assert polling.aged(polling.still({**RUN, "last_row_age_s": None}), 1.0)["last_row_age_s"] is None


def test_a_probe_that_takes_its_time_comes_with_a_later_poll_and_holds_up_nothing(workspace: Path) -> None:
    release, asked = threading.Event(), []

    def slow(*question: Any) -> dict[str, Any]:
        asked.append(question)
        assert release.wait(60)
        return {"now": 5.0, "host": {"uptime_s": 3.0}, "runs": [RUN]}

    poller = polling.Poller(slow, patience_s=0.05)
    args = {"workspace": str(workspace), "probe": {"held": None}}
    assert poller.poll(args, None, 1.0) == {} == poller.poll(args, None, 2.0)
    release.set()
    found: dict[str, Any] = {}
    while not found:
        found = poller.poll(args, None, 3.0)
    assert len(asked) == 1
    probe = polling.aged_probe(found["probe"]["value"], found["probe"]["now"])
    assert probe == {"now": 5.0, "host": {"uptime_s": 3.0}, "runs": [{**RUN, "last_row_age_s": 0.0, "now": 5.0}]}


def test_a_probe_that_fails_says_why(workspace: Path) -> None:
    def broken(*_: Any) -> dict[str, Any]:
        raise RuntimeError("boom")

    with pytest.raises(VerbError, match="met a defect: RuntimeError: boom"):
        polling.Poller(broken, patience_s=30).poll({"workspace": str(workspace), "probe": {}}, None, 1.0)


def poll_args(workspace: Path, tokens: dict[str, Any], held: Any = None, probe_held: Any = None) -> dict[str, Any]:
    files = [{"name": name, "token": tokens.get(name)} for name in ("metrics.jsonl", "events.jsonl", "run.log")]
    files += [{"name": name, "whole": True, "token": tokens.get(name)} for name in ("result.json", "spec.toml")]
    return {
        "workspace": str(workspace), "run_id": "r", "files": files, "held": held, "probe": {"held": probe_held},
    }  # fmt: skip


def with_probe(channel: Channel, args: dict[str, Any]) -> dict[str, Any]:
    """The first answer that the probe was in time for: on a busy machine it may come with a later poll."""
    found: dict[str, Any] = wait_for(lambda: (answer := channel.result("poll", **args)) and "probe" in answer and answer)
    return found


def test_five_files_the_state_and_the_container_are_one_question_and_the_second_answer_holds_only_news(
    workspace: Path, channel: Channel
) -> None:
    run_dir = Path(launch(workspace, "r", "x = 1\n", shell("echo one"))["run_dir"])
    wait_end(run_dir)
    first = with_probe(channel, poll_args(workspace, {}))
    assert first["files"]["run.log"]["text"] == "one\n" and first["files"]["spec.toml"]["text"] == "x = 1\n"
    assert first["summary"]["value"]["state"] == "finished"
    assert {"gpu", "disks", "vllm", "host", "runs"} <= set(first["probe"]["value"])
    assert "result.json" not in first["files"] and "metrics.jsonl" not in first["files"]

    tokens = {name: part.get("token") for name, part in first["files"].items()}
    held, probe_held = first["summary"]["is"], first["probe"]["is"]
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step":1}\n')
    second = with_probe(channel, poll_args(workspace, tokens, held, probe_held))
    assert second["summary"] == {"is": held}
    assert second["files"] == {"metrics.jsonl": {"text": '{"step":1}\n', "token": second["files"]["metrics.jsonl"]["token"]}}
    assert probe_held in (second["probe"]["is"], second["probe"].get("from")) and "value" not in second["probe"]

    stranger = verbs.handle("poll", poll_args(workspace, tokens, held, probe_held))
    assert "value" in stranger["summary"]


def test_a_small_file_that_was_replaced_comes_again_even_where_it_looks_the_same(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "x = 1\n", shell("true"))["run_dir"])
    wait_end(run_dir)
    poller = polling.Poller()
    tokens: dict[str, Any] = {}
    seen = []
    for verdict in ("useful", "learns", "learns"):
        rundir.write_json(run_dir / "result.json", {"verdict": verdict, "thresholds": "x" * 100})
        found = verbs.handle("poll", poll_args(workspace, tokens), poller)
        part = found["files"].get("result.json", {})
        tokens["result.json"] = part.get("token", tokens.get("result.json"))
        seen.append(json.loads(part["text"])["verdict"] if part else None)
    assert seen == ["useful", "learns", None]
    (run_dir / "result.json").unlink()
    gone = verbs.handle("poll", poll_args(workspace, tokens), poller)["files"]["result.json"]
    assert gone == {"reset": True, "missing": True}
