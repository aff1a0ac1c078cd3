"""Looking after each step for what goes wrong quietly, on all cards of a training."""

from __future__ import annotations

from typing import Any

import torch

from eagle3.core import guards
from eagle3.core.spec import RunSpec
from eagle3.training.group import Group
from eagle3.training.trainer import StepRow


class Watch:
    """The guards of the steps. Rank 0 judges; ``look`` is collective, for each rank knows the memory of its own card."""

    def __init__(self, spec: RunSpec, group: Group, device: torch.device) -> None:
        self._group, self._device = group, device
        cards = [str(card) for card in spec.devices.train] if spec.device == "cuda" else []
        self._guards = guards.TrainingGuards(spec.guards, spec.train.max_steps, cards)

    def look(self, row: StepRow) -> list[guards.Finding]:
        """What tripped at this step; nothing on the ranks that do not lead."""
        memory = self._group.gather([float(part) for part in self._memory()])
        if not self._group.leads:
            return []
        cards = tuple((int(used), int(total)) for used, total in memory if total)
        return self._guards.take(guards.StepSeen(row.step, row.loss, row.grad_norm, row.acc_pos[0], row.tokens, cards))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a guard that needs many steps to arm has them over a resume."""
        return self._guards.state()

    def go_on(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint has kept; one of an earlier version has kept nothing."""
        self._guards.go_on(state)

    def _memory(self) -> tuple[int, int]:
        """Bytes in use and bytes in all of this rank's GPU; none of either where there is none."""
        if self._device.type != "cuda":
            return 0, 0
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free, total
