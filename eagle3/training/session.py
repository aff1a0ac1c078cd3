"""One attempt at training one draft: builds what is needed, goes on from a checkpoint, reports, and finishes."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.train.trainer import TrainerConfig

from eagle3.core import guards
from eagle3.core.spec import hash_of
from eagle3.runner import rundir
from eagle3.stages import guarding
from eagle3.stages import train as stage
from eagle3.stages.context import StageContext, StageError, Stopped
from eagle3.stages.hold import Hold
from eagle3.training import draft, heldout, losses
from eagle3.training.checkpoint import Checkpoint, CheckpointStore
from eagle3.training.dataset import Collate, StatesDataset, train_loader
from eagle3.training.samples import Sample, read_samples
from eagle3.training.trainer import DraftTrainer, StepRow

LAST_LOSSES = 10


class Session:
    """Everything of one attempt. ``run`` gives the stage's figures."""

    def __init__(self, ctx: StageContext) -> None:
        spec = ctx.spec
        self.ctx = ctx
        self.device = torch.device(spec.device, 0) if spec.device == "cuda" else torch.device("cpu")
        self.compute = getattr(torch, spec.train.dtype)
        samples = read_samples(ctx.run_dir / "data" / "samples.jsonl")
        pack, states = spec.train.pack_tokens, ctx.run_dir / "states"
        dataset = StatesDataset(samples["train"], states, pack, self.compute)
        self.heldout = StatesDataset(samples["heldout"], states, pack, self.compute)
        for split, rows in samples.items():
            self._say_truncated(split, rows, pack)
        self.collate = Collate(pack, spec.target.hidden_size, self.compute, trim=self.device.type == "cpu")
        model = draft.build(spec, ctx.model_dir, ctx.run_dir / "vocabulary")
        self.call, _ = Eagle3DraftModel.get_trainer_kwargs(
            loss_fn="kl_div", loss_implementation="fused", ttt_steps=spec.train.ttt_steps, ttt_step_loss_decay=1.0
        )
        if self.device.type == "cpu":  # the fused losses are Triton kernels
            self.call["loss_config"] = {"kl_div": (losses.kl_div, 1.0)}
        self.store = CheckpointStore(ctx.run_dir / "train" / "checkpoints", self._signature(), spec.train.keep_last)
        config = TrainerConfig(
            lr=spec.train.learning_rate,
            num_epochs=1,
            save_path=str(self.store.folder),
            train_call_kwargs=self.call,
            optimizer=spec.train.optimizer,
            muon_lr=spec.train.learning_rate,
            scheduler_warmup_steps=spec.train.warmup_steps,
            hidden_states_dtype=self.compute,
            max_steps=spec.train.max_steps,
        )
        loader = train_loader(dataset, self.collate, spec.train.seed, workers=0 if self.device.type == "cpu" else 4)
        self.trainer = DraftTrainer(model, config, loader, self.device, self._on_step)
        self._lineage = rundir.read_object(ctx.run_dir / "fork.json")
        self.losses: deque[float] = deque(maxlen=LAST_LOSSES)
        self.tokens = self.seconds = 0.0
        self.saved_step = -1
        self.guards = guards.TrainingGuards(spec.guards)
        self._saved_for: Any = None

    def run(self) -> dict[str, Any]:
        ctx, total = self.ctx, self.ctx.spec.train.max_steps
        # Both drafts and one checkpoint more than are kept: better refused now than after the last step.
        weights = {name: 4 * tensor.numel() for name, tensor in self.trainer.model.state_dict().items()}
        trained = sum(weights[name] for name in self.trainer.trainable())
        ctx.check_disk(more_bytes=2 * sum(weights.values()) + 3 * trained * (ctx.spec.train.keep_last + 1))
        checkpoint, forked = self.store.newest(), False
        if checkpoint is None and (step := self._lineage.get("checkpoint")) is not None:
            checkpoint, forked = self._of_the_parent(int(step)), True
        floor = self._floor(fresh=checkpoint is None)
        resumed_from = None
        if checkpoint is not None:
            order = forked and bool({"train.pack_tokens", "train.seed"} & set(self._lineage.get("changed", [])))
            self.trainer.restore(checkpoint, other_numbers=forked, other_order=order)
            self.losses.extend(checkpoint.load(torch.device("cpu"))[1]["losses"])
            resumed_from = self.saved_step = checkpoint.step
            ctx.journal.event("train-resumed", f"Training goes on from the checkpoint of step {resumed_from} of {total}.")
        ctx.check_stop()
        ctx.journal.restart_rate()
        ctx.journal.progress("train", self.trainer.steps_done, total, "steps")
        with guarding.told(ctx):
            self.trainer.run()
        if self.saved_step != total:
            self._save()
        val = self._validate(total)
        draft.save(self.trainer.model, ctx.run_dir / "train" / "draft", self._saved_dtype())
        self._judge(val, floor)
        return {
            "steps": total,
            "loss": sum(self.losses) / len(self.losses) if self.losses else None,
            "val": val.figures(),
            "untrained": floor,
            "tok_s": self.tokens / self.seconds if self.seconds else None,
            "resumed_from": resumed_from,
        }

    def _on_step(self, row: StepRow) -> None:
        """Between two steps: tell, save, validate, and stop where it was asked for."""
        ctx, train = self.ctx, self.ctx.spec.train
        self.losses.append(row.loss)
        self.tokens += row.tokens
        self.seconds += row.seconds
        ctx.journal.metrics(
            "train",
            row.step,
            loss=row.loss,
            loss_pos=row.loss_pos,
            acc_pos=row.acc_pos,
            accept_len=row.accept_len,
            lr=row.lr,
            grad_norm=row.grad_norm,
            tok_s=row.tokens / row.seconds if row.seconds else None,
        )
        ctx.journal.progress("train", row.step, train.max_steps, "steps", force=row.step == train.max_steps)
        if row.step % train.checkpoint_every_steps == 0 or row.step == train.max_steps:
            self._save()
        self._guard(row)
        self._obey(row.step)
        self._stop_saved()
        if row.step % train.validate_every_steps == 0 and row.step != train.max_steps:
            self._validate(row.step)

    def _guard(self, row: StepRow) -> None:
        """Look at the step for what goes wrong quietly. What asks for a stop ends the stage here, with everything saved."""
        used, total = self._memory()
        seen = guards.StepSeen(
            row.step, row.loss, row.grad_norm, row.acc_pos[0], row.tokens, time.time(), time.monotonic(), used, total
        )
        guarding.act(self.ctx, self.guards.take(seen), self._save_once)

    def _memory(self) -> tuple[int | None, int | None]:
        """Bytes in use and bytes in all of the GPU; None where there is none."""
        if self.device.type != "cuda":
            return None, None
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free, total

    def _save_once(self) -> None:
        if self.saved_step != self.trainer.steps_done:
            self._save()

    def _obey(self, step: int) -> None:
        """Save where the operator asked for it, and hold where the run is paused: saved first, so that nothing hangs on it."""
        asked = self.ctx.order("checkpoint")
        if asked and asked.get("t") != self._saved_for:
            self._saved_for = asked.get("t")
            if self.saved_step != step:
                self._save()
            self.ctx.journal.event("checkpoint", f"Step {step} is saved, as {asked.get('by') or 'somebody'} asked.", step=step)
        if self.ctx.order("pause"):
            if self.saved_step != step:
                self._save()
            hold = Hold(self.ctx, "train", "steps")
            hold.done, hold.total = step, self.ctx.spec.train.max_steps
            hold.wait()

    def _of_the_parent(self, step: int) -> Checkpoint:
        """The checkpoint that this run was forked from. Raises StageError where it is gone or changed."""
        found = self.store.at(step)
        if found is None:
            raise StageError(
                f"The checkpoint of step {step} that this run was forked from is gone or not whole; "
                f"fork {self._lineage.get('run_id')} again."
            )
        return found

    def _save(self) -> None:
        weights = self.trainer.trainable()
        # Weights and AdamW's two moments, in float32.
        self.ctx.check_disk(more_bytes=3 * 4 * sum(weight.numel() for weight in weights.values()))
        step = self.trainer.steps_done
        self.store.save(step, weights, self.trainer.state() | {"losses": list(self.losses)})
        self.saved_step = step

    def _validate(self, step: int) -> heldout.Heldout:
        found = self._evaluate(self._stop_saved)
        self.ctx.journal.metrics("train", step, split="val", **found.figures())
        return found

    def _evaluate(self, check_stop: Callable[[], None]) -> heldout.Heldout:
        found: heldout.Heldout = heldout.evaluate(
            self.trainer.model, self.heldout, self.collate, self.call, self.device, self.compute, check_stop
        )
        return found

    def _stop_saved(self) -> None:
        """Between two packs of a validation: raise Stopped where it was asked for, with every step so far on disk."""
        if not self.ctx.stop_requested():
            return
        step, of = self.trainer.steps_done, self.ctx.spec.train.max_steps
        if self.saved_step != step:
            self._save()
        self.ctx.journal.event("train-stopped", f"Training stopped after step {step} of {of}; it is saved.")
        raise Stopped

    def _floor(self, *, fresh: bool) -> dict[str, Any]:
        """The untrained draft and its held-out figures; made before the first step, kept by a resume."""
        folder = self.ctx.run_dir / "train"
        kept = rundir.read_object(folder / "floor.json")
        if not fresh and kept and (folder / "untrained" / "model.safetensors").is_file():
            return {name: value for name, value in kept.items() if name != "v"}
        folder.mkdir(parents=True, exist_ok=True)
        draft.save(self.trainer.model, folder / "untrained", self._saved_dtype())
        found = self._evaluate(self.ctx.check_stop)
        rundir.write_json(folder / "floor.json", {"v": 1} | found.figures())
        self.ctx.journal.metrics("train", 0, split="val", **found.figures())
        return found.figures()

    def _saved_dtype(self) -> torch.dtype:
        """What the draft is stored in: the precision in which the target is served."""
        return torch.float32 if self.ctx.spec.target.dtype == "float32" else torch.bfloat16

    def _signature(self) -> str:
        """Hash of all that must be the same for a checkpoint to be gone on from."""
        ctx = self.ctx
        made_from = {
            name: hashlib.sha256((ctx.run_dir / name).read_bytes()).hexdigest()
            for name in ("data/samples.jsonl", "vocabulary/d2t.npy", "states/manifest.jsonl")
            if (ctx.run_dir / name).is_file()
        }
        return hash_of({"spec": stage.spec_part(ctx.spec), "files": made_from})

    def _say_truncated(self, split: str, samples: list[Sample], pack_tokens: int) -> None:
        """Samples lose what does not fit into a pack. Raises StageError where no answer is left to learn from or to judge by:
        the training would go on quietly, on nothing."""
        longer = sum(len(sample.input_ids) > pack_tokens for sample in samples)
        blind = sum(not any(sample.loss_mask[1:pack_tokens]) for sample in samples)
        if blind == len(samples):
            raise StageError(
                f"All {blind} {split} samples have their answers beyond the first {pack_tokens} tokens (train.pack_tokens); "
                "start a run with a larger train.pack_tokens, or use shorter prompts."
            )
        if longer:
            named = {"heldout": "held-out"}.get(split, split)
            lost = f", {blind} of them their whole answer" if blind else ""
            self.ctx.journal.event(
                "samples-truncated",
                f"{longer} of {len(samples)} {named} samples are longer than a pack of {pack_tokens} tokens and lose their "
                f"end{lost}; raise train.pack_tokens.",
                level="warn",
            )

    def _judge(self, val: heldout.Heldout, floor: dict[str, Any]) -> None:
        """Say where the draft has learnt nothing: with so little the cause is elsewhere than in the training."""
        first = val.acc_pos[0]
        if first < self.ctx.spec.evaluate.broken_below or first <= floor["acc_pos"][0]:
            self.ctx.journal.event(
                "draft-weak",
                f"The draft is right at the first position for {first:.1%} of {val.tokens} held-out tokens "
                f"({floor['acc_pos'][0]:.1%} untrained); check target.auxiliary_layers and the vocabulary, or train longer.",
                level="warn",
            )
