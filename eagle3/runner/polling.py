"""A run and the container in one round trip, as changes since the last one: the verb ``poll``.

What always changes (how old something is, what time it is) is taken out before values are compared and put in again
by the reader, with `aged`, from the times that stay.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from eagle3.runner import delta, increments, probe, state
from eagle3.runner.errors import VerbError

PATIENCE_S = 2.0
"""A driver or a server that hangs must not hold up the rows: what takes longer comes with a later poll."""

Json = Dict[str, Any]


def still(summary: Json) -> Json:
    """A run's summary without what changes by itself."""
    kept = {key: value for key, value in summary.items() if key not in ("now", "last_row_age_s")}
    age_s, now = summary.get("last_row_age_s"), summary.get("now")
    kept["last_row_t"] = round(now - age_s, 3) if age_s is not None and now is not None else None
    return kept


def aged(kept: Json, now: float) -> Json:
    """The summary again, at the container's time ``now``."""
    row_t = kept.get("last_row_t")
    age_s = max(0.0, now - row_t) if row_t is not None else None
    return {**{key: value for key, value in kept.items() if key != "last_row_t"}, "last_row_age_s": age_s, "now": now}


def read_files(run_dir: Path, wanted: List[Json], ended: bool) -> Dict[str, Json]:
    """The increments of the files asked for, by name."""
    return {
        str(entry["name"]): increments.read(
            run_dir,
            str(entry["name"]),
            entry.get("token"),
            int(entry.get("max_bytes") or increments.DEFAULT_MAX_BYTES),
            bool(entry.get("whole")),
            ended,
            thin=int(entry.get("thin") or 0),
            tail_bytes=int(entry.get("tail_bytes") or 0),
        )
        for entry in wanted
    }


def news_only(part: Json, token: Any) -> Json:
    """An increment without what the reader, who holds ``token``, knows anyhow; empty where nothing is new."""
    if part["missing"] and token is None:
        return {}
    kept = {key: value for key, value in part.items() if value not in ("", False, None)}
    if part["token"] == token:
        kept.pop("token", None)
    return {} if set(kept) <= {"same"} else kept


class Poller:
    """Answers the polls of one channel, and remembers what it told."""

    def __init__(self, ask: Callable[..., Json] = probe.probe, patience_s: float = PATIENCE_S) -> None:
        self._ask = ask
        self._patience_s = patience_s
        self._memory = delta.Memory()
        self._lock = threading.Lock()
        self._asking: Dict[str, _Asked] = {}

    def poll(self, args: Json, run_dir: Optional[Path], now: float) -> Json:
        """``{"summary","files","probe"}``: the first two of ``run_dir``, the last where ``args`` wants it and it is there."""
        wanted = args.get("probe")
        asked = self._begin(args["workspace"], wanted) if isinstance(wanted, dict) else None
        answer: Json = {}
        if run_dir is not None:
            summary = state.summary(run_dir, now)
            # The state first: what is read after it said "ended" is all that there will be.
            entries: List[Json] = args.get("files") or []
            parts = read_files(run_dir, entries, summary["state"] not in state.LIVE)
            told = {str(e["name"]): news_only(parts[str(e["name"])], e.get("token")) for e in entries}
            answer["files"] = {name: part for name, part in told.items() if part}
            answer["summary"] = self._memory.answer(args.get("held"), still(summary))
        if asked is not None and isinstance(wanted, dict):
            found = self._end(asked)
            if found is not None:
                answer["probe"] = {"now": found["now"], **self._memory.answer(wanted.get("held"), still_probe(found))}
        return answer

    def _begin(self, workspace: str, wanted: Json) -> Tuple[str, _Asked]:
        paths, urls = wanted.get("paths") or (), wanted.get("urls") or ()
        key = json.dumps([workspace, list(paths), list(urls)])
        with self._lock:
            if key not in self._asking:
                self._asking[key] = _Asked(self._ask, workspace, paths, urls)
            return key, self._asking[key]

    def _end(self, begun: Tuple[str, _Asked]) -> Optional[Json]:
        key, asked = begun
        if not asked.done.wait(self._patience_s):
            return None
        with self._lock:
            if self._asking.get(key) is asked:
                del self._asking[key]
        if asked.error is not None:
            raise asked.error
        return asked.found


class _Asked:
    """A probe under way in a thread of its own."""

    def __init__(self, ask: Callable[..., Json], *arguments: Any) -> None:
        self.done = threading.Event()
        self.found: Optional[Json] = None
        self.error: Optional[Exception] = None
        threading.Thread(target=self._work, args=(ask, arguments), daemon=True).start()

    def _work(self, ask: Callable[..., Json], arguments: Tuple[Any, ...]) -> None:
        try:
            self.found = ask(*arguments)
        except VerbError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - told to whoever asked, as the channel does with any verb's defect
            self.error = VerbError("failed", f"The probe met a defect: {type(error).__name__}: {error}", "Report it.")
        finally:
            self.done.set()


def still_probe(found: Json) -> Json:
    """A probe without what changes by itself."""
    host = {key: value for key, value in found["host"].items() if key != "uptime_s"}
    if found["host"].get("uptime_s"):
        host["up_since_t"] = round(found["now"] - found["host"]["uptime_s"])
    kept = {key: value for key, value in found.items() if key != "now"}
    return {**kept, "host": host, "runs": [still(run) for run in found["runs"]]}


def aged_probe(kept: Json, now: float) -> Json:
    """The probe again, at the container's time ``now``."""
    host = {key: value for key, value in kept["host"].items() if key != "up_since_t"}
    if kept["host"].get("up_since_t"):
        host["uptime_s"] = now - kept["host"]["up_since_t"]
    return {**kept, "now": now, "host": host, "runs": [aged(run, now) for run in kept["runs"]]}
