"""What a check and a report may say, and in which order it is read. Apart from the report, whose models take long to load."""

from __future__ import annotations

from typing import Literal

Status = Literal["ok", "warn", "fail", "unknown", "skipped"]
Verdict = Literal["ready", "ready with warnings", "not ready"]

GROUPS = ("host", "gpu", "disk", "python", "model", "vllm", "extraction")
"""The groups of checks, in the order in which a person reads and mends them."""

WORST_FIRST: tuple[Status, ...] = ("fail", "unknown", "warn", "ok", "skipped")
