"""A target small enough to write by hand: 64 tokens, each answered by a fixed other one.

Its last hidden state at a token is the embedding of the token that follows by the rule, so the target's own head,
applied to it, proposes just that one; the auxiliary states are noisy copies of the token. A draft can learn the rule in
a few dozen steps, and cannot know it before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.spec import RunSpec
from eagle3.journal import Journal
from eagle3.stages.context import StageContext

VOCABULARY, HIDDEN, LAYERS = 64, 32, 4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So little work is slower on several threads than on one, and far slower where other tests run beside."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rule(token: int) -> int:
    return (5 * token + 3) % VOCABULARY


def answer(first: int, length: int) -> list[int]:
    tokens = [first]
    while len(tokens) < length:
        tokens.append(rule(tokens[-1]))
    return tokens


@pytest.fixture
def make_context(tmp_path: Path) -> Callable[..., StageContext]:
    """Contexts on one run directory; ``stop_after`` asks for a stop once so many steps have been told of."""

    def make(*, stop_after: int | None = None, run: str = "run", **overrides: Any) -> StageContext:
        def stop_requested() -> bool:
            if stop_after is None:
                return False
            metrics = tmp_path / run / "metrics.jsonl"
            told = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
            return sum(row["split"] == "train" for row in told) >= stop_after

        spec = RunSpec.model_validate(
            {
                "size": "toy",
                "machine": "toy",
                "disk_floor_bytes": overrides.pop("disk_floor_bytes", 0),
                "target": {
                    "name": "toy",
                    "model": str(tmp_path / "target"),
                    "dtype": "float32",
                    "auxiliary_layers": [1, 2, 3],
                    "num_hidden_layers": LAYERS,
                    "hidden_size": HIDDEN,
                },
                "vocabulary": {"size": overrides.pop("vocabulary_size", 48)},
                "guards": overrides.pop("guards", {}),
                "train": {
                    "max_steps": 12,
                    "ttt_steps": 2,
                    "pack_tokens": 64,
                    "warmup_steps": 2,
                    "checkpoint_every_steps": 4,
                    "validate_every_steps": 6,
                    **overrides,
                },
            }
        )
        run_dir = tmp_path / run
        run_dir.mkdir(exist_ok=True)
        return StageContext(
            run_dir=run_dir,
            spec=spec,
            journal=Journal(run_dir, 1),
            model_dir=tmp_path / "target",
            worker_python="",
            server_python="",
            stop_requested=stop_requested,
        )

    return make


@pytest.fixture
def write_samples() -> Callable[..., None]:
    """Writes ``data/samples.jsonl``: rows are (split, prompt tokens, answer tokens)."""

    def write(run_dir: Path, rows: list[tuple[str, list[int], list[int]]]) -> None:
        (run_dir / "data").mkdir(exist_ok=True)
        lines = [
            json.dumps(
                {
                    "index": index,
                    "id": f"toy-{index}",
                    "kind": "toy",
                    "split": split,
                    "hash": f"{index:04d}",
                    "input_ids": prompt + reply,
                    "loss_mask": [0] * len(prompt) + [1] * len(reply),
                    "prompt_tokens": len(prompt),
                }
            )
            for index, (split, prompt, reply) in enumerate(rows)
        ]
        (run_dir / "data" / "samples.jsonl").write_text("\n".join(lines) + "\n")

    return write


@pytest.fixture
def toy_target(tmp_path: Path) -> Path:
    """The target's folder: config, embeddings, head and final norm; nothing of it is ever run."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    folder = tmp_path / "target"
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    embeddings = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(7))
    norm = torch.ones(HIDDEN)
    tensors = {"model.embed_tokens.weight": embeddings, "lm_head.weight": embeddings.clone(), "model.norm.weight": norm}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def with_tokenizer(toy_target: Path) -> None:
    """The experimental kinds need a token that stands for "not known yet"; the target's tokenizer says which."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {f"t{number}": number for number in range(64)}
    own = Tokenizer(WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=own, mask_token="t63").save_pretrained(toy_target)


@pytest.fixture
def toy_run(
    make_context: Callable[..., StageContext], write_samples: Callable[..., None], toy_target: Path
) -> Callable[..., StageContext]:
    """Contexts on run directories that hold samples, states and vocabulary, all that training needs."""
    import torch
    from safetensors.torch import load_file, save_file

    from eagle3.stages import vocabulary

    embeddings = load_file(toy_target / "model.safetensors")["lm_head.weight"]

    def make(**options: Any) -> StageContext:
        noise = torch.Generator().manual_seed(11)
        ctx = make_context(**options)
        if (ctx.run_dir / "data").exists():
            return ctx
        rows = [("heldout" if n % 4 == 0 else "train", [n % VOCABULARY, 1], answer(7 * n % VOCABULARY, 14)) for n in range(16)]
        write_samples(ctx.run_dir, rows)
        (ctx.run_dir / "states").mkdir()
        for index, (_, prompt, reply) in enumerate(rows):
            tokens = prompt + reply
            own, following = embeddings[tokens], embeddings[[rule(token) for token in tokens]]
            auxiliary = [own + 0.1 * torch.randn(own.shape, generator=noise) for _ in range(3)]
            states = torch.stack([*auxiliary, following], dim=1)
            save_file(
                {"hidden_states": states, "token_ids": torch.tensor(tokens)}, ctx.run_dir / "states" / f"hs_{index}.safetensors"
            )
        vocabulary.run(ctx)
        return ctx

    return make


@pytest.fixture
def rows_of() -> Callable[[StageContext, str], list[dict[str, Any]]]:
    """The lines of a JSONL file of a run directory."""

    def read(ctx: StageContext, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (ctx.run_dir / name).read_text().splitlines()]

    return read
