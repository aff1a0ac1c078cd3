"""What can go wrong between the console and the container. Each message is one sentence for the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from eagle3.core.records import Probe

LinkKind = Literal["unreachable", "refused", "lost", "timeout"]


class LinkError(Exception):
    """The link failed, which says nothing about the run.

    ``kind``: unreachable (no connection came about), refused (host key or login: trying again changes nothing),
    lost (the connection ended while in use), timeout (no answer within the limit).
    """

    def __init__(self, kind: LinkKind, text: str) -> None:
        super().__init__(text)
        self.kind: LinkKind = kind
        self.text = text


class ContainerError(Exception):
    """The container answered, and said no. ``code``: not_found, usage, busy, disk, permission, failed, or python
    (no usable interpreter there); ``remedy`` is the next step, ``detail`` what a developer would ask for."""

    def __init__(self, code: str, text: str, remedy: str = "", detail: str = "") -> None:
        super().__init__(f"{text} {remedy}".strip())
        self.code = code
        self.text = text
        self.remedy = remedy
        self.detail = detail


class NoPython(ContainerError):
    """The container's Python cannot run the helper. ``probe`` is what a shell could see of the container, without runs:
    only the helper can read those. ``found`` are the interpreters that are there, in words, usable or not."""

    def __init__(self, text: str, remedy: str, probe: Probe, found: Sequence[str]) -> None:
        super().__init__("python", text, remedy)
        self.probe = probe
        self.found = tuple(found)


EXIT_CODES: dict[LinkKind, int] = {"unreachable": 3, "lost": 3, "timeout": 3, "refused": 4}
"""What a command ends with on a LinkError; a ContainerError is 1."""
