"""A server that dies mid-stage is started again and the stage goes on, on real processes. No vLLM is needed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.engines.server import ServerDied
from eagle3.engines.vllm_server import VllmServer
from eagle3.rows import read_rows, write_rows
from eagle3.stages import extract, regenerate
from eagle3.stages.context import StageContext, StageError
from tests.stages.runs import QUESTIONS, context, rows
from tests.stages.toy import TOY
from tests.support.guards import of_guard, the_guard

PROMPTS = 9

ANSWERING = """#!{python}
import sys; sys.path.insert(0, {root!r})
import os, signal, time
from pathlib import Path
from tests.stages.fake_vllm import FakeVllm
from tests.stages.toy import answer
asked = Path({folder!r}, "asked")
{before}
def script(number, body):
    with asked.open("a") as file:
        file.write(body["messages"][-1]["content"] + chr(10))
    {each}
    return answer(body)
with FakeVllm(script, port=int(sys.argv[sys.argv.index("--port") + 1])) as fake:
    {then}
    signal.pause()
"""


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    (tmp_path / "bin").mkdir()
    return context(tmp_path / "run", server__backoff_s=0, regenerate__concurrency=2, server__start_timeout_s=60)


def served_by(ctx: StageContext, *, before: str = "", each: str = "pass", then: str = "pass") -> StageContext:
    """The context with a server program: ``before`` it serves, at ``each`` request, and ``then`` after it listens."""
    folder = ctx.run_dir.parent / "bin"
    program = folder / "python"
    root = str(Path(__file__).parents[2])
    program.write_text(
        ANSWERING.format(python=sys.executable, root=root, folder=str(folder), before=before, each=each, then=then)
    )
    program.chmod(0o755)
    ctx.server_python = str(program)
    return ctx


def answer_all(ctx: StageContext, kind: type[VllmServer] = VllmServer) -> VllmServer:
    """The stage regenerate's asking, on a server of its own."""
    prompts = read_rows(ctx.run_dir / "data" / "prompts.jsonl")
    answers = regenerate.Answers(ctx, prompts)
    killers = regenerate.killers_of(ctx, answers)
    with kind(ctx, "plain") as server:
        server.surviving(
            lambda: asyncio.run(regenerate.answer_all(ctx, server, answers.missing(), answers, TOY, killers)), killers.died
        )
        return server


def events(ctx: StageContext, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows(ctx.run_dir, "events.jsonl") if row["kind"] == kind]


def asked(ctx: StageContext) -> list[str]:
    return (ctx.run_dir.parent / "bin" / "asked").read_text().splitlines()


KILLED_ONCE = (
    "if number == 5 and not (asked.parent / 'died').exists():\n"
    "        (asked.parent / 'died').touch(); print('RuntimeError: the card fell off the bus', flush=True)\n"
    "        os.kill(os.getpid(), signal.SIGKILL)"
)


def test_after_a_kill_in_the_middle_every_prompt_has_one_answer_and_only_the_missing_ones_were_asked_again(
    ctx: StageContext,
) -> None:
    answer_all(served_by(ctx, each=KILLED_ONCE))
    kept = rows(ctx.run_dir, "data/answers.part.jsonl")[1:]
    assert len(kept) == len({row["key"] for row in kept}) == PROMPTS
    again = len(asked(ctx)) - PROMPTS
    assert 1 <= again <= ctx.spec.regenerate.concurrency, "what was in flight and nothing else"
    died = the_guard(rows(ctx.run_dir, "events.jsonl"), "server")
    assert "ended by signal 9 while it was working: RuntimeError: the card fell off the bus." in died["text"]
    assert "the card fell off the bus" in died["detail"]
    assert died["guard"]["counts"] == {"deaths": 1, "restarts": 2, "pause_s": 0.0} and died["server"] == "plain"
    assert (died["guard"]["value"], died["guard"]["threshold"], died["guard"]["response"]) == (1, 2, "warn")
    assert len(events(ctx, "server")) == 2


