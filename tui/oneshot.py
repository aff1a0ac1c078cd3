"""The console's commands without a screen: one connection, one answer, words or JSON, an exit code."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3.core.estimate import estimate
from eagle3.core.presets import SpecError
from eagle3.core.readiness.words import lines
from eagle3.core.records import Result, RunSummary
from eagle3.core.run_states import LIVE_STATES
from eagle3.core.spec import RunSpec
from eagle3.core.wording import result_of, run_words
from remote.errors import EXIT_CODES, ContainerError, LinkError, NoPython
from tui import plan
from tui.check_command import Judged, check, gathered, refuse_red, report_of, without_python
from tui.connect import connector
from tui.formats import age_label, duration_label, number_label, one_line, rate_label, share, state_label
from tui.ports import ContainerPort, LinkView, RunNewsView, StopMode
from tui.questions import on_terminal
from tui.run_secrets import AskValue, SecretError, started_with, values_of
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
    anyway: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name → value; the values are for the worker's environment alone."""


@dataclass
class Talk:
    """What a command is given: the open container, where it is, and how to speak."""

    container: ContainerPort
    place: Place
    as_json: bool
    tells_link: bool = False
    """Whether changes of the link are told: not while it is opened and closed, which end in an answer of their own."""

    def say(self, words: str, value: Any) -> None:
        """The answer: ``words`` for a person, or ``value`` as one line of JSON."""
        _print(json.dumps(value, ensure_ascii=False) if self.as_json else words)

    def note(self, words: str) -> None:
        """Something on the way to the answer; with --json it goes to stderr."""
        _print(words, to_stderr=self.as_json)

    def aside(self, words: str) -> None:
        """Progress on the way to the answer: always on stderr, so that stdout may be piped."""
        _print(words, to_stderr=True)

    def link_changed(self, link: LinkView) -> None:
        """Tell of a link that is slow or lost, and of one that is back."""
        if self.tells_link and link.status != "connecting":
            self.note(f"link {link.status}: {one_line(link.reason)}" if link.reason else f"link {link.status} again")


class Unwritable(Exception):
    """The answer has nowhere to go: the reader of stdout is gone, or the disk behind it is full."""


def _print(words: str, *, to_stderr: bool = False) -> None:
    try:
        print(words, file=sys.stderr if to_stderr else sys.stdout, flush=True)
    except OSError as error:
        raise Unwritable(error.strerror or str(error)) from error


Command = Callable[..., Awaitable[int]]


def go(place: Place, as_json: bool, command: Command, *args: Any) -> int:
    """Connect, run ``command(talk, *args)``, close. Every failure is one sentence and an exit code."""
    try:
        return asyncio.run(_go(place, as_json, command, *args))
    except LinkError as error:
        return _fail(as_json, EXIT_CODES[error.kind], error.kind, error.text, "")
    except NoPython as error:
        if command is check:
            found = without_python(place.name, error, time.time())
            _print(found.model_dump_json() if as_json else "\n".join(lines(found)))
            return 1
        return _fail(as_json, 1, error.code, error.text, error.remedy)
    except ContainerError as error:
        return _fail(as_json, 2 if error.code == "usage" else 1, error.code, error.text, error.remedy)
    except (SpecError, SecretError) as error:
        return _fail(as_json, 2, "usage", str(error), "")
    except Unwritable as error:
        # What Python has not written yet would fail again, loudly, when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write(f"The answer could not be written ({error}); runs go on.\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nLeft; runs go on.\n")
        return 130


async def _go(place: Place, as_json: bool, command: Command, *args: Any) -> int:
    connect = connector(place.host, local=place.local, python=place.python)
    container = connect(lambda link: talk.link_changed(link), on_terminal(), place.workspace)
    talk = Talk(container, place, as_json)
    try:
        await container.open()
        talk.tells_link = True
        return await command(talk, *args)
    finally:
        talk.tells_link = False
        await container.close()


def _fail(as_json: bool, code: int, kind: str, text: str, remedy: str) -> int:
    sys.stderr.write(one_line(f"{text} {remedy}".strip(), 1000) + "\n")
    if as_json:
        # Last, so that it is the last line also where both streams end up in one file.
        answer = {"error": {"code": kind, "text": one_line(text, 1000), "remedy": one_line(remedy)}}
        print(json.dumps(answer, ensure_ascii=False), flush=True)
    return code


