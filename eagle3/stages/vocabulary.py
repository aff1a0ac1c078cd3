"""Which tokens the draft can propose: the most frequent ones of the target's own answers, and the two maps between
draft ids and target ids.

Leaves ``vocabulary/token_freq.pt`` (speculators' counts), ``d2t.npy`` (``[size]``, target id = draft id + d2t[draft id]),
``t2d.npy`` (``[target vocabulary]``, whether the draft has the token) and ``coverage.json``.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from eagle3.core import guards
from eagle3.core.spec import RunSpec
from eagle3.engines.model_dir import fingerprint
from eagle3.runner import rundir
from eagle3.stages import guarding
from eagle3.stages.context import StageContext, StageError
from eagle3.stages.hold import Hold
from eagle3.states.quarantine import put_aside
from eagle3.targets import model_dir
from eagle3.training.samples import Sample, read_samples

if TYPE_CHECKING:
    import numpy as np

OUTPUTS = ("vocabulary/token_freq.pt", "vocabulary/d2t.npy", "vocabulary/t2d.npy", "vocabulary/coverage.json")


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What of the spec the maps depend on."""
    return {"vocabulary": spec.vocabulary.model_dump(), "model": fingerprint(model_dir(spec.target.model))}


def besides(ctx: StageContext) -> dict[str, Any]:
    """Samples that were put aside are not counted: nothing is trained on them."""
    aside = sorted(put_aside(ctx.run_dir))
    return {"put_aside": aside} if aside else {}


def run(ctx: StageContext) -> dict[str, Any]:
    """Count, map, check and measure. Figures: ``size``, ``coverage`` (held-out share) and ``coverage_train``."""
    ctx.check_disk()
    ctx.journal.progress("vocabulary", 0, None, "tokens", quiet_s=120, reason="loading speculators")
    samples = read_samples(ctx.run_dir / "data" / "samples.jsonl", without=put_aside(ctx.run_dir))
    target_size = target_vocabulary(ctx.model_dir)
    size = min(ctx.spec.vocabulary.size, target_size)
    folder = ctx.path("vocabulary", "token_freq.pt").parent
    d2t, t2d = _map(samples["train"], folder, size, target_size)
    check(d2t, t2d, size=size, target_size=target_size)
    measured = {split: coverage(rows, t2d) for split, rows in samples.items()}
    rundir.write_json(
        folder / "coverage.json",
        {"v": 1, "size": size, "target_size": target_size} | {split: part.figures() for split, part in measured.items()},
    )
    heldout = measured["heldout"].share
    ctx.journal.progress("vocabulary", size, size, "tokens")
    found = guards.low_coverage(heldout, measured["heldout"].tokens, ctx.spec.guards, size)
    if guarding.act(ctx, found):
        Hold(ctx, "vocabulary").wait()
    return {"size": size, "coverage": round(heldout, 5), "coverage_train": round(measured["train"].share, 5)}


def target_vocabulary(model_dir: Path) -> int:
    """The number of tokens of the target, from its config. Raises StageError where there is none."""
    config = rundir.read_object(model_dir / "config.json")
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if not size:
        raise StageError(f"{model_dir}/config.json names no vocab_size; put the whole model there again.")
    return int(size)


@dataclass(frozen=True)
class Coverage:
    """How many of the supervised ``tokens`` the draft can propose, and the most frequent ones that it cannot."""

    tokens: int
    covered: int
    missed: dict[int, int]

    @property
    def share(self) -> float:
        return self.covered / self.tokens if self.tokens else 0.0

    def figures(self) -> dict[str, Any]:
        most = dict(Counter(self.missed).most_common(20))
        return {"tokens": self.tokens, "covered": self.covered, "share": self.share, "missed_most": most}


def coverage(samples: list[Sample], t2d: np.ndarray) -> Coverage:
    """Coverage of the samples' supervised tokens by the draft vocabulary ``t2d``."""
    counts = Counter(token for sample in samples for token in sample.supervised)
    missed = {token: count for token, count in counts.items() if not t2d[token]}
    total = sum(counts.values())
    return Coverage(total, total - sum(missed.values()), missed)


def check(d2t: np.ndarray, t2d: np.ndarray, *, size: int, target_size: int) -> None:
    """Raise StageError unless the maps have their lengths, name each token once and say the same.

    Maps that are short, doubled or merely 0…N−1 have been trained and served elsewhere without a word.
    """
    ids = [index + int(offset) for index, offset in enumerate(d2t)]
    wrong = ""
    if len(d2t) != size or len(t2d) != target_size:
        wrong = f"have {len(d2t)} and {len(t2d)} entries instead of {size} and {target_size}"
    elif len(set(ids)) != size:
        wrong = "name a token twice"
    elif not 0 <= min(ids) <= max(ids) < target_size:
        wrong = "name a token that the target does not have"
    elif int(t2d.sum()) != size or not all(t2d[token] for token in ids):
        wrong = "disagree with each other"
    if wrong:
        raise StageError(f"The vocabulary maps {wrong}; delete the run's vocabulary folder and resume.")


def _map(samples: list[Sample], folder: Path, size: int, target_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Count the supervised tokens and build both maps with speculators, and write them."""
    import numpy as np
    import torch
    from speculators.train import vocab_mapping

    frequencies = folder / "token_freq.pt"
    # speculators reuses a file that is there, whatever it was counted on.
    frequencies.unlink(missing_ok=True)
    rows = (
        {"input_ids": torch.tensor(list(sample.input_ids)), "loss_mask": torch.tensor(list(sample.loss_mask))}
        for sample in samples
    )
    with patch.object(vocab_mapping, "tqdm", lambda items, **_: items):  # a bar of control characters in the log
        vocab_mapping.save_token_frequency_distribution(rows, frequencies)
    counted: dict[int, int] = torch.load(frequencies, weights_only=True)
    beyond = [token for token in counted if token >= target_size]
    if beyond:
        raise StageError(
            f"data/samples.jsonl holds token {max(beyond)}, but the target has only {target_size}; "
            "the samples were made with another tokenizer, run 'regenerate' again.",
            detail=json.dumps(sorted(beyond)[:50]),
        )
    d2t, t2d = vocab_mapping.build_vocab_mappings_from_distribution(counted, size, target_size)
    maps = d2t.numpy(), t2d.numpy()
    for name, array in zip(("d2t", "t2d"), maps, strict=True):
        # Never in place: a fork may know the old file by another name.
        content = io.BytesIO()
        np.save(content, array)
        rundir.write_bytes(folder / f"{name}.npy", content.getvalue())
    return maps
