"""Names of places that only the container can fill in: home, caches, the temporary folder."""

from __future__ import annotations

import os
from pathlib import Path


def expand(text: str) -> Path:
    """``text`` with ``~``, ``{cache}`` (ours), ``{hf_cache}`` and ``{tmp}`` filled in from this environment."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    text = text.replace("{cache}", os.environ.get("EAGLE3_CACHE") or f"{cache}/eagle3")
    text = text.replace("{hf_cache}", str(hub_cache()))
    text = text.replace("{tmp}", os.environ.get("TMPDIR") or "/tmp")
    return Path(os.path.expanduser(text))  # noqa: PTH111 - an unknown ~user stays as it is


def hub_cache() -> Path:
    """Where huggingface_hub keeps models: HF_HUB_CACHE, else ``hub`` under HF_HOME, else under the user's cache."""
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.path.expanduser(os.environ["HF_HUB_CACHE"]))  # noqa: PTH111 - as above
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(os.path.expanduser(home)) / "hub"  # noqa: PTH111 - as above
