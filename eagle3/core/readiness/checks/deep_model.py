"""The model as the worker's own libraries see it: tokenizer, template, loss mask, configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3.core.readiness.registry import Context, Facts, Finding, check

LEAST_SUPERVISED = 0.05
"""Share of a plain two-turn conversation that must be learnt from; a chat of short answers has 20 to 60 %."""


def _part(facts: Facts, name: str) -> tuple[Mapping[str, Any], Finding | None]:
    """A part of the model's facts, and the finding to give instead where it could not be had."""
    section = facts["deep.model"]
    if section.get("skipped"):
        return {}, Finding("skipped", str(section["skipped"]))
    part = section.get(name)
    if part is None:
        return {}, Finding("skipped", "the tokenizer does not load, so this was not asked")
    if part.get("error"):
        remedy = "Copy the model's folder again, whole; set target.trust_remote_code where it brings code of its own."
        return {}, Finding("fail", str(part["error"]), remedy)
    return part, None


@check(
    "model.round_trip", title="The tokenizer gives back what it was given",
    why="A tokenizer that loads but does not decode to the same text trains the draft on other words than the target says.",
    catches="tinker-cookbook#785 Kimi's AutoTokenizer fails; vllm#21750 blobfile or tiktoken missing; guidellm#860",
    proof="real here: a tokenizer that lower-cases, one whose file is cut off, one that asks for code of its own",
    needs=("deep.model",), deep=True,
)  # fmt: skip
def round_trip(facts: Facts, context: Context) -> Iterable[Finding]:
    """Texts with blanks, code and several scripts, encoded and decoded."""
    part, instead = _part(facts, "tokenizer")
    if instead is not None:
        yield instead
        return
    broken = [trip for trip in part["trips"] if not trip["same"]]
    if broken:
        text = f"{len(broken)} of {len(part['trips'])} texts come back changed: {broken[0]['text']!r} as {broken[0]['back']!r}"
        yield Finding("fail", text, "Use the tokenizer files that belong to this model; compare with its publisher's.")
    else:
        tokens = sum(trip["tokens"] for trip in part["trips"])
        yield Finding(
            "ok", f"{len(part['trips'])} texts, {tokens} tokens, all come back the same ({part['kind']}, {part['size']} entries)"
        )


@check(
    "model.conversation", title="The chat template can be built on",
    why="Answers are located by what the template puts before them; one that rewrites history moves them.",
    catches="SpecForge#885 mask boundary shifted; a base model without a template; one that ignores the invitation",
    proof="real here: templates that are missing, that drop earlier answers, that raise, that give no invitation",
    needs=("deep.model",), deep=True,
)  # fmt: skip
def template(facts: Facts, context: Context) -> Iterable[Finding]:
    """Whether each prompt is the beginning of the conversation that follows it."""
    part, instead = _part(facts, "template")
    if instead is not None:
        yield instead
    elif part.get("missing"):
        yield Finding("fail", "the tokenizer has no chat template", "Use a chat model, or add chat_template.jinja to its folder.")
    elif part["rewritten"]:
        text = f"the template rewrites {len(part['rewritten'])} of 2 earlier turns, so their answers cannot be located"
        yield Finding("warn", text, "Use prompts of one turn with this target.")
    elif part["uninvited"]:
        yield Finding("warn", "the template gives no invitation to the assistant", "See its add_generation_prompt.")
    else:
        yield Finding("ok", f"a conversation of four messages renders to {part['tokens']} tokens, its prompts are its beginnings")


@check(
    "model.loss_mask", title="The loss mask covers the answers and nothing else",
    why="What is not masked is not learnt, and a mask over the user's words teaches the draft to speak for them.",
    catches="SpecForge#885 mask boundary shifted; SpecForge#390 rows without any loss",
    proof="real here: a template that leaves out what the assistant says",
    needs=("deep.model",), deep=True,
)  # fmt: skip
def loss_mask(facts: Facts, context: Context) -> Iterable[Finding]:
    """The share of supervised tokens of a real conversation; ``detail`` is the sample with the supervised parts in ⟦ ⟧."""
    part, instead = _part(facts, "template")
    if instead is not None or part.get("missing"):
        yield instead or Finding("skipped", "there is no chat template")
        return
    share = part["supervised"] / max(part["tokens"], 1)
    text = f"{part['supervised']} of {part['tokens']} tokens supervised ({100 * share:.0f} %)"
    sample = "".join(f"⟦{span}⟧" if on else span for span, on in part["spans"])
    if not part["supervised"]:
        yield Finding(
            "fail", f"{text}: nothing would be learnt", "Correct the chat template: it drops the answers.", detail=sample
        )
    elif part["leaking"]:
        yield Finding("fail", f"{text}; the user's words are among them", "Correct the chat template.", detail=sample)
    elif part["lacking"] or share < LEAST_SUPERVISED:
        lacking = f"; not supervised: {part['lacking'][0]!r}" if part["lacking"] else ""
        yield Finding("warn", text + lacking, "Look at the sample: the ⟦ ⟧ should hold the answers.", detail=sample)
    else:
        yield Finding("ok", text, detail=sample)


@check(
    "model.loads", title="transformers reads the model as the spec describes it",
    why="Layer ids of another model's size are captured without a word and train a draft that accepts nothing.",
    catches="vllm#43671 and vllm#50170 wrong layer ids; a config that the installed transformers does not know",
    proof="real here: a config with other sizes, and one of an unknown type",
    needs=("deep.model",), deep=True,
)  # fmt: skip
def loads(facts: Facts, context: Context) -> Iterable[Finding]:
    """Hidden size, layers and length of the loaded configuration against the spec."""
    part, instead = _part(facts, "config")
    if instead is not None:
        yield instead
        return
    expect = facts["deep.model"].get("expect") or {}
    wrong = [
        f"{field} is {part[field]}, the spec says {expect[field]}"
        for field in ("hidden_size", "num_hidden_layers")
        if expect.get(field) and part.get(field) != expect[field]
    ]
    longest, wanted = part.get("max_position_embeddings"), expect.get("max_model_len")
    if wrong:
        yield Finding("fail", "; ".join(wrong), "Correct the target preset, or point target.model at the right folder.")
    elif longest and wanted and wanted > longest:
        text = f"target.max_model_len is {wanted} and the model was trained for {longest} tokens"
        yield Finding("warn", text, f"Set target.max_model_len to {longest} or less.")
    else:
        text = f"{part['model_type']}, hidden size {part['hidden_size']}, {part['num_hidden_layers']} layers, {longest} tokens"
        yield Finding("ok", text)
