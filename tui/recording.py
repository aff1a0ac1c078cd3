"""A recording of what the console received, for demonstrations and bug reports: one zlib stream of JSON lines.

The first line tells what it is; each other one is ``[t, host, kind, run_id, data]`` with ``t`` in this machine's Unix seconds;
the last is of kind "end". A stream that was cut is whole up to the cut, since it is flushed with every line. Text goes
through the rules that hide secrets, and a log is written by whole lines, so that no half of a secret slips through.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from textual.message import Message

from remote.container import redact
from remote.text import made_plain, plain
from tui import messages
from tui.ports import RunNewsView

FORMAT = "eagle3-recording"
VERSION = 1
LIMIT_BYTES = 256 << 20
"""Of text in a recording, before it is compressed: about a day of one run, or what a replay holds in memory."""
LINE_LIMIT_BYTES = 64 << 20
PIECE_BYTES = 256
"""Unpacked at once; of the piece in which a damage lies nothing can be had."""
HIDDEN = "[hidden]"
LATEST = 253_370_764_800.0
"""The year 9999 in Unix seconds; a later time is none, and the C library has no date for it."""
_FOREIGN = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
"""What another one's JSON may raise where it is looked at."""


class RecordingError(ValueError):
    """The file is no recording, or one that this console cannot read; the message is one sentence."""


class Recorder:
    """Writes ``path`` (0600; it must not exist yet); ``secrets`` gives the values that are known to be secret at that moment.
    Raises OSError when it cannot be begun or written."""

    def __init__(
        self, path: Path, clock: Callable[[], float], hosts: list[str], poll_s: float, secrets: Callable[[], list[str]]
    ) -> None:
        self.path = path
        self.text_bytes = 0
        self._clock, self._secrets = clock, secrets
        self._pending: dict[tuple[str, str], str] = {}
        self._stream = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._packer = zlib.compressobj(6)
        self._write({"v": VERSION, "kind": FORMAT, "hosts": hosts, "poll_s": poll_s, "begun": clock()})

    @property
    def full(self) -> bool:
        """Whether it holds as much as a recording may."""
        return self.text_bytes >= LIMIT_BYTES

    def take(self, host: str, news: Message) -> None:
        """Write one piece of news, where it is of a kind that is played again."""
        if isinstance(news, messages.NewsArrived):
            data = self._news(host, news.run_id, news.news, news.fresh)
            self._entry(host, "news", data, news.run_id)
        elif isinstance(news, messages.ProbeArrived):
            self._entry(host, "probe", news.probe.model_dump(mode="json", exclude_defaults=True))
        elif isinstance(news, messages.LinkChanged):
            link = news.link
            self._entry(host, "link", {"status": link.status, "since": link.since, "reason": link.reason})
        elif isinstance(news, messages.ProbeFailed):
            self._entry(host, "failed", {"text": news.text})
        elif isinstance(news, messages.FollowFailed):
            self._entry(host, "lost", {"text": news.text}, news.run_id)

    def close(self, why: str = "") -> None:
        """End the recording in order."""
        self._entry("", "end", {"why": why})
        self._stream.write(self._packer.flush(zlib.Z_FINISH))
        self._stream.close()

    def _news(self, host: str, run_id: str, news: RunNewsView, fresh: bool) -> dict[str, Any]:
        anew = fresh or "run.log" in news.reset
        text = ("" if anew else self._pending.get((host, run_id), "")) + news.log
        whole, line_end, rest = text.rpartition("\n")
        self._pending[host, run_id] = rest
        found = {
            "summary": news.summary.model_dump(mode="json", exclude_defaults=True),
            "progress": news.progress and news.progress.model_dump(mode="json", exclude_defaults=True),
            "rows": [row.model_dump(mode="json", exclude_defaults=True) for row in news.rows],
            "events": [event.model_dump(mode="json", exclude_defaults=True) for event in news.events],
            "log": whole + line_end,
            "reset": sorted(news.reset),
            "result": news.result and news.result.model_dump(mode="json", exclude_defaults=True),
            "thinned": news.thinned and [news.thinned.rows, news.thinned.kept],
            "log_skipped_bytes": news.log_skipped_bytes,
            "fresh": fresh,
        }
        return {name: value for name, value in found.items() if value}

    def _entry(self, host: str, kind: str, data: Mapping[str, Any], run_id: str = "") -> None:
        self._write([self._clock(), host, kind, run_id, cleaned(data, self._secrets())])

    def _write(self, value: object) -> None:
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        self.text_bytes += len(line)
        self._stream.write(self._packer.compress(line) + self._packer.flush(zlib.Z_SYNC_FLUSH))
        self._stream.flush()


