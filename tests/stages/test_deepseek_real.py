"""Kimi-K2.5's architecture at random: a real vLLM extracts from a tiny DeepSeek-V3, and transformers agrees with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle3.engines.transformers_engine import TransformersEngine
from eagle3.rows import write_rows
from eagle3.stages import extract
from tests.stages.runs import context
from tests.stages.tiny_models import CAPTURED, VOCABULARY, spec_of, tiny_deepseek_v3

pytestmark = pytest.mark.long

AGREEMENT = 1e-5
"""Largest difference, relative to the layer's largest value, in float32."""

WITHIN_BFLOAT16 = 1.5
"""Mean error of vLLM in bfloat16 ÷ that of transformers in bfloat16, both against float32. Rounding may send a token to another
expert, so single values differ by far more than a rounding; on the average neither may be worse than the other."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vllm_and_transformers_agree_on_deepseek_v3(tmp_path: Path, dtype: str) -> None:
    target = tiny_deepseek_v3(tmp_path / "tiny-deepseek-v3")
    # On a processor with AMX vLLM takes a kernel for MLA that has no float32.
    args = ["--attention-backend", "CPU_MLA"] if dtype == "float32" else []
    ctx = context(tmp_path / "run", **spec_of(target, target__dtype=dtype, target__server_args=args))
    ctx.model_dir = target
    drawn = torch.Generator().manual_seed(0)
    samples = [
        {
            "index": number, "id": f"s-{number}", "split": "train",
            "input_ids": torch.randint(0, VOCABULARY, (20 + 13 * number,), generator=drawn).tolist(),
        }
        for number in range(6)
    ]  # fmt: skip
    write_rows(ctx.path("data", "samples.jsonl"), samples)
    assert extract.run(ctx)["samples"] == len(samples)
    store = extract.open_store(ctx)
    exact, rounded = (TransformersEngine(target, CAPTURED, dtype=kind) for kind in (torch.float32, torch.bfloat16))
    of_vllm, of_transformers = torch.zeros(len(CAPTURED)), torch.zeros(len(CAPTURED))
    for sample in samples:
        served = store.load(sample["index"])["hidden_states"]
        assert served.dtype == getattr(torch, dtype)
        reference = exact.states(sample["input_ids"])
        if dtype == "float32":
            difference = (served - reference).abs().amax(dim=(0, 2)) / reference.abs().amax(dim=(0, 2))
            assert difference.max() <= AGREEMENT, dict(zip(CAPTURED, difference.tolist(), strict=True))
        of_vllm += (served.float() - reference).abs().mean(dim=(0, 2))
        of_transformers += (rounded.states(sample["input_ids"]).float() - reference).abs().mean(dim=(0, 2))
    ratio = of_vllm / of_transformers
    print("vLLM's error ÷ transformers' in bfloat16, by layer:", dict(zip(CAPTURED, ratio.tolist(), strict=True)))
    assert ratio.max() <= WITHIN_BFLOAT16, dict(zip(CAPTURED, ratio.tolist(), strict=True))
