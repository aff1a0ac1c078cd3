"""How fast a folder takes bytes, how long an fsync takes, and whether its locks hold between processes.

``{"folder","name","bytes","seconds","fsyncs"}`` → ``{"write_bytes","write_s","fsync_median_s","fsync_worst_s","lock"}``.
One file of that name is written, in a bounded time, and removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

PIECE_BYTES = 4 << 20


def main() -> None:
    """Print the answer."""
    sys.path.pop(0)
    asked = json.loads(sys.argv[1])
    path = Path(asked["folder"]) / asked["name"]
    try:
        answer = _written(path, int(asked["bytes"]), float(asked["seconds"]))
        answer.update(_fsyncs(path, int(asked["fsyncs"]), float(asked["seconds"])))
        answer["lock"] = _lock(path)
    except OSError as error:
        answer = {"error": str(error.strerror or error), "errno": error.errno}
    finally:
        with contextlib.suppress(OSError):  # it was never made
            path.unlink()
    sys.stdout.write("\n@eagle3 " + json.dumps(answer) + "\n")


def _written(path: Path, limit_bytes: int, limit_s: float) -> Dict[str, Any]:
    piece = os.urandom(PIECE_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        begun = time.monotonic()
        written = 0
        while written < limit_bytes and time.monotonic() - begun < limit_s:
            written += os.write(descriptor, piece)
        os.fsync(descriptor)
        return {"write_bytes": written, "write_s": time.monotonic() - begun}
    finally:
        os.close(descriptor)


def _fsyncs(path: Path, count: int, limit_s: float) -> Dict[str, Any]:
    """Small appends, each made durable: what every row of a run's records costs."""
    taken: List[float] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        end = time.monotonic() + limit_s
        while len(taken) < count and (time.monotonic() < end or not taken):
            begun = time.monotonic()
            os.write(descriptor, b"x" * 4096)
            os.fsync(descriptor)
            taken.append(time.monotonic() - begun)
    finally:
        os.close(descriptor)
    taken.sort()
    return {"fsync_median_s": taken[len(taken) // 2], "fsync_worst_s": taken[-1], "fsyncs": len(taken)}


def _lock(path: Path) -> str:
    """ "holds", "does not hold" (two processes got it at once), or the system's refusal."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"refused: {error.strerror or error}"
        child = os.fork()
        if child == 0:
            other = os.open(path, os.O_WRONLY)
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os._exit(7)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        return "holds" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7 else "does not hold"
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
