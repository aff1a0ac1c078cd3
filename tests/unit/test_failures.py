"""Whatever breaks, the operator reads one sentence that names the thing and the next step."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from eagle3.failures import explain

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def caused_by_a_full_disk() -> Exception:
    error = RuntimeError("the writer has failed")
    error.__context__ = FULL
    return error


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/data/x"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
        caused_by_a_full_disk(),
    ],
)
def test_a_full_disk_is_one_whoever_says_it(tmp_path: Path, error: Exception) -> None:
    said = explain(error, tmp_path, "train")
    assert said.startswith("The disk of /") and said.endswith("is full; free some space, then resume the run.")


def torchs(name: str, text: str) -> Exception:
    """An exception of torch's by its class's name: importing torch for it takes seconds."""
    found: Exception = type(name, (RuntimeError,), {})(text)
    return found


IN_A_LOADER = "Caught RuntimeError in DataLoader worker process 0.\nTraceback:\nRuntimeError: "
NO_SHARED_MEMORY = "unable to write to file </torch_311_2744_0>: No space left on device (28)"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torchs("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 1.00 GiB free."),
            "The memory of a GPU is used up (CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 1.00 GiB free); end what",
        ),
        (
            torchs("RuntimeError", IN_A_LOADER + NO_SHARED_MEMORY),
            f"The shared memory in /dev/shm is used up (RuntimeError: {NO_SHARED_MEMORY}); start the container with --ipc=host",
        ),
        (
            torchs("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
                   "workers are out of shared memory. Please try to raise your shared memory limit."),
            "The shared memory in /dev/shm is used up (DataLoader worker (pid 7) is killed by signal: Bus error",
        ),
        (
            torchs("DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error"),
            "The GPUs do not reach each other (NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error); `eagle3",
        ),
    ],
    ids=["a card that is full", "shared memory that is no disk", "a loader that was killed for it", "NCCL"],
)  # fmt: skip
def test_what_fails_on_gpus_is_told_with_its_own_next_step(tmp_path: Path, error: Exception, said: str) -> None:
    found = explain(error, tmp_path, "train")
    assert found.startswith(said) and "resume" in found and "defect" not in found


def test_a_disk_without_room_is_blamed_for_what_has_no_words_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    assert "is full" in explain(RuntimeError("the writer has failed"), tmp_path, "train")
    assert "is full" not in explain(PermissionError(errno.EACCES, "Permission denied", "/x"), tmp_path, "train")


def test_a_file_that_cannot_be_used_is_named_with_the_next_step(tmp_path: Path) -> None:
    said = explain(PermissionError(errno.EACCES, "Permission denied", "/data/x"), tmp_path, "extract")
    assert said == "/data/x cannot be used (Permission denied); give this user the right to it, then resume the run."


def test_the_unforeseen_is_told_as_what_it_is(tmp_path: Path) -> None:
    said = explain(KeyError("choices"), tmp_path, "extract")
    assert "KeyError: 'choices'" in said and "resume the run" in said and "defect of eagle3 in extract" in said
