"""What went wrong, as one sentence that names the thing and the next step; never a bare class name."""

from __future__ import annotations

import errno
import shutil
import tomllib
from pathlib import Path

from pydantic import ValidationError

from eagle3.core import refusals
from eagle3.core.spec import RunSpec
from eagle3.stages.context import StageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL_WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "os error 28",
    "os error 122",
    # torch's zip writer names no cause, only that less went out than it had written.
    "unexpected pos",
    "PytorchStreamWriter failed writing",
)
_NO_ROOM_BYTES = 1 << 20
_OF_GPUS = (
    (
        ("out of shared memory", "shared memory(shm)", "shared memory object", "</torch_"),
        "The shared memory in /dev/shm is used up ({line}); start the container with --ipc=host or a larger --shm-size "
        "(`eagle3 check` says how large), then resume the run.",
    ),
    (
        ("CUDA out of memory", "CUDA error: out of memory", "OutOfMemoryError"),
        "The memory of a GPU is used up ({line}); end what else holds it and resume the run, or fork it with more GPUs in "
        "devices.train, train.parallel = fsdp or a smaller train.pack_tokens.",
    ),
    (
        ("DistBackendError", "NCCL"),
        "The GPUs do not reach each other ({line}); `eagle3 check --deep` tries each number of ranks, and hardware.env holds "
        "NCCL's settings: put it right, then resume the run.",
    ),
)
"""Words of an exception's class or text, and what to say of it. The first is no full disk, though it says so."""


def explain(error: Exception, run_dir: Path, stage: str) -> str:
    """The sentence for an exception that no stage has turned into a StageError.

    A full disk comes in many dresses (safetensors and torch raise classes of their own), so the disk is looked at too.
    """
    lines = str(error).strip().splitlines() or ["no message"]
    for words, told in () if isinstance(error, OSError) else _OF_GPUS:
        # Of an error in a loader the first lines only say where it was; the last one is the error.
        telling = [line.strip() for line in lines if any(word in line for word in words)]
        if telling or type(error).__name__ in words:
            return told.format(line=(telling or lines)[-1][:300].rstrip(". "))
    if is_disk_full(error, run_dir):
        where = error.filename if isinstance(error, OSError) and error.filename else run_dir
        return f"The disk of {where} is full; free some space, then resume the run."
    if isinstance(error, OSError):
        thing = error.filename or run_dir
        why = error.strerror or str(error) or type(error).__name__
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return f"{thing} cannot be used ({why}); give this user the right to it, then resume the run."
        return f"{thing} cannot be used ({why}); put it right, then resume the run."
    if isinstance(error, MemoryError):
        return "The memory of this machine is used up; free some, or use a smaller size, then resume the run."
    return (
        f"Something unforeseen happened ({type(error).__name__}: {lines[0][:400]}); see the run's log, then resume the run, and "
        f"where it comes again report it: it is a defect of eagle3 in {stage}."
    )


def is_disk_full(error: BaseException, run_dir: Path) -> bool:
    """Whether an exception, or one behind it, comes from a disk without room."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        if any(words in str(seen) for words in _FULL_WORDS):
            return True
        seen = seen.__cause__ or seen.__context__
    if isinstance(error, OSError) and error.errno is not None:
        return False
    return shutil.disk_usage(run_dir).free < _NO_ROOM_BYTES


def read_spec(path: Path) -> RunSpec:
    """A run's ``spec.toml``. Raises StageError, naming the file and the field, where it cannot be used."""
    try:
        return RunSpec.from_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StageError(f"The spec {path} cannot be read ({error.strerror}); start a new run.") from error
    except ValidationError as error:
        raise StageError(
            f"The spec {path} cannot be used: {refusals.explain(error, RunSpec)} Correct the field, then resume."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StageError(f"The spec {path} is not TOML ({error}); correct it, then resume the run.") from error
