"""A probe as a readiness report: the same checks in words for a person and as JSON for a program. Pure.

Shape: ``{"host","as_of","verdict","checks":[{"id","group","status","title","evidence","why","remedy","took_s"}]}``.
"""

from __future__ import annotations

from typing import Any

from eagle3.core.records import Disk, GpuReport, Probe, VllmServer
from remote.errors import NoPython
from tui.formats import CHECK_WORDS, bytes_label, clean_line, pair_label, share

LOW_DISK_BYTES = 2 << 30
LOW_SHARE = 0.05
LOW_INODES = 50_000
LEAST_BYTES = 8 << 20
LEAST_INODES = 64
"""Less room than this in the workspace, and no run can begin."""


def _check(id: str, group: str, status: str, title: str, evidence: str, why: str = "", remedy: str = "") -> dict[str, Any]:
    return {
        "id": id, "group": group, "status": status, "title": title, "evidence": clean_line(evidence),
        "why": why, "remedy": remedy, "took_s": None,
    }  # fmt: skip


def disk_warning(disk: Disk) -> str:
    """What is wrong with a disk in two or three words, or nothing."""
    if disk.error:
        return clean_line(disk.error)
    if disk.read_only:
        return "read-only"
    if disk.free_inodes is not None and 0 < disk.free_inodes < LOW_INODES:
        return f"only {disk.free_inodes:,} files more"
    free = share(disk.free_bytes, disk.total_bytes)
    if free is not None and disk.free_bytes is not None and (disk.free_bytes < LOW_DISK_BYTES or free < LOW_SHARE):
        return "nearly full"
    return ""


def gpu_words(gpu: GpuReport) -> str:
    """One sentence on the GPUs: how many, that there is none, or why it is unknown."""
    if gpu.status == "none":
        why = clean_line(gpu.text)
        return "no GPU" + (f" ({why})" if why and why.lower() not in {"no gpu", "no gpu."} else "")
    if gpu.status == "unknown":
        return f"unknown: {clean_line(gpu.text) or 'asking gave no answer'}"
    names = {g.name or "GPU" for g in gpu.gpus}
    used = sum(g.memory_used_bytes or 0 for g in gpu.gpus)
    total = sum(g.memory_total_bytes or 0 for g in gpu.gpus)
    return f"{len(gpu.gpus)} × {', '.join(sorted(names))}, {pair_label(used, total)} used" if gpu.gpus else "no GPU"


def host_words(facts: dict[str, Any]) -> str:
    """The machine in a line: name, system, processors, load, memory."""
    words = [clean_line(str(facts[key])) for key in ("hostname", "os") if facts.get(key)]
    if facts.get("cpus"):
        words.append(f"{facts['cpus']} CPUs")
    load = facts.get("load")
    if isinstance(load, list) and load:
        words.append(f"load {load[0]}")
    limit, total, free = (facts.get(f"memory_{key}_bytes") for key in ("limit", "total", "available"))
    if isinstance(total, int) and isinstance(free, int):
        words.append(f"memory {pair_label(total - free, total).replace(' / ', ' of ')} used")
    if isinstance(limit, int) and isinstance(total, int) and limit < total:
        words.append(f"limited to {bytes_label(limit)}")
    return " · ".join(words)


def _gpu(gpu: GpuReport) -> dict[str, Any]:
    if gpu.status == "none":
        return _check("gpu", "gpu", "skipped", "GPU", gpu_words(gpu), "A run on the cpu machine preset needs none.")
    if gpu.status == "unknown":
        return _check("gpu", "gpu", "unknown", "GPU", gpu_words(gpu), "", "Run nvidia-smi in the container and see what it says.")
    return _check("gpu", "gpu", "ok", "GPU", gpu_words(gpu))


def _unusable(disk: Disk) -> bool:
    """Whether nothing can be written there. No inodes at all is a file system without a fixed number of them."""
    full = disk.free_bytes is not None and disk.free_bytes < LEAST_BYTES
    return bool(disk.error) or disk.read_only or full or (disk.free_inodes is not None and 0 < disk.free_inodes < LEAST_INODES)


