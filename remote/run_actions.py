"""What is asked of runs and of what serves beside them, past launch and stop: a part of the facade."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from eagle3.core.lineage import ForkPlan
from eagle3.core.records import Forkable, Pause, Services, Since
from eagle3.core.spec import RunSpec
from remote.channel import Reply
from remote.facade_part import FacadePart, shaped

ACTION_LIMIT_S = 45.0
FORK_LIMIT_S = 150.0


class RunActions(FacadePart):
    """Mixed into `remote.container.Container`. Every call is safe to repeat; raises LinkError, ContainerError."""

    async def _launch_request(self, spec: RunSpec) -> tuple[RunSpec, dict[str, Any]]:
        raise NotImplementedError

    async def control(
        self, run_id: str, action: Literal["pause", "go-on", "checkpoint"], actor: str = "", *, lift: Sequence[Pause] = ()
    ) -> dict[str, Any]:
        """Hold a run that works, let it go on, or have it save now: ``{"state","stage","already","lifted","held",…}``. ``lift``:
        the pauses that a "go-on" ends; all where none are named."""
        named = {"lift": [[pause.by, pause.t] for pause in lift]} if lift else {}
        return (await self._asked("control", run_id, actor, action=action, **named)).result

    async def shakedown(
        self, spec: RunSpec, run_id: str, actor: str = "", *, secret_env: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Start the shakedown of a run as a job there, once for an id: ``{"check_id","already"}``. `Container.follow_job` tells
        what it says, the report last. ``secret_env`` goes into the worker's environment, as with a launch."""
        more: dict[str, Any] = {"spec": spec.model_dump(mode="json", exclude_none=True), "python": self.python}
        more["secret_env"] = dict(secret_env or {})
        return (await self._asked("shakedown", run_id, actor, **more)).result

    async def dump(self, run_id: str, actor: str = "") -> dict[str, Any]:
        """Have every process of the run that can write its stacks into its log: which did and which could not."""
        return (await self._asked("dump", run_id, actor)).result

    async def forkable(self, run_id: str) -> Forkable:
        """What there is of a run to fork from: finished stages, checkpoints, its spec."""
        reply = await self._call("forkable", {"workspace": self.workspace, "run_id": run_id}, ACTION_LIMIT_S)
        return shaped(lambda: Forkable.model_validate(reply.result), "forkable")

    async def fork(self, run_id: str, new_id: str, spec: RunSpec, plan: ForkPlan, actor: str = "") -> dict[str, Any]:
        """Make the run ``new_id`` with what ``plan`` takes over from ``run_id``, by links; `launch` under the same id starts it.
        Safe to repeat. Gives ``{"run_id","run_dir","already","files","bytes","how"}``."""
        spec, request = await self._launch_request(spec)
        more: dict[str, Any] = {"new_id": new_id, "spec_toml": spec.to_toml(), "launch": request, "stages": list(plan.takes)}
        more |= {"partial": list(plan.partial), "checkpoint": plan.checkpoint, "changed": list(plan.changed)}
        args = {"workspace": self.workspace, "run_id": run_id, "actor": actor or getpass.getuser(), **more}
        return (await self._call("fork", args, FORK_LIMIT_S)).result

    async def restore(self, run_id: str, actor: str = "") -> dict[str, Any]:
        """Start again what a run has stopped and what could not be started again before."""
        return (await self._asked("restore", run_id, actor)).result

    async def since(self, t: float) -> Since:
        """What happened in all runs of the workspace after ``t`` (Unix seconds by the container's clock)."""
        reply = await self._call("since", {"workspace": self.workspace, "t": t}, ACTION_LIMIT_S)
        return shaped(lambda: Since.model_validate(reply.result), "since")

    async def services(self) -> Services:
        """The vLLM servers there, by systemd unit and by process; secrets of their environments are hidden."""
        reply = await self._call("service", {"workspace": self.workspace}, ACTION_LIMIT_S)
        return shaped(lambda: Services.model_validate(reply.result), "service")

    async def _asked(self, verb: str, run_id: str, actor: str, **more: Any) -> Reply:
        args = {"workspace": self.workspace, "run_id": run_id, "actor": actor or getpass.getuser(), **more}
        return await self._call(verb, args, ACTION_LIMIT_S)
