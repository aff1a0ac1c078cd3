"""Which process of this machine a server at an address is: the one that listens there, by the kernel's own tables.

A command line says what somebody asked for. Two may have asked for the same port, one of them may have failed, a shell that
merely looks at a log has the word in its command line too. So the kernel's list of listening sockets is held against the open
files of the process and of what it has started.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True)
class Listener:
    """Who listens at an address. ``process`` is None where none of the candidates does; ``assumed`` says then why, and else what
    could not be seen of the process that is taken for it (empty where all was seen). ``rivals``: pids of several that share the
    port, each of which gets some of the requests."""

    process: psutil.Process | None
    assumed: str = ""
    rivals: tuple[int, ...] = ()


def listener(port: int, candidates: Sequence[psutil.Process], *, loopback: bool, proc: Path = Path("/proc")) -> Listener:
    """Which of ``candidates`` listens, itself or by a child, on the TCP port ``port``. ``loopback``: where a client on this
    machine's loopback reaches it."""
    here = sockets(proc / "net", port, loopback=loopback)
    seen: list[psutil.Process] = []
    unseen: list[tuple[psutil.Process, str]] = []
    for process in candidates:
        found, why = _listens(process, port, here, proc)
        if found:
            seen.append(process)
        elif why:
            unseen.append((process, why))
    seen = _innermost(seen)
    if len(seen) > 1:
        return Listener(None, rivals=tuple(process.pid for process in seen))
    if seen:
        return Listener(seen[0])
    if unseen:
        process, why = _innermost_first(unseen)
        return Listener(process, f"{why}, so its command line is taken at its word")
    if candidates:
        told = ", ".join(str(process.pid) for process in candidates)
        return Listener(None, f"what was told that port (pid {told}) does not listen on it")
    return Listener(None)


def sockets(net: Path, port: int, *, loopback: bool = False) -> set[int]:
    """The inodes of the sockets that listen on ``port``, from the tables ``tcp`` and ``tcp6`` of a folder ``net`` in /proc:
    ``sl local_address rem_address st … inode``, addresses and ports in hexadecimal (proc_pid_net(5)). ``loopback``: without
    those of an address that is not the loopback's."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # a kernel without IPv6, or a process that has just ended
            for line in (net / name).read_text(encoding="ascii", errors="replace").splitlines()[1:]:
                fields = line.split()
                if len(fields) < 10 or fields[3] != _LISTENS:
                    continue
                address, _, at = fields[1].rpartition(":")
                if int(at, 16) == port and (not loopback or _reached_by_loopback(address)):
                    found.add(int(fields[9]))
    return found


def _reached_by_loopback(address: str) -> bool:
    """``address``: words of four bytes in hexadecimal, each in the machine's own byte order."""
    words = [int(address[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    found = mapped or found
    return found.is_loopback or found.is_unspecified


def is_here(host: str | None, names: Iterable[str]) -> bool:
    """Whether an address's host is this machine: a loopback address, or one of its own ``names``."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost" or host in set(names)


def _listens(process: psutil.Process, port: int, here: set[int], proc: Path) -> tuple[bool, str]:
    """Whether the process or a child of it holds a listening socket of the port; and where it does not, what of them could not
    be seen, for then it may."""
    why = ""
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in (process, *process.children(recursive=True)):
            wanted, folder = here, proc / str(member.pid)
            try:
                if (folder / "ns/net").readlink() != (proc / "self/ns/net").readlink():
                    # What listens in a container of its own is in that container's table, and the port may be forwarded.
                    wanted = sockets(folder / "net", port)
                    if _held(folder) & wanted:
                        why = why or f"pid {member.pid} listens on that port in another network namespace"
                    continue
                if _held(folder) & wanted:
                    return True, ""
            except PermissionError:
                whose = f"another user's ({member.username()})" if _owner(member) != os.geteuid() else "protected"
                why = why or f"the open sockets of pid {member.pid} cannot be read, it is {whose}"
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
    return False, why


def _held(folder: Path) -> set[int]:
    """The inodes of the sockets that a process holds open. Raises PermissionError, FileNotFoundError."""
    found = set()
    for entry in os.scandir(folder / "fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if match := _SOCKET.fullmatch(str(Path(entry.path).readlink())):
                found.add(int(match.group(1)))
    return found


def _owner(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.uids().effective)
    return -1


def _innermost(found: list[psutil.Process]) -> list[psutil.Process]:
    """Without those that merely started another of them: a shell, `timeout`, `sudo`."""
    above = {parent.pid for process in found for parent in _parents(process)}
    return [process for process in found if process.pid not in above]


def _innermost_first(found: list[tuple[psutil.Process, str]]) -> tuple[psutil.Process, str]:
    inner = {process.pid for process in _innermost([process for process, _ in found])}
    return next((one for one in found if one[0].pid in inner), found[0])


def _parents(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(process.parents())
    return []
