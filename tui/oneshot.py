"""The console's commands without a screen: one connection, one answer, words or JSON, an exit code."""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from eagle3.core import presets
from eagle3.core.presets import SpecError
from eagle3.core.records import RunSummary
from remote.ask import Ask, HostKeyQuestion, SecretQuestion
from remote.errors import EXIT_CODES, ContainerError, LinkError
from tui import plan, report
from tui.connect import connector
from tui.formats import age_label, duration_label, number_label, one_line, rate_label, share, state_label
from tui.ports import ContainerPort, RunNewsView, StopMode
from tui.state import Console, RunView


@dataclass(frozen=True)
class Place:
    """Where: ``host``, or this machine with ``local``."""

    host: str
    local: bool
    workspace: str
    python: str | None = None

    @property
    def name(self) -> str:
        return "this machine" if self.local else self.host


@dataclass(frozen=True)
class Wanted:
    """What to launch; empty texts leave the choice to the presets and the host."""

    size: str
    target: str
    machine: str
    overrides: tuple[str, ...]
    run_id: str
    watch: bool


@dataclass
class Talk:
    """What a command is given: the open container, where it is, and how to speak."""

    container: ContainerPort
    place: Place
    as_json: bool

    def say(self, words: str, value: Any) -> None:
        """The answer: ``words`` for a person, or ``value`` as one line of JSON."""
        print(json.dumps(value, ensure_ascii=False) if self.as_json else words, flush=True)

    def note(self, words: str) -> None:
        """Something on the way to the answer; with --json it goes to stderr."""
        print(words, file=sys.stderr if self.as_json else sys.stdout, flush=True)


Command = Callable[..., Awaitable[int]]


def go(place: Place, as_json: bool, command: Command, *args: Any) -> int:
    """Connect, run ``command(talk, *args)``, close. Every failure is one sentence and an exit code."""
    try:
        return asyncio.run(_go(place, as_json, command, *args))
    except LinkError as error:
        return _fail(as_json, EXIT_CODES[error.kind], error.kind, error.text, "")
    except ContainerError as error:
        return _fail(as_json, 2 if error.code == "usage" else 1, error.code, error.text, error.remedy)
    except SpecError as error:
        return _fail(as_json, 2, "usage", str(error), "")
    except KeyboardInterrupt:
        sys.stderr.write("\nLeft; runs go on.\n")
        return 130


async def _go(place: Place, as_json: bool, command: Command, *args: Any) -> int:
    connect = connector(place.host, local=place.local, python=place.python)
    container = connect(lambda link: None, _ask(), place.workspace)
    try:
        await container.open()
        return await command(Talk(container, place, as_json), *args)
    finally:
        await container.close()


def _fail(as_json: bool, code: int, kind: str, text: str, remedy: str) -> int:
    words = one_line(f"{text} {remedy}".strip(), 1000)
    if as_json:
        print(json.dumps({"error": {"code": kind, "text": one_line(text, 1000), "remedy": one_line(remedy)}}, ensure_ascii=False))
    sys.stderr.write(f"{words}\n")
    return code


def _ask() -> Ask:
    """Questions of the login on the terminal, where there is one."""
    if not sys.stdin.isatty():
        return Ask()

    async def host_key(question: HostKeyQuestion) -> bool:
        answer = await asyncio.to_thread(input, f"{one_line(question.text)} [yes/no] ")
        return answer.strip().lower() in {"y", "yes"}

    async def secret(question: SecretQuestion) -> str | None:
        prompt = f"{one_line(question.host)}: {one_line(question.prompt)} "
        return await asyncio.to_thread(input if question.echo else getpass.getpass, prompt)

    return Ask(host_key=host_key, secret=secret)


async def check(talk: Talk) -> int:
    """The light probe as a readiness report."""
    found = report.report(talk.place.name, await talk.container.probe())
    talk.say("\n".join([f"{talk.place.name}: {found['verdict']}", *report.lines(found)]), found)
    return 1 if found["verdict"] == "fail" else 0


