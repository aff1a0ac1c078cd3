"""What the console needs of the other side, as types only: ``remote.container.Container`` fits, and so does the small
in-process container of the tests. Importing this costs nothing of asyncssh."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal, Protocol

from eagle3.core.records import Event, MetricRow, Probe, Progress, Result, RunSummary
from eagle3.core.spec import RunSpec
from remote.ask import Ask


class LinkView(Protocol):
    """The state of the connection. ``since`` is Unix seconds by this machine's clock."""

    @property
    def status(self) -> str: ...  # connecting, up, degraded, down, refused
    @property
    def since(self) -> float: ...
    @property
    def reason(self) -> str: ...


class RunNewsView(Protocol):
    """What one poll of a run brought: increments of its files since the last one. ``reset`` names the files that start
    again at their beginning (replaced or truncated)."""

    @property
    def summary(self) -> RunSummary: ...
    @property
    def progress(self) -> Progress | None: ...
    @property
    def rows(self) -> list[MetricRow]: ...
    @property
    def events(self) -> list[Event]: ...
    @property
    def log(self) -> str: ...
    @property
    def reset(self) -> AbstractSet[str]: ...
    @property
    def result(self) -> Result | None: ...


class ContainerPort(Protocol):
    """The facade. Calls raise ``remote.errors``' LinkError (the wire) or ContainerError (the answer). It keeps its link up
    by itself once opened with ``persist``; every call is safe to repeat."""

    @property
    def link(self) -> LinkView: ...
    async def open(self, *, persist: bool = False) -> None: ...
    def reconnect(self) -> None: ...
    async def close(self) -> None: ...
    async def probe(self) -> Probe: ...
    async def runs(self) -> list[RunSummary]: ...
    async def read_text(self, run_id: str, *names: str) -> dict[str, str | None]: ...
    async def launch(
        self, spec: RunSpec, run_id: str, actor: str = "", resume: bool = False, *, secret_env: Mapping[str, str] | None = None
    ) -> dict[str, Any]: ...
    async def collect(self, run_id: str) -> dict[str, Any]: ...
    async def stop(self, run_id: str, mode: StopMode = "now", actor: str = "") -> dict[str, Any]: ...
    def follow(self, run_id: str, poll_s: float = 1.0) -> AsyncIterator[RunNewsView]: ...


StopMode = Literal["now", "after-checkpoint"]
OnLink = Callable[[LinkView], None]


class Connect(Protocol):
    """Makes the container of a workspace (not yet open). ``on_link`` is called at each change of the link; ``ask`` holds the
    questions that only the operator can answer. Raises ContainerError(usage) for a host or workspace that is none."""

    def __call__(self, on_link: OnLink, ask: Ask, workspace: str) -> ContainerPort: ...
