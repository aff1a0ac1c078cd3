"""One real extraction, looked at from all sides: what training takes on trust is proved on eight prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from eagle3.core.readiness.registry import Context, Facts, Finding, check

LEAST_COSINE = {"float32": 0.9999, "bfloat16": 0.99, "auto": 0.99}
"""Cosine of a token's state alone and in a batch. Rounding moves bfloat16 by a few thousandths; wrong rows are near 0."""
NEAR_TIE = 0.5
"""Logits that a second place may lie behind the best where states were rounded to half precision."""
LEAST_SPREAD = 1e-6

_PROOF = (
    "real here: a passing canary on a real server (make test-long); states spoilt this way are measured by the same code and fail"
)


def _section(facts: Facts) -> tuple[Mapping[str, Any], Finding | None]:
    section = facts["deep.canary"]
    if section.get("skipped"):
        return section, Finding("skipped", str(section["skipped"]))
    if section.get("failed"):
        return section, Finding("skipped", "the canary gave no states")
    if any("lacks" in request for request in section["requests"]):
        return section, Finding("fail", "a file of states lacks hidden_states or token_ids", "See extraction.server.")
    return section, None


@check(
    "extraction.server", title="A server of the run's own extracts",
    why="Everything else may be well and the engine still dies at the first request for states.",
    catches="the example connector that opens CUDA streams on a CPU, after /health was well (met here); a cache too large",
    proof="real here: a server that dies while loading, and a real one (make test-long)",
    needs=("deep.canary",), deep=True,
)  # fmt: skip
def server(facts: Facts, context: Context) -> Iterable[Finding]:
    """Whether it started, answered sixteen requests and went."""
    section = facts["deep.canary"]
    if section.get("skipped"):
        yield Finding("skipped", str(section["skipped"]), "Check again when the devices are free.")
    elif section.get("failed"):
        yield Finding("fail", str(section["failed"]), "Mend this before anything else here.", detail=str(section.get("log", "")))
    else:
        text = f"started in {section['server_start_s']:.0f} s and gave the states of {len(section['requests'])} prompts, twice"
        yield Finding("ok", text)


@check(
    "extraction.tokens", title="One row of states a token",
    why="A cached prefix leaves no states: the rows are fewer than the tokens, and training pairs the wrong ones.",
    catches="vllm#44485 the prefix cache breaks lengths", proof=_PROOF, needs=("deep.canary",), deep=True,
)  # fmt: skip
def tokens(facts: Facts, context: Context) -> Iterable[Finding]:
    """Rows against tokens, and the token ids against those asked for."""
    section, instead = _section(facts)
    if instead is not None:
        yield instead
        return
    requests = section["requests"]
    wrong = [r for r in requests if r["shape"][0] != r["asked"]]
    other = [r for r in requests if not r["ids_equal"]]
    if wrong:
        text = f"{len(wrong)} of {len(requests)} have another length: {wrong[0]['shape'][0]} rows for {wrong[0]['asked']} tokens"
        yield Finding("fail", text, "Switch prefix caching off: --no-enable-prefix-caching.")
    elif other:
        yield Finding("fail", f"{len(other)} of {len(requests)} hold other token ids than asked for", "Compare the tokenizers.")
    else:
        yield Finding("ok", f"{sum(r['asked'] for r in requests)} tokens, as many rows, the ids asked for")


@check(
    "extraction.layers", title="Exactly the layers asked for",
    why="A layer that is dropped or comes twice shifts all behind it, and the loss still falls.",
    catches="vllm#48124 Kimi's last layer dropped", proof=_PROOF, needs=("deep.canary",), deep=True,
)  # fmt: skip
def layers(facts: Facts, context: Context) -> Iterable[Finding]:
    """The shape [tokens, layers, hidden], and that no two neighbouring layers are one."""
    section, instead = _section(facts)
    if instead is not None:
        yield instead
        return
    expected = [len(section["layers"]), section["hidden_size"]]
    wrong = [r["shape"] for r in section["requests"] if r["shape"][1:] != expected]
    same = [r for r in section["requests"] if r["equal_neighbours"]]
    if wrong:
        text = f"layers and hidden size are {wrong[0][1:]}, not {expected}"
        yield Finding("fail", text, "Check target.auxiliary_layers and hidden_size, and that this vLLM knows the architecture.")
    elif same:
        at = same[0]["equal_neighbours"][0]
        text = f"the layers {section['layers'][at - 1]} and {section['layers'][at]} are the same in {len(same)} prompts"
        yield Finding("fail", text, "The connector gives one layer twice: update vLLM.")
    else:
        ids = ", ".join(str(layer) for layer in section["layers"])
        yield Finding("ok", f"layers {ids}, each {section['hidden_size']} wide, all different")


@check(
    "extraction.finite", title="All states are numbers",
    why="One NaN in the states makes the whole draft NaN, and the run goes on.",
    catches="speculators#615 NaN states, training went on", proof=_PROOF, needs=("deep.canary",), deep=True,
)  # fmt: skip
def finite(facts: Facts, context: Context) -> Iterable[Finding]:
    """Values that are NaN or infinite."""
    section, instead = _section(facts)
    if instead is not None:
        yield instead
        return
    bad = sum(r["not_finite"] for r in section["requests"])
    total = sum(r["shape"][0] * r["shape"][1] * r["shape"][2] for r in section["requests"])
    if bad:
        yield Finding("fail", f"{bad:,} of {total:,} values are NaN or infinite", "Serve in another dtype (target.dtype).")
    else:
        yield Finding("ok", f"{total:,} values, all finite")


