"""Extract: the target's hidden states at every token of every sample, from a vLLM server in extraction mode.

Prefix caching is off, since a cached prefix leaves no states. ``eagle3.stages.landing`` asks and checks; here is what is asked
for, and by which server. With ``extract.world`` above one a run extracts its own share of the samples, by their index.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from eagle3.core import guards
from eagle3.core.spec import MODEL_FIELDS, RunSpec, hash_of
from eagle3.engines.blame import NAME as DEATHS
from eagle3.engines.blame import REASON, Blame
from eagle3.engines.choice import engine_part, extraction_server
from eagle3.engines.model_dir import fingerprint
from eagle3.rows import Row, read_rows
from eagle3.runner import pruned
from eagle3.stages import guarding
from eagle3.stages.aside import import_aside
from eagle3.stages.context import StageContext
from eagle3.stages.hold import Hold
from eagle3.stages.landing import Landing
from eagle3.stages.room import DiskRoom
from eagle3.states.quarantine import NAME as QUARANTINE
from eagle3.states.quarantine import Quarantine, put_aside
from eagle3.store import StateRow, StateStore
from eagle3.targets import model_dir

OUTPUTS = ("states/manifest.jsonl", f"states/{QUARANTINE}")
"""The manifest holds the SHA-256 of every state; `whole` holds it against the files. A record that listed thousands of
states itself would be read by every poll. The second file is there only where samples were put aside."""

_MIB = 1 << 20


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What this stage depends on, besides the samples."""
    share = (spec.extract.rank, spec.extract.world)
    return _made_with(spec) | ({} if share == (0, 1) else {"share": share})


def _made_with(spec: RunSpec) -> dict[str, Any]:
    """What a sample's states depend on: every share of a run makes the same ones."""
    target = spec.target.model_dump(include=(MODEL_FIELDS - {"served_name", "source"}) | {"auxiliary_layers"})
    part = {"target": target, "model": fingerprint(model_dir(spec.target.model))} | engine_part(spec)
    return part if spec.extract.storage == "target" else part | {"storage": spec.extract.storage}


def share_of(spec: RunSpec, samples: list[Row]) -> list[Row]:
    """The samples that a run with this spec extracts: every ``extract.world``-th, from ``extract.rank`` on."""
    return [sample for sample in samples if sample["index"] % spec.extract.world == spec.extract.rank]


def whole(ctx: StageContext) -> str:
    """Why the states cannot be taken over as they are: some are gone or changed since. Empty where all are whole; samples put
    aside have none."""
    aside = put_aside(ctx.run_dir)
    samples = [row for row in share_of(ctx.spec, read_rows(ctx.path("data", "samples.jsonl"))) if row["index"] not in aside]
    done = whole_states(ctx, open_store(ctx), samples)
    return "" if len(done) == len(samples) else f"{len(samples) - len(done)} of {len(samples)} states are gone or changed"


