"""What of a run may leave the container for a bug report: the verb ``collect``.

Taken is only what a list names: records, the ends of the logs, the last rows and events. Prompts, answers, hidden states,
weights, people's notes and environments never are. Everything taken is redacted here, before it crosses the wire, and
what was left out is told with its size and the reason. Works for a run in any state, a damaged one too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from eagle3.runner import identity, redact, rundir, state

Object = Dict[str, Any]

RECORD_BYTES = 256 << 10
HEAD_BYTES, TAIL_BYTES = 48 << 10, 128 << 10
ROWS_BYTES = 192 << 10
TOTAL_BYTES = 6 << 20
"""The most text in one answer; what comes after that on the list is left out and named."""
ATTEMPTS = 10
"""So many of the last attempts are taken."""
MOST_ENTRIES = 50_000

RECORDS = ("launch.json", "report.json", "progress.json", "stop.json", "result.json")
ATTEMPT_RECORDS = ("starting.json", "started.json", "made_from.json", "heartbeat.json", "exit.json", "launch.json")
ROWS = ("events.jsonl", "metrics.jsonl")
WORDS_OF_ANSWERS = {"divergences", "messages", "prompt", "answer", "content", "completion"}
"""Keys of a record under which words of prompts or answers may stand."""
_REQUEST = re.compile(r"^.*Received request .*$", re.MULTILINE)
_END_OF_KEY = re.compile(r"\A(?:(?!-----BEGIN )[\s\S])*?-----END [A-Z ]*PRIVATE KEY-----")
_PACKAGES = re.compile(
    r"(torch|transformers|speculators|vllm|vllm[_-]cpu|safetensors|triton|flash[_-]attn|eagle3[_-]console|numpy)-([^-]+)\.dist-info",
    re.IGNORECASE,
)
WHY = {
    "data": "prompts and the target's answers",
    "states": "hidden states of prompts and answers",
    "train": "weights",
    "export": "weights",
    "evaluate": "answers of the target",
    "vocabulary": "token counts of the answers",
    "servers": "addresses of servers",
    "NOTES.md": "people's own words",
}


def collect(run_dir: Path) -> Object:
    """``{"files": [{"name","text","bytes","left_out_bytes"}], "left_out": [{"name","files","bytes","why"}], "versions",
    "summary"}``. Raises OSError only where the run's folder itself cannot be read."""
    launch = rundir.read_object(run_dir / "launch.json")
    hidden = _secret_values(run_dir, launch)
    taken: List[Object] = []
    left: List[Object] = []
    spent = 0
    for name, kind in _wanted(run_dir):
        found = _file(run_dir / name, kind, hidden)
        if found is None:
            continue
        if isinstance(found, str):
            left.append({"name": name, "files": 1, "bytes": _size(run_dir / name), "why": found})
        elif spent + len(found["text"]) > TOTAL_BYTES:
            left.append({"name": name, "files": 1, "bytes": _size(run_dir / name), "why": "the bundle has grown to its limit"})
        else:
            spent += len(found["text"])
            taken.append({"name": name, **found})
    names = {str(entry["name"]) for entry in [*taken, *left]}
    return {
        "files": taken,
        "left_out": [*left, *_others(run_dir, names)],
        "versions": _versions(launch),
        "summary": _clean(_summary(run_dir), hidden),
        "secret_names": [str(name) for name in launch.get("secret_env") or [] if isinstance(name, str)],
    }


def _wanted(run_dir: Path) -> Iterator[Tuple[str, str]]:
    """Names of what is taken, the most telling first, each with its kind."""
    yield "spec.toml", "text"
    for name in RECORDS:
        yield name, "record"
    for name in ROWS:
        yield name, "rows"
    for path in sorted(run_dir.glob("stages/*.json")):
        yield f"stages/{path.name}", "record"
    for number in reversed(state.attempts(run_dir)[-ATTEMPTS:]):
        for name in ATTEMPT_RECORDS:
            yield f"attempts/{number}/{name}", "record"
        yield f"attempts/{number}/run.log", "log"
    for path in sorted(run_dir.glob("logs/*.log")):
        yield f"logs/{path.name}", "log"


