"""The disk space that a run will need, in entries that can be added up before a person's eyes."""

from __future__ import annotations

from typing import Any

from eagle3.core.spec import RunSpec

BYTES_OF = {"float32": 4, "bfloat16": 2, "auto": 2}
PROMPT_TOKENS = 160
"""Tokens taken for a prompt where the prompts are not looked at: an upper bound for the built-in ones."""
STATE_COPIES = 2
"""A state is written raw by the server and again under its name; the raw one goes away at once, most of the time."""
SMALL_BYTES = 64 << 20
"""Logs, conversations, records, the exported draft's small files."""


def needs(spec: RunSpec, workspace: str) -> list[dict[str, Any]]:
    """``[{"path","bytes","inodes","what"}]``: what the stages of ``spec`` write, at most about."""
    target, samples = spec.target, spec.data.train_prompts + spec.data.heldout_prompts
    tokens = min(target.max_model_len, spec.regenerate.max_new_tokens + PROMPT_TOKENS)
    layers = len(target.captured_layers)
    states = samples * tokens * layers * target.hidden_size * BYTES_OF[target.dtype]
    return [
        {
            "path": workspace, "bytes": states, "inodes": samples * STATE_COPIES,
            "what": f"states of {samples} samples × {tokens} tokens × {layers} layers × {target.hidden_size} values",
        },
        {"path": workspace, "bytes": SMALL_BYTES, "inodes": 500, "what": "logs, records and conversations"},
    ]  # fmt: skip
