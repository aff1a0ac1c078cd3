"""What can go wrong between the console and the container. Each message is one sentence for the operator."""

from __future__ import annotations

from typing import Literal

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


EXIT_CODES: dict[LinkKind, int] = {"unreachable": 3, "lost": 3, "timeout": 3, "refused": 4}
"""What a command ends with on a LinkError; a ContainerError is 1."""
