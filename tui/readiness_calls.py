"""What the session asks of the container about readiness: light facts, deep checks, remedies, and the report of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from remote.errors import ContainerError, LinkError
from tui import messages
from tui.session_part import SessionPart, sentence

if TYPE_CHECKING:
    from eagle3.core.readiness.report import Action
    from eagle3.core.spec import RunSpec
    from tui.ports import ToldView


class ReadinessCalls(SessionPart):
    """A part of `tui.session.Session`, which owns the connection and the tasks."""

    _job = ""
    """The id of the deep check or build that was asked for last: what a stop means."""

    def check(self, spec: RunSpec, sections: Sequence[str] = (), taken: Sequence[str] = ()) -> None:
        """Gather the light facts for ``spec``, or only some sections of them. ``taken``: the stages that it takes over."""
        self._spawn(f"Checking {spec.hash}", self._check(spec, sections, taken))

    def deep_check(self, spec: RunSpec, sections: Sequence[str] = ()) -> None:
        """Run the deep probes for ``spec``, or only some sections; what they find is told as it comes."""
        self._change("Deep check", self._deep_check(spec, sections, f"deep-{os.urandom(6).hex()}"))

    def stop_job(self) -> None:
        """Stop the deep check or the build under way; what it has done stays."""
        self._change("Stopping the check", self._stop_job())

    def remedy(self, spec: RunSpec, check_id: str, action: Action, *, token: str = "") -> None:
        """Ask what a remedy would do, or with the ``token`` of such an answer, do it."""
        self._change("Remedy", self._remedy(spec, check_id, action, token))

    def read_report(self, run_id: str) -> None:
        """Read the readiness report that a run was started under."""
        self._spawn("Reading the report", self._read_report(run_id))

    async def _check(self, spec: RunSpec, sections: Sequence[str], taken: Sequence[str]) -> None:
        problem = "the check was given up."
        try:
            container = await self._ready()
            from eagle3.core.readiness.wants import wants  # with the whole spec: not before the first picture

            facts = await container.facts(wants(spec, spec.workspace, taken=taken), sections or None)
            self._post(messages.FactsArrived(spec.hash, facts, self._clock()))
            problem = ""
        except (LinkError, ContainerError) as error:
            problem = sentence(error)
        finally:
            # Whatever happens: somebody may wait for the end of it.
            self._post(messages.CheckEnded(spec.hash, problem))

    async def _deep_check(self, spec: RunSpec, sections: Sequence[str], check_id: str) -> None:
        from eagle3.core.readiness.wants import wants

        asked = wants(spec, spec.workspace) | ({"sections": list(sections)} if sections else {})
        problem = "the deep check was given up."
        try:
            container = await self._ready()
            self._job = check_id
            try:
                problem = await self._tell_job(spec, container.deep_check(asked, spec, check_id=check_id))
            except ContainerError as error:
                if error.code != "busy" or not error.detail:
                    raise
                # One that runs there already, of this console before it was closed or of somebody else: listen to it.
                self._job = error.detail
                self._post(messages.DeepJoined(spec.hash, error.detail))
                problem = await self._tell_job(spec, container.follow_job(error.detail))
        except (LinkError, ContainerError) as error:
            problem = sentence(error)
        finally:
            self._post(messages.DeepEnded(spec.hash, problem))

    async def _tell_job(self, spec: RunSpec, lines: AsyncIterator[ToldView]) -> str:
        """Tell what a job says; returns its last word of its own, which is why it did not come to its end."""
        said = ""
        async for line in lines:
            if line.section and line.facts is not None:
                self._post(messages.FactsArrived(spec.hash, {line.section: line.facts}, self._clock()))
            elif line.section or line.more.get("doing"):
                limit = line.more.get("limit_s")
                doing = line.section or str(line.more["doing"])
                self._post(messages.JobDoing(spec.hash, doing, limit if isinstance(limit, (int, float)) else None))
            elif line.text:
                said = line.text
        return said

    async def _stop_job(self) -> None:
        container = await self._ready()
        try:
            await container.stop_check(self._job)
        except (LinkError, ContainerError) as error:
            self._post(messages.AskFailed(f"Stopping {self._job}", sentence(error)))

    async def _remedy(self, spec: RunSpec, check_id: str, action: Action, token: str) -> None:
        answer: dict[str, Any] | None = None
        problem = ""
        try:
            container = await self._ready()
            answer = await container.remedy(action.verb, action.args, token=token)
        except (LinkError, ContainerError) as error:
            problem = sentence(error)
        finally:
            self._post(messages.RemedyAnswered(check_id, answer, problem, not token))
        if answer and (job := str(answer.get("check_id") or "")) and token:
            await self._follow_build(spec, job)

    async def _follow_build(self, spec: RunSpec, job: str) -> None:
        container = await self._ready()
        self._job, problem = job, "the build was left alone; it goes on."
        self._post(messages.JobDoing(spec.hash, "building", None))
        try:
            problem = await self._tell_job(spec, container.follow_job(job))
        except (LinkError, ContainerError) as error:
            problem = sentence(error)
        finally:
            self._post(messages.BuildEnded(spec.hash, problem))

    async def _read_report(self, run_id: str) -> None:
        container = await self._ready()
        with contextlib.suppress(LinkError, ContainerError):  # asked again with the next look at the details
            texts = await container.read_text(run_id, "report.json")
            self._post(messages.ReportRead(run_id, texts["report.json"]))
