"""The draft model: built from the target and the vocabulary maps, and saved the way vLLM serves it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from loguru import logger as loader_log
from speculators.model import SpeculatorModel
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.train.cli import create_transformer_layer_config, set_seed
from speculators.train.utils import resolve_mask_token_id

from eagle3.core.spec import RunSpec
from eagle3.runner import rundir
from eagle3.training import losses
from eagle3.training.kinds import KINDS, Kind


def build(spec: RunSpec, model_dir: Path, vocabulary_dir: Path) -> SpeculatorModel:
    """The untrained draft in float32: decoder layers at random from ``train.seed``, embeddings and head from the target.

    An EAGLE-3 draft's projection of the auxiliary states starts as the identity on the deepest of them, plus the usual
    random weights: what the target is about to say is then in the draft's hidden state from the first step on, and short
    trainings end better (held-out position 0 after 100 steps of 256 tokens, one seed, ``fc_norm`` in place of
    ``norm_before_fc``: 0.19 against 0.14 of some 1,400 tokens).
    """
    set_seed(spec.train.seed)
    # It tells which file it reads, and warns of a head that is tied to the embeddings.
    loader_log.disable("speculators.utils.loading")
    d2t = torch.from_numpy(np.load(vocabulary_dir / "d2t.npy"))
    t2d = torch.from_numpy(np.load(vocabulary_dir / "t2d.npy"))
    kind = KINDS[spec.train.kind]
    layer_config = create_transformer_layer_config(
        verifier_name_or_path=str(model_dir),
        num_layers=kind.layers,
        draft_arch=kind.arch,
        hidden_act="silu",
        sliding_window=2048,
        full_attention_indices=list(range(kind.layers)),
        trust_remote_code=spec.target.trust_remote_code,
    )
    shape(layer_config, spec)
    given = {
        "t2d": t2d,
        "d2t": d2t,
        "draft_vocab_size": len(d2t),
        "verifier_name_or_path": str(model_dir),
        "target_layer_ids": spec.target.auxiliary_layers,
        "trust_remote_code": spec.target.trust_remote_code,
        "draft_attn_impl": spec.train.attention,
    }
    if not kind.certified:
        mask = resolve_mask_token_id(
            str(model_dir), layer_config.vocab_size, trust_remote_code=spec.target.trust_remote_code
        )  # fmt: skip
        return _class_of(kind).from_training_args(
            layer_config, **given, mask_token_id=mask, norm_before_residual=True, **kind.options
        )  # fmt: skip
    model = Eagle3DraftModel.from_training_args(
        layer_config,
        **given,
        ttt_steps=spec.train.ttt_steps,
        norm_before_residual=True,
        # EAGLE 3.1, as speculators trains it by default.
        norm_before_fc=True,
        norm_output=True,
    )
    with torch.no_grad():
        model.fc.weight[:, -model.hidden_size :].diagonal().add_(1.0)
    return model


def bring_code(model_dir: Path) -> None:
    """Have the target's own configuration code copied to where it is imported from. transformers does that without a lock and
    not at once, so of several ranks one must have done it before the others look there."""
    transformers.AutoConfig.from_pretrained(str(model_dir), trust_remote_code=True)


def training_call(spec: RunSpec, *, fused: bool) -> dict[str, Any]:
    """The arguments of each forward pass in training. ``fused``: the loss is a Triton kernel, which needs a GPU."""
    kind = KINDS[spec.train.kind]
    call: dict[str, Any]
    call, _ = _class_of(kind).get_trainer_kwargs(
        loss_fn="kl_div",
        loss_implementation="fused" if fused else "eager",
        ttt_steps=spec.train.ttt_steps,
        ttt_step_loss_decay=1.0,
        **kind.options,
    )
    if not fused:
        call["loss_config"] = {"kl_div": (losses.kl_div, 1.0)}
    return call


def _class_of(kind: Kind) -> Any:
    return SpeculatorModel.registry[kind.name]


def shape(layer_config: transformers.PretrainedConfig, spec: RunSpec) -> None:
    """Put the spec's own numbers (``target.draft``) over those that speculators derived from the target's config.

    A target with MLA has no head size that a dense draft could take: speculators would use its rotary part alone.
    """
    for name, value in spec.target.draft.model_dump().items():
        if value:
            setattr(layer_config, name, value)


def save(model: SpeculatorModel, tensors: dict[str, torch.Tensor], folder: Path, dtype: torch.dtype) -> None:
    """Write a speculators checkpoint to ``folder``, whole or not at all, with the model's ``tensors`` (all of them, whole); the
    model in memory stays as it is."""
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    state = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
    transformers.utils.logging.disable_progress_bar()
    try:
        _write(model, state, dtype, aside)
    except BaseException:
        # On a full disk it would take the room in which the failure could be told.
        shutil.rmtree(aside, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


def _write(model: SpeculatorModel, state: dict[str, torch.Tensor], dtype: torch.dtype, aside: Path) -> None:
    model.save_pretrained(aside, state_dict=state)
    config = rundir.read_object(aside / "config.json")
    # transformers takes the config's class for code of the user's and adds it; nobody who loads the draft should run it.
    config.pop("auto_map", None)
    (aside / "config.py").unlink(missing_ok=True)
    # save_pretrained writes the dtype of the model in memory, not of what is on disk.
    rundir.write_json(aside / "config.json", config | {"dtype": str(dtype).removeprefix("torch.")})