def run(ctx: StageContext) -> dict[str, Any]:
    """Write ``states/``. Figures: samples, tokens, bytes (all that are whole), quarantined (samples put aside), tok_s (of this
    attempt), server_start_s."""
    samples = share_of(ctx.spec, read_rows(ctx.path("data", "samples.jsonl")))
    store = open_store(ctx)
    pruned.forget(ctx.run_dir, pruned.STATES)
    store.clear_raw()
    done = whole_states(ctx, store, samples)
    quarantine, blame = Quarantine(store.folder), Blame(store.folder, ctx.spec.extract.tries)
    left = [sample for sample in samples if sample["index"] not in done]
    guilty = blame.guilty(left)
    if again := len(quarantine.rows.keys() - guilty):
        ctx.journal.event("quarantine", f"{again} samples that were put aside are tried once more.")
    if guilty:
        text = f"{len(guilty)} samples stay put aside: {REASON}. states/{DEATHS} says when; without it they are asked for again."
        ctx.journal.event("quarantine", text, level="warn")
    missing = still_asked_for(ctx, left, quarantine, blame)
    if done:
        ctx.journal.event("resume", f"{len(done)} of {len(samples)} states are there already, whole.")
    figures: dict[str, Any] = {}
    if missing:
        tokens = sum(len(sample["input_ids"]) for sample in missing)
        # No server is up yet: nothing is held meanwhile but the disk that others fill.
        DiskRoom(ctx, Hold(ctx, "extract", "samples"), needs="the states of this stage need").wait(
            store.bytes_of(tokens, len(missing))
        )
        # Nothing here needs it; the vocabulary, which comes next, waits for it otherwise.
        import_aside("speculators.train.vocab_mapping")
        try:
            with extraction_server(ctx, store.raw) as server:
                landing = Landing(ctx, server, store, done, quarantine, blame)
                began = time.monotonic() - ctx.paused_s

                def land() -> None:
                    # Asked for again after a death of the server, what it failed while it died is no sample's fault.
                    left = [sample for sample in samples if sample["index"] not in done]
                    asyncio.run(landing.all(still_asked_for(ctx, left, quarantine, blame), samples))

                server.surviving(land, landing.died)
                seconds = max(time.monotonic() - began - ctx.paused_s, 1e-9)
                figures = {"tok_s": landing.landed_tokens / seconds, "server_start_s": server.start_s}
        finally:
            store.clear_raw()
            with contextlib.suppress(OSError):  # it only spares the next attempt a look; the disk may be full
                store.remember()
    elif quarantine.rows:
        _judge(ctx, len(done), quarantine)
    store.seal(done)
    rows = done.values()
    sums = {"samples": len(done), "tokens": sum(row.tokens for row in rows), "bytes": sum(row.bytes for row in rows)}
    return sums | {"quarantined": len(quarantine.rows)} | figures


def _judge(ctx: StageContext, done: int, quarantine: Quarantine) -> None:
    """What is put aside, where nothing is left to ask for. Raises StageError where it is too much."""
    aside = len(quarantine.rows)
    found = guards.put_aside(aside, aside + done, ctx.spec.guards, quarantine.reasons(), all_asked=True)
    if guarding.act(ctx, found):
        Hold(ctx, "extract").wait()


def still_asked_for(ctx: StageContext, left: list[Row], quarantine: Quarantine, blame: Blame) -> list[Row]:
    """Those that are asked for of the samples without states: all but those that the server dies of, which alone stay put
    aside."""
    guilty = blame.guilty(left)
    kept = {index: row for index, row in quarantine.rows.items() if index in guilty}
    if kept != quarantine.rows:
        quarantine.rows = kept
        quarantine.write()
    for sample in left:
        if sample["index"] in guilty and sample["index"] not in kept:
            quarantine.put(sample, REASON, tries=blame.deaths(sample), attempt=ctx.journal.attempt, now=time.time())
    return [sample for sample in left if sample["index"] not in guilty]


def whole_states(ctx: StageContext, store: StateStore, samples: list[Row]) -> dict[int, StateRow]:
    """The states that are there and whole; how far the look is is told, for terabytes take an hour."""

    def tell(seen: int, total: int) -> None:
        ctx.check_stop()
        if total:
            reason = "holding the states on disk against the manifest"
            done, of = round(seen / _MIB), round(total / _MIB)
            ctx.journal.progress("extract", done, of, "MiB", reason=reason, force=seen == total)

    ctx.journal.restart_rate()
    found = store.whole(samples, rehash=ctx.spec.extract.verify == "hash", tell=tell)
    ctx.journal.restart_rate()
    return found


def open_store(ctx: StageContext) -> StateStore:
    """The run's states."""
    target = ctx.spec.target
    return StateStore(
        ctx.path("states", "manifest.jsonl").parent,
        layers=target.captured_layers,
        hidden_size=target.hidden_size,
        made_with=hash_of(_made_with(ctx.spec)),
        dtype=target.dtype,
        storage=ctx.spec.extract.storage,
    )
