"""What speculators' loop does beside training, switched off or listened to while one training runs.

The loop assumes an accelerator (its step timer synchronises one), draws progress bars into the log, and throws the
gradient norm away, and gives figures of one pack where a step may have several. There is no setting for these, so four
names are replaced for as long as the context lasts.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import torch
from speculators.train import trainer as upstream


class Listener(Protocol):
    """Who is told what the loop shows of each pack."""

    def on_row(self, row: dict[str, Any]) -> None:
        """Every dict that speculators' loop logs."""

    def on_counts(self, counts: dict[str, float]) -> None:
        """Sums and totals of a pack over all ranks, before they are divided."""

    def on_gradient(self, clip: Callable[[], Any]) -> None:
        """The gradients are there; ``clip`` clips them and gives their norm before."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While it lasts, ``listener`` is told of every pack."""
    clip, normalize = torch.nn.utils.clip_grad_norm_, upstream.normalize_counted_metrics

    def clip_and_tell(*args: Any, **kwargs: Any) -> None:
        listener.on_gradient(lambda: clip(*args, **kwargs))

    def normalize_and_tell(metrics: dict[str, float], world_size: int = 1) -> dict[str, float]:
        listener.on_counts(dict(metrics))
        found: dict[str, float] = normalize(metrics, world_size)
        return found

    handler = _Forward(listener.on_row)
    # Attached here and not earlier: speculators' own logging set-up strips the handlers of its loggers.
    logger = logging.getLogger("speculators.metrics")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    timer = upstream._StepTimer if torch.accelerator.is_available() else _HostTimer
    try:
        with (
            warnings.catch_warnings(),
            patch.object(upstream, "_StepTimer", timer),
            patch.object(upstream, "tqdm", lambda batches, **_: batches),
            patch.object(upstream, "normalize_counted_metrics", normalize_and_tell),
            patch.object(torch.nn.utils, "clip_grad_norm_", clip_and_tell),
        ):
            # float32 is what was asked for; autocast says at every start that it then does nothing.
            warnings.filterwarnings("ignore", message=r"In \w+ autocast")
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _HostTimer(upstream._StepTimer):
    """The step timer for a machine without an accelerator: there is nothing to wait for before reading the clock."""

    def mark(self, name: str) -> None:
        if self.enabled:
            self.mark_value(name, upstream.time.perf_counter())

    def now(self) -> float | None:
        return float(upstream.time.perf_counter()) if self.enabled else None


class _Forward(logging.Handler):
    def __init__(self, on_metrics: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._on_metrics = on_metrics

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict):
            self._on_metrics(record.msg)
