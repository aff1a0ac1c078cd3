"""Why a run of a spec cannot work, though each of its fields may have its value: what is known before anything starts.

Pure, and no validation of the spec: an older ``spec.toml`` is read as ever, and only the start of a run is refused.
"""

from __future__ import annotations

from eagle3.core.spec import STAGES, RunSpec
from eagle3.core.wording import bytes_label

BUILTIN_PROMPTS = 288
"""Lines of the prompts that come with the package."""
ATTENTIONS = ("eager", "sdpa", "simple_flex_attention")
"""What speculators trains a draft with."""


def problems(spec: RunSpec) -> list[str]:
    """Everything of a spec that cannot work together, one sentence each that ends with what to do; empty where all fits."""
    return [*_counts(spec), *_training(spec), *_shape(spec), *_devices(spec)]


def _counts(spec: RunSpec) -> list[str]:
    found = []
    asked = spec.data.train_prompts + spec.data.heldout_prompts
    if spec.data.prompts == "builtin" and asked > BUILTIN_PROMPTS:
        found.append(
            f"data.prompts is 'builtin', which has {BUILTIN_PROMPTS} prompts, and {asked:,} are asked for; "
            "set data.prompts to a JSONL file of conversations."
        )
    if spec.target.vocab_size and spec.vocabulary.size > spec.target.vocab_size:
        found.append(
            f"vocabulary.size is {spec.vocabulary.size:,}, and {spec.target.name} has {spec.target.vocab_size:,} tokens; "
            "lower vocabulary.size."
        )
    if spec.data.prompt_tokens >= spec.target.max_model_len:
        found.append(
            f"data.prompt_tokens ({spec.data.prompt_tokens:,}) leaves no room for an answer within target.max_model_len "
            f"({spec.target.max_model_len:,}); raise the limit or take shorter prompts."
        )
    if spec.evaluate.max_new_tokens >= spec.target.max_model_len:
        found.append(
            f"evaluate.max_new_tokens ({spec.evaluate.max_new_tokens:,}) leaves no room for a prompt within "
            f"target.max_model_len ({spec.target.max_model_len:,}); lower it or raise the limit."
        )
    memory = spec.hardware.gpus and len(spec.devices.extract) * spec.hardware.gpu_memory_bytes
    if memory and spec.target.weights_bytes > 0.95 * memory:
        found.append(
            f"{spec.target.name} has {bytes_label(spec.target.weights_bytes)} of weights, and the "
            f"{len(spec.devices.extract)} GPUs of devices.extract have {bytes_label(memory)}; name more GPUs or another machine."
        )
    return found


def _training(spec: RunSpec) -> list[str]:
    train, found = spec.train, []
    if train.attention not in ATTENTIONS:
        found.append(
            f"train.attention is '{train.attention}', and a draft is trained with {', '.join(ATTENTIONS[:-1])} or "
            f"{ATTENTIONS[-1]}; set it to one of them."
        )
    if train.warmup_steps >= train.max_steps:
        found.append(
            f"train.warmup_steps ({train.warmup_steps:,}) is not below train.max_steps ({train.max_steps:,}), so the learning "
            "rate would never be at its peak; lower train.warmup_steps."
        )
    return found


def _shape(spec: RunSpec) -> list[str]:
    draft, found = spec.target.draft, []
    heads, shared = draft.num_attention_heads, draft.num_key_value_heads
    if draft.head_dim % 2:
        found.append(
            f"target.draft.head_dim ({draft.head_dim}) is odd, and positions turn a head's values in pairs; set an even one."
        )
    if heads and shared and heads % shared:
        found.append(
            f"target.draft.num_key_value_heads ({shared}) does not divide target.draft.num_attention_heads ({heads}), and as "
            "many heads must share each of them; set a divisor."
        )
    return found


def _devices(spec: RunSpec) -> list[str]:
    gpus, spread, found = spec.hardware.gpus, spec.server.tensor_parallel, []
    named = [stage for stage in STAGES if spec.devices.of(stage)]
    if spec.device == "cpu" and named:
        found.append(f"device is 'cpu', and devices.{named[0]} names GPUs; set device to 'cuda', or take a machine without GPUs.")
    if spec.device == "cuda" and not gpus:
        found.append(
            f"device is 'cuda', and the machine {spec.machine} has no GPU (hardware.gpus is 0); set hardware.gpus and devices, "
            "or device to 'cpu'."
        )
    # A run of one share of the states ends before the training.
    if spec.device == "cuda" and gpus and not spec.devices.train and spec.extract.world == 1:
        found.append("devices.train names no GPU, and device is 'cuda'; name those that the training is to use.")
    own_servers = spec.engine == "vllm" and not (spec.server.url and spec.server.extract_url)
    if own_servers and spread > max(1, gpus):
        counted = f"{gpus or 'no'} GPU{'s' if gpus != 1 else ''}"
        found.append(
            f"server.tensor_parallel is {spread}, and the machine {spec.machine} has {counted} (hardware.gpus); lower it, or "
            "name the machine's GPUs."
        )
    return found
