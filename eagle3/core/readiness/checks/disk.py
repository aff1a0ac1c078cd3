"""Checks of every path that a run writes: room, inodes, rights, quotas, network file systems, and what could be freed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eagle3.core.readiness.checks.words import GIB, bytes_label, first_few, share
from eagle3.core.readiness.registry import Context, Facts, Finding, check
from eagle3.core.readiness.report import Action
from eagle3.core.readiness.statuses import Status

LOW_BYTES, LOW_SHARE = 2 * GIB, 0.05
LEAST_BYTES, LEAST_INODES, LOW_INODES = 64 << 20, 128, 50_000
TIGHT = 0.8
"""A need beyond this share of what is free is worth a second look."""
FLOOR_BYTES = 1 << 30
LEFTOVER_BYTES = GIB
MANY_VERSIONS = 10

Entry = Mapping[str, Any]


def answered(facts: Facts) -> list[Entry]:
    return [entry for entry in facts["disk"]["paths"] if not entry.get("error")]


def by_mount(facts: Facts) -> dict[str, list[Entry]]:
    """The paths of each file system, in the order in which they were asked: the workspace's comes first."""
    found: dict[str, list[Entry]] = {}
    for entry in answered(facts):
        found.setdefault(str(entry["mount"] or entry["path"]), []).append(entry)
    return found


def holds_workspace(facts: Facts, entries: Sequence[Entry]) -> bool:
    """Whether the workspace, which was asked first, is among the paths of a file system: only there a run cannot begin."""
    return any(entry["asked"] == facts["disk"]["paths"][0]["asked"] for entry in entries)


def needs_by_mount(facts: Facts, context: Context) -> dict[str, list[Entry]]:
    """What the run will write, by file system."""
    mount_of = {str(entry["asked"]): str(entry.get("mount") or entry["path"]) for entry in answered(facts)}
    found: dict[str, list[Entry]] = {}
    for need in context.needs:
        where = str(need.get("mount") or mount_of.get(str(need["path"]), ""))
        found.setdefault(where, []).append(need)
    return found


def floor_of(context: Context) -> int:
    return context.spec.disk_floor_bytes if context.spec is not None else FLOOR_BYTES


@check(
    "disk.free", title="Free space", needs=("disk",), proof="real here: a small tmpfs",
    why="A full disk ends whatever writes next: a checkpoint, a log, a lock.",
    catches="disks filled by old versions and left-overs (vscode-remote#6429)",
)  # fmt: skip
def free(facts: Facts, context: Context) -> Iterator[Finding]:
    for mount, entries in by_mount(facts).items():
        left, total = entries[0]["free_bytes"], entries[0]["total_bytes"]
        if {str(entry["asked"]) for entry in entries} == {"/dev/shm"}:
            continue  # host.shm is about it
        evidence = f"{bytes_label(left)} free of {bytes_label(total)} ({first_few(_names(entries), 4)})"
        remedy = f"Free some space on {mount}."
        if holds_workspace(facts, entries) and left < LEAST_BYTES:
            yield Finding("fail", evidence, remedy, mount, f"Disk {mount}")
        elif left < LOW_BYTES or left < LOW_SHARE * total:
            yield Finding("warn", evidence, remedy, mount, f"Disk {mount}")
        else:
            yield Finding("ok", evidence, which=mount, title=f"Disk {mount}")


