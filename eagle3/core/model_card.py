"""The model card of an exported draft: what it is, how it was made, what was measured, how to serve it, and its limits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3.core import evaluation
from eagle3.core.serving import server_arguments
from eagle3.core.spec import RunSpec

FOLDER = "export"
"""The folder's name in the run, as the command on the card calls it."""

_MISSING = "not measured"

KIND_NAMES = {
    "eagle3": "EAGLE-3",
    "peagle": "Experimental P-EAGLE",
    "dflash": "Experimental DFlash",
    "dspark": "Experimental DSpark",
}


def render(
    spec: RunSpec,
    figures: Mapping[str, Mapping[str, Any]],
    *,
    run_id: str,
    target: str,
    draft: Mapping[str, Any],
    versions: Mapping[str, str],
) -> str:
    """The README.md. ``figures``: by stage; ``target``: what the serving command calls
    the target; ``draft``: parameters, bytes, draft_vocab_size, vocab_size. What was not
    measured is said to be so, and simulated figures never stand in for served ones."""
    parts = [
        _front_matter(spec),
        _intro(spec, draft, figures.get("evaluate", {})),
        _training(spec, figures, run_id, draft),
        _measured(figures),
        _serving(spec, target),
        _limits(spec, figures.get("evaluate", {})),
        _versions(versions),
    ]
    return "\n".join(parts)


def hub_id(spec: RunSpec) -> str | None:
    """The target's hub id; None where the model is a folder of this machine."""
    scheme, _, where = spec.target.source.partition(":")
    if scheme == "hub" and "{cache}" in spec.target.model:
        return where.partition("@")[0]
    model = spec.target.model
    return None if model.startswith(("/", "~", ".", "{cache}")) else model


def public_name(spec: RunSpec) -> str:
    """The target's name for others: its hub id, or else the preset's name."""
    return hub_id(spec) or spec.target.name


def serve_command(spec: RunSpec, target: str) -> str:
    """The command that serves ``target`` (a hub id, or a folder that may begin with ``~``) with the draft, as it was measured."""
    config = {"method": "eagle3", "model": FOLDER, "num_speculative_tokens": spec.evaluate.num_speculative_tokens}
    words = [
        "python", "-m", "vllm.entrypoints.openai.api_server", "--model", target, "--dtype", spec.target.dtype,
        "--max-model-len", str(spec.target.max_model_len),
        *server_arguments(spec),
        "--speculative_config", json.dumps(config),
    ]  # fmt: skip
    environment = [f"{name}={shlex.quote(value)}" for name, value in sorted(spec.server.env.items())]
    return " ".join([*environment, *(_word(word) for word in words)])


def _word(word: str) -> str:
    # Quotes would keep the shell from expanding the tilde.
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def _front_matter(spec: RunSpec) -> str:
    # JSON strings are YAML strings, so no name can break the block.
    hub = hub_id(spec)
    lines = [
        "---",
        *([f"base_model: {json.dumps(hub)}"] if hub else []),
        "library_name: speculators",
        "pipeline_tag: text-generation",
        "tags:",
        *(f"- {tag}" for tag in ("eagle3", "speculative-decoding", "speculators", "vllm")),
        "---",
        "",
    ]
    return "\n".join(lines)


def _intro(spec: RunSpec, draft: Mapping[str, Any], evaluate: Mapping[str, Any]) -> str:
    verdict = evaluate.get("verdict_text") or "There is no verdict: the draft was not evaluated."
    return (
        f"# {KIND_NAMES[spec.train.kind]} draft for {public_name(spec)}\n\n"
        f"A draft model for speculative decoding of {public_name(spec)} with vLLM: {draft['parameters']:,} parameters, "
        f"{draft['draft_vocab_size']:,} of the target's {draft['vocab_size']:,} tokens, {draft['bytes'] / 1e6:.1f} MB. "
        "It proposes tokens; the target keeps only those that it would have chosen itself. "
        "It is of no use without that target.\n\n"
        f"**Verdict.** {verdict}\n"
    )


def _training(spec: RunSpec, figures: Mapping[str, Mapping[str, Any]], run_id: str, draft: Mapping[str, Any]) -> str:
    regenerate, extract, train = (figures.get(stage, {}) for stage in ("regenerate", "extract", "train"))
    vocabulary = figures.get("vocabulary", {})
    rows = [
        ("run", f"{run_id}, spec {spec.hash}, size {spec.size} on {spec.machine}"),
        ("prompts", f"{spec.data.train_prompts} for training, {spec.data.heldout_prompts} held out ({_source(spec)})"),
        (
            "answers",
            f"the target's own, up to {spec.regenerate.max_new_tokens} tokens at temperature {spec.regenerate.temperature:g}"
            f"{_counted(regenerate, 'answer_tokens', 'tokens')}",
        ),
        (
            "hidden states",
            f"layers {', '.join(map(str, spec.target.captured_layers))} (a layer's id is its input; "
            f"{spec.target.num_hidden_layers} is the last one's output){_counted(extract, 'tokens', 'tokens')}",
        ),
        ("draft vocabulary", f"{draft['draft_vocab_size']:,} tokens{_share(vocabulary.get('coverage'))}"),
        (
            "training",
            f"{train.get('steps', spec.train.max_steps)} steps of {spec.train.pack_tokens} tokens, "
            f"{spec.train.ttt_steps} positions ahead, {spec.train.optimizer} "
            f"at {spec.train.learning_rate:g}, {spec.train.dtype}, seed {spec.train.seed}",
        ),
    ]
    return "## How it was trained\n\n" + _table(("what", "how"), rows)


