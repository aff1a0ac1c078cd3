"""Where the console meets ``remote``: imported late, so that the first picture does not wait for an SSH library."""

from __future__ import annotations

from importlib import import_module

from remote.ask import Ask
from tui.ports import Connect, ContainerPort, OnLink


def preload() -> None:
    """Load what the first connection needs; to be called in a thread while the screen is drawn."""
    import_module("remote.connection")


def connector(host: str, *, local: bool, python: str | None = None) -> Connect:
    """The factory for one host."""

    def connect(on_link: OnLink, ask: Ask, workspace: str) -> ContainerPort:
        from remote.container import Container

        return Container(host, local=local, workspace=workspace, python=python, ask=ask, on_link=on_link)

    return connect
