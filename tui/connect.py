"""Where the console meets ``remote``: imported late, so that the first picture does not wait for an SSH library."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from eagle3.core.records import MetricRow, Probe
from eagle3.core.spec import RunSpec
from remote.ask import Ask
from tui.ports import Connect, ContainerPort, OnLink


def preload() -> None:
    """Load what the first connection and its answer need; to be called in a thread while the screen is drawn."""
    import_module("remote.connection")
    import_module("eagle3.core.readiness.judge")
    for model in (Probe, MetricRow, RunSpec):
        model.model_rebuild()


def connector(host: str, *, local: bool, python: str | None = None) -> Connect:
    """The factory for one host. The container lives in a thread of its own: a terminal that is not read stops this one."""

    def connect(on_link: OnLink, ask: Ask, workspace: str) -> ContainerPort:
        from remote.container import Container, Link
        from remote.own_thread import OwnThread

        def make(tell: Callable[[Link], None], ask: Ask) -> Container:
            return Container(host, local=local, workspace=workspace, python=python, probe_first=True, ask=ask, on_link=tell)

        return cast(ContainerPort, OwnThread(make, on_link, ask))

    return connect
