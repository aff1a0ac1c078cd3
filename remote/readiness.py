"""What is asked of a container about its readiness: facts, deep checks and other jobs, remedies. A part of the facade."""

from __future__ import annotations

import asyncio
import getpass
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from eagle3.core.readiness.wants import with_pythons
from eagle3.core.spec import RunSpec
from remote import deepcheck
from remote.deepcheck import Told
from remote.facade_part import FacadePart
from remote.text import made_plain

FACTS_LIMIT_S = 40.0
CHECK_LIMIT_S = 60.0
REMEDY_LIMIT_S = 320.0


class ReadinessAsks(FacadePart):
    """Raises LinkError, ContainerError."""

    async def facts(self, wants: Mapping[str, Any], sections: Sequence[str] | None = None) -> dict[str, Any]:
        """The light facts of a readiness sweep in one round trip, for ``core.readiness.judge``: all sections, or only the
        named ones. ``wants`` is what ``core.readiness.wants`` says; interpreters that it leaves open are this container's.
        ``round_trip_s`` and ``local_now`` (this machine's clock when the answer came) are added, for the clocks' comparison."""
        loop = asyncio.get_running_loop()
        await self._connected(FACTS_LIMIT_S)
        args: dict[str, Any] = {"wants": {**with_pythons(wants, self.python), "workspace": self.workspace}}
        if sections is not None:
            args["sections"] = list(sections)
        begun = loop.time()
        reply = await self._call("facts", args, FACTS_LIMIT_S)
        clocks = {"now": reply.now, "local_now": time.time(), "round_trip_s": loop.time() - begun}
        facts: dict[str, Any] = made_plain(reply.result)
        return {**facts, **clocks}

    async def deep_check(
        self, wants: Mapping[str, Any], spec: RunSpec | None = None, *, check_id: str = "", poll_s: float = deepcheck.POLL_S
    ) -> AsyncGenerator[Told, None]:
        """Start the deep probes of ``wants`` there and tell what they say as it comes; they go on where the link is lost or
        nobody listens any more. With ``spec`` the extraction canary runs too. ``check_id``: join that check instead of a new
        one, or make the start repeatable. Raises ContainerError (busy names the check that runs), LinkError."""
        await self._connected(CHECK_LIMIT_S)
        more = {} if spec is None else {"spec_toml": spec.to_toml()}
        args = {
            "workspace": self.workspace, "wants": {**with_pythons(wants, self.python), **more}, "actor": getpass.getuser(),
            "check_id": check_id or deepcheck.new_check_id(),
        }  # fmt: skip
        answer = (await self._call("check_start", args, CHECK_LIMIT_S)).result
        async for line in self.follow_job(deepcheck.started(answer), poll_s):
            yield line

    async def follow_job(self, check_id: str, poll_s: float = deepcheck.POLL_S) -> AsyncGenerator[Told, None]:
        """What a deep check or the build of an environment says, from its beginning to its end."""

        async def call(verb: str, args: dict[str, Any]) -> dict[str, Any]:
            return (await self._call(verb, args, CHECK_LIMIT_S)).result

        async for line in deepcheck.follow(call, self.workspace, check_id, poll_s):
            yield line

    async def stop_check(self, check_id: str) -> dict[str, Any]:
        """End a deep check or a build, with everything that it started."""
        return (await self._call("check_stop", {"workspace": self.workspace, "check_id": check_id}, CHECK_LIMIT_S)).result

    async def remedy(self, action: str, args: Mapping[str, Any], *, token: str = "") -> dict[str, Any]:
        """Without ``token`` a preview of a remedy, which changes nothing and holds the token; with it the act itself.
        See `eagle3.runner.remedies`. Raises ContainerError(usage) where what would be done is not what was shown."""
        asked = {"workspace": self.workspace, "action": action, "args": dict(args), "preview": not token, "token": token}
        result: dict[str, Any] = made_plain((await self._call("remedy", asked, REMEDY_LIMIT_S)).result)
        return result
