"""What the session tells the app: one small typed message for each kind of news. Widgets never see the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from textual.message import Message

if TYPE_CHECKING:
    from eagle3.core.records import Forkable, LogFile, LogPage, LogSearch, NotesText, Probe, Services, Since
    from tui.ports import BacklogView, RunNewsView
    from tui.reading import LogAsk
    from tui.state import LinkState, RunView


class OfHost(Message):
    """News of the host called ``host``: one of the messages below."""

    def __init__(self, host: str, news: Message) -> None:
        super().__init__()
        self.host, self.news = host, news


class LinkChanged(Message):
    """The link is now ``link``."""

    def __init__(self, link: LinkState) -> None:
        super().__init__()
        self.link = link


class ProbeArrived(Message):
    """The container answered; received ``at`` (this machine's Unix seconds)."""

    def __init__(self, probe: Probe, at: float) -> None:
        super().__init__()
        self.probe, self.at = probe, at


class BareProbeArrived(Message):
    """What a shell sees of a container without a usable Python: no runs, no helper."""

    def __init__(self, probe: Probe, at: float) -> None:
        super().__init__()
        self.probe, self.at = probe, at


class ProbeFailed(Message):
    """The container did not answer, in one sentence."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class NewsArrived(Message):
    """One poll of a followed run. ``fresh``: the files are read from their beginning, whatever was known before."""

    def __init__(self, run_id: str, news: RunNewsView, at: float, fresh: bool = False) -> None:
        super().__init__()
        self.run_id, self.news, self.at, self.fresh = run_id, news, at, fresh


class FollowFailed(Message):
    """The run cannot be followed at the moment, in one sentence."""

    def __init__(self, run_id: str, text: str) -> None:
        super().__init__()
        self.run_id, self.text = run_id, text


class Launched(Message):
    """A launch or a resume was acknowledged."""

    def __init__(self, run_id: str, ack: dict[str, Any], resumed: bool) -> None:
        super().__init__()
        self.run_id, self.ack, self.resumed = run_id, ack, resumed


class Stopping(Message):
    """A stop was taken up."""

    def __init__(self, run_id: str, mode: str) -> None:
        super().__init__()
        self.run_id, self.mode = run_id, mode


class AskFailed(Message):
    """Something the operator asked for did not happen. ``what`` names it; ``text`` is one sentence with the next step."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__()
        self.what, self.text = what, text


class AskAgain(Message):
    """The link broke while something was asked; it is asked again under the same run id."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__()
        self.what, self.text = what, text


class FactsArrived(Message):
    """Facts for the readiness of the spec ``spec_hash``, learnt ``at``: all light sections, some, or one deep section."""

    def __init__(self, spec_hash: str, facts: Mapping[str, Any], at: float) -> None:
        super().__init__()
        self.spec_hash, self.facts, self.at = spec_hash, facts, at


class CheckEnded(Message):
    """Asking for light facts came to its end; ``problem`` is one sentence where it brought none."""

    def __init__(self, spec_hash: str, problem: str = "") -> None:
        super().__init__()
        self.spec_hash, self.problem = spec_hash, problem


class JobDoing(Message):
    """A deep check works at a section now, or a build at a step, which may take ``limit_s`` seconds (None: not known)."""

    def __init__(self, spec_hash: str, doing: str, limit_s: float | None) -> None:
        super().__init__()
        self.spec_hash, self.doing, self.limit_s = spec_hash, doing, limit_s


class DeepJoined(Message):
    """A deep check ran there already: what it says is told, and nothing was started."""

    def __init__(self, spec_hash: str, job: str) -> None:
        super().__init__()
        self.spec_hash, self.job = spec_hash, job


class DeepEnded(Message):
    """The deep check came to its end; ``problem`` is one sentence where that was not the end of its list."""

    def __init__(self, spec_hash: str, problem: str = "") -> None:
        super().__init__()
        self.spec_hash, self.problem = spec_hash, problem


class BuildEnded(Message):
    """The building of an environment came to its end; ``problem`` is one sentence where it is not whole."""

    def __init__(self, spec_hash: str, problem: str = "") -> None:
        super().__init__()
        self.spec_hash, self.problem = spec_hash, problem


class RemedyAnswered(Message):
    """What a remedy would do (``preview``), or what it did: ``answer``, None where there is only a ``problem``. ``check_id``
    is the check that offered it."""

    def __init__(self, check_id: str, answer: Mapping[str, Any] | None, problem: str, preview: bool) -> None:
        super().__init__()
        self.check_id, self.answer, self.problem, self.preview = check_id, answer, problem, preview


class ReportRead(Message):
    """The readiness report that a run was started under, as text; None where it has none."""

    def __init__(self, run_id: str, text: str | None) -> None:
        super().__init__()
        self.run_id, self.text = run_id, text


class LogArrived(Message):
    """An answer to a question about a log of ``run_id``: its files, a page, a search, or the byte of a time."""

    def __init__(self, run_id: str, ask: LogAsk, answer: list[LogFile] | LogPage | LogSearch | int, at: float) -> None:
        super().__init__()
        self.run_id, self.ask, self.answer, self.at = run_id, ask, answer, at


class LogFailed(Message):
    """A question about a log got no answer, in one sentence."""

    def __init__(self, run_id: str, ask: LogAsk, text: str) -> None:
        super().__init__()
        self.run_id, self.ask, self.text = run_id, ask, text


class NotesArrived(Message):
    """The notes of ``run_id`` ("": the workspace's), as read, or as saved where ``saved``."""

    def __init__(self, run_id: str, notes: NotesText, at: float, saved: bool) -> None:
        super().__init__()
        self.run_id, self.notes, self.at, self.saved = run_id, notes, at, saved


class NotesFailed(Message):
    """The notes of ``run_id`` could not be read or saved, in one sentence; what was typed is kept."""

    def __init__(self, run_id: str, text: str, saving: bool) -> None:
        super().__init__()
        self.run_id, self.text, self.saving = run_id, text, saving


class RunCollected(Message):
    """What is known of a run to compare, and its spec as text; or why it cannot be had."""

    def __init__(self, run_id: str, view: RunView | None, spec_toml: str = "", problem: str = "") -> None:
        super().__init__()
        self.run_id, self.view, self.spec_toml, self.problem = run_id, view, spec_toml, problem


class NoteAdded(Message):
    """A line was added to the notes of a run, or was not: then ``problem`` says why."""

    def __init__(self, line: str, problem: str = "") -> None:
        super().__init__()
        self.line, self.problem = line, problem


class Asked(Message):
    """The container took up what was asked of a run; ``text`` says what will happen."""

    def __init__(self, run_id: str, text: str) -> None:
        super().__init__()
        self.run_id, self.text = run_id, text


class SinceArrived(Message):
    """What happened in the workspace while nobody looked; ``away_s`` is how long that was."""

    def __init__(self, since: Since, away_s: float) -> None:
        super().__init__()
        self.since, self.away_s = since, away_s


class RowsArrived(Message):
    """A piece of all the rows of ``run_id``, which a thinned picture had left out."""

    def __init__(self, run_id: str, piece: BacklogView, first: bool) -> None:
        super().__init__()
        self.run_id, self.piece, self.first = run_id, piece, first


class ServicesArrived(Message):
    """The vLLM servers of the container with their command lines, or why they are not known."""

    def __init__(self, found: Services | None, problem: str = "") -> None:
        super().__init__()
        self.found, self.problem = found, problem


class ForkableArrived(Message):
    """What there is of ``run_id`` to fork from, or why that is not known."""

    def __init__(self, run_id: str, found: Forkable | None, problem: str = "") -> None:
        super().__init__()
        self.run_id, self.found, self.problem = run_id, found, problem
