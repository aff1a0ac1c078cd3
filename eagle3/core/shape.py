"""How large things are: the draft, a checkpoint, a token's hidden states. Pure arithmetic on the spec."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3.core.spec import RunSpec

BYTES_OF = {"float32": 4, "bfloat16": 2, "auto": 2}
"""Bytes of a value by the spec's target.dtype; "auto" is taken for the half precision that models are published in."""

LOADERS = 4
"""Processes that read states ahead for one rank on a GPU."""
PACKS_AHEAD = 2
"""Packs that each of them holds ready: torch's own ``prefetch_factor``."""


def loader_bytes(spec: RunSpec) -> int:
    """Shared memory that packs wait in while a training on GPUs computes, of all its ranks together; 0 on a CPU."""
    if spec.device == "cpu":
        return 0
    pack = spec.train.pack_tokens * len(spec.target.captured_layers) * spec.target.hidden_size * BYTES_OF[spec.train.dtype]
    return spec.train_ranks * LOADERS * PACKS_AHEAD * pack


def state_value_bytes(storage: str, dtype: str) -> int:
    """Bytes of one stored value of a hidden state, by ``extract.storage`` and ``target.dtype``."""
    return {"target": BYTES_OF[dtype], "bfloat16": 2, "float8_e4m3": 1}[storage]


@dataclass(frozen=True)
class DraftSize:
    """``parameters`` of the saved draft, embeddings and head included; those that training changes are ``trainable``.

    ``value_bytes``: of one stored value of the draft, ``state_value_bytes`` of a hidden state. ``state_bytes_a_token``: captured
    layers x hidden size x bytes of a value.
    ``checkpoint_bytes``: weights and AdamW's two moments in float32. ``saved_bytes``: the draft in the precision in which the
    target is served.
    """

    parameters: int
    trainable: int
    state_bytes_a_token: int
    value_bytes: int
    state_value_bytes: int

    @property
    def checkpoint_bytes(self) -> int:
        return 3 * 4 * self.trainable

    @property
    def saved_bytes(self) -> int:
        return self.parameters * self.value_bytes


def draft_size(spec: RunSpec) -> DraftSize:
    """The draft of a spec. What its shape leaves open is taken as large as a draft of this width usually is."""
    target, shape = spec.target, spec.target.draft
    hidden = target.hidden_size
    head_dim = shape.head_dim or 128
    heads = shape.num_attention_heads or -(-hidden // head_dim)
    kv_heads = shape.num_key_value_heads or heads
    intermediate = shape.intermediate_size or 4 * hidden
    vocabulary = min(spec.vocabulary.size, target.vocab_size or spec.vocabulary.size)
    # The projection of the three auxiliary states, and its norm.
    projection = 3 * hidden * hidden + 3 * hidden
    # The first layer reads embedding and state side by side.
    attention = 2 * hidden * head_dim * (heads + 2 * kv_heads) + heads * head_dim * hidden
    norms = 4 * hidden
    trainable = projection + attention + 3 * hidden * intermediate + norms
    frozen = ((target.vocab_size or vocabulary) + vocabulary) * hidden
    stored = state_value_bytes(spec.extract.storage, target.dtype)
    return DraftSize(trainable + frozen, trainable, len(target.captured_layers) * hidden * stored, BYTES_OF[target.dtype], stored)
