"""The fields of a run as a person types them: what each is for, which ones matter for what is chosen, text to value and back.
Pure; names, units, bounds and help are the spec's own (``core.spec_docs``)."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from eagle3.core import presets, spec_docs

NOT_TYPED = {"v", "size", "machine", "target.name", "forked_from"}
"""Chosen above the fields, or written by the product."""

ALWAYS = ("data.prompts", "data.train_prompts", "train.max_steps")
LEARNING = ("train.learning_rate", "regenerate.max_new_tokens", "vocabulary.size")
ON_GPUS = ("devices.extract", "devices.train", "server.tensor_parallel")
LONG = ("train.checkpoint_every_steps", "time_limit_s")
WHERE = ("workspace", "worker_python", "server_python")


@dataclass(frozen=True)
class Field:
    """One field of the spec: dotted name, type with its bounds, unit, and a line of help."""

    name: str
    kind: str
    unit: str
    text: str

    @property
    def about(self) -> str:
        """Unit, type and bounds: "steps · integer ≥ 1"."""
        return " · ".join(part for part in (self.unit, self.kind) if part)

    @property
    def brief(self) -> str:
        """As `about`, in few columns: bounds say that it is a number."""
        kind = self.kind.replace("integer ≥", "≥").replace("number ≥", "≥").replace("number >", ">")
        return " · ".join(part for part in (self.unit, kind) if part)

    def value(self, text: str) -> Any:
        """What was typed, as the value that the spec is asked to take; what makes no sense stays text, for the spec to refuse.
        Lists may be typed bare ("0, 1, 2"), numbers with separators ("5,000")."""
        text = text.strip()
        if self.kind.startswith("list of ") and "tables" not in self.kind and not text.startswith("["):
            words = shlex_split(text) if self.kind.startswith("list of text") else text.replace(",", " ").split()
            return [_toml(word) if self.kind.startswith("list of integer") else word for word in words]
        if self.kind.startswith(("text", '"')):
            quoted = len(text) > 1 and text[0] == text[-1] == '"'
            return _toml(text) if quoted else text
        return _toml(text.replace(",", "") if self.kind.startswith(("integer", "number")) else text)


def shlex_split(text: str) -> list[str]:
    """Words as a shell takes them; a quote that is still open is text."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


@cache
def every() -> dict[str, Field]:
    """All fields that can be typed, by name."""
    return {
        name: Field(name, kind, unit, text)
        for name, kind, unit, _, text in spec_docs.rows()
        if name not in NOT_TYPED and "[]" not in name
    }


def that_matter(size: str, machine_kind: str) -> list[str]:
    """The few fields worth a look for what is chosen, in the order of the form."""
    names = [*ALWAYS]
    names += LEARNING if size != "smoke" else ()
    names += ON_GPUS if machine_kind == "gpu" else ()
    names += LONG if size == "full" else ()
    return [*names, *WHERE]


def found(words: str) -> list[Field]:
    """Fields whose name, help or type holds every word, those with a word in their name first; all of them without a word."""
    wanted = words.lower().split()
    hits = [
        field for field in every().values() if all(word in f"{field.name} {field.text} {field.kind}".lower() for word in wanted)
    ]
    return sorted(hits, key=lambda field: not all(word in field.name for word in wanted))


def written(value: Any) -> str:
    """A value as ``--set`` reads it back: TOML, and bare where that is the same."""
    if isinstance(value, str):
        return value if value and presets.parse_override(f"x={value}")[1] == value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {written_inside(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written_inside, value))}]"
    return json.dumps(value)


def written_inside(value: Any) -> str:
    """As `written`, within a list or table, where text is always quoted."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else written(value)


def said(value: Any) -> str:
    """A value for a person: empty text and nothing as "–"."""
    return "–" if value is None or value == "" else f"{value:,}" if type(value) is int else written(value)


def listed(changes: Mapping[str, tuple[Any, Any]]) -> Iterable[str]:
    """Differences as lines: "train.max_steps: 180 → 70"."""
    return [f"{name}: {said(before)} → {said(after)}" for name, (before, after) in changes.items()]