class HangsOnce(VllmServer):
    """Its second start hangs, and has little time; the others, which have to come to something, have as much as they need."""

    starts = 0

    def _start(self) -> None:
        self.starts += 1
        hangs = self.starts == 2
        self._env = {"HANGS": "1"} if hangs else {}
        server = self.ctx.spec.server.model_copy(update={"start_timeout_s": 1 if hangs else 60})
        self.ctx.spec = self.ctx.spec.model_copy(update={"server": server})
        super()._start()


def test_a_restart_that_takes_too_long_counts_as_a_death_and_is_tried_again_where_restarts_are_left(ctx: StageContext) -> None:
    answer_all(served_by(ctx, before="if 'HANGS' in os.environ: time.sleep(600)", each=KILLED_ONCE), HangsOnce)
    first, second = of_guard(rows(ctx.run_dir, "events.jsonl"), "server")
    assert "ended by signal 9 while it was working" in first["text"]
    assert "did not answer within 1 s (server.start_timeout_s)" in second["text"]
    assert len(rows(ctx.run_dir, "data/answers.part.jsonl")[1:]) == PROMPTS


class SlowToLoad(VllmServer):
    """Each start takes longer than half an hour, on the clock that is passed in."""

    def __init__(self, ctx: StageContext, now: list[float]) -> None:
        super().__init__(ctx, "plain", clock=lambda: now[0])
        self._now = now

    def _start(self) -> None:
        super()._start()
        self._now[0] += 31 * 60


def test_a_server_that_loads_for_long_and_dies_at_once_is_given_up_as_a_quick_one_is(ctx: StageContext) -> None:
    served_by(ctx)
    now = [0.0]

    def dies() -> None:
        now[0] += 5
        raise ServerDied("The server died at its first batch.")

    with SlowToLoad(ctx, now) as server, pytest.raises(StageError, match=r"died 3 times within an hour of serving"):
        server.surviving(dies)


def test_a_server_that_dies_again_and_again_is_given_up_and_what_was_answered_is_kept(ctx: StageContext) -> None:
    always = "if number == 2: os._exit(7)"
    with pytest.raises(
        StageError, match=r"with code 7.*died 3 times within an hour of serving.*server\.restarts is 2.*resume the run"
    ):
        answer_all(served_by(ctx, each=always))
    told = of_guard(rows(ctx.run_dir, "events.jsonl"), "server")
    assert [event["guard"]["response"] for event in told] == ["warn", "warn", "stop"]
    kept = rows(ctx.run_dir, "data/answers.part.jsonl")[1:]
    assert len(kept) == len({row["key"] for row in kept})
    assert not list((ctx.run_dir / "servers").glob("*.json"))


def test_no_restarts_means_the_first_death_ends_the_stage(tmp_path: Path, ctx: StageContext) -> None:
    never = context(tmp_path / "run", server__restarts=0)
    with pytest.raises(StageError, match=r"ended with code 7 while it was working"):
        answer_all(served_by(never, each="os._exit(7)"))
    told = the_guard(rows(never.run_dir, "events.jsonl"), "server")
    assert told["guard"]["response"] == "stop" and "is not started again (server.restarts is 0)" in told["text"]


def test_where_the_spec_says_stop_the_first_death_ends_the_stage_though_restarts_are_left(
    tmp_path: Path, ctx: StageContext
) -> None:
    strict = context(tmp_path / "run", guards__server="stop")
    with pytest.raises(StageError, match=r"died once and is not started again \(guards\.server is stop\)"):
        answer_all(served_by(strict, each="os._exit(7)"))
    assert the_guard(rows(strict.run_dir, "events.jsonl"), "server")["guard"]["response"] == "stop"


