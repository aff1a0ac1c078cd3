"""What a readiness sweep asks NVML beyond ``runner.nvml``: modes, the usual power limit, and how the cards are joined.

Runs in the child that may be killed. Every question may go unanswered (an old driver, a consumer card): then it is null.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, List, Optional

Ask = Callable[..., Any]

PATHS = {0: "same board", 10: "one PCIe switch", 20: "several PCIe switches", 30: "PCIe host bridge", 40: "same NUMA node",
         50: "across NUMA nodes"}  # fmt: skip
PEER = {0: "ok", 1: "the chipset does not support it", 2: "the GPU does not support it", 3: "not across the IO hubs",
        4: "switched off by a registry key", 5: "not supported"}  # fmt: skip
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
_READ, _NVLINK_PEER = 0, 2
_MAX_LINKS = 18


def main() -> int:
    """The child: one line of JSON on stdout, ``{"cuda_driver","links","cards":{index: {…}}}``, or ``{"error": why}``."""
    sys.stdout.write(json.dumps(details()) + "\n")
    return 0


def details() -> Dict[str, Any]:
    """What NVML tells of all cards; ``error`` where it does not answer."""
    try:
        import pynvml as nvml
    except ImportError:
        return {"error": "pynvml is not installed"}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"error": f"NVML: {error}"}

    def ask(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except nvml.NVMLError:
            return None  # an old driver, a MIG slice, or a lost card does not know this one

    handles = {}
    for index in range(ask(nvml.nvmlDeviceGetCount) or 0):
        handle = ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            handles[index] = handle
    version = ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "cuda_driver": None if not version else f"{version // 1000}.{version % 1000 // 10}",
        "links": _links(nvml, ask, handles),
        "cards": {str(index): _card(nvml, ask, handle) for index, handle in handles.items()},
    }


def _card(nvml: Any, ask: Ask, handle: Any) -> Dict[str, Any]:
    def optional(name: str, *arguments: Any) -> Any:
        call = getattr(nvml, name, None)  # an older pynvml lacks newer functions
        return None if call is None else ask(call, handle, *arguments)

    ecc = optional("nvmlDeviceGetEccMode")
    usual = optional("nvmlDeviceGetPowerManagementDefaultLimit")
    mig = optional("nvmlDeviceGetMigMode")
    capability = optional("nvmlDeviceGetCudaComputeCapability")
    mode = optional("nvmlDeviceGetComputeMode")
    return {
        "ecc_on": None if ecc is None else bool(ecc[0]),
        "power_default_w": None if usual is None else usual / 1000,
        "mig": None if mig is None else bool(mig[0]),
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "compute_mode": None if mode is None else _COMPUTE_MODES.get(mode, str(mode)),
        "nvlinks": _active_links(nvml, ask, handle),
    }


def _active_links(nvml: Any, ask: Ask, handle: Any) -> Optional[int]:
    states = [ask(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(_MAX_LINKS)]
    known = [state for state in states if state is not None]
    return sum(1 for state in known if state) if known else None


def _links(nvml: Any, ask: Ask, handles: Dict[int, Any]) -> List[Dict[str, Any]]:
    """One entry for each pair of cards: what lies between them, and whether they may read each other's memory."""
    result = []
    for a in sorted(handles):
        for b in sorted(handles):
            if a < b:
                level = ask(nvml.nvmlDeviceGetTopologyCommonAncestor, handles[a], handles[b])
                peer = ask(nvml.nvmlDeviceGetP2PStatus, handles[a], handles[b], _READ)
                nvlink = ask(nvml.nvmlDeviceGetP2PStatus, handles[a], handles[b], _NVLINK_PEER)
                path = "NVLink" if nvlink == 0 else PATHS.get(level) if level is not None else None
                known = None if peer is None else PEER.get(peer, f"status {peer}")
                result.append({"a": a, "b": b, "path": path, "peer": known})
    return result
