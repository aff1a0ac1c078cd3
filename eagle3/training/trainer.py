"""speculators' trainer, made to run on any device, to stop between steps and to resume exactly.

Its epoch loop is used as it is. Around it: the device is given instead of guessed, optimizer steps are counted over all
epochs (``max_steps`` alone ends one epoch), checkpoints are ours, and a loss that is not finite stops before it
reaches the weights.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.train.trainer import Trainer, TrainerConfig
from torch.utils.data import DataLoader

from eagle3.core import guards
from eagle3.stages import guarding
from eagle3.stages.context import StageError
from eagle3.training.checkpoint import Checkpoint
from eagle3.training.quiet import listening


@dataclass(frozen=True)
class StepRow:
    """What one optimizer step showed. ``acc_pos[k]`` is the joint accuracy of the first k+1 tokens over the pack, as
    speculators counts it (draft vocabulary only); ``grad_norm`` is the norm before clipping; ``tokens`` without padding."""

    step: int
    loss: float
    loss_pos: list[float]
    acc_pos: list[float]
    accept_len: float
    lr: float
    grad_norm: float
    tokens: int
    seconds: float


class DraftTrainer(Trainer):
    """Trains ``model`` for ``config.max_steps`` optimizer steps in all. ``on_step`` is called between steps and may raise."""

    def __init__(
        self,
        model: Eagle3DraftModel,
        config: TrainerConfig,
        loader: DataLoader[Any],
        device: torch.device,
        on_step: Callable[[StepRow], None],
    ) -> None:
        self._device = device
        self._on_step = on_step
        self._metrics: dict[str, Any] = {}
        self._grad_norm = math.nan
        self._local_step = 0
        self._step_began = 0.0
        self._resume_local_step = 0
        super().__init__(model, config, loader)

    def setup_trainer(self) -> None:
        # The base class has just guessed these, and without an accelerator it guesses "cuda".
        self.local_rank = self._device
        self.device_type = self._device.type
        super().setup_trainer()

    @property
    def steps_done(self) -> int:
        """Optimizer steps over all epochs and attempts."""
        return int(self.global_step)

    def run(self) -> None:
        """Train on until ``max_steps`` optimizer steps are done."""
        with listening(self._keep_metrics, self._keep_grad_norm):
            while self.global_step < self.config.max_steps:
                self._local_step = self._resume_local_step
                self._step_began = time.perf_counter()
                self.train_epoch(self.current_epoch, step_callback=self._between_steps)
                if self.global_step < self.config.max_steps:
                    self.current_epoch += 1
                    self._resume_local_step = 0

    def trainable(self) -> dict[str, torch.Tensor]:
        """The weights that training changes; the rest comes from the target and the vocabulary maps."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    def state(self) -> dict[str, Any]:
        """All that an exact resume needs beside the weights, in the precision it is kept in."""
        numpy_state = np.random.get_state(legacy=False)
        return {
            "epoch": self.current_epoch,
            "local_step": self._local_step,
            "global_step": self.global_step,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "rng": {
                "python": random.getstate(),
                "numpy": numpy_state | {"state": {k: np.asarray(v).tolist() for k, v in numpy_state["state"].items()}},
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if self._device.type == "cuda" else [],
            },
        }

    def restore(self, checkpoint: Checkpoint, *, other_numbers: bool = False, other_order: bool = False) -> None:
        """Go on from ``checkpoint`` as if the training had never been interrupted.

        With ``other_numbers`` (a fork) the learning rate and its schedule are this configuration's, at the checkpoint's step;
        with ``other_order`` the samples come in another order or other packs, so the next epoch begins.
        """
        weights, state = checkpoint.load(self._device)
        missing = self.trainable().keys() ^ weights.keys()
        if missing:
            raise StageError(
                f"{checkpoint.path} holds other weights than this draft; delete train/checkpoints and resume.",
                detail=", ".join(sorted(missing)),
            )
        self.model.load_state_dict(weights, strict=False)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
            optimizer.load_state_dict(saved)
            for group, numbers in zip(optimizer.param_groups, own, strict=True) if other_numbers else ():
                group.update(numbers)
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            if other_numbers:
                _advance(scheduler, saved["last_epoch"])
            else:
                scheduler.load_state_dict(saved)
        self.global_step = state["global_step"]
        self.current_epoch = state["epoch"]
        self._resume_local_step = self._local_step = state["local_step"]
        if other_order:
            self.current_epoch += 1
            self._resume_local_step = self._local_step = 0
        rng = state["rng"]
        random.setstate(rng["python"])
        np.random.set_state(rng["numpy"])
        torch.set_rng_state(rng["torch"])
        if rng["cuda"] and self._device.type == "cuda":
            torch.cuda.set_rng_state_all(rng["cuda"])

    def _optimizers_step(self) -> None:
        # A loss that is not finite shows in the gradient norm, and here the weights are still good.
        if not math.isfinite(self._grad_norm):
            raise guarding.Tripped(guards.not_finite(self.global_step + 1, self._grad_norm))
        super()._optimizers_step()

    def _keep_metrics(self, row: dict[str, Any]) -> None:
        if "train" in row:
            self._metrics = row

    def _keep_grad_norm(self, norm: float) -> None:
        self._grad_norm = norm

    def _between_steps(self) -> None:
        seconds = time.perf_counter() - self._step_began
        self._local_step += 1
        self._on_step(self._row(seconds))
        self._step_began = time.perf_counter()

    def _row(self, seconds: float) -> StepRow:
        values, profile = self._metrics["train"], self._metrics["profile"]
        positions = range(self.config.train_call_kwargs["ttt_steps"])
        acc_pos = [values[f"full_acc_{k}"] for k in positions]
        lr = self._metrics["lr"]
        return StepRow(
            step=self.steps_done,
            loss=values["loss"],
            loss_pos=[values[f"loss_{k}"] for k in positions],
            acc_pos=acc_pos,
            accept_len=1.0 + sum(acc_pos),
            lr=max(lr.values()) if isinstance(lr, dict) else lr,
            grad_norm=self._grad_norm,
            tokens=round(profile["tokens_per_s"] * profile["step_ms"] / 1000),
            seconds=seconds,
        )


def _advance(scheduler: torch.optim.lr_scheduler.LambdaLR, steps: int) -> None:
    """Put a schedule that has just been made at the rate that it has after so many steps."""
    scheduler.last_epoch = steps
    scheduler._step_count = steps + 1
    rates = [base * factor(steps) for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates
