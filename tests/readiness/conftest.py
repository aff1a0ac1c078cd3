from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.runner.conftest import channel, gpu_control, workspace
from tests.runner.support import ROOT

__all__ = ["channel", "gpu_control", "workspace"]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the driver library, compiled once: many tests here make its cards ill."""
    folder = tmp_path_factory.mktemp("nvml")
    source = ROOT / "tests" / "runner" / "fake_nvml.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


@pytest.fixture
def fake_nvml(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight cards of a driver that lacks most functions, as old ones do."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
    return nvml_library
