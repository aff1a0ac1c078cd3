"""Fixtures of the console's tests: a clock that stands still until it is moved, a container in this process, the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tui.support.container import FakeContainer
from tests.tui.support.folders import NOW
from tui.app import ConsoleApp
from tui.screens.question import Question


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests answer a question as soon as it is painted; `test_questions` alone takes a person's time."""
    monkeypatch.setattr(Question, "read_s", 0.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def container(tmp_path: Path) -> FakeContainer:
    root = tmp_path / "runs"
    root.mkdir()
    return FakeContainer(root)


MakeApp = Callable[..., ConsoleApp]


@pytest.fixture
def make_app(container: FakeContainer, clock: Clock) -> MakeApp:
    """The console on the in-process container; ``poll_s`` is short so that tests do not wait."""

    def make(**options: object) -> ConsoleApp:
        return ConsoleApp(container, host="box", clock=clock, **{"poll_s": 0.05, "actor": "tests", **options})  # type: ignore[arg-type]

    return make
