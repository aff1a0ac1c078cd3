"""The login's questions as dialogs of the console: an unknown host key, a password or a one-time code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from textual.app import App

from remote.ask import Ask, HostKeyQuestion, SecretQuestion
from tui.formats import one_line
from tui.keymap import key_of

if TYPE_CHECKING:
    from tui.screens.question import Question


def login_questions(app: App[Any]) -> Ask:
    """The callbacks for the connections, which ask on the screen of ``app``: one question after another, so that what is
    typed for one host is never taken for another's."""
    one_at_a_time = asyncio.Lock()

    async def host_key(question: HostKeyQuestion) -> bool:
        from tui.screens.confirm import Choice, Confirm

        rows = [("Host", question.host), ("Key", question.key_type), ("Fingerprint", question.fingerprint)]
        buttons = [Choice("trust", "y", "Trust it"), Choice("", "escape", "Refuse")]
        note = "Nobody has vouched for this key yet. Compare the fingerprint with what the host's owner says."
        async with one_at_a_time:
            return bool(await _answer(app, Confirm("A host that is not known yet", rows, buttons, note), question.host))

    async def secret(question: SecretQuestion) -> str | None:
        async with one_at_a_time:
            return await ask_secret(app, question)

    return Ask(host_key=host_key, secret=secret)


async def ask_secret(app: App[Any], question: SecretQuestion) -> str | None:
    """Ask for a password, a code, or a run's secret, without echo; None where the question was cancelled."""
    from tui.screens.secret import Secret

    answer: str | None = await _answer(app, Secret(question), question.host)
    return answer


async def _answer(app: App[Any], screen: Question[Any], host: str) -> Any:
    """Show a dialog from outside a worker and wait for its answer. Where nobody waits for it any more (the host has hung up
    meanwhile) the dialog goes: what were typed there would reach nobody."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answered(result: Any) -> None:
        if not answer.done():
            answer.set_result(result)

    try:
        await app.push_screen(screen, answered)
        return await answer
    except asyncio.CancelledError:
        if app.is_running and not app._exit and screen in app.screen_stack:
            screen.end()
            words = f"{one_line(host, 60)} no longer waits for an answer; {key_of('everywhere', 'reconnect')} connects again."
            app.notify(words, severity="warning", markup=False)
        raise
