"""What GPUs there are and who uses them, asked in a child that can be killed: NVML is known to hang.

NVML first (nvidia-ml-py's ``pynvml``, packed into the zipapp), then nvidia-smi. The answer has the shape of
``core.records.GpuReport``; its status is "none" only where nothing points to a GPU.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from eagle3.runner import detach, own_children
from eagle3.runner.nvml import answer as _answer

DEADLINE_S = 6.0
MIB = 1 << 20

AHEAD_S = 5.0
"""An answer that was asked for ahead is of use for so long."""
_ahead: List[Tuple[float, "subprocess.Popen[bytes]"]] = []

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


def ask_ahead() -> None:
    """Begin to ask NVML before anybody asks us: a helper's first question comes with its greeting, and the start of a child
    is most of the answer's time. Costs nothing where it cannot be done."""
    with contextlib.suppress(OSError):  # the question itself will say it
        _ahead.append((time.monotonic(), _started(detach.own_command("nvml", site=True))))


def _started(command: List[str]) -> "subprocess.Popen[bytes]":
    # A supervisor asks too, and its questions are no processes of the run.
    return own_children.start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _asked_ahead() -> Optional["subprocess.Popen[bytes]"]:
    """The child that was started ahead, once, while its answer is fresh."""
    if not _ahead:
        return None
    begun, child = _ahead.pop()
    if time.monotonic() - begun < AHEAD_S:
        return child
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands
        child.communicate(timeout=0.1)
    return None


def run_child(
    command: List[str], deadline_s: float, child: Optional["subprocess.Popen[bytes]"] = None
) -> "subprocess.CompletedProcess[bytes]":
    """As subprocess.run, but it gives a child in D state up instead of waiting for it for ever. ``child``: it runs already."""
    child = child or _started(command)
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
        done = run_child(detach.own_command("nvml", site=True), deadline_s, _asked_ahead())
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
