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


def explain(error: Exception, run_dir: Path, stage: str) -> str:
    """The sentence for an exception that no stage has turned into a StageError.

    A full disk comes in many dresses (safetensors and torch raise classes of their own), so the disk is looked at too.
    """
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
    lines = str(error).strip().splitlines() or ["no message"]
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
