"""Where the console meets ``remote``: imported late, so that the first picture does not wait for an SSH library."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from tui.ports import Connect, ContainerPort, OnLink
from tui.tidying import keep_loaded

if TYPE_CHECKING:
    from remote.ask import Ask

FIRST = ("remote.connection", "tui.plan")
REST = (
    "tui.screens.run", "tui.launching", "tui.checking", "tui.mending", "tui.comparing", "tui.screens.runs", "tui.screens.logs",
    "tui.screens.help", "tui.screens.launch", "tui.screens.readiness", "tui.screens.notes", "eagle3.core.readiness.judge",
)  # fmt: skip


def preload() -> None:
    """Load what the first connection and its answer need; to be called in a thread while the screen is drawn."""
    keep_loaded()
    for name in FIRST:
        import_module(name)
    from eagle3.core.records import MetricRow, Probe, RunSummary

    for model in (Probe, RunSummary, MetricRow):
        model.model_rebuild()


def preload_rest() -> None:
    """Load what the operator's first keys need, the plots foremost; to be called in a thread once the first answer is there."""
    for name in REST:
        import_module(name)
    from eagle3.core.spec import RunSpec

    RunSpec.model_rebuild()
    keep_loaded()


def connector(host: str, *, local: bool, python: str | None = None) -> Connect:
    """The factory for one host. The container lives in a thread of its own: a terminal that is not read stops this one."""

    def connect(on_link: OnLink, ask: Ask, workspace: str) -> ContainerPort:
        from remote.container import Container, Link
        from remote.own_thread import OwnThread

        def make(tell: Callable[[Link], None], ask: Ask) -> Container:
            return Container(host, local=local, workspace=workspace, python=python, probe_first=True, ask=ask, on_link=tell)

        return cast(ContainerPort, OwnThread(make, on_link, ask))

    return connect
