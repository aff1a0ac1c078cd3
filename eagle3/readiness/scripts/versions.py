"""Do the installed distributions agree with each other, and what can they do? Nothing is imported but ``packaging``.

``{"roots": [distribution, …], "texts": {what: [file below site-packages, text in it]}}`` →
``{"python","installed","violated","missing","has"}``. The requirements are those of the roots and of everything below them, as
their own metadata states them for this interpreter.
"""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import json
import os
import sys
from typing import Any, Dict, List, Optional, Set


def main() -> None:
    """Print the answer."""
    sys.path.pop(0)
    asked = json.loads(sys.argv[1])
    answer: Dict[str, Any] = {"python": sys.version.split()[0], "prefix": sys.prefix, "base_prefix": sys.base_prefix}
    answer.update(_agreement(asked["roots"]))
    answer["has"] = {what: _has(place, text) for what, (place, text) in asked["texts"].items()}
    sys.stdout.write("\n@eagle3 " + json.dumps(answer) + "\n")


def _agreement(roots: List[str]) -> Dict[str, Any]:
    tools = _packaging()
    if tools is None:
        return {"installed": {}, "violated": [], "missing": [], "error": "neither packaging nor pip is installed there"}
    Requirement, canonicalize_name = tools.requirements.Requirement, tools.utils.canonicalize_name
    found: Dict[str, Any] = {}
    for dist in metadata.distributions():
        name = canonicalize_name(str(dist.metadata["Name"] or ""))
        if name:
            found.setdefault(name, dist)  # the first on the path is the one that is imported
    violated: List[Dict[str, str]] = []
    missing: List[Dict[str, str]] = []
    seen: Set[str] = set()
    queue = [canonicalize_name(root) for root in roots]
    while queue:
        name = queue.pop(0)
        if name in seen or name not in found:
            continue
        seen.add(name)
        for text in found[name].requires or ():
            try:
                need = Requirement(text)
            except ValueError:
                continue
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            wanted = canonicalize_name(need.name)
            if wanted not in found:
                missing.append({"dist": name, "requires": str(need), "name": wanted})
                continue
            queue.append(wanted)
            version = found[wanted].version
            if not need.specifier.contains(version, prereleases=True):
                violated.append({"dist": name, "version": found[name].version, "requires": str(need), "found": version})
    named = {canonicalize_name(root) for root in roots}
    installed = {name: found[name].version for name in sorted(named) if name in found}
    return {"installed": installed, "violated": violated, "missing": missing}


def _packaging() -> Any:
    """The library that reads requirements: installed, or the one inside pip; None without either."""
    for name in ("packaging", "pip._vendor.packaging"):
        try:
            for part in ("requirements", "utils"):
                importlib.import_module(f"{name}.{part}")
            return sys.modules[name]
        except ImportError:
            continue
    return None


def _has(place: str, text: str) -> Optional[bool]:
    """Whether one of the files ``place`` (parted by "|") of an installed package holds ``text``; None where the package
    is not there."""
    package = place.split("/")[0]
    folder = next((path for path in sys.path if path and os.path.isdir(os.path.join(path, package))), None)
    if folder is None:
        return None
    for name in place.split("|"):
        try:
            with open(os.path.join(folder, *name.split("/")), encoding="utf-8", errors="replace") as file:
                if text in file.read():
                    return True
        except OSError:
            continue
    return False


if __name__ == "__main__":
    main()
