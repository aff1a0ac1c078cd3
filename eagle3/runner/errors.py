"""The one error that a verb raises for a person to read."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Dict


class VerbError(Exception):
    """A verb cannot do what was asked.

    ``code`` is one of not_found, usage, busy, disk, permission, failed; ``text`` is one sentence that names the thing,
    ``remedy`` the next step, ``detail`` the rest (a traceback, the tail of a log).
    """

    def __init__(self, code: str, text: str, remedy: str = "", detail: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.remedy = remedy
        self.detail = detail

    def as_dict(self) -> Dict[str, Any]:
        """The shape that crosses the channel."""
        return {"code": self.code, "text": self.text, "remedy": self.remedy, "detail": self.detail}


def from_os_error(error: OSError, doing: str) -> VerbError:
    """The sentence for an OSError met while ``doing`` something ("writing /data/eagle3/runs/a")."""
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return VerbError("disk", f"The disk is full: {doing} failed ({why}).", "Free some space or choose another workspace.")
    if error.errno == errno.EROFS:
        return VerbError("disk", f"The file system is read-only: {doing} failed.", "Choose a workspace that can be written.")
    if error.errno in (errno.EACCES, errno.EPERM):
        return VerbError("permission", f"Permission denied: {doing} failed.", "Choose a workspace that this user may write.")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return VerbError("not_found", f"{error.filename or 'A file'} is not there: {doing} failed ({why}).")
    return VerbError("failed", f"{doing[:1].upper()}{doing[1:]} failed: {why}.")


def complain(text: str) -> None:
    """A line on stderr, which is the log of the attempt. On a full disk it is lost: it must not end its writer."""
    with contextlib.suppress(OSError):
        os.write(2, f"runner: {text}\n".encode("utf-8", "backslashreplace"))
