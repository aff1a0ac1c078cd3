"""The prompts of a shakedown: the longest of the run's own, and one as long as the servers accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3.core.shakedown import longest, prompt_limit, shortened
from eagle3.core.spec import RunSpec
from eagle3.rows import write_rows
from eagle3.stages.prompts import Prompt, read_named

LONGEST_TOKEN_BYTES = 8
"""Bytes that a text's tokens have on average at most; English has about four."""
SPARE_PROMPTS = 4
"""Prompts beyond those that are used: some may turn out to be the same, or to be refused."""

Count = Callable[[str], int]


@dataclass(frozen=True)
class Chosen:
    """How many prompts were written, and how long the longest is, in tokens (``exact``: counted by the target's tokenizer; else
    it has no more). ``sure_tokens``: what the longest that is used has at least."""

    prompts: int
    longest_tokens: int
    exact: bool
    sure_tokens: int


def write(spec: RunSpec, model_dir: Path, file: Path, count: int) -> Chosen:
    """Write the ``count`` longest prompts of ``spec`` that an answer of full length can follow, and one as long as may be.

    Raises StageError where the run's own prompts cannot be read.
    """
    own = read_named(spec.data.prompts)
    counter, exact = counter_of(model_dir, trust_code=spec.target.trust_remote_code)
    limit = prompt_limit(spec)
    lengths = [_tokens(prompt, counter, spec) for prompt in own]
    said = sorted(
        (sum(map(counter, (own[place].system, *own[place].turns))) for place in longest(lengths, limit, count)), reverse=True
    )
    # Some to spare are written too, and which of them are used is not known; the one that fills all is of a kind of its own,
    # and one of each kind is used as far as there are as many places.
    sure = said[min(SPARE_PROMPTS, len(said) - 1)]
    chosen = [own[place] for place in longest(lengths, limit, count)]
    sizes = [lengths[place] for place in longest(lengths, limit, count)]
    full = stretched(chosen, counter, limit)
    if full is not None and counter(full.turns[0]) > max(sizes):
        chosen, sizes = [*chosen, full], [*sizes, counter(full.turns[0])]
        if len({prompt.kind for prompt in chosen}) <= count - SPARE_PROMPTS:
            sure = sizes[-1]
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_rows(file, [_row(prompt) for prompt in chosen])
    return Chosen(len(chosen), max(sizes), exact, sure if exact else sure // LONGEST_TOKEN_BYTES)


def prompts_of(spec: RunSpec) -> int:
    """How many prompts a shakedown of ``spec`` takes: all that its shortened spec uses, and some to spare."""
    counts = shortened(spec, "not written yet").data
    return counts.train_prompts + counts.heldout_prompts + SPARE_PROMPTS


def counter_of(model_dir: Path, *, trust_code: bool = False) -> tuple[Count, bool]:
    """How many tokens a text has, and whether that is exact: else it has no more than that. ``trust_code``: the target's own
    tokenizer code may be run (``target.trust_remote_code``)."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    except Exception:  # noqa: BLE001 - no such file, no such package, a format that it does not know: all are counted around
        return _counter_by_code(model_dir) if trust_code and (model_dir / "tokenizer_config.json").is_file() else _BOUND
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids), True


def _bytes(text: str) -> int:
    return len(text.encode())


_BOUND: tuple[Count, bool] = (_bytes, False)
"""No tokenizer has tokens of less than a byte."""


def _counter_by_code(model_dir: Path) -> tuple[Count, bool]:
    """By a tokenizer that the target brings as code, such as one of tiktoken."""
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(model_dir), trust_remote_code=True)
        tokenizer.encode("a word", add_special_tokens=False)
    except Exception:  # noqa: BLE001 - foreign code, which may lack a package or fail in any way: the bound remains
        return _BOUND
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False)), True


def stretched(prompts: Sequence[Prompt], counter: Count, limit: int) -> Prompt | None:
    """A prompt of nearly ``limit`` tokens, made of the others' texts one after another; None where there is no text."""
    texts = [turn for prompt in prompts for turn in prompt.turns]
    if not texts:
        return None
    # Whole texts as long as they fit: joining adds a token or two each, so a part of the room stays free.
    whole: list[str] = []
    used = 0
    while used < limit:
        text = texts[len(whole) % len(texts)]
        used += counter(text) + 2
        if used > limit:
            break
        whole.append(text)
    return Prompt("shakedown-longest", "longest", ("\n\n".join(whole),)) if len(whole) > 1 else None


def _tokens(prompt: Prompt, counter: Count, spec: RunSpec) -> int:
    """Of the last request of a conversation: all its turns, and the answers in between at their full length."""
    said = sum(counter(text) for text in (prompt.system, *prompt.turns))
    return said + spec.regenerate.max_new_tokens * (len(prompt.turns) - 1)


def _row(prompt: Prompt) -> dict[str, object]:
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    turns = [{"role": "user", "content": turn} for turn in prompt.turns]
    return {"id": prompt.id, "kind": prompt.kind, "messages": [*system, *turns]}
