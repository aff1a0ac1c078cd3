"""Checks of the target's folder: is it there, is it whole, is it the model that the spec describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from eagle3.core.readiness.checks.words import bytes_label, first_few
from eagle3.core.readiness.registry import Context, Facts, Finding, check

FETCH = "Fetch these files again (`hf download`, `git lfs pull`), or copy the model's folder again, whole."
READS_FILES_ITSELF = Version("0.14")
"""The oldest tiktoken that was seen to read a local file without blobfile (its ``load.py``); older ones imported that."""


def folder_of(facts: Facts) -> Mapping[str, Any] | None:
    """The facts of the model's folder; None where no model was asked for or it is not there (``model.found`` says so)."""
    found: Mapping[str, Any] = facts["model"]
    return found if found.get("asked") and found.get("found") else None


@check(
    "model.found", title="Target", needs=("model",), proof="real here: a folder that is not there, a hub id out of the cache",
    why="Runs are offline: what is not in the container when the run starts is not fetched.",
    catches="a hub id that is not in the cache of a container without network (vllm#1986)",
)  # fmt: skip
def found(facts: Facts, context: Context) -> Iterator[Finding]:
    about = facts["model"]
    if not about.get("asked"):
        yield Finding("skipped", "no target was asked for")
    elif about.get("found"):
        size = f", {bytes_label(about['shards']['bytes'])} of weights" if about["shards"]["bytes"] else ""
        parts = about["parts"]
        if parts:
            yield Finding("warn", f"{about['folder']} holds unfinished downloads: {first_few(parts)}", FETCH)
        else:
            yield Finding("ok", f"{about['folder']}{size}")
    elif about.get("hub_id"):
        hub_id = about["hub_id"]
        yield Finding(
            "fail",
            f"{hub_id} is not in the cache {about['cache']}",
            f"hf download {hub_id} there, or give its folder as target.model.",
        )
    elif context.spec is not None and context.spec.target.source:
        remedy = f"Fetch it: eagle3 target {context.spec.target.name}"
        yield Finding("warn", f"{about['folder']} is not there yet; the run fetches it from {context.spec.target.source}", remedy)
    else:
        what = "is a file" if about.get("is_file") else "is not there"
        yield Finding("fail", f"{about['folder']} {what}", "Correct target.model, or copy the model there.")


@check(
    "model.config", title="Target's configuration", needs=("model",),
    proof="real here: a config.json of another model, a spoilt one",
    why="Layer ids and the draft's width follow from the spec; for another model they capture the wrong states.",
    catches="guessed layers: 1.2 % accepted against 58.9 % (vllm#50170), off by one (vllm#43671)",
)  # fmt: skip
def config(facts: Facts, context: Context) -> Iterator[Finding]:
    about = folder_of(facts)
    if about is None:
        return
    said = about["config"]
    if said["error"]:
        yield Finding("fail", f"config.json: {said['error']}", FETCH)
        return
    evidence = f"{said.get('model_type', '?')}, hidden size {said.get('hidden_size')}, {said.get('num_hidden_layers')} layers"
    if context.spec is None:
        yield Finding("ok", evidence)
        return
    target = context.spec.target
    wrong = [
        f"{field} is {said.get(field)} and the spec says {getattr(target, field)}"
        for field in (
            "hidden_size",
            "num_hidden_layers",
            *(["vocab_size"] if target.vocab_size and said.get("vocab_size") else []),
        )
        if said.get(field) != getattr(target, field)
    ]
    if wrong:
        yield Finding("fail", "; ".join(wrong), "Correct the target preset, or point target.model at the right folder.")
    else:
        yield Finding("ok", f"{evidence}, as the spec says")


@check(
    "model.length", title="Target's longest text", needs=("model",), proof="real here: a config.json with a shorter one",
    why="Beyond max_position_embeddings vLLM refuses to start, or positions mean nothing.",
    catches="'max_model_len is greater than the derived max_model_len' at the server's start (vllm#3676)",
)  # fmt: skip
def length(facts: Facts, context: Context) -> Iterator[Finding]:
    about = folder_of(facts)
    if about is None or context.spec is None or about["config"]["error"]:
        return
    most, asked = about["config"].get("max_position_embeddings"), context.spec.target.max_model_len
    if not isinstance(most, int):
        yield Finding("unknown", "config.json has no max_position_embeddings", "Look into the model's card.")
    elif asked > most:
        evidence = f"target.max_model_len is {asked:,}, the model goes to {most:,} tokens"
        yield Finding("fail", evidence, f"Set target.max_model_len to {most} or less.")
    else:
        yield Finding("ok", f"{asked:,} of {most:,} tokens")


@check(
    "model.shards", title="Target's weights", needs=("model",), proof="real here: a missing shard, an index that promises more",
    why="A download that broke off leaves a folder that looks complete.",
    catches="a shard that is not there, whose weights stay uninitialised while the server comes up (sglang#32279)",
)  # fmt: skip
def shards(facts: Facts, context: Context) -> Iterator[Finding]:
    about = folder_of(facts)
    if about is None:
        return
    weights = about["shards"]
    total = weights["count"]
    if weights["index"]:
        yield Finding("fail", weights["index"], FETCH)
    elif not total:
        others = f" ({first_few(weights['other'])} are there)" if weights["other"] else ""
        yield Finding("fail", f"no *.safetensors file{others}", "Convert the model to safetensors, or fetch it again.")
    elif weights["missing"]:
        yield Finding("fail", f"{len(weights['missing'])} of {total} shards are missing: {first_few(weights['missing'])}", FETCH)
    elif weights["lacking"]:
        first = weights["lacking"][0]
        yield Finding(
            "fail", f"{first['name']} lacks {first['first']} and {first['tensors'] - 1} more that the index promises", FETCH
        )
    else:
        yield Finding("ok", f"{total} of {total} shards there")


