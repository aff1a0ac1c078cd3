"""What the helper channel can be asked: ``handle(verb, args)``.

Verbs: hello, probe, list, launch, read, stop, gpu, http. Arguments and answers are plain JSON.
"""

from __future__ import annotations

from typing import Any, Dict

from eagle3.runner.errors import VerbError

__all__ = ["VerbError", "handle"]


def handle(verb: str, args: Dict[str, Any]) -> Dict[str, Any]:
    """Do ``verb`` and give its answer; raises VerbError with the sentence for the person who asked."""
    raise VerbError("usage", f"There is no verb {verb!r}.")