@check(
    "extraction.constant", title="The states differ from token to token",
    why="States that are all zero give a fine validation loss and a draft that accepts nothing.",
    catches="vllm#46301 and speculators#613 all-zero states", proof=_PROOF, needs=("deep.canary",), deep=True,
)  # fmt: skip
def constant(facts: Facts, context: Context) -> Iterable[Finding]:
    """The spread of each layer, and rows that are all zero."""
    section, instead = _section(facts)
    if instead is not None:
        yield instead
        return
    names = section["layers"]
    flat: set[Any] = set()
    zero = 0
    for request in section["requests"]:
        flat |= {_name(names, n) for n, spread in enumerate(request["spread"]) if spread is not None and spread < LEAST_SPREAD}
        zero += sum(request["zero_rows"])
    if flat or zero:
        what = f"layers {', '.join(sorted(map(str, flat)))} are constant" if flat else f"{zero} rows are all zero"
        yield Finding("fail", what, "The cache is read before it is written: update vLLM, or leave out asynchronous scheduling.")
    else:
        least = min(spread for r in section["requests"] for spread in r["spread"] if spread is not None)
        yield Finding("ok", f"every layer varies (smallest standard deviation {least:.3g}), no row is zero")


@check(
    "extraction.batch", title="The same states alone and among others",
    why="A batch that mixes up its rows gives each sample another's states; alone, each looks well.",
    catches="speculators#279 wrong states when batched", proof=_PROOF, needs=("deep.canary",), deep=True,
)  # fmt: skip
def batch(facts: Facts, context: Context) -> Iterable[Finding]:
    """The smallest cosine between a token's state alone and in a batch of eight."""
    section, instead = _section(facts)
    if instead is not None:
        yield instead
        return
    bad = [pair for pair in section["batch"] if pair.get("shapes")]
    cosines = [value for pair in section["batch"] for value in pair["cosine"]]
    if bad or not cosines or any(value is None for value in cosines):
        yield Finding(
            "fail", "the states of a batch have other shapes, or are no numbers", "Extract with extract.concurrency = 1."
        )
        return
    least, limit = min(cosines), LEAST_COSINE.get(str(section.get("dtype")), 0.99)
    relative = max(value for pair in section["batch"] for value in pair["relative"])
    text = f"smallest cosine {least:.6f}, largest difference {100 * relative:.2g} % of a layer's largest value"
    steps = section.get("batch_steps")
    if least < limit:
        yield Finding("fail", f"{text}; at least {limit} is expected", "Extract with extract.concurrency = 1, and report it.")
    elif steps is not None and steps >= len(section["batch"]):
        yield Finding(
            "warn", f"{text}, but the server answered one by one ({steps} steps)", "Raise --max-num-seqs, then check again."
        )
    else:
        yield Finding("ok", text + (f", {len(section['batch'])} prompts in {steps} steps" if steps else ""))


@check(
    "extraction.last_layer", title="The last layer leads to the token that the server says",
    why="A last layer that is off by one trains the draft against the wrong distribution, and nothing else shows it.",
    catches="TorchSpec#87 last layer off by one; a norm that is applied twice or not at all", proof=_PROOF,
    needs=("deep.canary",), deep=True,
)  # fmt: skip
def last_layer(facts: Facts, context: Context) -> Iterable[Finding]:
    """argmax(lm_head(norm(last state))) against the server's next token, temperature 0."""
    section, instead = _section(facts)
    if instead is not None:
        yield instead
        return
    if section.get("next_unknown"):
        yield Finding("unknown", f"the target's own head could not be used: {section['next_unknown']}")
    elif not section["next"]:
        yield Finding("unknown", "the server did not say which token comes next")
    else:
        yield from _heads(section["next"], str(section.get("dtype")))


def _heads(answers: list[Mapping[str, Any]], dtype: str) -> Iterator[Finding]:
    right = sum(answer["rank"] == 0 for answer in answers)
    tie = 0.0 if dtype == "float32" else NEAR_TIE
    near = sum(answer["rank"] == 1 and answer["gap"] is not None and answer["gap"] <= tie for answer in answers)
    text = f"{right} of {len(answers)} agree" + (f", {near} are a near tie" if near else "")
    if right + near == len(answers) and right:
        yield Finding("ok", text)
    else:
        worst = max(answers, key=lambda answer: answer["rank"])
        text += f"; the server's token {worst['token']} stands at place {worst['rank'] + 1} (best: {worst['argmax']})"
        yield Finding(
            "fail", text, "The last layer id is wrong for this vLLM: num_hidden_layers must be the last layer's output."
        )


@check(
    "extraction.leftovers", title="The canary leaves nothing behind",
    why="Each probe of an extraction server leaves a file and a lock; what a check leaves would fill the disk.",
    catches="states and lock files left by probes (met here); a server that outlives the check (vllm#55510)",
    proof="real here: the disk before and after a real canary (make test-long)", needs=("deep.canary",), deep=True,
)  # fmt: skip
def leftovers(facts: Facts, context: Context) -> Iterable[Finding]:
    """What lay there when the server was gone, and whether the folder could be removed."""
    section = facts["deep.canary"]
    if section.get("skipped") or "remains" not in section:
        yield Finding("skipped", str(section.get("skipped") or "the canary did not run"))
    elif section["remains"]:
        yield Finding("warn", "the canary's folder could not be removed", "Remove it from <workspace>/checks by hand.")
    elif section.get("left"):
        text = f"{len(section['left'])} files were left by the server and are removed: {section['left'][0]}"
        yield Finding("warn", text, "The server writes states that nobody asked for; a run clears them at its end.")
    else:
        yield Finding("ok", f"{section['removed_bytes']:,} bytes of logs and records removed, no state left")


def _name(names: Iterable[Any], place: int) -> Any:
    listed = list(names)
    return listed[place] if place < len(listed) else f"#{place}"
