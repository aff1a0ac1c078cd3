from __future__ import annotations

import subprocess
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


@pytest.fixture
def fake_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver library with eight cards that lacks most functions, as old drivers do."""
    folder = tmp_path / "lib"
    folder.mkdir()
    source = Path(__file__).parent / "fake_nvml.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


@pytest.fixture
def gpu_control(fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file by which a test makes the cards ill: lines "key card value", see fake_nvml.c. The driver now knows faults."""
    place = tmp_path / "gpu-control"
    place.touch()
    monkeypatch.setenv("FAKE_CONTROL", str(place))
    return place
