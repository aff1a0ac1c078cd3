"""What the session asks that makes, moves or ends a run: launch, fork, resume, stop, pause, checkpoint, stacks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from eagle3.core.wording import paused_already, went_on
from remote.ask import Ask, SecretQuestion
from remote.errors import ContainerError, LinkError
from tui import messages
from tui.formats import one_line
from tui.keymap import key_of
from tui.run_secrets import SecretError, started_with, values_of
from tui.session_part import RETRY_S, SessionPart, sentence

if TYPE_CHECKING:
    from eagle3.core.records import Pause
    from eagle3.core.spec import RunSpec
    from tui.forking import Fork
    from tui.ports import StopMode

LAUNCH_TRIES = 20


class RunCalls(SessionPart):
    """A part of `tui.session.Session`. Each is told to the operator by a message, done or not."""

    _ask: Ask
    _actor: str
    _secrets: dict[str, dict[str, str]]
    """Of each run launched or resumed here: name → value. In memory only, so that a resume need not ask again."""

    def launch(
        self, spec: RunSpec, run_id: str, secrets: Mapping[str, str] | None = None, *, report: dict[str, Any] | None = None
    ) -> None:
        """Launch; the run keeps ``report``, the readiness that it was started under. ``run_id`` makes asking again harmless,
        so a broken link is waited out and asked again. ``secrets`` go into the worker's environment."""
        self._secrets[run_id] = dict(secrets or {})
        self._change("Launching", self._launch(spec, run_id, False, report))

    def ask_forkable(self, run_id: str) -> None:
        """Ask what there is of a run to fork from."""
        self._spawn("Looking what can be forked", self._forkable(run_id))

    def fork(
        self, fork: Fork, new_id: str, secrets: Mapping[str, str] | None = None, *, report: dict[str, Any] | None = None
    ) -> None:
        """Make the run ``new_id`` out of what another one has, then launch it; asking again is harmless, as with `launch`."""
        self._secrets[new_id] = dict(secrets or {})
        self._change("Launching", self._launch(fork.spec, new_id, False, report, fork))

    def resume(self, run_id: str) -> None:
        """Go on with a run under the spec that it was started with."""
        self._change("Launching", self._resume(run_id))

    def stop(self, run_id: str, mode: StopMode) -> None:
        """Stop a run: "now" or "after-checkpoint"."""
        self._change(f"Stopping {run_id}", self._stop(run_id, mode))  # one of another run under way goes on

    def control(self, run_id: str, action: Literal["pause", "go-on", "checkpoint"], lift: Sequence[Pause] = ()) -> None:
        """Hold a run, let it go on, or have it save now. ``lift``: the pauses that a "go-on" ends."""
        self._change(f"Asking {run_id} to {action}", self._control(run_id, action, lift))

    def dump(self, run_id: str) -> None:
        """Have the run write the stacks of its processes into its log."""
        self._change(f"Asking {run_id} for its stacks", self._dump(run_id))

    def secret_values(self) -> list[str]:
        """The secrets of runs that were launched or resumed from here."""
        return [value for known in self._secrets.values() for value in known.values()]

    async def _control(self, run_id: str, action: Literal["pause", "go-on", "checkpoint"], lift: Sequence[Pause]) -> None:
        container = await self._ready()
        try:
            answer = await container.control(run_id, action, self._actor, lift=lift)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Asking {run_id} to {action}", sentence(error)))
            return
        if action == "go-on":
            self._post(messages.Asked(run_id, went_on(run_id, answer, f"{key_of('run', 'pause')} once more")))
            self._wake.set()
            return
        words = {"pause": "pauses after the work under way", "checkpoint": "saves after the step under way"}
        if action == "checkpoint" and answer.get("stage") != "train":
            words["checkpoint"] = "does not train at the moment; what is finished is on disk"
        before = paused_already(run_id, answer) if action == "pause" else ""
        self._post(messages.Asked(run_id, before or f"{run_id} {words[action]}."))
        self._wake.set()

    async def _dump(self, run_id: str) -> None:
        container = await self._ready()
        try:
            answer = await container.dump(run_id, self._actor)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Asking {run_id} for its stacks", sentence(error)))
        else:
            said = one_line(str(answer.get("text") or "The stacks are in its log."))
            self._post(messages.Asked(run_id, f"{run_id}: {said}"))

    async def _forkable(self, run_id: str) -> None:
        try:
            container = await self._ready()
            self._post(messages.ForkableArrived(run_id, await container.forkable(run_id)))
        except (LinkError, ContainerError) as error:
            self._post(messages.ForkableArrived(run_id, None, sentence(error)))

    async def _launch(
        self, spec: RunSpec, run_id: str, resume: bool, report: dict[str, Any] | None = None, fork: Fork | None = None
    ) -> None:
        container = await self._ready()
        what = f"{'Resuming' if resume else 'Launching'} {run_id}"
        for tries in range(LAUNCH_TRIES):
            try:
                if fork is not None:
                    await container.fork(fork.parent, run_id, spec, fork.plan, self._actor)
                secrets = self._secrets.get(run_id, {})
                ack = await container.launch(spec, run_id, self._actor, resume=resume, report=report, secret_env=secrets)
            except LinkError as error:
                if error.kind == "refused" or tries == LAUNCH_TRIES - 1:
                    self._post(messages.AskFailed(what, sentence(error)))
                    return
                if tries == 0:
                    self._post(messages.AskAgain(what, sentence(error)))
                await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            except ContainerError as error:
                self._post(messages.AskFailed(what, sentence(error)))
                return
            else:
                self._post(messages.Launched(run_id, ack, resume))
                self._wake.set()
                return

    async def _resume(self, run_id: str) -> None:
        from eagle3.core.spec import RunSpec  # not before the first picture

        container = await self._ready()
        what = f"Resuming {run_id}"
        try:
            files = await container.read_text(run_id, "spec.toml", "launch.json")
            spec = RunSpec.from_toml(files["spec.toml"] or "")
            await self._ask_for_secrets(run_id, started_with(files["launch.json"]))
        except SecretError as error:
            self._post(messages.AskFailed(what, str(error)))
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(what, sentence(error)))
        except ValueError as error:
            self._post(messages.AskFailed(what, one_line(f"its spec.toml cannot be read by this console ({error}).", 300)))
        else:
            await self._launch(spec, run_id, True)

    async def _ask_for_secrets(self, run_id: str, names: Sequence[str]) -> None:
        """Have the values of ``names``: those of its launch here, and the others as a person types them. The names come from
        the container, so this environment is not looked at."""

        async def ask(name: str) -> str | None:
            return await self._ask.secret(SecretQuestion("", name, run_id=run_id)) if self._ask.secret else None

        known = self._secrets.get(run_id, {})
        self._secrets[run_id] = {**known, **await values_of([name for name in names if name not in known], ask, {})}

    async def _stop(self, run_id: str, mode: StopMode) -> None:
        container = await self._ready()
        try:
            await container.stop(run_id, mode, self._actor)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Stopping {run_id}", sentence(error)))
        else:
            self._post(messages.Stopping(run_id, mode))
            self._wake.set()
