"""Extract: the target's hidden states at every token of every sample, from a vLLM server in extraction mode.

Prefix caching is off, since a cached prefix leaves no states. Each file is checked as it lands and asked for once more
when it is wrong; a second failure ends the stage, for a hole in the data would go unnoticed in training.
"""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3.core.spec import MODEL_FIELDS, RunSpec, hash_of
from eagle3.engines.choice import engine_part, extraction_server
from eagle3.engines.completions import Completions, RequestFailed, run_bounded
from eagle3.engines.model_dir import fingerprint
from eagle3.engines.server import Server
from eagle3.rows import Row, read_rows
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.hold import Hold
from eagle3.store import StateError, StateRow, StateStore
from eagle3.targets import model_dir

OUTPUTS = ("states/manifest.jsonl",)
"""The manifest holds the SHA-256 of every state; `whole` holds it against the files. A record that listed thousands of
states itself would be read by every poll."""

_LOCK_PATIENCE_S = 60.0
_ROW_EVERY_S = 2.0
_ATTEMPTS = 2


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What this stage depends on, besides the samples."""
    target = spec.target.model_dump(include=(MODEL_FIELDS - {"served_name", "source"}) | {"auxiliary_layers"})
    return {"target": target, "model": fingerprint(model_dir(spec.target.model))} | engine_part(spec)


def whole(ctx: StageContext) -> str:
    """Why the states cannot be taken over as they are: some are gone or changed since. Empty where all are whole."""
    samples = read_rows(ctx.path("data", "samples.jsonl"))
    done = open_store(ctx).whole(samples)
    return "" if len(done) == len(samples) else f"{len(samples) - len(done)} of {len(samples)} states are gone or changed"


def run(ctx: StageContext) -> dict[str, Any]:
    """Write ``states/``. Figures: samples, tokens, bytes (all of them), tok_s (of this attempt), server_start_s."""
    samples = read_rows(ctx.path("data", "samples.jsonl"))
    store = open_store(ctx)
    store.clear_raw()
    done = store.whole(samples)
    missing = [sample for sample in samples if sample["index"] not in done]
    if done:
        ctx.journal.event("resume", f"{len(done)} of {len(samples)} states are there already, whole.")
    figures: dict[str, Any] = {}
    if missing:
        tokens = sum(len(sample["input_ids"]) for sample in missing)
        ctx.check_disk(store.bytes_of(tokens, len(missing), ctx.spec.target.dtype))
        try:
            with extraction_server(ctx, store.raw) as server:
                began = time.monotonic() - ctx.paused_s

                def extract() -> None:
                    left = [sample for sample in missing if sample["index"] not in done]
                    asyncio.run(extract_all(ctx, server, store, left, done))

                server.surviving(extract)
                seconds = time.monotonic() - began - ctx.paused_s
                figures = {"tok_s": tokens / seconds, "server_start_s": server.start_s}
        finally:
            store.clear_raw()
    store.seal(done)
    rows = done.values()
    return {"samples": len(done), "tokens": sum(row.tokens for row in rows), "bytes": sum(row.bytes for row in rows)} | figures


def open_store(ctx: StageContext) -> StateStore:
    """The run's states."""
    target = ctx.spec.target
    return StateStore(
        ctx.path("states", "manifest.jsonl").parent,
        layers=target.captured_layers,
        hidden_size=target.hidden_size,
        made_with=hash_of(spec_part(ctx.spec)),
    )


async def extract_all(
    ctx: StageContext, server: Server, store: StateStore, samples: Sequence[Row], done: dict[int, StateRow]
) -> None:
    total = len(samples) + len(done)
    began = last = time.monotonic()
    tokens = 0
    ctx.journal.progress("extract", len(done), total, "samples")
    hold = Hold(ctx, "extract", "samples")
    hold.done, hold.total = len(done), total

    async with Completions(server.base_url, timeout_s=ctx.spec.extract.request_timeout_s) as client:

        async def extract(sample: Row) -> None:
            nonlocal tokens, last
            ctx.check_disk(store.bytes_of(len(sample["input_ids"]), 1, ctx.spec.target.dtype))
            done[sample["index"]] = await _one(ctx, client, server.model, store, sample)
            tokens += len(sample["input_ids"])
            hold.done = len(done)
            ctx.journal.progress("extract", len(done), total, "samples", force=len(done) == total)
            now = time.monotonic()
            if now - last >= _ROW_EVERY_S or len(done) == total:
                last = now
                ctx.journal.metrics("extract", len(done), tok_s=tokens / max(now - began - hold.seconds, 1e-9))

        def watch() -> None:
            ctx.check_stop()
            server.check_alive()

        failures = await run_bounded(
            samples, extract, concurrency=ctx.spec.extract.concurrency, watch=watch, hold=hold, limit=server.limit
        )
    if failures:
        # A server without room leaves no file and no word of it: then the disk is the reason to give.
        ctx.check_disk(store.bytes_of(max(len(sample["input_ids"]) for sample in samples), 1, ctx.spec.target.dtype))
        first = failures[0]
        raise StageError(
            f"{len(failures)} of {len(samples)} samples have no states, sample {first.item['index']} ('{first.item['id']}') "
            f"first: {first.error}; look at {server.log_path}, then resume the run to extract these alone.",
            detail="\n".join(f"{failure.item['index']}: {failure.error}" for failure in failures[:50]),
        )


async def _one(ctx: StageContext, client: Completions, model: str, store: StateStore, sample: Row) -> StateRow:
    """The states of one sample, checked; asked for again once when they are wrong. Raises RequestFailed."""
    wrong = ""
    for attempt in range(_ATTEMPTS):
        raw = await _request(client, model, sample)
        try:
            await written(raw)
            return store.adopt(raw, sample)
        except StateError as error:
            wrong = str(error)
            text = f"The states of sample {sample['index']} ('{sample['id']}') are wrong: {wrong}"
            again = "; asking again." if attempt + 1 < _ATTEMPTS else "."
            ctx.journal.event("integrity", text + again, level="warn" if attempt + 1 < _ATTEMPTS else "error")
        finally:
            discard(raw)
    raise RequestFailed(f"its states were wrong {_ATTEMPTS} times ({wrong})")


async def _request(client: Completions, model: str, sample: Row) -> Path:
    reply = await client.post(
        "/v1/completions",
        {"model": model, "prompt": sample["input_ids"], "max_tokens": 1, "temperature": 0, "return_token_ids": True},
    )
    parameters = reply.get("kv_transfer_params") or {}
    handle = parameters.get("hidden_states_path")
    if not handle:
        raise RequestFailed("the server's answer names no file of hidden states; is its connector loaded?", refused=True)
    return Path(handle)


async def written(raw: Path) -> None:
    """Wait until the server has written the file: it holds the lock file beside it until then. Raises StateError."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while not _is_written(raw):
        if time.monotonic() > deadline:
            raise StateError(f"the server has not written {raw.name} within {_LOCK_PATIENCE_S:.0f} s")
        await asyncio.sleep(0.01)


def _is_written(raw: Path) -> bool:
    try:
        with _lock_of(raw).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return raw.exists()
    except FileNotFoundError:
        return raw.exists()
    except BlockingIOError:
        return False


def discard(raw: Path) -> None:
    raw.unlink(missing_ok=True)
    _lock_of(raw).unlink(missing_ok=True)


def _lock_of(raw: Path) -> Path:
    return raw.with_name(f"{raw.name}.lock")
