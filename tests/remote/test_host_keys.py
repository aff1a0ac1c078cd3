"""Host keys: vouched for by a line, an authority or a person; a changed or revoked one gets nothing of us, not even a name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remote.container import Container
from tests.remote.conftest import Open, Quick
from tests.remote.test_connect import Operator, refusal
from tests.support.sshd import Sshd, make_key
from tests.support.waiting import until

ATTEMPT = "userauth-request for user"
"""What sshd logs (DEBUG1) as soon as a client says who it is."""


@pytest.fixture
def listening(sshd: Sshd) -> Sshd:
    """A server that logs each attempt to log in."""
    sshd.stop()
    sshd.more_config = "LogLevel DEBUG1\n"
    return sshd.start()


async def test_a_known_host_hears_who_we_are(listening: Sshd, quick: Quick, opened: Open) -> None:
    """The control of the tests below: their silence would show here."""
    await opened(listening.url, settings=quick(listening))
    assert ATTEMPT in listening.log()


@pytest.mark.parametrize("why", ["changed", "revoked", "revoked though trusted", "unknown", "certificate missing"])
async def test_a_host_that_is_not_trusted_hears_nothing(listening: Sshd, quick: Quick, tmp_path: Path, why: str) -> None:
    settings = quick(listening, trust=False)
    ours, other = listening.public_key(), make_key(tmp_path / "other").with_suffix(".pub").read_text().strip()
    lines = {
        "changed": f"{listening.known_name} {other}\n",
        "revoked": f"@revoked * {ours}\n",
        "revoked though trusted": f"{listening.known_name} {ours}\n@revoked {listening.known_name} {ours}\n",
        "unknown": "",
        "certificate missing": f"@cert-authority {listening.known_name} {other}\n",
    }
    (tmp_path / "known_hosts").write_text(lines[why])
    operator = Operator(trusts=False)
    error = await refusal(Container(listening.url, settings=settings, ask=operator.ask))
    assert error.kind == "refused", error.text
    assert "Nothing was sent" in error.text
    assert len(operator.keys) == (1 if why == "unknown" else 0)
    # A server may still be writing down what it has heard.
    await until(lambda: listening.sessions() == [], "the end of the connection there")
    assert "SSH2_MSG_KEXINIT" in listening.log() and ATTEMPT not in listening.log()


def certify(server: Sshd, authority: Path, principal: str) -> None:
    """Have the server show a certificate of ``authority`` for its host key."""
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "host", "-h", "-n", principal, str(server.host_key)]
    subprocess.run(command, check=True)
    server.stop()
    server.more_config = f"HostCertificate {server.host_key}-cert.pub\n"
    server.start()


@pytest.mark.parametrize("pattern", ["[127.0.0.1]:{port}", "*", "127.0.0.1"])
async def test_a_certificate_of_a_known_authority_is_trust_enough(
    sshd: Sshd, quick: Quick, opened: Open, tmp_path: Path, pattern: str
) -> None:
    authority = make_key(tmp_path / "authority")
    certify(sshd, authority, "127.0.0.1")
    settings = quick(sshd, trust=False)
    line = f"@cert-authority {pattern.format(port=sshd.port)} {authority.with_suffix('.pub').read_text()}"
    (tmp_path / "known_hosts").write_text(line)
    operator = Operator()
    await opened(sshd.url, settings=settings, ask=operator.ask)
    assert operator.keys == []


async def test_a_certificate_for_another_name_is_refused(sshd: Sshd, quick: Quick, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "authority")
    certify(sshd, authority, "elsewhere.example")
    settings = quick(sshd, trust=False)
    (tmp_path / "known_hosts").write_text(f"@cert-authority * {authority.with_suffix('.pub').read_text()}")
    error = await refusal(Container(sshd.url, settings=settings, ask=Operator().ask))
    assert error.kind == "refused", error.text


def hash_names(known_hosts: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known_hosts)], check=True, capture_output=True)


async def test_hashed_names_are_found_and_a_changed_key_under_one_is_refused(
    sshd: Sshd, quick: Quick, opened: Open, tmp_path: Path
) -> None:
    settings = quick(sshd)
    known = tmp_path / "known_hosts"
    hash_names(known)
    assert known.read_text().startswith("|1|")
    operator = Operator()
    await opened(sshd.url, settings=settings, ask=operator.ask)
    sshd.change_host_key()
    error = await refusal(Container(sshd.url, settings=settings, ask=operator.ask))
    assert (error.kind, operator.keys) == ("refused", [])


async def test_an_accepted_key_that_changes_later_is_refused(sshd: Sshd, quick: Quick, opened: Open, tmp_path: Path) -> None:
    """What stands in the console's own file counts like any other line."""
    settings = quick(sshd, trust=False)
    await opened(sshd.url, settings=settings, ask=Operator(trusts=True).ask)
    sshd.change_host_key()
    operator = Operator(trusts=True)
    error = await refusal(Container(sshd.url, settings=settings, ask=operator.ask))
    assert (error.kind, operator.keys) == ("refused", [])
    assert str(tmp_path / "state" / "known_hosts") in error.text


async def test_an_alias_is_what_a_key_is_remembered_under(sshd: Sshd, quick: Quick, opened: Open, tmp_path: Path) -> None:
    settings = quick(sshd, trust=False, more_config="Host *\n  HostKeyAlias the-box\n")
    await opened(sshd.url, settings=settings, ask=Operator(trusts=True).ask)
    assert (tmp_path / "state" / "known_hosts").read_text() == f"the-box {sshd.public_key()}\n"


def test_on_the_command_line_an_unknown_host_is_4_with_its_fingerprint_and_what_to_do(sshd: Sshd, tmp_path: Path) -> None:
    home = tmp_path / "operator"
    (home / ".ssh").mkdir(parents=True)
    sshd.write_client_config(home / ".ssh" / "config")
    environment = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tui", "check", sshd.url]
        return subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=100)

    unknown = check()
    assert unknown.returncode == 4
    assert sshd.fingerprint() in unknown.stderr and "accept it once in the console" in unknown.stderr
    (home / ".ssh" / "known_hosts").write_text(f"{sshd.known_name} {sshd.public_key()}\n")
    assert check().returncode in (0, 1), "the disk decides"
    sshd.change_host_key()
    changed = check()
    assert changed.returncode == 4 and "ssh-keygen -R" in changed.stderr