@check(
    "disk.inodes", title="Free inodes", needs=("disk",), proof="real here: a tmpfs with few inodes",
    why="Where no inodes are left no file can be made, however many bytes are free.",
    catches="'No space left on device' with gigabytes free (vscode-remote#4001: check bytes and inodes first)",
)  # fmt: skip
def inodes(facts: Facts, context: Context) -> Iterator[Finding]:
    needed = needs_by_mount(facts, context)
    fine: list[str] = []
    for mount, entries in by_mount(facts).items():
        left = entries[0].get("free_inodes")
        wanted = sum(int(need.get("inodes") or 0) for need in needed.get(mount, []))
        if left is None:
            fine.append(f"{mount} has no fixed number")
            continue
        evidence = f"{left:,} free on {mount}" + (f", {wanted:,} wanted by the run" if wanted else "")
        title = f"Inodes of {mount}"
        if (holds_workspace(facts, entries) and left < LEAST_INODES) or (wanted and left < wanted):
            yield Finding("fail", evidence, f"Delete small files on {mount}: caches, old runs.", mount, title)
        elif left < LOW_INODES:
            yield Finding("warn", evidence, f"Delete small files on {mount}: caches, old runs.", mount, title)
        else:
            fine.append(evidence)
    if fine:
        yield Finding("ok", "; ".join(fine))


@check(
    "disk.writable", title="Rights to write", needs=("disk",), proof="real here: a read-only mount, a file in the way",
    why="A run writes its workspace, the temporary folder and the caches of vLLM and the hub.",
    catches="read-only mounts and foreign folders found out after the model was loaded; NFS servers that answer nothing "
            "(vscode-remote#7192)",
)  # fmt: skip
def writable(facts: Facts, context: Context) -> Iterator[Finding]:
    fine = []
    for place, entry in enumerate(facts["disk"]["paths"]):
        path, title = str(entry["path"]), f"Writing to {entry['path']}"
        worst: Status = "fail" if place == 0 else "warn"
        other = "Choose another workspace, or have it mounted writable." if place == 0 else "See to it before a run needs it."
        if entry.get("error"):
            yield Finding("unknown", str(entry["error"]), "See its server and its mount (mount, dmesg).", path, title)
        elif entry["read_only"]:
            yield Finding(worst, f"{entry['mount']} is mounted read-only", other, path, title)
        elif not entry["is_folder"]:
            yield Finding(worst, f"{entry['folder']} is a file where a folder should be", other, path, title)
        elif not entry["writable"]:
            yield Finding(worst, f"this user may not write in {entry['folder']}", other, path, title)
        else:
            fine.append(path)
    if fine:
        yield Finding("ok", first_few(fine, 6))


@check(
    "disk.quota", title="Quota", needs=("disk",), proof="fake: the command quota; real here: mount options",
    why="A quota ends a run while the file system still shows free space: statvfs does not know of it.",
    catches="'Disk quota exceeded' on a disk with room (vscode-remote#4001)",
)  # fmt: skip
def quota(facts: Facts, context: Context) -> Iterator[Finding]:
    mounts, needed = by_mount(facts), needs_by_mount(facts, context)
    told = {str(line["mount"]): line for line in facts["disk"]["quota"] if line.get("mount")}
    broken = [str(line["error"]) for line in facts["disk"]["quota"] if line.get("error")]
    fine = []
    for mount, entries in mounts.items():
        line, options = told.get(mount), set(entries[0].get("options") or [])
        title = f"Quota on {mount}"
        if line is not None:
            yield _quota(line, sum(int(need["bytes"]) for need in needed.get(mount, [])), mount, title)
        elif options & {"usrquota", "grpquota", "prjquota", "quota", "uquota", "pquota", "gquota"}:
            why = broken[0] if broken else "the command quota tells nothing of it"
            yield Finding(
                "unknown", f"{mount} is mounted with quotas, and {why}", "Ask its administrator how much is left.", mount, title
            )
        elif entries[0].get("network") and needed.get(mount):
            remedy = "Ask its own tool: lfs quota, mmlsquota, or the provider's page."
            yield Finding(
                "unknown", f"{mount} is {entries[0]['fstype']}; its quota is told by its own tool only", remedy, mount, title
            )
        else:
            fine.append(mount)
    if fine:
        yield Finding("ok", f"none on {first_few(fine, 6)}")


