"""A port that stays the test's own between its choice and its use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port of the loopback that nobody else is given meanwhile. Connections to it are refused; a server of this user that sets
    SO_REUSEPORT can listen on it, as often as it likes."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # only now: else it may be a port that another one shares
        yield int(held.getsockname()[1])
