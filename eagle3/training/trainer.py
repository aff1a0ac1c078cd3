"""speculators' trainer, made to run on any device, to stop between steps and to resume exactly.

Its epoch loop is used as it is. Around it: the device is given instead of guessed, optimizer steps are counted over all
epochs (``max_steps`` alone ends one epoch), checkpoints are ours, and a loss that is not finite stops before it
reaches the weights.

**What a step is**, with any number of ranks: the gradients of ``packs_per_step`` packs, averaged. Each rank takes an equal
share of them one after the other, adds their gradients up, and the mean over all is clipped and stepped on. So two ranks
with a pack each do what one rank does with two, up to the order in which floating-point numbers are added.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from speculators.model import SpeculatorModel
from speculators.train.trainer import Trainer, TrainerConfig
from torch.utils.data import DataLoader

from eagle3.core import guards
from eagle3.stages import guarding
from eagle3.stages.context import StageError
from eagle3.training import kinds, sharding
from eagle3.training.checkpoint import Checkpoint
from eagle3.training.group import Group
from eagle3.training.quiet import listening
from eagle3.training.randomness import random_state, set_random_state


@dataclass(frozen=True)
class StepRow:
    """What one optimizer step showed, over all its packs. ``acc_pos[k]`` is the joint accuracy of the first k+1 tokens, as
    speculators counts it (draft vocabulary only); ``grad_norm`` is the norm before clipping; ``tokens`` without padding;
    ``data_wait_s`` is how long the rank that waited longest waited for its samples, within ``seconds``."""

    step: int
    loss: float
    loss_pos: list[float]
    acc_pos: list[float]
    accept_len: float | None
    lr: float
    grad_norm: float
    tokens: int
    seconds: float
    data_wait_s: float


class DraftTrainer(Trainer):
    """Trains ``model`` for ``config.max_steps`` optimizer steps in all, of ``packs`` packs each over all ranks of ``group``.
    ``on_step`` is called between steps on every rank and may raise."""

    def __init__(
        self,
        kind: kinds.Kind,
        model: SpeculatorModel,
        config: TrainerConfig,
        loader: DataLoader[Any],
        device: torch.device,
        on_step: Callable[[StepRow], None],
        group: Group | None = None,
        packs: int = 1,
    ) -> None:
        self.draft = model
        """The draft itself, whatever it is wrapped in to train on several ranks."""
        self.kind = kind
        self._device = device
        self._on_step = on_step
        self._group = group or Group()
        self.packs = packs
        self._share = packs // self._group.size
        self._done = 0
        """Packs of the present step that this rank has done."""
        self._counts: Counter[str] = Counter()
        self._row: dict[str, Any] = {}
        self._tokens = self._waited_s = self._outside_s = 0.0
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
        with listening(self):
            while self.global_step < self.config.max_steps:
                # The loop skips packs, not steps.
                self._resume_local_step = self._local_step * self._share
                self._outside_s = 0.0
                self._step_began = time.perf_counter()
                self.train_epoch(self.current_epoch, step_callback=self._between_packs)
                if self.global_step < self.config.max_steps:
                    self.current_epoch += 1
                    self._local_step = 0

    def trainable(self) -> dict[str, torch.Tensor]:
        """The weights that training changes, as this rank holds them; the rest comes from the target and the vocabulary."""
        return {name: parameter for name, parameter in self.draft.named_parameters() if parameter.requires_grad}

    def whole_state_dict(self) -> dict[str, torch.Tensor]:
        """All the draft's tensors, whole. Collective."""
        found: dict[str, torch.Tensor] = sharding.whole(dict(self.draft.state_dict()))
        return found

    def weights(self) -> dict[str, torch.Tensor]:
        """`trainable`, whole. Collective."""
        found: dict[str, torch.Tensor] = sharding.whole(self.trainable())
        return found

    def state(self) -> dict[str, Any]:
        """All that an exact resume needs beside the weights, in the precision it is kept in. Collective."""
        randoms = self._group.gather_objects(random_state(self._device))
        return {
            "epoch": self.current_epoch,
            "local_step": self._local_step,
            "global_step": self.global_step,
            "packs": self.packs,
            "optimizers": [sharding.whole(optimizer.state_dict()) for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "rng": randoms[0],
            "rng_of_ranks": randoms,
        }

    def restore(self, checkpoint: Checkpoint, *, other_numbers: bool = False, other_order: bool = False) -> dict[str, Any]:
        """Go on from ``checkpoint`` as if the training had never been interrupted; it may have had another number of ranks. Gives
        what else the checkpoint was saved with: at full size it is gigabytes, which nobody should read twice.

        With ``other_numbers`` (a fork) the learning rate and its schedule are this configuration's, at the checkpoint's step;
        with ``other_order`` the samples come in another order or other packs, so the next epoch begins. Raises StageError
        where the checkpoint is another draft's, or where what it drew at random cannot be drawn by this many ranks.
        """
        weights, state = checkpoint.load(self._device)
        missing = self.trainable().keys() ^ weights.keys()
        if missing:
            raise StageError(
                f"{checkpoint.path} holds other weights than this draft; delete train/checkpoints and resume.",
                detail=", ".join(sorted(missing)),
            )
        randoms = state.get("rng_of_ranks") or [state["rng"]]
        if self.kind.draws and len(randoms) != self._group.size:
            raise StageError(
                f"{checkpoint.path} was saved by {len(randoms)} ranks, each of which draws at random for a {self.kind.name} "
                f"draft: {self._group.size} would train another one. Set train.ranks = {len(randoms)}, or start the stage anew."
            )
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                parameter.copy_(sharding.shared_out(weights[name], parameter))
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
            optimizer.load_state_dict(sharding.optimizer_state(saved, optimizer))
            for group, numbers in zip(optimizer.param_groups, own, strict=True) if other_numbers else ():
                group.update(numbers)
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            if other_numbers:
                _advance(scheduler, saved["last_epoch"])
            else:
                scheduler.load_state_dict(saved)
        self.global_step = state["global_step"]
        self.current_epoch = state["epoch"]
        self._local_step = state["local_step"]
        if other_order or state.get("packs", 1) != self.packs:
            self.current_epoch += 1
            self._local_step = 0
        of_rank = self._group.rank if len(randoms) == self._group.size else 0
        set_random_state(randoms[of_rank], self._device, of_rank)
        # The optimizers' moments are not handed on: who keeps the rest would keep gigabytes of the card with them.
        return {name: value for name, value in state.items() if name != "optimizers"}

    @property
    def _last_pack(self) -> bool:
        return self._done == self._share - 1

    def _optimizers_zero_grad(self) -> None:
        if self._done == 0:
            super()._optimizers_zero_grad()

    def _optimizers_step(self) -> None:
        if not self._last_pack:
            return
        # A loss that is not finite shows in the gradient norm, and here the weights are still good.
        if not math.isfinite(self._grad_norm):
            raise guarding.Tripped(guards.not_finite(self.global_step + 1, self._grad_norm))
        super()._optimizers_step()

    def _schedulers_step(self) -> None:
        if self._last_pack:
            super()._schedulers_step()

    def on_gradient(self, clip: Callable[[], Any]) -> None:
        """The gradients of this rank's packs so far are added up (and averaged over the ranks); the last pack's are clipped."""
        if not self._last_pack:
            return
        if self._share > 1:
            for parameter in self.draft.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self._share)
        self._grad_norm = float(sharding.whole(clip()))

    def on_counts(self, counts: dict[str, float]) -> None:
        """The pack's sums and totals are added to the step's."""
        self._counts.update(counts)

    def on_row(self, row: dict[str, Any]) -> None:
        """What the loop logs of a pack: its rate, its waiting, the learning rate."""
        if "train" not in row:
            return
        profile = row["profile"]
        self._row = row
        self._tokens += profile["tokens_per_s"] * profile["step_ms"] / 1000
        # The loop's clock runs from the last pack's end, so what we did in between is in it.
        self._waited_s += max(0.0, profile["queue_ms"] / 1000 - self._outside_s)

    def _between_packs(self) -> None:
        self._done += 1
        if self._done < self._share:
            self.global_step -= 1  # the loop has counted a pack
            self._outside_s = 0.0
            return
        now = time.perf_counter()
        seconds = now - self._step_began
        self._done = 0
        self._local_step += 1
        row = self._step_row(seconds)
        self._counts.clear()
        self._tokens = self._waited_s = 0.0
        self._on_step(row)
        self._step_began = time.perf_counter()
        self._outside_s = self._step_began - now

    def _step_row(self, seconds: float) -> StepRow:
        of_ranks = self._group.gather([self._tokens, self._waited_s])
        loss, loss_pos, acc_pos, accept_len = self.kind.step_figures(self._counts)
        lr = self._row["lr"]
        return StepRow(
            step=self.steps_done,
            loss=loss,
            loss_pos=loss_pos,
            acc_pos=acc_pos,
            accept_len=accept_len,
            lr=max(lr.values()) if isinstance(lr, dict) else lr,
            grad_norm=self._grad_norm,
            tokens=round(sum(tokens for tokens, _ in of_ranks)),
            seconds=seconds,
            data_wait_s=max(waited for _, waited in of_ranks),
        )


def _advance(scheduler: torch.optim.lr_scheduler.LambdaLR, steps: int) -> None:
    """Put a schedule that has just been made at the rate that it has after so many steps."""
    scheduler.last_epoch = steps
    scheduler._step_count = steps + 1
    rates = [base * factor(steps) for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates
