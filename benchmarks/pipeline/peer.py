"""The packages' own commands, as one would type them: speculators' for the data and the training, vLLM's for the benchmark."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from benchmarks.pipeline.material import Run, samples
from eagle3.core.spec import RunSpec
from eagle3.targets import model_dir

SPECULATORS = [sys.executable, "-m", "speculators"]


def regenerate(spec: RunSpec, url: str, prompts: Path, out: Path) -> list[str]:
    """``regenerate-responses`` for a JSONL of conversations. It loads the tokenizer by the name that the server goes by."""
    sampling, model = {"temperature": spec.regenerate.temperature}, str(model_dir(spec.target.model))
    return [
        *SPECULATORS, "regenerate-responses", "--endpoint", f"{url}/v1/chat/completions", "--model", model,
        "--dataset", str(prompts), "--concurrency", str(spec.regenerate.concurrency),
        "--max-tokens", str(spec.regenerate.max_new_tokens), "--sampling-params", json.dumps(sampling), "--outfile", str(out),
    ]  # fmt: skip


def prepare(spec: RunSpec, rows: Path, out: Path) -> list[str]:
    """``prepare-data`` on rows with token ids and masks."""
    return [
        *SPECULATORS, "prepare-data", "--model", str(model_dir(spec.target.model)), "--data", str(rows), "--output", str(out),
        "--seq-length", str(spec.target.max_model_len), "--no-skip-token-freq", "--num-preprocessing-workers", "1",
    ]  # fmt: skip


def extract(spec: RunSpec, url: str, prepared: Path, out: Path) -> list[str]:
    """``generate-offline-data``, outputs validated as ours are."""
    return [
        *SPECULATORS, "generate-offline-data", "--endpoint", f"{url}/v1", "--preprocessed-data", str(prepared),
        "--output", str(out), "--concurrency", str(spec.extract.concurrency), "--validate-outputs",
    ]  # fmt: skip


def train(spec: RunSpec, data: Path, states: Path, out: Path, share: float, packs: int) -> list[str]:
    """``train``, through the smallest shim that lets it run without an accelerator. ``share`` of the samples is trained on,
    ``packs`` is what an epoch has of them; a checkpoint as often as ours."""
    layers = [str(layer) for layer in spec.target.auxiliary_layers]
    epochs = math.ceil(spec.train.max_steps / packs)
    return [
        sys.executable, "-m", "benchmarks.pipeline.cpu_train", "--verifier-name-or-path", str(model_dir(spec.target.model)),
        "--speculator-type", "eagle3", "--target-layer-ids", *layers, "--draft-vocab-size", str(spec.vocabulary.size),
        "--data-path", str(data), "--hidden-states-path", str(states), "--on-missing", "raise",
        "--total-seq-len", str(spec.train.pack_tokens), "--train-data-ratio", f"{share:.6f}", "--num-workers", "0",
        "--hidden-states-dtype", spec.train.dtype, "--draft-attn-impl", spec.train.attention, "--loss-implementation", "eager",
        "--ttt-steps", str(spec.train.ttt_steps), "--optimizer", spec.train.optimizer, "--lr", str(spec.train.learning_rate),
        "--scheduler-warmup-steps", str(spec.train.warmup_steps), "--max-steps", str(spec.train.max_steps),
        "--epochs", str(epochs), "--checkpoint-freq", _frequency(spec.train.checkpoint_every_steps / packs),
        "--save-path", str(out), "--seed", str(spec.train.seed),
    ]  # fmt: skip


def _frequency(epochs: float) -> str:
    """How often to save, as the command takes it: whole epochs, or a share of one."""
    return str(round(epochs)) if epochs >= 1 else f"{epochs:.3f}"


def serve_benchmark(spec: RunSpec, url: str, prompts: Path, count: int) -> list[str]:
    """``vllm bench serve`` on our own prompts. Called as a module: the command line of the CPU build does not start."""
    in_flight = str(spec.evaluate.concurrency)
    return [
        sys.executable, "-m", "benchmarks.pipeline.bench_serve", "--backend", "openai-chat", "--base-url", url,
        "--endpoint", "/v1/chat/completions", "--model", str(model_dir(spec.target.model)),
        "--served-model-name", spec.target.served_name, "--dataset-name", "custom", "--dataset-path", str(prompts),
        "--custom-output-len", str(spec.evaluate.max_new_tokens), "--skip-chat-template", "--num-prompts", str(count),
        "--max-concurrency", in_flight, "--num-warmups", in_flight, "--temperature", "0",
    ]  # fmt: skip


def write_rows(run: Run, path: Path) -> int:
    """Our samples as rows that ``prepare-data`` takes, those to train on first; how many these are."""
    rows = samples(run)
    lines = [json.dumps({"input_ids": row["input_ids"], "loss_mask": row["loss_mask"]}) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return sum(row["split"] == "train" for row in rows)