def test_where_the_spec_says_pause_the_run_is_held_with_no_server_until_somebody_lets_it_go_on(
    tmp_path: Path, ctx: StageContext
) -> None:
    held = context(tmp_path / "run", guards__server="pause", server__backoff_s=0, regenerate__concurrency=2)
    alive: list[int] = []
    told: list[tuple[float, float | None, str]] = []
    done: list[int] = []

    def let_go_once_held() -> bool:
        """Asked all the while it works and waits; what it sees is at the time of the hold."""
        if held.order("pause") and events(held, "paused"):
            alive.append(len(list((held.run_dir / "servers").glob("*.json"))))
            progress = json.loads((held.run_dir / "progress.json").read_text())
            told.append((progress["done"], progress["total"], progress["unit"]))
            done.append(len(rows(held.run_dir, "data/answers.part.jsonl")) - 1)
            (held.run_dir / "control.json").unlink()
        return False

    held.stop_requested = let_go_once_held
    answer_all(served_by(held, each=KILLED_ONCE))
    died = the_guard(rows(held.run_dir, "events.jsonl"), "server")
    assert died["guard"]["response"] == "pause" and "held until `eagle3 resume` lets it go on" in died["guard"]["action"]
    assert alive == [0], "no server stood there meanwhile"
    assert told == [(done[0], PROMPTS, "answers")] and done[0] >= 3, "how far it was stays told while it is held"
    progress = json.loads((held.run_dir / "progress.json").read_text())
    assert (progress["done"], progress["total"]) == (PROMPTS, PROMPTS), "and the next server goes on from there"
    assert rows(held.run_dir, "metrics.jsonl")[-1]["step"] == PROMPTS
    kinds = [row["kind"] for row in rows(held.run_dir, "events.jsonl")]
    assert kinds.index("guard-server") < kinds.index("paused") < kinds.index("resumed")
    assert len(rows(held.run_dir, "data/answers.part.jsonl")) == 1 + PROMPTS


