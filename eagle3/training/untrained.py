"""An untrained draft of a run's shape, before there are any data: what it costs to draft does not depend on what is learnt.

Run as ``python -m eagle3.training.untrained SPEC_TOML MODEL_DIR FOLDER`` with the worker's interpreter: it imports torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from eagle3.core.spec import RunSpec
from eagle3.stages.vocabulary import target_vocabulary
from eagle3.training import draft


def make(spec: RunSpec, model_dir: Path, folder: Path) -> None:
    """Write the draft to ``folder/draft``, its vocabulary (the target's first tokens; it proposes nothing of worth) beside it.
    Raises StageError where the target's config names no vocabulary."""
    size = min(spec.vocabulary.size, target_vocabulary(model_dir))
    known: np.ndarray = np.zeros(target_vocabulary(model_dir), dtype=np.bool_)
    known[:size] = True
    vocabulary = folder / "vocabulary"
    vocabulary.mkdir(parents=True, exist_ok=True)
    np.save(vocabulary / "d2t.npy", np.zeros(size, dtype=np.int64))
    np.save(vocabulary / "t2d.npy", known)
    precision = torch.float32 if spec.target.dtype == "float32" else torch.bfloat16
    model = draft.build(spec, model_dir, vocabulary)
    draft.save(model, model.state_dict(), folder / "draft", precision)


if __name__ == "__main__":
    spec_toml, model, to = (Path(argument) for argument in sys.argv[1:])
    make(RunSpec.from_toml(spec_toml.read_text(encoding="utf-8")), model, to)
