"""Whom a client of a server trusts."""

from __future__ import annotations

import ssl

from eagle3.engines.tls import trust


def test_an_address_with_tls_is_checked_against_the_machines_authorities_and_one_without_trusts_nobody() -> None:
    assert trust("https://gateway:8000") is True
    plain = trust("http://127.0.0.1:8000")
    assert isinstance(plain, ssl.SSLContext)
    assert plain.verify_mode is ssl.CERT_REQUIRED
    assert plain.check_hostname
    assert plain.get_ca_certs() == []