async def launch(talk: Talk, wanted: Wanted) -> int:
    """Launch, and print the acknowledgement; with ``wanted.watch`` follow to the end."""
    probe = await talk.container.probe()
    choices = plan.for_machine(plan.first_choices(talk.place.workspace), probe)
    overrides = dict(presets.parse_override(text) for text in wanted.overrides)
    spec = presets.resolve(wanted.size, wanted.target or choices.target, wanted.machine or choices.machine, overrides)
    run_id = wanted.run_id or plan.new_run_id(spec.size, time.time())
    ack = await talk.container.launch(spec, run_id, getpass.getuser())
    words = f"{'Found' if ack.get('already') else 'Launched'} {run_id} on {talk.place.name}; it goes on by itself."
    if wanted.watch:
        talk.note(words)
        return await watch(talk, run_id, 5.0)
    talk.say(words, ack)
    return 0


async def runs(talk: Talk) -> int:
    """The runs, live ones first."""
    console = Console(talk.place.name)
    console.take_runs(await talk.container.runs(), time.time())
    rows = [known.value for known in console.runs_by_age()]
    lines = [_run_line(run) for run in rows] or ["There are no runs yet; launch one with: eagle3-tui launch."]
    talk.say("\n".join(lines), {"host": talk.place.name, "runs": [run.model_dump() for run in rows]})
    return 0


def _run_line(run: RunSummary) -> str:
    stage = f"{run.progress.stage} " if run.progress and run.state != "finished" else ""
    part = share(run.progress.done, run.progress.total) if run.progress else None
    done = f"{part:.0%}" if part is not None and run.state != "finished" else ""
    started = run.started_at or run.created_at
    ago = f"started {age_label(run.now - started)}" if started else ""
    return f"{state_label(run.state):<14} {one_line(run.run_id):<28} {stage + done:<16} {ago}".rstrip()


async def watch(talk: Talk, run_id: str, every_s: float) -> int:
    """A line every few seconds until the run ends, then its result. 0 where it finished, else 1."""
    if not run_id:
        console = Console(talk.place.name)
        console.take_runs(await talk.container.runs(), time.time())
        run_id = console.latest_run()
        if not run_id:
            raise ContainerError("not_found", "There are no runs here yet.", "Launch one with: eagle3-tui launch.")
    view = RunView(run_id)
    said_at, said = 0.0, ""
    async for news in talk.container.follow(run_id, poll_s=min(1.0, every_s)):
        view.take(news, time.time())
        _tell_events(talk, news)
        line = progress_line(view)
        if not view.ended and line != said and time.monotonic() - said_at >= every_s:
            talk.note(line)
            said_at, said = time.monotonic(), line
    return _end(talk, view)


def _tell_events(talk: Talk, news: RunNewsView) -> None:
    for event in news.events:
        if event.level in {"warn", "error"}:
            talk.note(f"{event.level}: {one_line(event.text, 1000)}")


def progress_line(view: RunView) -> str:
    """ "● running  train 62/180 steps  1.2 s per step  2 min 26 s left  loss 6.71"."""
    from tui.widgets.progress import counts

    words = [state_label(view.state)]
    if (progress := view.progress) is not None and progress.stage:
        words.append(f"{progress.stage} {counts(progress)}")
        words.append(rate_label(progress.rate, progress.unit))
        words.append(f"{duration_label(progress.eta_s)} left" if progress.eta_s is not None else "")
        if progress.stage == "train" and (row := view.metrics.last("train", "train")) is not None:
            words.append(f"loss {number_label(row.loss)}")
    return "  ".join(word for word in words if word)


def _end(talk: Talk, view: RunView) -> int:
    from tui.widgets.headline import failure_words, figures_line

    finished = view.state == "finished"
    if view.result is not None and finished:
        verdict = one_line(view.result.verdict_text or view.result.verdict, 1000)
        words = "\n".join(filter(None, [f"{state_label(view.state)}  {view.run_id}", verdict, figures_line(view.result)]))
        value: dict[str, Any] = view.result.model_dump()
    else:
        why = "" if finished else failure_words(view)
        words = f"{state_label(view.state)}  {view.run_id}  {why}".rstrip()
        value = {"run_id": view.run_id, "state": view.state, "text": why}
    talk.say(words, value)
    return 0 if finished else 1


async def stop(talk: Talk, run_id: str, mode: StopMode) -> int:
    """Stop a run and print what was done."""
    answer = await talk.container.stop(run_id, mode, getpass.getuser())
    when = "now" if mode == "now" else "after its next checkpoint"
    talk.say(f"{run_id} stops {when}.", answer)
    return 0
