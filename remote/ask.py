"""Questions that only a person can answer. Whoever shows them passes the callbacks; without one the answer is no."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class HostKeyQuestion:
    """A host whose key nobody has vouched for yet. ``name`` is what the answer will be remembered under."""

    host: str
    name: str
    key_type: str
    fingerprint: str
    """``SHA256:…``, as ``ssh-keygen -lf`` prints it."""

    @property
    def text(self) -> str:
        return f"{self.host} is not known yet. Its {self.key_type} key has the fingerprint {self.fingerprint}. Trust it?"


@dataclass(frozen=True)
class SecretQuestion:
    """A password, one-time code or key passphrase is wanted; the answer is used once and never kept. With ``run_id`` it is
    the value of a secret that this run needs: kept in memory until the console ends, for a resume."""

    host: str
    prompt: str
    echo: bool = False
    run_id: str = ""


@dataclass(frozen=True)
class Ask:
    """The callbacks. ``host_key`` answers whether to trust; ``secret`` gives the text, or None for "cancel"."""

    host_key: Callable[[HostKeyQuestion], Awaitable[bool]] | None = None
    secret: Callable[[SecretQuestion], Awaitable[str | None]] | None = None


NOBODY = Ask()
