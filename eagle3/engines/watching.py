"""Looks at a server every few seconds, in a thread of its own, so that one that hangs is noticed while requests wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx

from eagle3.core.pulse import Look, Pulse
from eagle3.engines.prometheus import Counters, parse_counters
from eagle3.engines.tls import trust

_LOOK_EVERY_S = 5.0
_PATIENCE_S = 10.0
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


class Watch:
    """Watches one server from its making to ``close``. ``dead``: why it counts as dead, empty while it does not.
    ``doubtful``: whether the last look failed."""

    def __init__(
        self,
        base_url: str,
        *,
        silent_s: float,
        on_metrics: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_metrics`` is given the text of ``/metrics`` at each look, in the watch's thread."""
        self.dead = ""
        self._on_metrics = on_metrics
        self._pulse = Pulse(silent_s)
        self._clock = clock
        self._base_url = base_url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-watch", daemon=True)
        self._thread.start()

    @property
    def doubtful(self) -> bool:
        return self._pulse.doubtful

    def close(self) -> None:
        """Look no more. A look under way ends by itself."""
        self._over.set()

    def _run(self) -> None:
        with local_client(self._base_url, patience_s=_PATIENCE_S) as http:
            while not self._over.wait(_LOOK_EVERY_S):
                found = self._pulse.take(look(http, self._clock, self._on_metrics))
                if found:
                    self.dead = found
                    return


def look(http: httpx.Client, clock: Callable[[], float], on_metrics: Callable[[str], None] = lambda text: None) -> Look:
    """What the server shows now."""
    try:
        health = http.get("/health")
        if health.is_server_error:
            return Look(clock(), "ill", said=f"status {health.status_code}")
        text = http.get("/metrics").text
        counters = parse_counters(text)
        on_metrics(text)
    except httpx.TimeoutException:
        return Look(clock(), "slow", said="no answer in time")
    except (httpx.HTTPError, ValueError) as error:
        return Look(clock(), "ill", said=str(error) or type(error).__name__)
    found = [value for name in _TOKENS if (value := _number(counters, name)) is not None]
    return Look(clock(), "ok", running=_number(counters, "vllm:num_requests_running"), tokens=sum(found) if found else None)


def local_client(base_url: str, *, patience_s: float = 10.0) -> httpx.Client:
    """A client for a server of ours: no proxy from the environment, short patience."""
    timeout = httpx.Timeout(patience_s, connect=2.0)
    return httpx.Client(base_url=base_url, verify=trust(base_url), trust_env=False, timeout=timeout)


def _number(counters: Counters, name: str) -> float | None:
    value = counters.get(name)
    return value if isinstance(value, float) else None
