"""What GPUs there are and who uses them, asked in a child that can be killed: NVML is known to hang.

NVML first (nvidia-ml-py's ``pynvml``, packed into the zipapp), then nvidia-smi. The answer has the shape of
``core.records.GpuReport``; its status is "none" only where nothing points to a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from eagle3.runner import detach

DEADLINE_S = 6.0
MIB = 1 << 20

_SMI_FIELDS = "index,name,uuid,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw,driver_version"


def report(deadline_s: float = DEADLINE_S) -> Dict[str, Any]:
    """Ask NVML, then nvidia-smi. Takes at most about twice ``deadline_s``; never raises for want of a GPU."""
    first = _ask_child(deadline_s)
    if first["status"] == "ok":
        return first
    second = _ask_smi(deadline_s)
    if second is not None:
        return second
    if first["status"] == "none" and has_devices():
        return _answer("unknown", f"GPU devices are there, but they cannot be asked: {first['text']}")
    return first


def has_devices() -> bool:
    """Whether the kernel shows NVIDIA devices or its driver, whatever the libraries say."""
    return Path("/proc/driver/nvidia/version").exists() or any(Path("/dev").glob("nvidia[0-9]*"))


def _answer(status: str, text: str = "", **more: Any) -> Dict[str, Any]:
    return {"status": status, "text": text, "source": "", "driver": "", "gpus": [], **more}


def run_child(command: List[str], deadline_s: float) -> "subprocess.CompletedProcess[bytes]":
    """As subprocess.run, but it gives a child in D state up instead of waiting for it for ever."""
    # Without a run's marker: a supervisor asks too, and its questions are no processes of the run.
    env = {key: value for key, value in os.environ.items() if not key.startswith("EAGLE3_")}
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    try:
        out, err = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands: KILL will reach it when it returns
            child.communicate(timeout=0.5)
        raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def _ask_child(deadline_s: float) -> Dict[str, Any]:
    try:
        done = run_child(detach.own_command("nvml", site=True), deadline_s)
        found = json.loads(done.stdout.decode("utf-8", "replace"))
    except subprocess.TimeoutExpired:
        return _answer(
            "unknown", f"NVML did not answer within {deadline_s:.0f} s; the driver may hang. See dmesg for Xid messages."
        )
    except (OSError, ValueError) as error:
        return _answer("unknown", f"NVML could not be asked: {error}")
    return found if isinstance(found, dict) else _answer("unknown", "NVML's answer could not be read.")


def _ask_smi(deadline_s: float) -> Optional[Dict[str, Any]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = run_child([tool, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"], deadline_s)
    except subprocess.TimeoutExpired:
        return _answer(
            "unknown", f"nvidia-smi did not answer within {deadline_s:.0f} s; the driver may hang.", source="nvidia-smi"
        )
    except OSError as error:
        return _answer("unknown", f"nvidia-smi could not be run: {error}", source="nvidia-smi")
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        words = " ".join((text + done.stderr.decode("utf-8", "replace")).split())[:300]
        status = "none" if "No devices" in words or ("couldn't communicate" in words and not has_devices()) else "unknown"
        return _answer(status, f"nvidia-smi says: {words}", source="nvidia-smi")
    cards, driver = [], ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 9 or not cells[0].isdigit():
            continue
        total, used, busy, heat, watts = (_number(cell) for cell in cells[3:8])
        driver = cells[8]
        cards.append(
            {
                "index": int(cells[0]), "name": cells[1], "uuid": cells[2],
                "memory_total_bytes": None if total is None else int(total * MIB),
                "memory_used_bytes": None if used is None else int(used * MIB),
                "utilization_pct": busy, "temperature_c": heat, "power_w": watts,
                "processes": _smi_processes(tool, cells[2], deadline_s),
            }
        )  # fmt: skip
    status = "ok" if cards else "none"
    return _answer(status, "" if cards else "nvidia-smi lists no GPU", source="nvidia-smi", driver=driver, gpus=cards)


def _smi_processes(tool: str, uuid: str, deadline_s: float) -> List[Dict[str, Any]]:
    query = [tool, "-i", uuid, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = run_child(query, deadline_s)
    except (subprocess.TimeoutExpired, OSError):
        return []
    rows = [line.split(",") for line in done.stdout.decode("utf-8", "replace").splitlines() if "," in line]
    numbers = [(_number(pid), _number(used)) for pid, used in rows]
    return [
        {"pid": int(pid), "used_bytes": None if used is None else int(used * MIB)} for pid, used in numbers if pid is not None
    ]


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]", "[Not Supported]"


def nvml_main() -> int:
    """The child: one line of JSON on stdout. Anything that the driver does not know is null."""
    sys.stdout.write(json.dumps(_nvml()) + "\n")
    return 0


def _nvml() -> Dict[str, Any]:
    try:
        import pynvml
    except ImportError:
        return _answer("none", "pynvml is not installed and there is no nvidia-smi")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
        return _answer("none" if absent else "unknown", f"NVML: {error}", source="nvml")

    def ask(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except pynvml.NVMLError:
            return None  # an old driver, a MIG slice, or a lost card does not know this one

    cards: List[Dict[str, Any]] = []
    count = ask(pynvml.nvmlDeviceGetCount)
    if count is None:
        return _answer("unknown", "NVML does not say how many GPUs there are.", source="nvml")
    for index in range(count):
        handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            cards.append({"index": index, "name": "lost: NVML gives no handle for it", "processes": []})
            continue
        memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        busy = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        milliwatts = ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        holders = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        cards.append(
            {
                "index": index,
                "name": _text(ask(pynvml.nvmlDeviceGetName, handle)),
                "uuid": _text(ask(pynvml.nvmlDeviceGetUUID, handle)),
                "memory_total_bytes": memory and int(memory.total),
                "memory_used_bytes": None if memory is None else int(memory.used),
                "utilization_pct": None if busy is None else float(busy.gpu),
                "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
                "power_w": None if milliwatts is None else milliwatts / 1000,
                "processes": [{"pid": p.pid, "used_bytes": p.usedGpuMemory} for p in holders],
            }
        )
    driver = _text(ask(pynvml.nvmlSystemGetDriverVersion))
    return _answer("ok" if cards else "none", "" if cards else "NVML lists no GPU", source="nvml", driver=driver, gpus=cards)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