def _measured(figures: Mapping[str, Mapping[str, Any]]) -> str:
    evaluate, train = figures.get("evaluate", {}), figures.get("train", {})
    served, lossless = evaluate.get("served", {}), evaluate.get("lossless", {})
    counts = f"{served.get('drafts', 0):,} drafts, {served.get('prompts', 0)} held-out prompts"
    rows = [
        (
            "acceptance length, served",
            _with_interval(served.get("accept_len"), served.get("accept_len_interval"), served.get("answers")),
            counts,
        ),
        ("acceptance by position, served", _numbers(served.get("acc_pos")), f"accepted {served.get('accepted_per_pos', [])}"),
        ("break-even acceptance length", _number(served.get("break_even_len")), "served length × seconds with ÷ seconds without"),
        ("tokens/s with the draft", _number(served.get("tok_s")), f"concurrency {served.get('concurrency', '?')}"),
        ("tokens/s without it", _number(served.get("tok_s_no_draft")), "same prompts, same concurrency"),
        (
            "same answer as without the draft",
            f"{lossless['identical']} of {lossless['of']}" if lossless else _MISSING,
            f"{lossless.get('tokens', 0)} tokens compared, temperature 0, single stream",
        ),
        ("acceptance length, simulated", _number(train.get("val", {}).get("accept_len")), "held-out, in training: overstates"),
        ("acceptance by position, simulated", _numbers(train.get("val", {}).get("acc_pos")), "held-out, in training"),
        ("the same, untrained", _numbers(train.get("untrained", {}).get("acc_pos")), "the floor, simulated"),
    ]
    table = _table(("figure", "value", "on"), rows)
    divergences = [f"- {_divergence(d)}" for d in lossless.get("divergences", [])]
    listed = "\nWhere the answers part:\n\n" + "\n".join(divergences) + "\n" if divergences else ""
    thresholds = {k: v for k, v in evaluate.get("thresholds", {}).items() if v is not None}
    held = f"\nThe verdict was reached on: `{json.dumps(thresholds)}`\n" if thresholds else ""
    told = evaluation.lines(evaluate.get("curve", []), evaluate.get("kinds", {}), evaluate.get("temperatures", []))
    more = (
        "\nBy requests in flight, kind of prompt and temperature:\n\n" + "".join(f"- {line}\n" for line in told) if told else ""
    )
    return "## What was measured\n\n" + table + more + listed + held


def _serving(spec: RunSpec, target: str) -> str:
    openmp = (
        "On a CPU, put intel-openmp's `libiomp5.so` into LD_PRELOAD as well, where the environment has it: the run did.\n"
        if spec.device == "cpu"
        else ""
    )
    again = (
        ""
        if hub_id(spec)
        else "To load it with speculators, for more training, first set `speculators_config.verifier.name_or_path` in its "
        "`config.json` to the target's folder; vLLM does not read it.\n"
    )
    return (
        f"## How to serve it\n\nFrom the folder that holds this one, this one being called `{FOLDER}`:\n\n"
        f"```sh\n{serve_command(spec, target)}\n```\n\n"
        "The speed was measured with these arguments; the number of proposed tokens and the concurrency change it.\n"
        f"{openmp}{again}"
    )


def _limits(spec: RunSpec, evaluate: Mapping[str, Any]) -> str:
    served = evaluate.get("served", {})
    return (
        "## Limits\n\n"
        "- *Served* figures come from vLLM's own counters and are the ones to judge by. *Simulated* ones come from "
        "held-out samples in training, "
        "where the text before each token is the target's and only the draft's vocabulary counts: they overstate.\n"
        f"- Speed holds for this machine ({spec.machine}) and concurrency "
        f"{served.get('concurrency', spec.evaluate.concurrency)} only; it falls as more requests are in flight.\n"
        f"- The prompts are short ({_source(spec)}), the answers at most {spec.evaluate.max_new_tokens} tokens, "
        "at temperature 0; other text is accepted differently.\n"
        f"- {_intervals(served)}\n"
        "- The target's licence and its limits hold for this draft too.\n"
    )


def _intervals(served: Mapping[str, Any]) -> str:
    if served.get("answers"):
        return (
            f"Intervals are 95 % and take the {served['answers']} answers for independent, not their drafts: they say what other "
            "prompts like these would give."
        )
    return f"Intervals are 95 % with the {evaluation.ALONE}, so the truth is wider: those of one answer resemble each other."


def _versions(versions: Mapping[str, str]) -> str:
    return "## Versions\n\n" + _table(("package", "version"), sorted(versions.items()))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _source(spec: RunSpec) -> str:
    return "the shipped ones" if spec.data.prompts == "builtin" else "the operator's own"


def _counted(figures: Mapping[str, Any], name: str, unit: str) -> str:
    return f"; {figures[name]:,} {unit}" if name in figures else ""


def _share(value: Any) -> str:
    return f", {value:.1%} of the tokens trained on" if isinstance(value, float | int) else ""


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float | int) else _MISSING


def _numbers(values: Any) -> str:
    return " / ".join("–" if v is None else f"{v:.3f}" for v in values) if values else _MISSING


def _with_interval(value: Any, interval: Any, answers: int | None) -> str:
    between = evaluation.between_label(interval, answers)
    return f"{value:.2f} ({between})" if value is not None and between else _number(value)


def _divergence(found: Mapping[str, Any]) -> str:
    gap = "unknown" if found.get("gap") is None else f"{found['gap']:.4f} nats"
    kind = "a tie in rounding" if found.get("tie") else "more than rounding explains"
    return (
        f"`{found['prompt_id']}`, token {found['position']}: {found['without']!r} without, "
        f"{found['with_draft']!r} with the draft; gap {gap} ({kind})"
    )