@check(
    "model.whole", title="Target's weights, whole", needs=("model",), proof="real here: a truncated shard, a Git LFS pointer",
    why="A shard shorter than its header says may load all the same and give garbage.",
    catches="truncated shards that map to zeros (vmlx-swift#217), 'HeaderTooLarge' (transformers#27923), LFS pointers "
            "(OmniParser#34)",
)  # fmt: skip
def whole(facts: Facts, context: Context) -> Iterator[Finding]:
    about = folder_of(facts)
    if about is None or not about["shards"]["count"]:
        return
    broken = about["shards"]["broken"]
    if broken:
        told = [f"{b['name']} is {b['why']}{_of(b)}" for b in broken]
        pointer = any("LFS" in b["why"] for b in broken)
        yield Finding("fail", first_few(told), f"git lfs pull in {about['folder']}" if pointer else FETCH, detail="\n".join(told))
    else:
        looked = about["shards"]["count"] - len(about["shards"]["missing"])
        yield Finding("ok", f"the sizes of {looked} shards are what their headers say")


@check(
    "model.tokenizer", title="Tokenizer", needs=("model",), proof="real here: a folder without one, a pointer in its place",
    why="Without it no prompt becomes tokens; a tiktoken one also needs the packages that read it.",
    catches="a tokenizer that cannot be loaded for want of blobfile or tiktoken (vllm#21750, tinker-cookbook#785)",
)  # fmt: skip
def tokenizer(facts: Facts, context: Context) -> Iterator[Finding]:
    about = folder_of(facts)
    if about is None:
        return
    files, pointers, error = (about["tokenizer"][name] for name in ("files", "pointers", "error"))
    if pointers:
        yield Finding("fail", f"{first_few(pointers)}: only Git LFS pointers", f"git lfs pull in {about['folder']}")
    elif not files:
        yield Finding("fail", f"{about['folder']} holds no tokenizer", FETCH)
    elif error and error != "missing":
        yield Finding("fail", error, FETCH)
    elif files == ["tiktoken.model"] and (gone := _lacking_for_tiktoken(facts)):
        yield Finding(
            "fail",
            f"tiktoken.model needs {' and '.join(gone)} in the worker's environment",
            f"pip install {' '.join(gone)} there.",
        )
    else:
        yield Finding("ok", first_few(files))


@check(
    "model.template", title="Chat template", needs=("model",), proof="real here: a folder without one",
    why="Answers are regenerated and masked through the target's own chat template.",
    catches="'default chat template is no longer allowed' at the first request (vllm#39279, vllm#29849)",
)  # fmt: skip
def template(facts: Facts, context: Context) -> Iterator[Finding]:
    about = folder_of(facts)
    if about is None:
        return
    if about["template"]:
        yield Finding("ok", f"in {about['template']}")
    else:
        remedy = "Put the instruct model's chat_template.jinja there; a base model has none and cannot be a target for chats."
        yield Finding("fail", "neither chat_template.jinja nor an entry in tokenizer_config.json", remedy)


@check(
    "model.code", title="Custom code", needs=("model",), proof="real here: an auto_map in config.json",
    why="A model with its own code is loaded only where that was allowed; asking for it waits on a terminal that is not there.",
    catches="a prompt about remote code that waits on stdin for ever (guidellm#860)",
)  # fmt: skip
def code(facts: Facts, context: Context) -> Iterator[Finding]:
    about = folder_of(facts)
    if about is None:
        return
    wanted, missing = about["code"]["classes"], about["code"]["missing"]
    if not wanted:
        yield Finding("ok", "none")
    elif missing:
        yield Finding("fail", f"it names {first_few(wanted)}, and {first_few(missing)} is not there", FETCH)
    elif context.spec is not None and not context.spec.target.trust_remote_code:
        remedy = "Read that code, then set target.trust_remote_code = true."
        yield Finding("fail", f"it needs its own code ({first_few(wanted)}), which the spec does not allow", remedy)
    else:
        yield Finding("ok", f"its own: {first_few(wanted)}" + (", allowed by the spec" if context.spec is not None else ""))


def _of(broken: Mapping[str, Any]) -> str:
    have, want = broken["have_bytes"], broken["want_bytes"]
    return f": {have:,} of {want:,} bytes" if want else ""


def _lacking_for_tiktoken(facts: Facts) -> list[str]:
    """What the worker's environment lacks to read a tiktoken.model."""
    worker = (facts.get("python") or {}).get("worker") or {}
    if worker.get("error") or "packages" not in worker:
        return []
    versions = worker["packages"]["versions"]
    if "tiktoken" not in versions:
        return ["tiktoken"]
    try:
        alone = Version(versions["tiktoken"]) >= READS_FILES_ITSELF
    except InvalidVersion:
        alone = True
    return [] if alone or "blobfile" in versions else ["blobfile"]
