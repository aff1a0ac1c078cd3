"""All sections at the same time, none of which can hold up or spoil the others."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Optional

from eagle3.runner.errors import VerbError
from eagle3.runner.facts import disk, gpu, host, model, python, vllm

Wants = Dict[str, Any]
Section = Callable[[Wants, Path], Dict[str, Any]]

SECTIONS: Dict[str, Section] = {
    "host": host.facts,
    "gpu": gpu.facts,
    "disk": disk.facts,
    "python": python.facts,
    "model": model.facts,
    "vllm": vllm.facts,
}
LIMITS_S = {"host": 8.0, "gpu": 18.0, "disk": 10.0, "python": 15.0, "model": 20.0, "vllm": 10.0}
"""Seconds after which a section is given up: it is then unknown, and the others are told all the same."""


def gather(
    wants: Wants,
    sections: Optional[Iterable[str]] = None,
    *,
    root: Path = Path("/"),
    limits_s: Dict[str, float] = LIMITS_S,
    known: Dict[str, Section] = SECTIONS,
) -> Dict[str, Any]:
    """``{"now", SECTION: {…, "took_s", "error"?}}`` for ``sections`` (default: all). ``root`` holds the ``proc`` and ``sys``
    that are read where a test gives another one. ``wants["patience"]`` multiplies all limits, for a machine that is known to
    be slow. Raises VerbError(usage) for an unknown section."""
    names = list(dict.fromkeys(sections if sections is not None else known))
    for name in names:
        if name not in known:
            raise VerbError("usage", f"There is no section of facts called {name!r}.", f"Use of {', '.join(known)}.")
    patience = float(wants.get("patience") or 1.0)
    answers: Dict[str, Dict[str, Any]] = {}
    begun = time.monotonic()

    def work(name: str) -> None:
        try:
            found = known[name](wants, root)
        except Exception as error:  # noqa: BLE001 - a defect or a strange machine in one section must not hide the others
            found = {"error": f"asking about {name} failed: {type(error).__name__}: {error}"}
        answers[name] = {**found, "took_s": round(time.monotonic() - begun, 4)}

    threads = {name: threading.Thread(target=work, args=(name,), daemon=True) for name in names}
    for thread in threads.values():
        thread.start()
    facts: Dict[str, Any] = {}
    for name, thread in threads.items():
        limit_s = limits_s[name] * patience
        thread.join(max(0.0, begun + limit_s - time.monotonic()))
        late = {"error": f"the container gave no answer about {name} within {limit_s:.0f} s", "took_s": limit_s}
        facts[name] = answers.get(name, late)
    return {"now": time.time(), "pid": os.getpid(), **facts}
