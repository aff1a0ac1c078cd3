"""An extraction without a model: an edge fake of a server in extraction mode, and one attempt of the stage on it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle3.rows import Row, read_rows, write_rows
from eagle3.runner.handed import Handed
from eagle3.stages import extract
from eagle3.stages.context import StageContext
from eagle3.stages.landing import Landing
from eagle3.states.quarantine import Quarantine
from eagle3.store import StateStore
from tests.stages.fake_vllm import FakeVllm, Reply
from tests.stages.runs import context

LAYERS, HIDDEN = 4, 576
Answer = Callable[[int, list[int]], Reply | torch.Tensor | None]
"""Given how often these ids were asked for before: an unusual reply, unusual states, or None for right ones."""


def sample(index: int, tokens: int = 5) -> Row:
    split = "heldout" if index % 3 == 2 else "train"
    ids = [10 + index + i for i in range(tokens)]
    return {"index": index, "id": f"s-{index}", "split": split, "input_ids": ids, "loss_mask": [0] + [1] * (tokens - 1)}


def states(ids: list[int]) -> torch.Tensor:
    return torch.randn(len(ids), LAYERS, HIDDEN, generator=torch.Generator().manual_seed(sum(ids)))


def nan(ids: list[int]) -> torch.Tensor:
    hidden = states(ids)
    hidden[2, 1, 3] = float("nan")
    return hidden


class Extractor:
    """Writes what a connector would write for each request."""

    def __init__(self, raw: Path, answer: Answer = lambda before, ids: None) -> None:
        self._raw, self._answer = raw, answer
        self._asked: dict[int, int] = {}
        self._lock = threading.Lock()

    def __call__(self, number: int, body: Mapping[str, Any]) -> Reply:
        ids = body["prompt"]
        with self._lock:
            before = self._asked.get(ids[0], 0)
            self._asked[ids[0]] = before + 1
        found = self._answer(before, ids)
        if isinstance(found, Reply):
            return found
        path = self._raw / f"cmpl-{number}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.lock").touch()
        save_file({"hidden_states": states(ids) if found is None else found, "token_ids": torch.tensor(ids)}, path)
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_token_ids": ids}
        about = {"id": "cmpl", "object": "text_completion", "created": 0, "model": "target", "choices": [choice]}
        return Reply(body=json.dumps(about | {"kv_transfer_params": {"hidden_states_path": str(path)}}).encode())


def run(
    ctx: StageContext, answer: Answer = lambda before, ids: None, shared_limit: int | None = None, **how: Any
) -> tuple[StateStore, FakeVllm]:
    """One attempt of the stage but for the server's start. ``shared_limit``: the server is one that others use too."""
    samples = extract.share_of(ctx.spec, read_rows(ctx.run_dir / "data" / "samples.jsonl"))
    store = extract.open_store(ctx)
    done = extract.whole_states(ctx, store, samples)
    quarantine = Quarantine(store.folder)
    quarantine.clear()
    with FakeVllm(Extractor(store.raw, answer)) as server:
        server.shared_limit = shared_limit
        server.handed = Handed(store.raw, "The extract server")
        missing = [row for row in samples if row["index"] not in done]
        asyncio.run(Landing(ctx, server, store, done, quarantine, **how).all(missing))
    store.seal(done)
    return store, server


def made(run_dir: Path, count: int = 6, **overrides: Any) -> StageContext:
    found = context(run_dir, extract__backoff_s=0.001, **overrides)
    write_rows(run_dir / "data" / "samples.jsonl", [sample(index) for index in range(count)])
    return found
