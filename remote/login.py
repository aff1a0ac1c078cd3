"""Answers asyncssh's questions during a login: is this the right host, and what is the secret?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import asyncssh

from remote.ask import SecretQuestion
from remote.hosts import Known
from remote.text import plain

PASSWORD_TRIES = 3

PauseFactory = Callable[[], contextlib.AbstractContextManager[None]]
SecretCallback = Callable[[SecretQuestion], Awaitable[str | None]]


class Prompts:
    """Asks for passwords, codes and passphrases on the way to ``host``. ``used``: a person answered; ``wanted``: the server
    would have taken a secret, but there was nobody to ask."""

    def __init__(self, host: str, secret: SecretCallback | None, pause: PauseFactory) -> None:
        self._host = host
        self._secret = secret
        self._pause = pause
        self.used = False
        self.wanted = False
        self.cancelled = False

    async def ask(self, prompt: str, echo: bool = False, asks: str = "") -> str | None:
        """One question of the host ``asks`` (a jump host's is not the host's behind it). None where there is nobody to ask or
        the person cancels, which holds for the rest of the login."""
        if self._secret is None:
            self.wanted = True
        if self._secret is None or self.cancelled:
            return None
        self.used = True
        with self._pause():
            answer = await self._secret(SecretQuestion(asks or self._host, plain(prompt).strip(), echo))
        self.cancelled = answer is None
        return answer

    def passphrase(self) -> Callable[[str], str] | None:
        """For asyncssh, which calls it from a worker thread, and only once the server has accepted the key."""
        if self._secret is None:
            return None
        loop = asyncio.get_running_loop()

        def resolve(filename: str) -> str:
            asked = asyncio.run_coroutine_threadsafe(self.ask(f"Passphrase of the key {Path(filename).name}"), loop)
            return asked.result() or ""

        return resolve

    def denied(self, host: str, reason: str) -> str:
        """The sentence for a login that ``host`` refused."""
        if self.cancelled:
            return f"The login to {host} was cancelled."
        if self.wanted:
            return f"{host} accepts none of your keys and asks for a password or code, which nobody was there to give."
        text = f"{host} refused the login ({reason}). Check the user name and that your key is in its authorized_keys."
        locked = " A key with a passphrase is used only from an agent (ssh-add), or where somebody can be asked for it."
        return text if self._secret is not None else text + locked


class Client(asyncssh.SSHClient):
    """The callbacks of the connection to ``host``."""

    def __init__(self, known: Known, prompts: Prompts, host: str) -> None:
        self._known = known
        self._prompts = prompts
        self._host = host
        self._passwords = self._challenges = 0
        self._again = ""
        """What is said before the next question: that the last answer was not taken."""
        self.offered: asyncssh.SSHKey | None = None
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.offered = key
        return key in self._known.elsewhere

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(plain(str(exc)) if exc else "the connection was closed by the other side")

    async def _asked(self, prompt: str, echo: bool = False) -> str | None:
        again, self._again = self._again, ""
        return await self._prompts.ask(again + prompt, echo, self._host)

    async def password_auth_requested(self) -> str | None:
        """The password, at most three times: a fourth guess is how accounts get locked."""
        self._passwords += 1
        if self._passwords + self._challenges > PASSWORD_TRIES:
            return None
        self._again = _again(self._passwords)
        return await self._asked("Password")

    async def kbdint_auth_requested(self) -> str | None:
        """Together with passwords three times: a server that always asks anew would have an account locked."""
        self._challenges += 1
        if self._prompts.cancelled or self._passwords + self._challenges > PASSWORD_TRIES:
            return None
        self._again = _again(self._challenges)
        return ""

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> Sequence[str] | None:
        answers: list[str] = []
        for prompt, echo in prompts:
            heading = " ".join(part for part in (name, instructions, prompt) if part)
            answer = await self._asked(heading, echo)
            if answer is None:
                return None
            answers.append(answer)
        return answers


def _again(tries: int) -> str:
    return f"That one was not taken; try {tries} of {PASSWORD_TRIES}. " if tries > 1 else ""