def _file(path: Path, kind: str, hidden: List[str]) -> Any:
    """The text and what was left out of it; a sentence where the whole file is left out; None where it is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "it is no file"
        size = status.st_size
        if kind in ("text", "record"):
            if size > RECORD_BYTES:
                return f"it is longer than {RECORD_BYTES >> 10} KiB"
            data = os.pread(descriptor, size, 0)
            return {"text": (_record if kind == "record" else _text)(data, hidden), "bytes": size, "left_out_bytes": 0}
        head, tail = (HEAD_BYTES, TAIL_BYTES) if kind == "log" else (0, ROWS_BYTES)
        parts, left_out = _ends(descriptor, size, head, tail)
        clean = [(_rows if kind == "rows" else _text)(part, hidden) for part in parts]
        gap = f"\n[{left_out} bytes are left out here]\n" if left_out else ""
        return {
            "text": gap.join(clean) if len(clean) > 1 else gap.lstrip("\n") + clean[0],
            "bytes": size,
            "left_out_bytes": left_out,
        }
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    finally:
        os.close(descriptor)


def _ends(descriptor: int, size: int, head: int, tail: int) -> Tuple[List[bytes], int]:
    """The beginning and the end of a file in whole lines: half a line could be half a secret, which nothing recognises."""
    if size <= head + tail:
        return [os.pread(descriptor, size, 0)], 0
    first, last = os.pread(descriptor, head, 0), os.pread(descriptor, tail, size - tail)
    first = first[: first.rfind(b"\n") + 1]
    last = last[last.find(b"\n") + 1 :] if b"\n" in last else b""
    return ([first, last] if head else [last]), size - len(first) - len(last)


def _text(data: bytes, hidden: List[str]) -> str:
    text = data.decode("utf-8", "replace")
    text = _REQUEST.sub("[a request to the server is left out]", text)
    # The end of a private key whose beginning was left out.
    text = _END_OF_KEY.sub(redact.HIDDEN, text)
    return redact.redact(text, hidden)


def _rows(data: bytes, hidden: List[str]) -> str:
    return "".join(f"{_row(line, hidden)}\n" for line in data.decode("utf-8", "replace").splitlines() if line.strip())


def _row(line: str, hidden: List[str]) -> str:
    try:
        row = json.loads(line)
    except ValueError:
        return redact.redact(line, hidden)
    if isinstance(row, dict) and row.get("kind") == "lossless":
        row = {**row, "text": "[words of answers are left out]", "detail": ""}
    return json.dumps(_clean(row, hidden), ensure_ascii=False)


def _record(data: bytes, hidden: List[str]) -> str:
    text = data.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        return redact.redact(text, hidden)
    return json.dumps(_clean(value, hidden), ensure_ascii=False, indent=1) + "\n"


def _clean(value: Any, hidden: List[str], key: str = "") -> Any:
    """A JSON value without secrets and without words of prompts and answers."""
    if isinstance(value, dict):
        if key in ("env", "environ", "environment"):
            return {str(name): "[left out]" for name in value}
        return {
            str(name): "[left out]" if name in WORDS_OF_ANSWERS and item else _clean(item, hidden, str(name))
            for name, item in value.items()
        }
    if isinstance(value, list):
        if key in ("argv", "command") and all(isinstance(item, str) for item in value):
            value = redact.command(value)
        return [_clean(item, hidden) for item in value]
    if isinstance(value, str):
        return redact.HIDDEN if value and redact.is_secret_name(key) else redact.redact(value, hidden)
    return value


def _secret_values(run_dir: Path, launch: Object) -> List[str]:
    """The values of the run's secrets as far as its live worker, or this helper, still has them: no file does."""
    names = {str(name) for name in launch.get("secret_env") or []}
    values = [value for name, value in os.environ.items() if name in names or redact.is_secret_name(name)]
    numbers = state.attempts(run_dir)
    started = rundir.read_object(state.attempt_dir(run_dir, numbers[-1]) / "started.json") if numbers else {}
    if identity.alive(started):
        with contextlib.suppress(OSError):  # it ends just now, or is another user's
            for pair in Path(f"/proc/{int(started['pid'])}/environ").read_bytes().split(b"\0"):
                name, _, value = pair.decode("utf-8", "replace").partition("=")
                if name in names or redact.is_secret_name(name):
                    values.append(value)
    return values


def _summary(run_dir: Path) -> Object:
    try:
        return dict(state.summary(run_dir, time.time()))
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        return {"run_id": run_dir.name, "state": "unknown", "state_text": f"its files cannot be understood: {error}"}


def _versions(launch: Object) -> Dict[str, str]:
    """Versions of the packages that matter in the worker's environment, by the names of their folders there."""
    argv = launch.get("argv")
    python = Path(str(argv[0])) if isinstance(argv, list) and argv else None
    found: Dict[str, str] = {}
    if python is not None:
        with contextlib.suppress(OSError):  # another user's, or gone
            for folder in sorted(python.parent.parent.glob("lib/python3*/*-packages")):
                for entry in folder.iterdir():
                    if match := _PACKAGES.fullmatch(entry.name):
                        found[match[1].lower().replace("_", "-")] = match[2]
    return found


def _others(run_dir: Path, taken: "set[str]") -> List[Object]:
    """What the folder holds beside: by its first name, how many files and bytes, and why it is left out."""
    groups: Dict[str, Object] = {}
    for name, size in _walk(run_dir):
        if name in taken or re.search(r"/(lock|\.[^/]*)$", name):
            continue
        top, _, rest = name.partition("/")
        if top in ("attempts", "logs", "stages"):
            top, rest = name, ""
        group = groups.setdefault(top, {"name": f"{top}/" if rest else top, "files": 0, "bytes": 0, "why": _why(top)})
        group["files"] += 1
        group["bytes"] += size
    return [groups[top] for top in sorted(groups)]


def _why(top: str) -> str:
    return WHY.get(top, "not on the list of what a report needs")


def _walk(run_dir: Path) -> Iterator[Tuple[str, int]]:
    seen = 0
    for folder, _, files in os.walk(run_dir):
        for file in files:
            seen += 1
            if seen > MOST_ENTRIES:
                return
            path = Path(folder) / file
            yield path.relative_to(run_dir).as_posix(), _size(path)


def _size(path: Path) -> int:
    found: Optional[os.stat_result] = None
    with contextlib.suppress(OSError):  # gone meanwhile
        found = path.lstat()
    return found.st_size if found is not None else 0
