"""Random targets of a few thousand weights, with a tokenizer of single bytes and a chat template, made in a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 320
HIDDEN = 64
LAYERS = 6
CAPTURED = [1, 3, 5, 6]
"""Three auxiliary layers and the last."""

_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def spec_of(folder: Path, **more: Any) -> dict[str, Any]:
    """The overrides that make such a target a run's, for ``tests.stages.runs.context``."""
    return {
        "target__name": folder.name, "target__model": str(folder), "target__auxiliary_layers": CAPTURED[:3],
        "target__num_hidden_layers": LAYERS, "target__hidden_size": HIDDEN, "target__max_model_len": 256,
        "target__vocab_size": VOCABULARY, "target__source": "", **more,
    }  # fmt: skip


def tiny_llama(folder: Path) -> Path:
    """A Llama at random, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, eos_token_id=257, bos_token_id=256,
    )  # fmt: skip
    return _save(folder, LlamaForCausalLM, config)


def tiny_deepseek_v3(folder: Path) -> Path:
    """A DeepSeek-V3 at random, bfloat16: Kimi-K2.5's architecture, with MLA of its real head sizes (vLLM's kernels are made for
    those) and a mixture of experts from the second layer on."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=2,
        n_group=1, topk_group=1, routed_scaling_factor=2.5, first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=64,
        qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, max_position_embeddings=512, initializer_range=0.08,
        num_nextn_predict_layers=0, eos_token_id=257, bos_token_id=256,
    )  # fmt: skip
    _save(folder, DeepseekV3ForCausalLM, config, dtype=torch.bfloat16)
    # transformers knows no other router than these, and does not write their names; vLLM reads them.
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}))
    return folder


def _save(folder: Path, kind: Any, config: Any, dtype: Any = None) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    model = kind(config)
    model.to(dtype or torch.float32).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_wise = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    byte_wise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_wise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_wise, bos_token="<|start|>", eos_token="<|end|>", pad_token="<|pad|>", chat_template=_TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return folder
