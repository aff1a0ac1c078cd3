"""Checks of the vLLM servers that are there: health, model, arguments, and whether tokens move.

A run starts servers of its own. One that is there already matters where the operator named it, and where it holds what the
run wants: then its faults are failures; a stranger's are worth a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eagle3.core.readiness.checks.words import bytes_label, first_few
from eagle3.core.readiness.registry import Context, Facts, Finding, check
from eagle3.core.readiness.statuses import Status
from eagle3.core.wording import duration_label

STAND_IN = "real here: processes with a vLLM's command line and answers"
Server = Mapping[str, Any]


def servers(facts: Facts) -> list[tuple[Server, str, str]]:
    """Every server with its address and a title."""
    return [(server, str(server["url"]), f"vLLM {server['url']}") for server in facts["vllm"]["servers"]]


def graver(server: Server) -> Status:
    """How bad a fault of this server is."""
    return "fail" if server.get("named") else "warn"


@check(
    "vllm.health", title="vLLM", needs=("vllm",), proof=f"{STAND_IN}: 503, nothing, still loading",
    why="A server that is down keeps its GPUs, and whoever asks it waits.",
    catches="an engine that is dead while /version answers 200 (vllm#39863), a stopped process that listens and says nothing",
)  # fmt: skip
def health(facts: Facts, context: Context) -> Iterator[Finding]:
    found = servers(facts)
    if not found:
        yield Finding("skipped", "no server is running; a run starts its own")
    for server, url, title in found:
        words = [part for part in (_models(server), _process(server)) if part]
        evidence = "; ".join(words)
        if server["health"] == "ok":
            yield Finding("ok", f"healthy; {evidence}" if evidence else "healthy", which=url, title=title)
        elif server["health"] == "unknown":
            yield Finding("unknown", f"{server['text']}; {evidence}", "Wait until it has loaded, then ask again.", url, title)
        else:
            who = f"process {server['pid']}" if server.get("pid") else "what serves there"
            remedy = f"See the log of {(server.get('unit') or {}).get('name') or who}."
            yield Finding(graver(server), f"{server['text']}; {evidence}", remedy, url, title)


@check(
    "vllm.unit", title="Restarts of vLLM", needs=("vllm",), proof="fake: the command systemctl",
    why="A unit that restarts again and again answers well between two crashes.",
    catches="a server that crashes under load and is started anew each time (vllm#42363)",
)  # fmt: skip
def unit(facts: Facts, context: Context) -> Iterator[Finding]:
    for server, url, title in servers(facts):
        about = server.get("unit") or {}
        if not about.get("name"):
            continue
        restarts = about.get("restarts")
        evidence = f"{about['name']}: {'restarts unknown' if restarts is None else f'{restarts} restarts'}"
        evidence += f", {about['state']}" if about.get("state") else ""
        log = f"journalctl -u {about['name']} -e"
        if restarts:
            yield Finding("warn", evidence, f"See why: {log}", url, f"Unit of {title}")
        elif restarts is None:
            yield Finding("unknown", evidence, f"systemctl status {about['name']}", url, f"Unit of {title}")
        else:
            yield Finding("ok", evidence, which=url, title=f"Unit of {title}")


@check(
    "vllm.model", title="Model served", needs=("vllm",), proof=f"{STAND_IN}: another model's name",
    why="A request for a model that the server does not list is refused; another model's answers are another model's.",
    catches="'The model does not exist' from a server that was started for another one (vllm#3486)",
)  # fmt: skip
def model(facts: Facts, context: Context) -> Iterator[Finding]:
    for server, url, title in servers(facts):
        if server["health"] != "ok":
            continue
        listed = [str(name) for name in server["models"]]
        if not listed:
            why = server.get("text") or "/v1/models lists none"
            yield Finding("unknown", why, "Ask it: curl URL/v1/models", url, f"Model of {title}")
        elif context.spec is not None and server.get("named") and context.spec.target.served_name not in listed:
            evidence = f"it serves {first_few(listed)}, asked for is {context.spec.target.served_name}"
            yield Finding(
                "fail", evidence, "Start it with --served-model-name, or name another server.", url, f"Model of {title}"
            )
        else:
            yield Finding("ok", first_few(listed), which=url, title=f"Model of {title}")


@check(
    "vllm.metrics", title="Figures of vLLM", needs=("vllm",), proof=f"{STAND_IN}: /metrics missing or foreign",
    why="Load, token counters and acceptance are read from /metrics; without it nobody sees a stall.",
    catches="a /metrics that is empty or has Python's own figures only (vllm#8612, vllm#7188)",
)  # fmt: skip
def metrics(facts: Facts, context: Context) -> Iterator[Finding]:
    for server, url, title in servers(facts):
        if server["health"] != "ok":
            continue
        error, now = server["metrics"]["error"], server.get("after") or server.get("before") or {}
        if error:
            yield Finding(
                "warn", str(error), "Start it without --disable-log-stats, and ask it directly.", url, f"Figures of {title}"
            )
        else:
            load = f"{now.get('running', 0):.0f} running, {now.get('waiting', 0):.0f} waiting"
            yield Finding("ok", load, which=url, title=f"Figures of {title}")


@check(
    "vllm.moving", title="Tokens move", needs=("vllm",), proof=f"{STAND_IN}: 200 everywhere, requests running, counters flat",
    why="/health is about the process, not about tokens: only counters that move while requests run prove work.",
    catches="/health 200 with no token moving (vllm#17972), a deadlock of Kimi (vllm#43423)",
)  # fmt: skip
def moving(facts: Facts, context: Context) -> Iterator[Finding]:
    watch_s = float(facts["vllm"]["watch_s"])
    for server, url, title in servers(facts):
        before, after = server.get("before") or {}, server.get("after") or {}
        if server["health"] != "ok" or server["metrics"]["error"] or not after:
            continue
        names = ("prompt_tokens", "generation_tokens")
        moved = sum(float(after.get(name, 0)) - float(before.get(name, 0)) for name in names)
        busy = min(float(before.get("running", 0)), float(after.get("running", 0)))
        waiting = min(float(before.get("waiting", 0)), float(after.get("waiting", 0)))
        counted = f"{moved:,.0f} tokens in {watch_s:.1f} s with {busy:.0f} requests running and {waiting:.0f} waiting"
        title = f"Tokens of {title}"
        if moved > 0:
            yield Finding("ok", counted, which=url, title=title)
        elif busy or waiting:
            remedy = "Prove it with --deep (one token); where that hangs too, restart the server: its engine is stuck."
            yield Finding(graver(server), counted, remedy, url, title)
        else:
            yield Finding(
                "skipped", "no request runs, so there is nothing to see", "Prove it with --deep (one token).", url, title
            )


@check(
    "vllm.arguments", title="Arguments of vLLM", needs=("vllm",), proof=f"{STAND_IN}: extraction and speculation arguments",
    why="A server that extracts states must not be asked for text: sampled answers come back doubled, with status 200.",
    catches="runs of repeated tokens from a server in extraction mode (met here), '!!!!' as an answer (vllm#42426)",
)  # fmt: skip
def arguments(facts: Facts, context: Context) -> Iterator[Finding]:
    for server, url, title in servers(facts):
        given, kind = server.get("arguments") or {}, server.get("kind")
        if not server.get("pid") or not given:
            continue
        title = f"Arguments of {title}"
        speculative = given.get("speculative-config") or {}
        about = {"extract": "extracts hidden states", "draft": "speculates", "plain": "serves plainly"}.get(
            str(kind), "unknown kind"
        )
        evidence = f"{about}: {given.get('model', '?')}"
        if speculative.get("method"):
            evidence += f", method {speculative['method']}"
        if speculative.get("num_speculative_tokens"):
            evidence += f", {speculative['num_speculative_tokens']} tokens ahead"
        if given.get("unreadable"):
            yield Finding(
                "unknown", f"{evidence}; {first_few(given['unreadable'])} cannot be read", "Correct its JSON.", url, title
            )
        elif kind == "extract" and server.get("named"):
            yield Finding("fail", f"{evidence}; it was named to generate with", "Name a server without extraction.", url, title)
        elif kind == "extract" and not given.get("kv-transfer-config"):
            yield Finding(
                "warn", f"{evidence}, and no connector writes them anywhere", "Give --kv-transfer-config too.", url, title
            )
        elif kind == "extract":
            evidence += f", through {given['kv-transfer-config'].get('kv_connector', '?')}; ask it for no text"
            yield Finding("ok", evidence, which=url, title=title)
        else:
            yield Finding("ok", evidence, which=url, title=title)


@check(
    "vllm.prefix_cache", title="Prefix cache", needs=("vllm",), proof=f"{STAND_IN}: extraction with the cache on",
    why="What comes out of the prefix cache is not computed, so its hidden states are missing.",
    catches="extracted states of the wrong length under prefix caching (vllm#44485)",
)  # fmt: skip
def prefix_cache(facts: Facts, context: Context) -> Iterator[Finding]:
    for server, url, title in servers(facts):
        if server.get("kind") != "extract":
            continue
        given, title = server["arguments"].get("enable-prefix-caching"), f"Prefix cache of {title}"
        if given is False:
            yield Finding("ok", "off", which=url, title=title)
        else:
            said = "switched on" if given else "not switched off, and on by default"
            yield Finding(graver(server), said, "Start it with --no-enable-prefix-caching.", url, title)


@check(
    "vllm.max_model_len", title="Longest text of vLLM", needs=("vllm",), proof=f"{STAND_IN}: a shorter --max-model-len",
    why="Prompts and answers longer than the server accepts are refused, one by one.",
    catches="a prompt longer than the maximum model length, refused after hours (xorbits-inference#3785)",
)  # fmt: skip
def max_model_len(facts: Facts, context: Context) -> Iterator[Finding]:
    if context.spec is None:
        return
    asked = context.spec.target.max_model_len
    for server, url, title in servers(facts):
        said = str((server.get("arguments") or {}).get("max-model-len") or "")
        if not server.get("named") or not said:
            continue
        title = f"Longest text of {title}"
        most = _tokens(said)
        if most is None:
            yield Finding("unknown", f"--max-model-len {said}", "Ask it: curl URL/v1/models", url, title)
        elif most < asked:
            yield Finding(
                "fail", f"{most:,} tokens, the run goes to {asked:,}", f"Start it with --max-model-len {asked}.", url, title
            )
        else:
            yield Finding("ok", f"{most:,} tokens, the run goes to {asked:,}", which=url, title=title)


@check(
    "vllm.port", title="Port of the run's servers", needs=("vllm",), proof="real here: a socket that listens",
    why="A port that is taken looks like a server that is up, from outside.",
    catches="a busy port, port 0 and a server that dies while loading, all alike from /health (met here)",
)  # fmt: skip
def port(facts: Facts, context: Context) -> Iterator[Finding]:
    about = facts["vllm"]["port"]
    if context.spec is None:
        return
    if not about:
        yield Finding("ok", "any free one is taken")
    elif about["free"]:
        yield Finding("ok", f"{about['number']} is free")
    else:
        by = f" by process {about['pid']}" if about.get("pid") else ""
        remedy = "Set server.port = 0 for any free one, or end what listens there."
        yield Finding("fail", f"{about['number']} is taken{by} ({about['why']})", remedy)


def _models(server: Server) -> str:
    return f"serves {first_few(server['models'])}" if server.get("models") else ""


def _process(server: Server) -> str:
    about = server.get("process") or {}
    if not server.get("pid"):
        return "its process is not seen from here"
    whose = f"of run {server['run_id']}" if server.get("run_id") else f"of {about.get('user') or '?'}, no run owns it"
    stopped = ", stopped (state T)" if about.get("state") == "T" else ""
    age = f", {duration_label(about['age_s'])} old, {bytes_label(about['rss_bytes'])}" if about.get("age_s") is not None else ""
    version = f", version {server['version']}" if server.get("version") else ""
    return f"process {server['pid']} {whose}{age}{version}{stopped}"


def _tokens(text: str) -> int | None:
    """Tokens as vLLM reads them: 8192, 8k (thousand), 8K (1,024)."""
    units = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1 << 20}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        return int(float(number) * unit)
    except ValueError:
        return None