def _disk(disk: Disk, holds_workspace: bool) -> dict[str, Any]:
    """Only a disk that holds the workspace can fail the report: a run writes to no other."""
    where = disk.mount or disk.path
    evidence = f"{bytes_label(disk.free_bytes)} free of {bytes_label(disk.total_bytes)}"
    warning = disk_warning(disk)
    if holds_workspace and _unusable(disk):
        status = "fail"
        warning = warning or "full"
    else:
        status = "warn"
    if warning:
        remedy = f"Free some space on {where}."
        if disk.error or disk.read_only:
            remedy = f"See to {where}" + (", or choose another workspace." if holds_workspace else ".")
        return _check(f"disk:{where}", "disk", status, f"Disk {where}", f"{evidence}; {warning}", "", remedy)
    return _check(f"disk:{where}", "disk", "ok", f"Disk {where}", evidence)


def server_words(server: VllmServer) -> str:
    """Health, models and requests of a server."""
    words = {"ok": "healthy", "down": "down", "unknown": "unknown"}[server.health]
    models = ", ".join(clean_line(m) for m in server.models) or "no model named"
    load = f"; {server.running:.0f} running, {server.waiting or 0:.0f} waiting" if server.running is not None else ""
    return f"{words}; {models}{load}" + (f"; {clean_line(server.text)}" if server.text and server.health != "ok" else "")


def _server(server: VllmServer) -> dict[str, Any]:
    status = {"ok": "ok", "down": "warn", "unknown": "unknown"}[server.health]
    remedy = "" if status == "ok" else f"Look at the log of the process {server.pid or 'behind it'}."
    return _check(f"vllm:{server.url}", "vllm", status, f"vLLM {clean_line(server.url)}", server_words(server), "", remedy)


def report(host: str, probe: Probe) -> dict[str, Any]:
    """The report of a light probe. The verdict is the worst status that is ok, warn or fail."""
    return _report(host, probe, _machine(probe))


def without_python(host: str, error: NoPython, now: float) -> dict[str, Any]:
    """The report of a container that has no Python for the helper: what a shell sees of it, and the next step."""
    evidence = f"{error.text} Found: {', '.join(error.found) or 'none'}."
    python = _check("python", "host", "fail", "Python", evidence, "Without it there is no helper and no run.", error.remedy)
    return _report(host, error.probe.model_copy(update={"now": now}), [python, *_machine(error.probe)])


def _machine(probe: Probe) -> list[dict[str, Any]]:
    about = host_words(probe.host)
    checks = [_check("host", "host", "ok", "Host", about or "answers"), _gpu(probe.gpu)]
    checks += [_disk(disk, place == 0) for place, disk in enumerate(probe.disks)]  # the workspace's comes first
    return checks + ([_server(s) for s in probe.vllm] or [_check("vllm", "vllm", "skipped", "vLLM", "no server is running")])


def _report(host: str, probe: Probe, checks: list[dict[str, Any]]) -> dict[str, Any]:
    statuses = {check["status"] for check in checks}
    verdict = "fail" if "fail" in statuses else "warn" if statuses & {"warn", "unknown"} else "ok"
    return {"host": host, "as_of": probe.now, "verdict": verdict, "checks": checks, "runs": [r.model_dump() for r in probe.runs]}


def lines(report: dict[str, Any]) -> list[str]:
    """The report in words, one check a line."""
    width = max((len(check["title"]) for check in report["checks"]), default=0)
    out = []
    for check in report["checks"]:
        symbol, word = CHECK_WORDS[check["status"]]
        out.append(f"{symbol} {word:<8} {check['title']:<{width}}  {check['evidence']}")
        if check["remedy"]:
            out.append(f"{'':<{width + 12}}→ {check['remedy']}")
    return out
