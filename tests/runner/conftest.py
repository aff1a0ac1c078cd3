from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.support import RUNNER, Channel, end_everything, old_python


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "ws"
    yield place
    end_everything(place)


@pytest.fixture
def channel() -> Iterator[Channel]:
    """``serve`` under the oldest Python that is promised, isolated and without site-packages."""
    found = Channel(old_python(), "-I", "-S", str(RUNNER))
    yield found
    if found.process.poll() is None:
        found.close()