@check(
    "disk.network", title="Network file systems", needs=("disk",), proof="fake: a mount table under another root",
    why="Locks, renames and speed are of another kind there, and a lost server makes processes wait for ever.",
    catches="flock that fails or hangs on NFS (vscode-remote#91, #7192), a job database locked for good (skypilot#3863)",
)  # fmt: skip
def network(facts: Facts, context: Context) -> Iterator[Finding]:
    found = [entry for entry in answered(facts) if entry.get("network")]
    seen = set()
    for entry in found:
        if entry["mount"] in seen:
            continue
        seen.add(entry["mount"])
        options = set(entry.get("options") or [])
        loose = sorted(options & {"nolock", "noflock", "localflock", "local_lock=all", "local_lock=flock", "soft"})
        bare = entry["fstype"] == "lustre" and not options & {"flock", "localflock"}
        evidence = f"{entry['path']} lies on {entry['fstype']} from {entry['source']}"
        evidence += f", mounted with {first_few(loose)}" if loose else ""
        evidence += ", mounted without flock: every lock there fails" if bare else ""
        remedy = "Keep the workspace on a local disk and copy the results, or prove locks and speed with --deep."
        yield Finding("warn", evidence, remedy, str(entry["mount"]), f"Network file system {entry['mount']}")
    if not found:
        yield Finding("ok", "none of the paths lies on one")


@check(
    "disk.exec", title="Compiled code", needs=("disk",), proof="real here: a tmpfs mounted noexec",
    why="Compiled kernels are written to the temporary folder and the cache and loaded from there.",
    catches="torch and Triton that fail with 'failed to map segment' where /tmp is noexec (pytorch#91005, pytorch#123054)",
)  # fmt: skip
def executable(facts: Facts, context: Context) -> Iterator[Finding]:
    shared = [entry for entry in answered(facts) if entry["asked"] not in ("/dev/shm", "{hf_cache}")]
    bad = [entry for entry in shared if entry.get("noexec")]
    for entry in bad:
        yield Finding(
            "fail" if context.device == "cuda" else "warn", f"{entry['path']} lies on {entry['mount']}, mounted noexec",
            "Mount it with exec, or set TMPDIR and XDG_CACHE_HOME to a folder that is.", str(entry["path"]),
            f"Compiled code in {entry['path']}",
        )  # fmt: skip
    if shared and not bad:
        yield Finding("ok", f"may be loaded from {first_few(_names(shared), 6)}")


@check(
    "disk.needs", title="Room for this run", needs=("disk",), proof="real here: a tmpfs too small for the run",
    why="Hidden states take gigabytes; a run that stops for want of room has cost its hours.",
    catches="1.17 GB a sample, found out when the disk was full (SpecForge#426)",
)  # fmt: skip
def room(facts: Facts, context: Context) -> Iterator[Finding]:
    mounts, floor = by_mount(facts), floor_of(context)
    for mount, needed in needs_by_mount(facts, context).items():
        total = sum(int(need["bytes"]) for need in needed)
        parts = [f"{bytes_label(need['bytes'])} for {need['what']}" for need in needed]
        if mount not in mounts:
            yield Finding(
                "unknown",
                f"{first_few(parts, 9)}: nothing is known of the disk",
                "See what is known of that path first.",
                needed[0]["path"],
            )
            continue
        left = int(mounts[mount][0]["free_bytes"])
        usable = left - floor
        evidence = (
            f"{' + '.join(parts)}{f' = {bytes_label(total)}' if len(parts) > 1 else ''}; on {mount} {bytes_label(left)} free "
            f"− {bytes_label(floor)} kept free = {bytes_label(max(usable, 0))} to use"
        )
        title = f"Room for this run on {mount}"
        if total > usable:
            remedy = f"Free {bytes_label(total - usable)} there, choose another workspace, or lower the number of prompts."
            yield Finding("fail", evidence, remedy, mount, title, "\n".join(_freeable(facts)), _delete(facts))
        elif total > TIGHT * usable:
            yield Finding(
                "warn", evidence, "Free some space there first.", mount, title, "\n".join(_freeable(facts)), _delete(facts)
            )
        else:
            yield Finding("ok", evidence, which=mount, title=title)


