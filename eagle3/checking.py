"""``eagle3 check``: the same facts and the same verdict as over SSH, asked on the machine itself."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from eagle3.core.harmless import one_line
from eagle3.core.readiness.judge import judge
from eagle3.core.readiness.report import Report
from eagle3.core.readiness.wants import wants, with_pythons
from eagle3.core.spec import RunSpec

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Asks the runner one verb; raises what the caller makes of its refusals."""

POLL_S = 0.3


def light(spec: RunSpec, ask: Ask, taken: Collection[str] = ()) -> dict[str, Any]:
    """The light facts of this machine for ``spec``; ``taken``: the stages that it takes over from another run."""
    return ask("facts", {"wants": with_pythons(wants(spec, spec.workspace, taken=taken), sys.executable)})


def deep(spec: RunSpec, ask: Ask, check_id: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """The deep facts, by the job that a check over SSH starts too. ``tell`` hears what is being asked and what has answered.
    A hang-up or Ctrl-C stops it."""
    asked = {**with_pythons(wants(spec, spec.workspace), sys.executable), "spec_toml": spec.to_toml()}
    place = {"workspace": spec.workspace, "check_id": check_id}
    ask("check_start", {**place, "wants": asked})
    facts: dict[str, Any] = {}
    ended = False
    try:
        for line in _lines(ask, place):
            section = line.get("section") or line.get("doing")
            if isinstance(line.get("facts"), dict):
                facts[str(section)] = line["facts"]
                tell(f"· {one_line(str(section), 80)}  {line['facts'].get('took_s', 0):.1f} s")
            elif section:
                tell(f"◌ {one_line(str(section), 80)}…")
            elif line.get("text"):
                tell(f"▲ {one_line(str(line['text']))}")
        ended = True
    finally:
        if not ended:
            ask("check_stop", place)
    return facts


def _lines(ask: Ask, place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    offset = 0
    while True:
        answer = ask("check_read", {**place, "offset": offset})
        for text in answer["lines"]:
            line = json.loads(text)
            if isinstance(line, dict):
                yield line
        offset = answer["offset"]
        if answer["done"]:
            error = (answer.get("exit") or {}).get("error")
            if error:
                yield {"text": error}
            return
        if not answer["lines"]:
            time.sleep(POLL_S)


def judged(facts: Mapping[str, Any], spec: RunSpec, *, with_deep: bool) -> Report:
    """The verdict, with the hash of the spec that it was made for."""
    found = judge(facts, spec, host=platform.node(), deep=with_deep)
    return found.model_copy(update={"about": {**found.about, "spec": spec.hash}})
