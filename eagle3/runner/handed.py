"""The file that an extraction server names in its answer: taken, and removed, only where that server was told to write.

A name in an answer is a stranger's word. It counts only for a plain file of one name that lies directly in the folder which the
server's command line names, and that this server could have written itself. Whatever else is named is neither read nor removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import Any, List, Optional

from eagle3.runner import identity, proctable
from eagle3.runner.facts import vllm

SUFFIX = ".safetensors"
_DEFAULT_FOLDER = "/tmp"
"""Where vLLM's connector writes unless it is told."""
_LOOK = "look at that server's command line and log"


class NotItsFile(ValueError):
    """A server names a file that is none of its own. The message is the sentence for the operator."""


class Handed:
    """The folder of one server's files. ``who`` names the server in a sentence and ``remedy`` says what to do about one that
    lies. ``owner``: the user that the server runs as; None where it is this one. ``cwd``: where the server's own relative paths
    begin; empty where that is not known, and then none is taken."""

    def __init__(self, folder: Path, who: str, *, remedy: str = _LOOK, owner: Optional[int] = None, cwd: str = "") -> None:
        self.folder = Path(os.path.realpath(folder))
        self._who, self._remedy, self._owner, self._cwd = who, remedy, owner, cwd

    def named(self, handle: Any) -> Path:
        """The file that an answer names; it may not be there yet. Raises NotItsFile."""
        path = os.path.join(self._cwd, handle) if isinstance(handle, str) else ""  # noqa: PTH118 - a Path would drop a last slash
        if "\0" in path or not _is_encodable(path) or not os.path.isabs(path):  # noqa: PTH117 - as above
            raise self._refusal(handle, "which is no path from the root on")
        folder, name = os.path.split(path)
        if not name.endswith(SUFFIX) or name == SUFFIX:
            raise self._refusal(handle, f"whose name does not end in {SUFFIX}")
        if Path(os.path.realpath(folder)) != self.folder:
            raise self._refusal(handle, f"which is not in {self.folder}, the folder that it was told to write to")
        return self.folder / name

    def there(self, file: Path) -> bool:
        """Whether the server has written the file: it holds the lock beside it until then. Raises NotItsFile where what lies
        there is no plain file of its own."""
        with contextlib.suppress(FileNotFoundError):  # a connector may write without a lock
            self._judge(_lock_of(file))
            if not self._is_free(_lock_of(file)):
                return False
        try:
            self._judge(file)
        except FileNotFoundError:
            return False
        return True

    def remove(self, file: Path) -> None:
        """Delete what the server left for one answer, and its lock; what is no plain file of its own stays."""
        for place in (file, _lock_of(file)):
            with contextlib.suppress(FileNotFoundError, NotItsFile):  # gone; or refused, and said where it was looked at
                self._judge(place)
                place.unlink()

    def _is_free(self, lock: Path) -> bool:
        try:
            descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._refusal(lock, f"which cannot be opened ({error.strerror})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _judge(self, place: Path) -> None:
        try:
            about = place.lstat()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._refusal(place, f"which cannot be looked at ({error.strerror})") from error
        if not stat.S_ISREG(about.st_mode):
            raise self._refusal(place, "which is no plain file")
        if about.st_nlink > 1:
            raise self._refusal(place, "which has other names too")
        # Root may write anything, and what runs as this user could remove the file itself.
        if self._owner not in (None, 0, os.geteuid(), about.st_uid):
            raise self._refusal(place, f"which belongs to user {about.st_uid} while the server runs as {self._owner}")

    def _refusal(self, handle: Any, why: str) -> NotItsFile:
        shown = ascii(str(handle)[:300])
        return NotItsFile(
            f"{self._who} names {shown} as the file of a sample's states, {why}; it was neither read nor removed: {self._remedy}."
        )


def told_folder(words: List[str], cwd: str = "") -> Optional[Path]:
    """The folder that a vLLM's command line tells its connector to write to, which is vLLM's own default where it names a
    connector of hidden states and no folder; None where it names neither."""
    given = vllm.arguments(words).get("kv-transfer-config")
    if not isinstance(given, dict) or "HiddenStates" not in str(given.get("kv_connector")):
        return None
    extra = given.get("kv_connector_extra_config")
    folder = extra.get("shared_storage_path", _DEFAULT_FOLDER) if isinstance(extra, dict) else _DEFAULT_FOLDER
    if not isinstance(folder, str) or not folder or not (Path(folder).is_absolute() or cwd):
        return None
    return Path(cwd, folder)


def of_process(pid: int, who: str, *, remedy: str = _LOOK) -> Optional[Handed]:
    """What a vLLM of this machine may name; None where its command line does not say."""
    cwd = ""
    with contextlib.suppress(OSError):  # another user's, or gone; then only a path from the root on will do
        cwd = os.readlink(identity.PROC / str(pid) / "cwd")  # noqa: PTH115 - Path.readlink came with Python 3.9
    folder = told_folder(proctable.command_line(pid), cwd)
    return Handed(folder, who, remedy=remedy, owner=proctable.owner(pid), cwd=cwd) if folder is not None else None


def _lock_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.lock")


def _is_encodable(path: str) -> bool:
    """Whether a file can have that name at all: JSON may hold halves of characters."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True