@check(
    "disk.leftovers", title="What could be freed", needs=("disk",),
    proof="real here: runs, versions and raw states in a workspace",
    why="States of ended runs, raw states of a killed server and old helper versions add up.",
    catches="old versions that fill the disk (vscode-remote#6429), raw states that an extraction leaves behind",
)  # fmt: skip
def leftovers(facts: Facts, context: Context) -> Iterator[Finding]:
    found = facts["disk"].get("freeable")
    if not found:
        yield Finding("unknown", "the workspace could not be looked through in time", "Look with `du -sh` there.")
        return
    at_least = "" if found["complete"] else "at least "
    spare = found["leftover_bytes"]
    evidence = f"{at_least}{bytes_label(spare)} of left-overs, {at_least}{bytes_label(found['runs_bytes'])} of ended runs"
    evidence += f", {found['versions']} versions of the helper" if found["versions"] > 1 else ""
    detail = "\n".join(_freeable(facts))
    paths = by_mount(facts)
    left = int(next(iter(paths.values()))[0]["free_bytes"]) if paths else None
    if spare > LEFTOVER_BYTES or found["versions"] > MANY_VERSIONS or (left is not None and spare > left):
        remedy = f"Look at the list and delete what nobody needs: {first_few((i['path'] for i in found['items']), 2)}"
        yield Finding("warn", evidence, remedy, detail=detail, action=_clean(facts) or _delete(facts))
    else:
        yield Finding("ok", evidence, detail=detail, action=_clean(facts))


def _quota(line: Entry, wanted: int, mount: str, title: str) -> Finding:
    used, limit, files, most = line["used_bytes"], line["limit_bytes"], line["used_files"], line["limit_files"]
    parts = [f"{bytes_label(used)} used of {bytes_label(limit)}"] if limit else []
    parts += [f"{files:,} files of {most:,}"] if most else []
    if not parts:
        return Finding("ok", "counted, without a limit", which=mount, title=title)
    evidence = ", ".join(parts) + (f"; the run wants {bytes_label(wanted)}" if wanted and limit else "")
    remedy = f"Delete files of this user on {mount}, or have the quota raised."
    if (limit and used + wanted > limit) or (most and files + LEAST_INODES > most):
        return Finding("fail", evidence, remedy, mount, title)
    if (limit and used > 0.9 * limit) or (most and files > 0.9 * most):
        return Finding("warn", evidence, remedy, mount, title)
    return Finding("ok", evidence, which=mount, title=title)


def _freeable(facts: Facts) -> list[str]:
    """What could be deleted, the largest first, one a line."""
    items: Sequence[Entry] = (facts["disk"].get("freeable") or {}).get("items") or []
    held = sum(int(item["bytes"]) for item in items)
    return [f"{bytes_label(i['bytes'])} ({share(i['bytes'], held)})  {i['path']}  {i['what']}" for i in items[:12]]


def _clean(facts: Facts) -> Action | None:
    """The offer to remove what extractions have left behind, where there is something."""
    items: Sequence[Entry] = (facts["disk"].get("freeable") or {}).get("items") or []
    if not any(item["leftover"] and str(item["path"]).endswith("/states/raw") for item in items):
        return None
    return Action(verb="clean_leftovers", label="clean extraction leftovers", confirm="No run works there any more.")


def _delete(facts: Facts) -> Action | None:
    items: Sequence[Entry] = (facts["disk"].get("freeable") or {}).get("items") or []
    if not items:
        return None
    return Action(
        verb="delete", args={"paths": [str(item["path"]) for item in items]}, label="choose what to delete",
        confirm="Delete what you pick from the list, with its sizes?",
    )  # fmt: skip


def _names(entries: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(str(entry["path"]) for entry in entries))