async def launch(talk: Talk, wanted: Wanted) -> int:
    """Check, launch, and print the acknowledgement; with ``wanted.watch`` follow to the end. What is not ready is refused
    unless ``wanted.anyway``."""
    judged = Judged(wanted.size, wanted.target, wanted.machine, wanted.overrides)
    spec, facts = await gathered(talk, judged)
    if problems := estimate(spec).problems:
        raise SpecError(problems[0])
    run_id = wanted.run_id or plan.new_run_id(spec.size, time.time())
    report = report_of(talk, spec, facts, deep=False)
    # Asking again under an id that is there starts nothing, so nothing has to be ready for it.
    known = bool(wanted.run_id) and run_id in {run.run_id for run in await talk.container.runs()}
    if not known:
        refuse_red(talk, spec, report, anyway=wanted.anyway)
    ack = await talk.container.launch(
        spec, run_id, getpass.getuser(), report=report.model_dump(mode="json"), secret_env=wanted.secrets
    )
    words = plan.launched_words(ack, run_id, talk.place.name)
    if wanted.watch:
        talk.note(words)
        return await watch(talk, run_id, 5.0)
    talk.say(words, ack)
    return 0


async def resume(talk: Talk, run_id: str, secrets: Mapping[str, str], ask: AskValue | None, to_end: bool) -> int:
    """Start the next attempt of a run that has ended, under the spec that it has; with ``to_end`` follow it."""
    files = await talk.container.read_text(run_id, "spec.toml", "launch.json")
    state = next((run.state for run in await talk.container.runs() if run.run_id == run_id), "unknown")
    if state == "finished":
        raise ContainerError("usage", f"{run_id} has finished, so there is nothing to resume.", "Launch a new run to go further.")
    try:
        spec = RunSpec.from_toml(files["spec.toml"] or "")
    except ValueError as error:
        raise ContainerError("failed", f"The spec.toml of {run_id} cannot be read by this console.", "", str(error)) from error
    missing = [name for name in started_with(files["launch.json"]) if name not in secrets] if state not in LIVE_STATES else []
    if missing and ask is None:
        options = " ".join(f"--secret {name}" for name in missing)
        text = f"{run_id} was launched with secrets that no file keeps: {', '.join(missing)}."
        raise ContainerError("usage", text, f"Resume it with {options}.")
    # An empty environment: the container's word is no leave to send it variables of ours.
    given = {**secrets, **await values_of(missing, ask, {})}
    ack = await talk.container.launch(spec, run_id, getpass.getuser(), True, secret_env=given)
    words = (
        f"{run_id} {'goes on already' if ack.get('already') else 'goes on'} on {talk.place.name}, attempt {ack.get('attempt')}."
    )
    if to_end:
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
    return f"{' '.join(run_words(run)):<14} {one_line(run.run_id):<28} {stage + done:<16} {ago}".rstrip()


async def watch(talk: Talk, run_id: str, every_s: float) -> int:
    """A line every few seconds until the run ends, then its result. 0 where it finished, else 1."""
    if not run_id:
        console = Console(talk.place.name)
        console.take_runs(await talk.container.runs(), time.time())
        run_id = console.latest_run()
        if not run_id:
            raise ContainerError("not_found", "There are no runs here yet.", "Launch one with: eagle3-tui launch.")
    view = RunView(run_id)
    try:
        async for news in _paced(talk.container.follow(run_id, poll_s=min(1.0, every_s)), every_s, lambda: _tell(talk, view)):
            view.take(news, time.time())
            _tell_events(talk, news, view)
    except LinkError as error:
        raise LinkError(error.kind, f"{error.text} The run {run_id} goes on without us.") from error
    return _end(talk, view)


