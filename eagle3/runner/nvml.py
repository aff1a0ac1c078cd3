"""The child that asks NVML: a report of all cards, or a watch for Xid events. Never called in a process that must live.

Fields that a driver or a card does not know are null. ``ecc_uncorrected`` and ``ecc_corrected`` are the volatile counters (since
the driver was loaded).
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

THROTTLE = (
    (0x4, "power limit (software)"),
    (0x8, "hardware slowdown"),
    (0x20, "too hot (software slowdown)"),
    (0x40, "too hot (hardware slowdown)"),
    (0x80, "power brake (external)"),
)
"""Bits of nvmlClocksEventReason* in words. Idle, application clocks, sync boost and display clocks are left out: no brakes."""
WATCH_POLL_MS = 1000


def answer(status: str, text: str = "", **more: Any) -> Dict[str, Any]:
    """A report in the shape of ``core.records.GpuReport``."""
    return {"status": status, "text": text, "source": "", "driver": "", "gpus": [], **more}


def throttle_words(reasons: Optional[int]) -> Optional[List[str]]:
    """What slows the clocks, in words; None where the driver does not say."""
    return None if reasons is None else [words for bit, words in THROTTLE if reasons & bit]


def main() -> int:
    """``runner nvml``: one line of JSON on stdout."""
    sys.stdout.write(json.dumps(report()) + "\n")
    return 0


def _begin() -> Tuple[Any, Dict[str, Any]]:
    """The module after its init, or None and the report that says why not."""
    try:
        import pynvml
    except ImportError:
        return None, answer("none", "pynvml is not installed and there is no nvidia-smi")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
        return None, answer("none" if absent else "unknown", f"NVML: {error}", source="nvml")
    return pynvml, {}


class _Card:
    """Questions about one card; remembers whether the driver said that it is lost."""

    def __init__(self, pynvml: Any) -> None:
        self._error, self._lost_code = pynvml.NVMLError, pynvml.NVML_ERROR_GPU_IS_LOST
        self.lost = False

    def ask(self, call: Optional[Callable[..., Any]], *arguments: Any) -> Any:
        if call is None:
            return None  # an old nvidia-ml-py
        try:
            return call(*arguments)
        except self._error as error:  # an old driver, a MIG slice, or a lost card does not know this one
            self.lost = self.lost or error.value == self._lost_code
            return None


def report() -> Dict[str, Any]:
    """Every card with what NVML knows of it."""
    pynvml, failed = _begin()
    if pynvml is None:
        return failed
    count = _Card(pynvml).ask(pynvml.nvmlDeviceGetCount)
    if count is None:
        return answer("unknown", "NVML does not say how many GPUs there are.", source="nvml")
    cards = [_describe(pynvml, index) for index in range(count)]
    driver = _text(_Card(pynvml).ask(pynvml.nvmlSystemGetDriverVersion))
    return answer("ok" if cards else "none", "" if cards else "NVML lists no GPU", source="nvml", driver=driver, gpus=cards)


def _describe(pynvml: Any, index: int) -> Dict[str, Any]:
    card = _Card(pynvml)
    ask = card.ask
    handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return {"index": index, "name": "lost: NVML gives no handle for it", "lost": True, "processes": []}
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    busy = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    holders = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    volatile = pynvml.NVML_VOLATILE_ECC
    reasons = ask(getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None), handle)
    if reasons is None:  # drivers before 535 know the older name
        reasons = ask(getattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None), handle)
    rows = ask(getattr(pynvml, "nvmlDeviceGetRemappedRows", None), handle)
    pages = ask(getattr(pynvml, "nvmlDeviceGetRetiredPagesPendingStatus", None), handle)
    found = {
        "index": index,
        "name": _text(ask(pynvml.nvmlDeviceGetName, handle)),
        "uuid": _text(ask(pynvml.nvmlDeviceGetUUID, handle)),
        "memory_total_bytes": memory and int(memory.total),
        "memory_used_bytes": None if memory is None else int(memory.used),
        "utilization_pct": None if busy is None else float(busy.gpu),
        "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "power_w": None if milliwatts is None else milliwatts / 1000,
        "power_limit_w": None if limit is None else limit / 1000,
        "ecc_uncorrected": ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile),
        "ecc_corrected": ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
        "remap_pending": None if rows is None else bool(rows[2]),
        "remap_failed": None if rows is None else bool(rows[3]),
        "retired_pending": None if pages is None else bool(pages),
        "throttle": throttle_words(reasons),
        "processes": [{"pid": p.pid, "used_bytes": p.usedGpuMemory} for p in holders],
    }
    return {**found, "lost": card.lost}


def watch_main() -> int:
    """``runner xid``: a line of JSON for every Xid event until nobody reads; an empty object once a second besides.

    Events reach only who listens when they happen, so this child listens for as long as the run lasts. The kernel's log would
    have them too, and also those of the past, but a container is seldom let read it. Ends with 1 where events cannot be had.
    """
    pynvml, failed = _begin()
    if pynvml is None:
        return _say({"error": failed["text"]}) or 1
    events = None
    try:
        events = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            pynvml.nvmlDeviceRegisterEvents(
                pynvml.nvmlDeviceGetHandleByIndex(index), pynvml.nvmlEventTypeXidCriticalError, events
            )
    except pynvml.NVMLError as error:
        return _say({"error": f"NVML: {error}"}) or 1
    card = _Card(pynvml)
    while True:
        found: Dict[str, Any] = {}
        begun = time.monotonic()
        try:
            event = pynvml.nvmlEventSetWait_v2(events, WATCH_POLL_MS)
            found = {"xid": int(event.eventData), "index": card.ask(pynvml.nvmlDeviceGetIndex, event.device)}
            found["uuid"] = _text(card.ask(pynvml.nvmlDeviceGetUUID, event.device))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                found = {"lost": True}
            elif error.value != pynvml.NVML_ERROR_TIMEOUT:
                return _say({"error": f"NVML: {error}"}) or 1
        if _say(found):
            return 0
        if found.get("lost"):  # this answer comes at once, and for ever
            time.sleep(max(0.0, WATCH_POLL_MS / 1000 - (time.monotonic() - begun)))


def _say(found: Dict[str, Any]) -> int:
    """1 where nobody reads any more."""
    try:
        os.write(1, json.dumps(found).encode("ascii") + b"\n")
    except OSError:
        return 1
    return 0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
