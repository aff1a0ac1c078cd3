"""What speculators' loop does beside training, switched off or listened to while one training runs.

The loop assumes an accelerator (its step timer synchronises one), draws progress bars into the log, and throws the
gradient norm away. There is no setting for these, so three names are replaced for as long as the context lasts.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from speculators.train import trainer as upstream


@contextmanager
def listening(on_metrics: Callable[[dict[str, Any]], None], on_grad_norm: Callable[[float], None]) -> Iterator[None]:
    """While it lasts, give every metrics dict of speculators' loop and every gradient norm (before clipping) to the callers."""
    clip = torch.nn.utils.clip_grad_norm_

    def clip_and_tell(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        on_grad_norm(float(norm))
        return norm

    handler = _Forward(on_metrics)
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