def cleaned(value: Any, secrets: list[str], name: str = "") -> Any:
    """``value`` with every text in it redacted, the text under a secret's ``name`` whole."""
    if isinstance(value, str):
        named = f"{name}={value}"
        return HIDDEN if name and value and " " not in value and redact(named) == f"{name}={HIDDEN}" else redact(value, secrets)
    if isinstance(value, Mapping):
        return {str(key): cleaned(one, secrets, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(one, secrets) for one in value]
    return value


@dataclass(frozen=True)
class Entry:
    """A line of a recording; ``line`` is its JSON, read again when it is played."""

    t: float
    host: str
    kind: str
    run_id: str
    fresh: bool
    line: bytes

    @property
    def data(self) -> dict[str, Any]:
        # A recording may be anybody's: its texts are no safer than those of a host.
        found = made_plain(json.loads(self.line)[4])
        return found if isinstance(found, dict) else {}


@dataclass
class Recording:
    """What a file holds. ``problem`` says where it breaks off, empty where it was ended in order."""

    hosts: list[str]
    poll_s: float
    begun: float
    entries: list[Entry] = field(default_factory=list)
    problem: str = ""

    @property
    def ended(self) -> float:
        """When the last thing in it was received."""
        return max((entry.t for entry in self.entries), default=self.begun)


def load(path: Path) -> Recording:
    """Read a recording as far as it goes. Raises RecordingError."""
    lines = _lines(path)
    first = next(lines, b"null")
    try:
        head = json.loads(first)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("kind") != FORMAT:
        raise RecordingError(f"{path} is no recording of this console; `eagle3-tui record HOST --to FILE` makes one.")
    if head.get("v") != VERSION:
        version = plain(str(head.get("v")))[:20]
        raise RecordingError(f"{path} was recorded by a newer console (format {version}); use that one to replay it.")
    try:
        found = Recording([_host(host) for host in _listed(head["hosts"])], _poll_s(head["poll_s"]), _time(head["begun"]))
    except _FOREIGN as error:
        raise RecordingError(
            f"The first line of {path} is damaged, so it cannot be replayed; ask who recorded it for it once more."
        ) from error
    for line in lines:
        try:
            t, host, kind, run_id, data = json.loads(line)
            entry = Entry(_time(t), _host(host) if host else "", str(kind), str(run_id), bool(data.get("fresh")), line)
        except _FOREIGN:
            found.problem = "it is damaged"
            break
        if entry.kind == "end":
            return found
        found.entries.append(entry)
        if entry.host not in found.hosts:
            found.hosts.append(entry.host)
    found.problem = f"The recording breaks off here: {found.problem or 'it was not ended in order'}."
    return found


def _time(value: object) -> float:
    """Unix seconds. Raises what `_FOREIGN` names."""
    t = float(value)  # type: ignore[arg-type]
    if not 0.0 <= t <= LATEST:
        raise ValueError(t)
    return t


def _poll_s(value: object) -> float:
    seconds = float(value)  # type: ignore[arg-type]
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(seconds)
    return seconds


def _host(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(value)
    return value


def _listed(value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise TypeError(value)
    return value


def _lines(path: Path) -> Iterator[bytes]:
    """The whole lines of the stream, as far as it can be unpacked. Raises RecordingError where it cannot be read."""
    unpacker, total = zlib.decompressobj(), 0
    # In pieces until it is whole: to put a long line together anew with each piece takes its length squared.
    begun: list[bytes] = []
    begun_bytes = 0
    try:
        with path.open("rb") as stream:
            while (packed := stream.read(PIECE_BYTES)) and total <= LIMIT_BYTES + LINE_LIMIT_BYTES:
                while packed:
                    text = unpacker.decompress(packed, 1 << 20)
                    packed, total = unpacker.unconsumed_tail, total + len(text)
                    first, *others = text.split(b"\n")
                    begun.append(first)
                    begun_bytes += len(first)
                    if begun_bytes > LINE_LIMIT_BYTES:
                        return  # no line of a console's is so long
                    for other in others:
                        yield b"".join(begun)
                        begun, begun_bytes = [other], len(other)
    except zlib.error:
        return  # what came before the damage has been told
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}.") from error