async def _paced(news: AsyncIterator[RunNewsView], every_s: float, tell: Callable[[], None]) -> AsyncIterator[RunNewsView]:
    """The news as they come, and ``tell`` every ``every_s`` seconds, also while none come: silence looks like a hang."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        coming = asyncio.ensure_future(anext(news))
        try:
            while not coming.done():
                await asyncio.wait({coming}, timeout=max(0.0, due - loop.time()))
                if not coming.done():
                    tell()
                    due = loop.time() + every_s
            found = coming.result()
        except StopAsyncIteration:
            return
        finally:
            coming.cancel()
        yield found


def _tell(talk: Talk, view: RunView) -> None:
    if view.summary is None or view.ended:
        return
    now = time.time()
    old = "" if talk.container.link.status == "up" or view.at is None else f"  (last heard {age_label(now - view.at)})"
    talk.note(progress_line(view, now) + old)


def _tell_events(talk: Talk, news: RunNewsView, view: RunView) -> None:
    """Warnings and errors as they come; that an attempt has ended only where nothing said why."""
    explained = {event.attempt for event in view.events if event.kind == "failed"}
    for event in news.events:
        if event.kind == "attempt_ended" and event.attempt in explained:
            continue
        if event.level in {"warn", "error"}:
            talk.note(f"{event.level}: {one_line(event.text, 1000)}")


def progress_line(view: RunView, now: float) -> str:
    """ "● running  3 min 05 s  train 62/180 steps  1.2 s per step  2 min 26 s left  loss 6.71"."""
    from tui.widgets.progress import counts

    words = [state_label(view.state)]
    if view.summary is not None and (since := view.summary.started_at or view.summary.created_at) is not None:
        words.append(duration_label(view.age_of(since, now)))
    if (progress := view.progress) is not None and progress.stage:
        words.append(f"{progress.stage} {counts(progress)}")
        words.append(rate_label(progress.rate, progress.unit))
        words.append(f"{duration_label(progress.eta_s)} left" if progress.eta_s is not None else "")
        words.append(one_line(progress.reason))
        if progress.stage == "train" and (row := view.metrics.last("train", "train")) is not None:
            words.append(f"loss {number_label(row.loss)}")
    return "  ".join(word for word in words if word)


def _end(talk: Talk, view: RunView) -> int:
    from tui.widgets.headline import failure_words, figures_line

    finished = view.state == "finished"
    if view.result is not None and finished:
        verdict = one_line(view.result.verdict_text or view.result.verdict, 1000)
        words = "\n".join(filter(None, [f"{state_label(view.state)}  {view.run_id}", verdict, figures_line(view.result)]))
        value = ending(view.result)
    else:
        why = "" if finished else failure_words(view)
        words = f"{state_label(view.state)}  {view.run_id}  {why}".rstrip()
        value = {**ending(partial_result(view, why)), "text": why}
    talk.say(words, value)
    return 0 if finished else 1


FIGURES: dict[str, tuple[str, ...]] = {
    "val": ("acc_pos", "accept_len"),
    "untrained": ("acc_pos",),
    "served": ("accept_len", "acc_pos", "drafts", "prompts", "tok_s", "tok_s_no_draft"),
    "lossless": ("identical", "of"),
}
"""The keys that the last line always has, so that a script may read them of every run; null where nothing was measured."""


def ending(result: Result) -> dict[str, Any]:
    """The result as the last line of ``--watch --json``."""
    value = result.model_dump()
    for name, keys in FIGURES.items():
        value[name] = {**dict.fromkeys(keys), **value[name]}
    return value


def partial_result(view: RunView, why: str) -> Result:
    """What is known of a run that did not come to its end, and why it did not."""
    summary = view.summary or RunSummary(run_id=view.run_id)
    row = view.metrics.last("train", "val")
    val = {"acc_pos": row.acc_pos, "accept_len": row.accept_len} if row is not None else {}
    return result_of(summary, None).model_copy(update={"val": val, "verdict_text": why})


async def stop(talk: Talk, run_id: str, mode: StopMode) -> int:
    """Stop a run and print what was done."""
    answer = await talk.container.stop(run_id, mode, getpass.getuser())
    when = "now" if answer.get("mode", mode) == "now" else "after its next checkpoint"
    ended = f"{run_id} has ended already: {answer.get('state')}."
    talk.say(ended if answer.get("already") else f"{run_id} stops {when}.", answer)
    return 0
