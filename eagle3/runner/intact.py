"""Whether the files that were uploaded with this helper are still what they were: the installer's list of hashes says."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import List, Optional

MANIFEST = "MANIFEST.json"


def version_folder() -> Optional[Path]:
    """``lib/<version>``, where this runs from the zipapp there; None from a checkout or an installed package."""
    archive = Path(__file__).parents[2]
    return archive.parent if archive.suffix == ".pyz" else None


@functools.lru_cache(maxsize=1)
def damaged() -> List[str]:
    """Names of the files of this helper's version that are missing or changed; looked at once a process (some ms)."""
    folder = version_folder()
    return [] if folder is None else damaged_in(folder)


def damaged_in(folder: Path) -> List[str]:
    """The same for any version's folder. A list that cannot be read counts as the one damaged file."""
    try:
        files = json.loads((folder / MANIFEST).read_bytes().decode("utf-8"))["files"]
        return [name for name, wanted in files.items() if _sum(folder / name) != wanted]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [MANIFEST]


def _sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
