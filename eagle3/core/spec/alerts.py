"""Whom the run tells, with no console open."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from eagle3.core.spec.base import Section, field

AlertKind = Literal["finish", "failure", "stop", "stall", "guard", "disk_low", "gpu_fault"]


class Alerts(Section):
    """Whom the run tells, with no console open: a command in the container, a webhook, or both."""

    command: list[str] = field([], "program and arguments; the alert comes as JSON on its stdin")
    webhook: str = field("", "http or https address that gets the alert by POST")
    webhook_env: str = field("", "name of the secret that holds the webhook's address instead")
    on: list[AlertKind] = field(["finish", "failure", "stall", "guard", "disk_low", "gpu_fault"], "of what")
    timeout_s: Annotated[float, Field(gt=0, le=60)] = field(20.0, "for each delivery", "s")
    min_interval_s: Annotated[float, Field(ge=0)] = field(
        60.0, "between two alerts of a kind; what comes sooner is told together", "s"
    )
    retry_s: Annotated[float, Field(gt=0)] = field(5.0, "before the second try; doubles with each failure", "s")

    @property
    def wanted(self) -> bool:
        """Whether anybody is to be told."""
        return bool(self.command or self.webhook or self.webhook_env)

    @model_validator(mode="after")
    def _webhook_is_one(self) -> Alerts:
        if self.webhook and self.webhook_env:
            raise ValueError("webhook and webhook_env exclude each other")
        if self.webhook and not self.webhook.startswith(("http://", "https://")):
            raise ValueError("webhook must begin with http:// or https://")
        if "@" in self.webhook.partition("://")[2].partition("/")[0]:
            raise ValueError("webhook holds credentials, which would stand in the spec; give it as a secret with webhook_env")
        return self
