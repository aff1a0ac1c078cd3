"""Whom a client of a server trusts."""

from __future__ import annotations

import ssl


def trust(base_url: str) -> ssl.SSLContext | bool:
    """What httpx takes as ``verify``. Reading the machine's authorities takes a tenth of a second, which an address without TLS
    does not need: its context trusts nobody."""
    return True if base_url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
