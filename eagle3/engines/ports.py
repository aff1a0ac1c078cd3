"""A port for a server of the run's own, kept from other runs while the server loads."""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

from eagle3.stages.context import StageError

_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports that the kernel gives to whoever asks for any, and to every connection that is made."""
_LOWEST, _BELOW = 20_000, 30_000
"""From here up to those; from the second number on Kubernetes gives ports to its services, on the loopback of a node too."""
_FEWEST, _TRIES = 1000, 100


def claim_port(port: int) -> tuple[int, socket.socket]:
    """The port asked for when it is free, or a free one for 0, and what holds it against other runs until it is closed.

    vLLM binds its port long before it listens, and until then the port looks free: a second run would come up beside it, be
    answered by the first one's server, and take its words for those of its own. Hence a name in the abstract socket space:
    it ends with this process and belongs to the same network namespace as the port. Raises StageError for a busy port.
    """
    while True:
        try:
            found = _take_port(port or _kept_from_others())
        except StageError:
            if port == 0:  # another run has just taken it
                continue
            raise
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0eagle3-vllm-port-{found}")
        except OSError as error:
            claim.close()
            if port == 0:
                continue
            raise StageError(
                f"Port {port} (server.port) belongs to a server of another run that is still loading; "
                "wait for that run, or set server.port=0 for any free one."
            ) from error
        return found, claim


def _kept_from_others() -> int:
    """A free port below those that the kernel gives out, else 0: one of those may be another program's by the time that the
    server, which imports for seconds or minutes first, binds it."""
    try:
        below = min(_BELOW, int(_GIVEN_OUT.read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return 0
    for _ in range(_TRIES if below - _LOWEST >= _FEWEST else 0):
        port = _LOWEST + secrets.randbelow(below - _LOWEST)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    return 0


def _take_port(port: int) -> int:
    """The port asked for when it is free, or a free one for 0. Raises StageError for a busy one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StageError(
                f"Port {port} (server.port) cannot be used ({error.strerror}); free it, or set server.port=0 for any free one."
            ) from error
        return int(probe.getsockname()[1])