def test_a_server_that_lives_and_answers_nothing_is_ended_and_started_again(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.watching._LOOK_EVERY_S", 0.1)
    # Its first life: the health check says that the engine is dead, and no request is answered any more.
    dead_engine = (
        "if not (asked.parent / 'ill').exists():\n"
        "        (asked.parent / 'ill').write_text(str(os.getpid()))\n"
        "        fake.health = 503\n"
        "    while fake.health != 200: time.sleep(0.05)"
    )
    answer_all(served_by(ctx, each=dead_engine))
    died = the_guard(rows(ctx.run_dir, "events.jsonl"), "server")
    assert "lives and answers nothing: its health check failed 3 times in a row (status 503)" in died["text"]
    first = int((ctx.run_dir.parent / "bin" / "ill").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(first, signal.SIGCONT)
    assert len(rows(ctx.run_dir, "data/answers.part.jsonl")) == 1 + PROMPTS


KILLING = "os.kill(os.getpid(), signal.SIGKILL) if 'sea in winter' in body['messages'][-1]['content'] else None"


def test_a_prompt_that_kills_the_server_each_time_is_left_out_by_name_and_the_stage_ends_well(
    tmp_path: Path, ctx: StageContext
) -> None:
    here = context(tmp_path / "run", server__backoff_s=0, regenerate__concurrency=2, guards__quarantined_share=0.15)
    answer_all(served_by(here, each=KILLING))
    answers = rows(here.run_dir, "data/answers.part.jsonl")[1:]
    assert len(answers) == PROMPTS
    assert [(row["refused"], row["failed"]) for row in answers if "turns" not in row] == [("the server dies of it", True)]
    assert [event["text"] for event in events(here, "data")] == ["Prompt 'held-3' is left out: the server dies of it."]
    deaths = rows(here.run_dir, "data/deaths.jsonl")
    assert len(deaths) == 3 and [one["id"] for one in deaths[-1]["in_flight"]] == ["held-3"], "at the last one it was alone"
    assert asked(here).count(QUESTIONS[3]) == 3


def test_a_prompt_that_kills_the_server_is_known_over_attempts(tmp_path: Path, ctx: StageContext) -> None:
    here = context(
        tmp_path / "run", server__backoff_s=0, server__restarts=1, regenerate__concurrency=2, guards__quarantined_share=0.15
    )
    with pytest.raises(StageError, match=r"died 2 times within an hour of serving"):
        answer_all(served_by(here, each=KILLING))
    answer_all(here)
    assert asked(here).count(QUESTIONS[3]) == 3
    assert len(rows(here.run_dir, "data/answers.part.jsonl")) == 1 + PROMPTS


def test_more_prompts_than_may_be_left_out_are_not_and_the_server_is_given_up(tmp_path: Path, ctx: StageContext) -> None:
    here = context(tmp_path / "run", server__backoff_s=0, regenerate__concurrency=2, guards__quarantined_share=0.1)
    with pytest.raises(StageError, match=r"died 3 times within an hour of serving"):
        answer_all(served_by(here, each=KILLING))
    (told,) = events(here, "data")
    assert "The server dies of the prompt 'held-3', and no more may be left out (guards.quarantined_share)" in told["text"]
    assert not any("refused" in row for row in rows(here.run_dir, "data/answers.part.jsonl"))


def test_a_stop_during_the_pause_is_honoured(ctx: StageContext, tmp_path: Path) -> None:
    from eagle3.stages.context import Stopped

    slow = context(tmp_path / "run", server__backoff_s=600, regenerate__concurrency=2)
    slow.stop_requested = lambda: bool(events(slow, "guard-server"))
    with pytest.raises(Stopped):
        answer_all(served_by(slow, each="os._exit(7)"))
    assert json.loads((slow.run_dir / "progress.json").read_text())["reason"].endswith("has died and is started again")


EXTRACTING = """#!{python}
import sys; sys.path.insert(0, {root!r})
import json, os, signal
from pathlib import Path
from tests.stages.fake_vllm import FakeVllm, Reply
from tests.stages.test_given_server import extracting
folder = Path({folder!r})
told = json.loads(sys.argv[sys.argv.index("--kv_transfer_config") + 1])["kv_connector_extra_config"]
raw = Path(told["shared_storage_path"])
raw.mkdir(exist_ok=True)
script = extracting(raw)
def dies(number, body):
    with (folder / "asked").open("a") as file:
        file.write(str(body["prompt"][0]) + chr(10))
    if {dies_at}:
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Reply(500, b'{{"error": "EngineDeadError"}}') if {refuses_at} else script(number, body)
with FakeVllm(dies, port=int(sys.argv[sys.argv.index("--port") + 1])):
    signal.pause()
"""


def extracting(place: Path, dies_at: str, refuses_at: str = "False", **overrides: Any) -> StageContext:
    """Eight samples and a server that dies, or refuses, where the condition holds; sample n begins with the token 10 n."""
    here = context(place / "run", **{"server__backoff_s": 0, "extract__concurrency": 2} | overrides)
    folder, program = place / "bin", place / "bin" / "python"
    root = str(Path(__file__).parents[2])
    told = {"root": root, "folder": str(folder), "dies_at": dies_at, "refuses_at": refuses_at}
    program.write_text(EXTRACTING.format(python=sys.executable, **told))
    program.chmod(0o755)
    here.server_python = str(program)
    samples = [
        {"index": number, "id": f"s-{number}", "split": "train", "input_ids": list(range(10 * number, 10 * number + 8))}
        for number in range(8)
    ]
    write_rows(here.path("data", "samples.jsonl"), samples)
    return here


def test_a_kill_in_the_middle_of_the_extraction_puts_no_sample_aside_and_doubles_none(tmp_path: Path, ctx: StageContext) -> None:
    here = extracting(tmp_path, "number == 4 and not (folder / 'died').exists()")
    samples = range(8)
    figures = extract.run(here)
    assert (figures["samples"], figures["quarantined"], figures["tokens"]) == (8, 0, 64)
    assert [row["index"] for row in rows(here.run_dir, "states/manifest.jsonl")] == list(range(8))
    again = len(asked(here)) - len(samples)
    assert 1 <= again <= 2, "what was in flight and nothing else"
    assert the_guard(rows(here.run_dir, "events.jsonl"), "server")["server"] == "extract"
    (death,) = rows(here.run_dir, "states/deaths.jsonl")
    assert 1 <= len(death["in_flight"]) <= 2, "who was with it is kept, and nobody is blamed for one death"


def test_what_a_dying_server_refuses_is_not_said_to_have_been_with_it_when_it_died(tmp_path: Path, ctx: StageContext) -> None:
    # As vLLM's front does when its engine has died: it answers every request with an error until it ends itself.
    first = "not (folder / 'died').exists()"
    here = extracting(tmp_path, f"number == 7 and {first}", f"number >= 4 and {first}", extract__concurrency=1)
    assert extract.run(here)["samples"] == 8
    assert set(asked(here)[3:7]) == {"30", "40"}, "by turns, each of them twice"
    (death,) = rows(here.run_dir, "states/deaths.jsonl")
    assert [one["index"] for one in death["in_flight"]] == [3]


KILLER = "body['prompt'][0] == 30"


def test_a_sample_that_kills_the_server_each_time_is_put_aside_by_name_and_the_stage_ends_well_in_one_attempt(
    tmp_path: Path, ctx: StageContext
) -> None:
    here = extracting(tmp_path, KILLER, guards__quarantined_share=0.2)
    figures = extract.run(here)
    assert (figures["samples"], figures["quarantined"]) == (7, 1)
    (aside,) = rows(here.run_dir, "states/quarantine.jsonl")
    assert (aside["index"], aside["id"], aside["reason"], aside["tries"]) == (3, "s-3", "the server dies of it", 3)
    assert any("Sample 3 ('s-3') is put aside: the server dies of it" in event["text"] for event in events(here, "quarantine"))
    deaths = rows(here.run_dir, "states/deaths.jsonl")
    assert len(deaths) == 3 and [one["index"] for one in deaths[-1]["in_flight"]] == [3], "at the last one it was alone"
    turns = asked(here)
    later = turns[len(turns) - turns[::-1].index("30") :]
    suspects = {str(10 * one["index"]) for one in deaths[1]["in_flight"]}
    assert set(later) <= suspects - {"30"}, "who was never with it had landed by then"
    assert [row["index"] for row in rows(here.run_dir, "states/manifest.jsonl")] == [0, 1, 2, 4, 5, 6, 7]
    assert extract.whole(here) == ""


def test_deaths_count_over_attempts_and_a_resume_leaves_the_guilty_sample_aside(tmp_path: Path, ctx: StageContext) -> None:
    here = extracting(tmp_path, KILLER, guards__quarantined_share=0.2, server__restarts=1)
    with pytest.raises(StageError, match=r"died 2 times within an hour of serving"):
        extract.run(here)
    assert rows(here.run_dir, "states/quarantine.jsonl") == []
    assert extract.run(here)["quarantined"] == 1
    asked_for = asked(here).count("30")
    assert extract.run(here)["quarantined"] == 1
    assert asked(here).count("30") == asked_for == 3, "without its asking the server again"


def test_too_many_samples_put_aside_end_a_resume_that_has_nothing_left_to_ask_for(tmp_path: Path, ctx: StageContext) -> None:
    here = extracting(tmp_path, KILLER)
    for _ in range(2):
        with pytest.raises(StageError, match=r"1 of 8 samples have no usable states \(sample 3 .*the server dies of it"):
            extract.run(here)
    assert asked(here).count("30") == 3


def test_a_server_that_dies_whatever_it_is_asked_is_given_up_and_no_sample_is_blamed(tmp_path: Path, ctx: StageContext) -> None:
    here = extracting(tmp_path, "True")
    with pytest.raises(StageError, match=r"died 3 times within an hour of serving"):
        extract.run(here)
    assert rows(here.run_dir, "states/quarantine.jsonl") == []
