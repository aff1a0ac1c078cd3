"""One attempt at training one draft: builds what is needed, goes on from a checkpoint, reports, and finishes.

With several ranks each has a session of its own. What is marked collective must be come to by all of them.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from speculators.train.trainer import TrainerConfig

from eagle3 import draft_folder
from eagle3.core.guards import Finding
from eagle3.core.shape import LOADERS
from eagle3.core.spec import RunSpec, hash_of
from eagle3.runner import rundir
from eagle3.stages import guarding
from eagle3.stages import train as stage
from eagle3.stages.context import StageContext, StageError, Stopped
from eagle3.stages.truncation import say_truncated
from eagle3.states.quarantine import put_aside
from eagle3.training import draft, heldout
from eagle3.training.checkpoint import Checkpoint
from eagle3.training.dataset import Collate, StatesDataset, train_loader
from eagle3.training.group import Group
from eagle3.training.holding import Holding, Room
from eagle3.training.kinds import KINDS
from eagle3.training.samples import read_samples
from eagle3.training.saving import Saver
from eagle3.training.telling import say_weak
from eagle3.training.tensorboard import board_of
from eagle3.training.trainer import DraftTrainer, StepRow
from eagle3.training.watching import Watch

LAST_LOSSES = 10


@dataclass(frozen=True)
class Orders:
    """What all ranks do between two steps. ``asked_by``: who asked for the save; ``fails``: a guard ends the stage."""

    save: bool
    asked_by: str
    fails: bool
    holds: bool
    stops: bool


class Session:
    """Everything of one attempt. ``run`` gives the stage's figures."""

    def __init__(self, ctx: StageContext, group: Group | None = None) -> None:
        spec = ctx.spec
        self.ctx = ctx
        self.group = group or Group()
        self.device = _device(spec, self.group)
        self.compute = getattr(torch, spec.train.dtype)
        self.kind = KINDS[spec.train.kind]
        samples = read_samples(ctx.run_dir / "data" / "samples.jsonl", without=put_aside(ctx.run_dir))
        pack, states = spec.train.pack_tokens, ctx.run_dir / "states"
        dataset = StatesDataset(samples["train"], states, pack, self.compute)
        self.heldout = StatesDataset(samples["heldout"], states, pack, self.compute)
        for split, rows in samples.items():
            say_truncated(ctx, split, [sample.loss_mask for sample in rows])
        on_cpu = self.device.type == "cpu"
        self.collate = Collate(pack, spec.target.hidden_size, self.compute, trim=on_cpu, shifted=self.kind.shifted)
        loader = train_loader(
            dataset,
            self.collate,
            spec.train.seed,
            workers=0 if on_cpu else LOADERS,
            pin=not on_cpu,
            packs=spec.packs_per_step,
            rank=self.group.rank,
            ranks=self.group.size,
        )
        if spec.target.trust_remote_code:
            self.group.agree(lambda: draft.bring_code(ctx.model_dir))
        model = draft.build(spec, ctx.model_dir, ctx.run_dir / "vocabulary")
        self.call = draft.training_call(spec, fused=not on_cpu)
        self.saver = Saver(ctx.run_dir / "train", self._signature(), spec.train, self.group, ctx.journal)
        config = TrainerConfig(
            lr=spec.train.learning_rate,
            num_epochs=1,
            save_path=str(self.saver.store.folder),
            train_call_kwargs=self.call,
            optimizer=spec.train.optimizer,
            muon_lr=spec.train.learning_rate,
            scheduler_warmup_steps=spec.train.warmup_steps,
            hidden_states_dtype=self.compute,
            fsdp_shard=spec.train.parallel == "fsdp",
            max_steps=spec.train.max_steps,
        )
        self.trainer = DraftTrainer(
            self.kind, model, config, loader, self.device, self._on_step, self.group, spec.packs_per_step
        )  # fmt: skip
        self._lineage = rundir.read_object(ctx.run_dir / "fork.json")
        self.losses: deque[float] = deque(maxlen=LAST_LOSSES)
        self.tokens = self.seconds = 0.0
        self.watch = Watch(spec, self.group, self.device)
        self.holding = Holding(ctx, self.group)
        self._saved_for: Any = None
        self.board = board_of(ctx, self.group)

    def run(self) -> dict[str, Any]:
        ctx, total = self.ctx, self.ctx.spec.train.max_steps
        # Both drafts and one checkpoint more than are kept: better refused now than after the last step.
        weights = {name: 4 * tensor.numel() for name, tensor in self.trainer.draft.state_dict().items()}
        trained = sum(weights[name] for name in self.trainer.trainable())
        kept = ctx.spec.train.keep_last + int(ctx.spec.train.keep_best)
        need = 2 * sum(weights.values()) + 3 * trained * (kept + 1)
        self.group.agree(lambda: ctx.check_disk(more_bytes=max(0, need - self._bytes_there())))
        if not self.kind.certified:
            ctx.journal.event(
                "experimental",
                f"A {self.kind.name} draft is experimental here: it trains, but nobody vouches for its figures or its serving.",
                level="warn",
            )
        checkpoint, forked = self.group.agree(self._start)
        floor = self._floor(fresh=checkpoint is None)
        resumed_from = None
        if checkpoint is not None:
            order = forked and bool({"train.pack_tokens", "train.seed"} & set(self._lineage.get("changed", [])))
            state = self.trainer.restore(checkpoint, other_numbers=forked, other_order=order)
            self.losses.extend(state["losses"])
            if not forked:
                self.watch.go_on(state.get("guards", {}))
            resumed_from = self.saver.saved_step = checkpoint.step
            ctx.journal.event("train-resumed", f"Training goes on from the checkpoint of step {resumed_from} of {total}.")
        if self.group.agree(ctx.stop_requested):
            raise Stopped
        ctx.journal.restart_rate()
        ctx.journal.progress("train", self.trainer.steps_done, total, "steps")
        self._score_again()
        # Every rank comes to it; one tells.
        with guarding.told(ctx) if self.group.leads else nullcontext():
            self.trainer.run()
        self._save()
        val = self._validate(total)
        best = self._take_best() if ctx.spec.train.export_best else None
        tensors = self.trainer.whole_state_dict()
        if self.group.leads:
            draft.save(self.trainer.draft, tensors, ctx.run_dir / "train" / "draft", self._saved_dtype())
        exported = best or val.figures()
        say_weak(ctx, exported, floor)
        return {
            "steps": total,
            "loss": sum(self.losses) / len(self.losses) if self.losses else None,
            "val": exported,
            "untrained": floor,
            "tok_s": self.tokens / self.seconds if self.seconds else None,
            "resumed_from": resumed_from,
            "best": self.saver.best or None,
            "exported_step": self.saver.best["step"] if best else total,
        }

    def _bytes_there(self) -> int:
        """What earlier attempts have written of the drafts and checkpoints."""
        train = self.ctx.run_dir / "train"
        # What was passed over stays beside what is written anew.
        ours = [file for file in train.rglob("*") if not file.relative_to(train).parts[0].startswith("passed-over-")]
        return sum(file.stat().st_size for file in ours if file.is_file())

    def _start(self) -> tuple[Checkpoint | None, bool]:
        """What to go on from, and whether it is the checkpoint of the run that this one was forked from."""
        newest = self.saver.store.newest()
        if newest is None and (step := self._lineage.get("checkpoint")) is not None:
            return self._of_the_parent(int(step)), True
        if newest is None and (other := self.saver.store.passed_over()) is not None:
            self._tell_passed_over(other)
        return newest, False

    def _tell_passed_over(self, other: Checkpoint) -> None:
        """Steps that were trained are not lost without a word, nor deleted by the training that starts over."""
        aside = other.path.parent.parent / f"passed-over-step-{other.step}"
        text = (
            f"Training starts from step 0: the checkpoint of step {other.step} was trained on other states, samples or numbers "
            f"than these. It is kept in train/{aside.name}; to go on from it instead, stop this run, rename that folder to "
            f"train/checkpoints/step-{other.step} and `eagle3 fork {self.ctx.run_dir.name} --id NEW "
            f"--from-checkpoint {other.step}`."
        )
        if aside.exists():
            shutil.rmtree(aside)
        other.path.rename(aside)
        self.ctx.journal.event("checkpoint-passed-over", text, level="warn", step=other.step)

    def _on_step(self, row: StepRow) -> None:
        """Between two steps: tell, save, validate, and stop where it was asked for. Rank 0 decides, all do it."""
        ctx, train = self.ctx, self.ctx.spec.train
        self.losses.append(row.loss)
        self.tokens += row.tokens
        self.seconds += row.seconds
        self._tell(row)
        findings = self.watch.look(row)
        orders = self.group.agree(lambda: self._orders(row.step, findings))
        if orders.save:
            self._save()
        if orders.asked_by:
            ctx.journal.event("checkpoint", f"Step {row.step} is saved, as {orders.asked_by} asked.", step=row.step)
        guarding.act(ctx, findings)
        if orders.fails:  # rank 0 has just said why
            raise Stopped
        if orders.holds:
            self.holding.while_paused(row.step)
        if orders.stops or orders.holds:
            self._stop_saved()
        if row.step % train.validate_every_steps == 0 and row.step != train.max_steps:
            self._validate(row.step)

    def _tell(self, row: StepRow) -> None:
        journal, total = self.ctx.journal, self.ctx.spec.train.max_steps
        figures: dict[str, Any] = {
            "loss": row.loss,
            "loss_pos": row.loss_pos,
            "acc_pos": row.acc_pos,
            "accept_len": row.accept_len,
            "lr": row.lr,
            "grad_norm": row.grad_norm,
            "tokens": row.tokens,
            "tok_s": row.tokens / row.seconds if row.seconds else None,
            "data_wait_s": row.data_wait_s,
        }
        journal.metrics("train", row.step, **figures)
        self.board.add("train", row.step, figures)
        journal.progress("train", row.step, total, "steps", force=row.step == total)
        if self.group.size > 1:
            journal.rank(self.group.rank, "train", row.step)

    def _orders(self, step: int, findings: list[Finding]) -> Orders:
        """What all ranks do after this step, from the schedule, the guards and the operator's orders."""
        asked = self.ctx.order("checkpoint")
        by = str(asked.get("by") or "somebody") if asked and asked.get("t") != self._saved_for else ""
        if by:
            self._saved_for = asked.get("t")
        responses = {finding.response for finding in findings}
        fails = "stop" in responses
        holds = not fails and ("pause" in responses or bool(self.ctx.order("pause")))
        stops = self.ctx.stop_requested()
        # A pause saves first, so that nothing hangs on it.
        save = self.saver.due(step) or bool(by) or fails or holds or stops
        return Orders(save=save, asked_by=by, fails=fails, holds=holds, stops=stops)

    def _save(self) -> None:
        """Save the step that the training is at, unless it is: where there is room for it, or as the last thing that is done."""
        step = self.trainer.steps_done
        if step == self.saver.saved_step:
            return
        # Weights and AdamW's two moments, in float32.
        room = self.holding.for_room(step, 3 * 4 * sum(weight.numel() for weight in self.trainer.trainable().values()))
        if room.fits:
            self.saver.save(self.trainer, self._extra())
        if room.state != "free":
            self._end_without_room(step, room)
        if room.paused:
            self.holding.while_paused(step)

    def _end_without_room(self, step: int, room: Room) -> None:
        """Stop where the disk stays at its floor, and say what of the steps is kept."""
        saved = max(0, self.saver.saved_step)
        since = f"step {saved}" if saved else "it began"
        lost = f"the {step - saved} steps since {since} are lost, for no checkpoint fits on the disk"
        kept = "it is saved, below the disk's floor" if room.fits else lost
        if room.state == "over" and self.group.leads:
            raise StageError(f"{room.why} The training ended after step {step}; {kept}.")
        self._tell_stopped(step, kept)
        raise Stopped

    def _extra(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "guards": self.watch.state()}

    def _validate(self, step: int) -> heldout.Heldout:
        found = self._evaluate(self._stop_saved)
        self.ctx.journal.metrics("train", step, split="val", **found.figures())
        self.board.add("val", step, found.figures())
        self.saver.judge(step, found, self._save)
        return found

    def _score_again(self) -> None:
        """Where the best is kept: score the step that is gone on from, if a stop or a kill came before its score was kept."""
        train, step = self.ctx.spec.train, self.trainer.steps_done
        due = train.keep_best and step and step % train.validate_every_steps == 0 and step != train.max_steps
        if due and self.saver.best.get("step") != step:
            self._validate(step)

    def _take_best(self) -> dict[str, Any]:
        """Put the best checkpoint's weights in place of the last step's; gives its held-out figures."""
        best = self.saver.best_checkpoint()
        if best is None:
            raise StageError(
                "The best checkpoint (train.export_best) is gone or not whole; fork the run with train.export_best = false."
            )
        if best.step != self.trainer.steps_done:
            self.trainer.restore(best)
            self.ctx.journal.event("best-taken", f"The draft is that of step {best.step}, the best held-out.", step=best.step)
        return {name: value for name, value in self.saver.best.items() if name != "step"}

    def _evaluate(self, check_stop: Callable[[], None]) -> heldout.Heldout:
        """The held-out figures: each rank scores its share, and all find the same. Collective."""
        done, total = self.trainer.steps_done, self.ctx.spec.train.max_steps

        def between() -> None:
            # Thousands of long samples take minutes, in which no step is told of; a run that says nothing is a stalled one.
            self.ctx.journal.progress("train", done, total, "steps", reason="scoring the held-out samples", force=False)
            check_stop()

        found: heldout.Heldout = heldout.evaluate(
            self.trainer.draft,
            self.heldout,
            self.collate,
            self.call,
            self.device,
            self.compute,
            between,
            self.kind,
            group=self.group,
            readers=0 if self.device.type == "cpu" else heldout.READERS,
        )
        return found

    def _stop_saved(self) -> None:
        """Between two packs of a validation: raise Stopped where it was asked for, with every step so far on disk."""
        if not self.group.agree(self.ctx.stop_requested):
            return
        self._save()
        self._tell_stopped(self.trainer.steps_done, "it is saved")
        raise Stopped

    def _tell_stopped(self, step: int, kept: str) -> None:
        of = self.ctx.spec.train.max_steps
        self.ctx.journal.event("train-stopped", f"Training stopped after step {step} of {of}; {kept}.")

    def _check_stop(self) -> None:
        if self.group.agree(self.ctx.stop_requested):
            raise Stopped

    def _of_the_parent(self, step: int) -> Checkpoint:
        """The checkpoint that this run was forked from. Raises StageError where it is gone or changed."""
        found = self.saver.store.at(step)
        if found is None:
            raise StageError(
                f"The checkpoint of step {step} that this run was forked from is gone or not whole; "
                f"fork {self._lineage.get('run_id')} again."
            )
        return found

    def _floor(self, *, fresh: bool) -> dict[str, Any]:
        """The untrained draft and its held-out figures; made before the first step, kept by a resume. Collective."""
        folder = self.ctx.run_dir / "train"
        kept = self.group.agree(lambda: self._kept_floor(folder) if not fresh else {})
        if kept:
            return kept
        tensors = self.trainer.whole_state_dict()
        if self.group.leads:
            folder.mkdir(parents=True, exist_ok=True)
            draft.save(self.trainer.draft, tensors, folder / "untrained", self._saved_dtype())
        found = self._evaluate(self._check_stop)
        if self.group.leads:
            of = draft_folder.digest(folder / "untrained")
            rundir.write_json(folder / "floor.json", {"v": 1, "of": of} | found.figures())
        self.ctx.journal.metrics("train", 0, split="val", **found.figures())
        self.board.add("val", 0, found.figures())
        return found.figures()

    def _kept_floor(self, folder: Path) -> dict[str, Any]:
        """The figures that an attempt before left, where they and the draft that they are of are whole; else empty, and both are
        made again, from the same weights: no checkpoint has been loaded yet."""
        kept = rundir.read_object(folder / "floor.json")
        whole = kept.get("of") == draft_folder.digest(folder / "untrained")
        return {name: value for name, value in kept.items() if name not in ("v", "of")} if whole else {}

    def _saved_dtype(self) -> torch.dtype:
        """What the draft is stored in: the precision in which the target is served."""
        return torch.float32 if self.ctx.spec.target.dtype == "float32" else torch.bfloat16

    def _signature(self) -> str:
        """Hash of all that must be the same for a checkpoint to be gone on from."""
        ctx = self.ctx
        made_from = {}
        for name in ("data/samples.jsonl", "vocabulary/d2t.npy", "states/manifest.jsonl"):
            if (path := ctx.run_dir / name).is_file():
                with path.open("rb") as content:
                    made_from[name] = hashlib.file_digest(content, "sha256").hexdigest()
        return hash_of({"spec": stage.spec_part(ctx.spec), "files": made_from})


def _device(spec: RunSpec, group: Group) -> torch.device:
    """What this rank computes on: on GPUs the ranks are started with those of ``devices.train`` alone."""
    return torch.device("cuda", group.rank) if spec.device == "cuda" else torch.device("cpu")
