"""What a vLLM server's ``/metrics`` says of its load and of its speculation: a few names, summed over engines.

The full parser of the format is a library that the container may lack; these names are plain counters and gauges.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List

_LINE = re.compile(r"^vllm:([a-z_]+?)(?:_total)?(?:\{([^}]*)\})?\s+(\S+)")
_POSITION = re.compile(r'position="(\d+)"')
_NAMES = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "num_preemptions": "preemptions",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "draft_tokens",
    "spec_decode_num_accepted_tokens": "accepted_tokens",
}
_SHARES = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
"""The second is the name in older versions. A share from 0 to 1: of several engines the fullest counts."""


def load(text: str) -> Dict[str, Any]:
    """``{"running","waiting","kv_cache_usage","prompt_tokens","generation_tokens","drafts",…,"accepted_per_pos"}``: those that
    the text has. Lines that are no numbers are none of ours."""
    found: Dict[str, Any] = {}
    positions: Dict[int, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line) if line.startswith("vllm:") else None
        if match is None:
            continue
        name, labels, value = match.group(1), match.group(2) or "", _number(match.group(3))
        if value is None:
            continue
        if name in _SHARES:
            found["kv_cache_usage"] = max(found.get("kv_cache_usage", 0.0), value)
        elif name == "spec_decode_num_accepted_tokens_per_pos":
            position = _POSITION.search(labels)
            if position:
                at = int(position.group(1))
                positions[at] = positions.get(at, 0.0) + value
        elif name in _NAMES:
            key = _NAMES[name]
            found[key] = found.get(key, 0.0) + value
    if positions:
        found["accepted_per_pos"] = _dense(positions)
    return found


def _dense(positions: Dict[int, float]) -> List[float]:
    return [positions.get(k, 0.0) for k in range(min(64, max(positions) + 1))]


def _number(text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None
