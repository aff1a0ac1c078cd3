"""The mount table: which file system holds a path, of what kind, mounted how."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import List, NamedTuple

NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "9p", "virtiofs", "afs", "orangefs",
        "ocfs2", "gfs2", "pvfs2", "wekafs", "fuse.sshfs", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone",
        "fuse.glusterfs", "fuse.ceph", "fuse.mountpoint-s3", "fuse.goofys", "fuse.blobfuse2",
    }
)  # fmt: skip
"""File systems whose other end is another machine: slower, able to hang, with locks of their own kind."""


class Mount(NamedTuple):
    """A line of mountinfo. ``options`` are the mount's and the file system's own, together."""

    point: str
    fstype: str
    source: str
    options: List[str]


def holding(place: Path, root: Path = Path("/")) -> Mount:
    """The mount that holds ``place`` (absolute, links resolved); all empty where the table cannot be read. ``root`` holds the
    ``proc`` that is read."""
    best = Mount("", "", "", [])
    with contextlib.suppress(OSError):
        table = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        for line in table.splitlines():
            left, _, right = line.partition(" - ")
            fields, about = left.split(" "), right.split(" ")
            if len(fields) < 6 or len(about) < 2:
                continue
            point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape", "replace")
            inside = str(place) == point or str(place).startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best.point):  # of two on one point the later one is on top
                options = fields[5].split(",") + (about[2].split(",") if len(about) > 2 else [])
                best = Mount(point, about[0], about[1], list(dict.fromkeys(options)))
    return best
