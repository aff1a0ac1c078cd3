"""What has to yield to a run, and who has agreed to that."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from eagle3.core.spec.base import Section, field


class Service(Section):
    """A serving unit that holds what the run needs. With consent it is stopped before the run starts and started again
    when the run has ended, however it ends; without, the launch is refused."""

    unit: str = field("", "its systemd unit, such as vllm.service")
    process: str = field("", "or, without a unit: text that its command line contains, such as '--port 8000'")
    consented_by: str = field("", "who agrees that it is stopped for this run")
    consent: str = field("", "in which words, such as 'not needed before Monday'; empty: nobody has agreed")
    grace_s: Annotated[float, Field(ge=0)] = field(30.0, "time between TERM and KILL", "s")

    @model_validator(mode="after")
    def _is_named_once(self) -> Service:
        if bool(self.unit) == bool(self.process):
            raise ValueError("a service is named by its unit or by its process, one of the two")
        if bool(self.consent.strip()) != bool(self.consented_by.strip()):
            raise ValueError("consent needs both who agrees (consented_by) and in which words (consent)")
        return self
