"""Reading prompts: the shipped ones, or a user's JSONL in any of the usual shapes. Only what the user says is kept; the
answers come from the target itself."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from eagle3.core.acceptance import ALL_KINDS
from eagle3.core.wording import bytes_label
from eagle3.stages.context import StageError

LONGEST_LINE_BYTES = 16 << 20
"""No target reads so much in one conversation: a longer line is a file whose line breaks are lost."""

_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True)
class Prompt:
    """What a user says, turn by turn. ``hash`` is of the first turn's normalised text and decides the split."""

    id: str
    kind: str
    turns: tuple[str, ...]
    system: str = ""

    @property
    def hash(self) -> str:
        return prompt_hash(self.turns[0])

    def row(self, split: str) -> dict[str, Any]:
        base = {"id": self.id, "kind": self.kind, "split": split, "hash": self.hash, "turns": list(self.turns)}
        return base | ({"system": self.system} if self.system else {})


def prompt_hash(text: str) -> str:
    """16 hex digits that do not change with case, width forms or blanks, so that near-identical prompts meet."""
    return hashlib.sha256(normalised(text).encode()).hexdigest()[:16]


def normalised(text: str) -> str:
    """The text without case, width forms and repeated blanks."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def read_builtin() -> list[Prompt]:
    """The prompts that the package ships."""
    return parse(files("eagle3").joinpath("data", "prompts.jsonl").read_bytes(), "the shipped prompts")


def read_named(text: str) -> list[Prompt]:
    """The prompts that ``data.prompts`` names: a file's, or the shipped ones for "builtin". Raises StageError."""
    return read_builtin() if text == "builtin" else read_file(user_file(text))


def user_file(text: str) -> Path:
    """``data.prompts`` as a path, ``~`` expanded where there is such a home."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):  # an unknown ~user stays as it is and is then not found
        path = path.expanduser()
    return path


def content_hash(path: Path) -> str | None:
    """SHA-256 of a file; None where it cannot be read, which ``read_file`` says of prompts."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def read_file(path: Path) -> list[Prompt]:
    """A user's JSONL. Raises StageError that names the file, and the line where one is to blame."""
    if not path.is_absolute():
        raise StageError(f"The prompts file {path} has no absolute path, and the worker runs elsewhere; set data.prompts to one.")
    if path.exists() and not path.is_file():
        raise StageError(f"The prompts file {path} is a folder or a device; set data.prompts to a JSONL file.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StageError(f"The prompts file {path} cannot be read ({error.strerror}); set data.prompts.") from error
    return parse(content, str(path))


def parse(content: bytes, name: str) -> list[Prompt]:
    """The prompts of a JSONL file's content. Raises StageError naming ``name`` and the line."""
    for mark, encoding in ((codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16")):
        if content.startswith(mark):
            raise StageError(f"{name} is written in {encoding}; save it as UTF-8.")
    if content[:4].count(0) >= 2 or content[1:2] == b"\0":
        raise StageError(f"{name} is written in UTF-16 or UTF-32, or is no text; save it as UTF-8.")
    prompts = list(_rows(content.removeprefix(codecs.BOM_UTF8), name))
    if not prompts:
        raise StageError(f"{name} holds no prompts; put one JSON object on each line.")
    return _with_ids_of_their_own(prompts)


def _with_ids_of_their_own(prompts: list[Prompt]) -> list[Prompt]:
    """Where an id comes again, the later prompts get a number behind it: what is said of a prompt must mean one."""
    taken = {prompt.id for prompt in prompts}
    seen: set[str] = set()
    # The last number of each id: counted from one each time, 100,000 rows of one id took 20 minutes.
    last: dict[str, int] = {}
    told = []
    for prompt in prompts:
        name, number = prompt.id, last.get(prompt.id, 1)
        while name in seen or (number > 1 and name in taken):
            number += 1
            name = f"{prompt.id}-{number}"
        seen.add(name)
        last[prompt.id] = number
        told.append(prompt if name == prompt.id else replace(prompt, id=name))
    return told


def _rows(content: bytes, name: str) -> Iterator[Prompt]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        if len(line) > LONGEST_LINE_BYTES:
            raise StageError(
                f"{where}: {bytes_label(len(line))} long, and no conversation may have more than "
                f"{bytes_label(LONGEST_LINE_BYTES)}; write one object on each line."
            )
        if (at := line.find(b"\0")) >= 0:
            raise StageError(f"{where}: byte {at + 1} is NUL, which no text holds; save the file again as UTF-8.")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StageError(
                f"{where}: byte {error.start + 1} is not UTF-8; save the whole file in one encoding, UTF-8."
            ) from error
        try:
            row = json.loads(text)
            # An escape may name half a character (\ud83d alone), which no file and no request can hold.
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise StageError(f"{where}: an escape such as \\ud83d stands for half a character; write the whole one.") from error
        except (ValueError, RecursionError) as error:
            raise StageError(f"{where}: not a JSON object ({error}); write one object on each line.") from error
        if not isinstance(row, dict):
            raise StageError(f"{where}: not a JSON object; write one object on each line.")
        yield _prompt(row, where, number)


def _prompt(row: dict[str, Any], where: str, number: int) -> Prompt:
    if isinstance(row.get("messages"), list):
        said = [_message(m, "role", "content", where) for m in row["messages"]]
    elif isinstance(row.get("conversations"), list):
        said = [_message(m, "from", "value", where) for m in row["conversations"]]
    elif isinstance(row.get("turns"), list):
        said = [("user", turn) for turn in row["turns"]]
    elif isinstance(row.get("prompt"), str):
        said = [("user", row["prompt"])]
    else:
        raise StageError(f"{where}: none of 'messages', 'conversations', 'turns' or 'prompt' is there; add one of them.")
    if not all(isinstance(text, str) for _, text in said):
        raise StageError(f"{where}: a turn is not text; only text conversations can be used.")
    turns = tuple(text for role, text in said if role == "user")
    if not turns or not all(turn.strip() for turn in turns):
        lack = "a user turn is empty" if turns else "no turn of a user"
        raise StageError(f"{where}: {lack}; every conversation needs something to answer.")
    system = "\n\n".join(text for role, text in said if role == "system")
    return Prompt(str(row.get("id", f"line-{number}")), str(row.get("kind", ALL_KINDS)), turns, system)


def _message(message: Any, role_key: str, text_key: str, where: str) -> tuple[str, Any]:
    if not isinstance(message, dict):
        raise StageError(f"{where}: a message is not an object with '{role_key}' and '{text_key}'.")
    speaker = message.get(role_key)
    if not isinstance(speaker, str) or speaker not in _SPEAKERS:
        raise StageError(f"{where}: the role {speaker!r} is not known; use one of {', '.join(_SPEAKERS)}.")
    text = message.get(text_key)
    if isinstance(text, list) and all(
        isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in text
    ):
        text = "".join(part["text"] for part in text)
    return _SPEAKERS[speaker], text
