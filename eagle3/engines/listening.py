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
    own: set[int] = set()
    unseen: dict[psutil.Process, str] = {}
    for process in candidates:
        holder, why = _holder(process, port, here, proc)
        if holder:
            seen.append(process)
            own |= {holder}
        elif why:
            unseen[process] = why
    # A server and its children may share the socket and the command line: they are one. What merely started it, a shell or
    # `timeout`, does not hold the socket.
    heads = _heads(seen)
    if len(heads) > 1:
        return Listener(None, rivals=tuple(process.pid for process in heads))
    if heads:
        return Listener(next(iter(_heads([process for process in seen if process.pid in own])), heads[0]))
    if unseen:
        process, *others = _heads(list(unseen))
        more = f"; of pid {', '.join(str(other.pid) for other in others)}, told the same port, no more is known" if others else ""
        return Listener(process, f"{unseen[process]}, so its command line is taken at its word{more}")
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


def _holder(process: psutil.Process, port: int, here: set[int], proc: Path) -> tuple[int, str]:
    """The pid of the process, or of the first child of it, that holds a listening socket of the port; where none does 0 and what
    of them could not be seen, for then one may."""
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
                    return member.pid, ""
            except PermissionError:
                whose = f"another user's ({member.username()})" if _owner(member) != os.geteuid() else "protected"
                why = why or f"the open sockets of pid {member.pid} cannot be read, it is {whose}"
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
    return 0, why


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


def _heads(found: list[psutil.Process]) -> list[psutil.Process]:
    """Without those that descend from another of them."""
    pids = {process.pid for process in found}
    return [process for process in found if not pids & {parent.pid for parent in _parents(process)}]


def _parents(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(process.parents())
    return []
