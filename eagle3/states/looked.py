"""Which state files were hashed and found right, when they landed or at a later look, as they lay on the disk then: size,
time of change and inode.

With ``extract.verify = "changed"`` a resume hashes only the others. That finds what was replaced, cut or written to; it does not
find a disk that gives back other bytes than were written, which is why hashing everything is the default.
"""

from __future__ import annotations

import os
from pathlib import Path

from eagle3.runner import rundir

NAME = "looked.json"


class Looked:
    """The memory of earlier looks at ``folder``; kept beside the manifest."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        found = rundir.read_object(self._path).get("files")
        self._known: dict[str, list[int]] = found if isinstance(found, dict) else {}
        self._now: dict[str, list[int]] = {}

    def unchanged(self, name: str, about: os.stat_result) -> bool:
        """Whether the file is the one that was hashed before, by its size, time and inode."""
        return self._known.get(name) == _sign(about)

    def right(self, name: str, about: os.stat_result) -> None:
        """The file was hashed and is right."""
        self._now[name] = _sign(about)

    def write(self) -> None:
        """Keep what was looked at since the last call; everything else is forgotten."""
        rundir.write_json(self._path, {"v": 1, "files": self._now})
        self._known, self._now = self._now, {}


def _sign(about: os.stat_result) -> list[int]:
    return [about.st_size, about.st_mtime_ns, about.st_ino]
