"""When a training is saved, and which of its checkpoints is the best."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.core.spec import Train
from eagle3.core.wording import bytes_label
from eagle3.journal import Journal
from eagle3.runner import rundir
from eagle3.training.checkpoint import Checkpoint, CheckpointStore
from eagle3.training.group import Group
from eagle3.training.heldout import Heldout
from eagle3.training.trainer import DraftTrainer


class Saver:
    """Saves a training on behalf of all its ranks; rank 0 writes. ``clock`` gives seconds that never jump.

    ``train/best.json`` says which step is the best so far by its held-out figures, and what these are.
    """

    def __init__(
        self,
        folder: Path,
        signature: str,
        settings: Train,
        group: Group,
        journal: Journal,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = CheckpointStore(folder / "checkpoints", signature, settings.keep_last)
        if group.leads:  # at once: a training with nothing left to do saves no more
            self.store.sweep()
        self.saved_step = -1
        self._best_file = folder / "best.json"
        self._set, self._group, self._journal, self._clock = settings, group, journal, clock
        self._saved_at = clock()
        self.best = self._known_best() if settings.keep_best else {}
        self.store.kept = {self.best["step"]} if self.best else set()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after ``step``, by steps or by minutes."""
        every_s = 60 * self._set.checkpoint_every_minutes
        late = bool(every_s) and self._clock() - self._saved_at >= every_s
        return late or step % self._set.checkpoint_every_steps == 0 or step == self._set.max_steps

    def save(self, trainer: DraftTrainer, extra: dict[str, Any]) -> None:
        """Save the step that the training is at, unless it is. ``extra`` goes into the checkpoint's state. Collective."""
        step = trainer.steps_done
        if step == self.saved_step:
            return
        began = self._clock()
        weights, state = trainer.weights(), trainer.state() | extra
        if self._group.leads:
            saved = self.store.save(step, weights, state)
            seconds = round(self._clock() - began, 2)
            text = f"The checkpoint of step {step} is saved: {bytes_label(saved.bytes)} in {seconds:.1f} s."
            self._journal.event("checkpoint-saved", text, step=step, bytes=saved.bytes, seconds=seconds)
        # The others wait here and not among the gradients, whose time limit is shorter.
        self._group.agree(lambda: None)
        self.saved_step = step
        self._saved_at = self._clock()

    def judge(self, step: int, found: Heldout, save: Callable[[], None]) -> None:
        """Keep ``step``, which has just been scored, where it is the best so far: by acceptance length, then by loss. ``save``
        puts it on disk. Collective."""
        if not self._set.keep_best:
            return
        better = not self.best or (found.accept_len, -found.loss) > (self.best["accept_len"], -self.best["loss"])
        if not self._group.agree(lambda: better or step == self.best["step"]):
            return
        self.best = {"step": step} | found.figures()
        # Both are kept until the file names the new one: a kill in between must not cost the old one.
        self.store.kept.add(step)
        save()
        if self._group.leads:
            rundir.write_json(self._best_file, {"v": 1, "signature": self.store.signature} | self.best)
            self.store.kept = {step}
            self.store.prune()

    def best_checkpoint(self) -> Checkpoint | None:
        """The best checkpoint, whole; None where there is none."""
        found = self.store.at(self.best["step"]) if self.best else None
        return found if found is not None and found.signature == self.store.signature else None

    def _known_best(self) -> dict[str, Any]:
        """What an earlier attempt of the same training found, if its checkpoint is still whole."""
        found = rundir.read_object(self._best_file)
        if found.pop("v", None) != 1 or found.pop("signature", "") != self.store.signature:
            return {}
        self.best = found
        return found if self.best_checkpoint() is not None else {}
