"""The extraction canary: a real server in extraction mode, eight prompts alone and the same eight together.

``python -m eagle3.readiness.canary FOLDER SERVER_PYTHON`` in the worker's environment; ``FOLDER/spec.toml`` says which target.
Prints one marked line of facts. The server belongs to this process and is gone when it ends, at TERM too.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3.core.spec import RunSpec
from eagle3.engines.choice import extraction_server
from eagle3.engines.completions import Completions, RequestFailed
from eagle3.engines.model_dir import check_model_dir
from eagle3.engines.server import Server
from eagle3.journal import Journal
from eagle3.readiness.asking import MARK
from eagle3.runner.handed import NotItsFile
from eagle3.stages import extract, landing
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.prompts import read_builtin
from eagle3.stages.samples import Template
from eagle3.states.checking import StateError
from eagle3.targets import model_dir

PROMPTS = 8
MAX_PROMPT_TOKENS = 128


def canary(folder: Path, server_python: str) -> dict[str, Any]:
    """Run it in ``folder``; the facts. ``failed`` is the sentence where it came to no end."""
    spec = RunSpec.from_toml((folder / "spec.toml").read_text(encoding="utf-8"))
    # Its own port: the spec's may be in use by the very server that the run will wait for.
    spec = spec.model_copy(update={"server": spec.server.model_copy(update={"port": 0})})
    run_dir = folder / "run"
    run_dir.mkdir()
    ctx = StageContext(
        run_dir=run_dir, spec=spec, journal=Journal(run_dir, 1, actor="check"), model_dir=model_dir(spec.target.model),
        worker_python=sys.executable, server_python=server_python, stop_requested=lambda: False,
    )  # fmt: skip
    try:
        return _extracted(ctx)
    except (StageError, RequestFailed, StateError) as error:
        return {"failed": str(error), "log": getattr(error, "detail", "")[-2000:]}


def _extracted(ctx: StageContext) -> dict[str, Any]:
    check_model_dir(ctx.model_dir)
    template = Template(ctx.model_dir, trust_remote_code=ctx.spec.target.trust_remote_code)
    texts = [prompt.turns[0] for prompt in read_builtin()]
    # Of different lengths, so that a batch that mixes up its rows shows.
    asked = sorted((template.render([{"role": "user", "content": text}])[:MAX_PROMPT_TOKENS] for text in texts), key=len)
    prompts = asked[:: max(1, len(asked) // PROMPTS)][:PROMPTS]
    store = extract.open_store(ctx)
    with extraction_server(ctx, store.raw) as server:
        alone, together, batch_steps = asyncio.run(_ask(ctx, server, prompts))
        started_s = server.start_s
    left = sorted(str(file.relative_to(ctx.run_dir)) for file in store.folder.rglob("*") if file.is_file())
    return {
        "server_start_s": started_s,
        "layers": ctx.spec.target.captured_layers,
        "hidden_size": ctx.spec.target.hidden_size,
        "dtype": ctx.spec.target.dtype,
        "left": left,
        "batch_steps": batch_steps,
        **_measured(ctx, prompts, alone, together),
    }


async def _ask(ctx: StageContext, server: Server, prompts: Sequence[list[int]]) -> tuple[list[Any], list[Any], int | None]:
    """The answers one by one, then those of all at once, and in how many steps the engine gave those."""
    async with Completions(server.base_url, timeout_s=ctx.spec.extract.request_timeout_s, retries=1) as client:
        alone = []
        for ids in prompts:
            server.check_alive()
            alone.append(await _one(client, server, ids))
        server.check_alive()
        before = steps(server)
        together = await asyncio.gather(*(_one(client, server, ids) for ids in prompts))
        after = steps(server)
    return alone, list(together), None if before is None or after is None else after - before


def steps(server: Server) -> int | None:
    """How many steps the engine has made; None where its metrics do not say."""
    with server.client() as client:
        text = client.get("/metrics").text
    found = re.findall(r"^vllm:iteration_tokens_total_count(?:\{[^}]*\})?\s+(\S+)", text, re.MULTILINE)
    return sum(int(float(value)) for value in found) if found else None


async def _one(client: Completions, server: Server, ids: list[int]) -> tuple[dict[str, Any], int | None]:
    """The tensors that the server left for one prompt, and the token that it would say next."""
    from safetensors.torch import load_file

    body = {"model": server.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    reply = await client.post("/v1/completions", body)
    handle = (reply.get("kv_transfer_params") or {}).get("hidden_states_path")
    if not handle:
        raise RequestFailed("the server's answer names no file of hidden states; is its connector loaded?", refused=True)
    handed = landing.handed_by(server)
    try:
        raw = handed.named(handle)
    except NotItsFile as error:
        raise StageError(str(error)) from error
    try:
        await landing.written(handed, raw)
        tensors = load_file(raw)
    finally:
        handed.remove(raw)
    said = (reply.get("choices") or [{}])[0].get("token_ids") or []
    return tensors, int(said[0]) if said else None


def _measured(ctx: StageContext, prompts: Sequence[list[int]], alone: list[Any], together: list[Any]) -> dict[str, Any]:
    from eagle3.readiness.measures import Head, agreement, states_facts

    requests = [states_facts(tensors, ids) for (tensors, _), ids in zip(alone, prompts, strict=True)]
    if any("lacks" in request for request in requests):
        return {"requests": requests, "batch": [], "next": [], "next_unknown": "the states cannot be read"}
    told: dict[str, Any] = {
        "requests": requests,
        "batch": [agreement(a["hidden_states"], b["hidden_states"]) for (a, _), (b, _) in zip(alone, together, strict=True)],
    }
    try:
        head = Head(ctx.model_dir)
    except (ValueError, OSError) as error:
        return {**told, "next": [], "next_unknown": str(error)}
    pairs = [(tensors["hidden_states"], token) for tensors, token in alone]
    return {**told, "next": [head.ranks(states[-1, -1], token) for states, token in pairs if token is not None]}


def main() -> int:
    """Run the canary and print its facts as one marked line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    facts = canary(Path(sys.argv[1]), sys.argv[2])
    sys.stdout.write(f"\n{MARK}{json.dumps(facts)}\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
