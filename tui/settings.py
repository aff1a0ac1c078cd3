"""What an operator may choose once and for all, in ``settings.toml`` of their configuration folder. Options of the command
line win over it. A mistake in it is told in one sentence and never ends the console.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tui.alerting import KINDS, quiet_span

ThemeName = Literal["calm", "paper", "contrast", "safe"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AlertSettings(Section):
    """How a person is told while they look elsewhere. Runs have alerts of their own, which need no console."""

    bell: bool = Field(True, description="ring the terminal's bell")
    desktop: bool = Field(True, description="a desktop notification (OSC 9), while the terminal is not in front")
    command: list[str] = Field(default_factory=list, description="a command that is given the alert as JSON on stdin")
    kinds: list[str] = Field(default_factory=lambda: list(KINDS), description=f"which: {', '.join(KINDS)}")
    quiet_hours: str = Field("", description="no bell, notification or command between these times: 22:00-07:00")

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: list[str]) -> list[str]:
        if unknown := sorted(set(kinds) - set(KINDS)):
            raise ValueError(f"there is no alert '{unknown[0]}'; there are {', '.join(KINDS)}")
        return kinds

    @field_validator("quiet_hours")
    @classmethod
    def _span(cls, text: str) -> str:
        quiet_span(text)
        return text


class Settings(Section):
    theme: ThemeName = Field("calm", description="calm (dark), paper (light), contrast, safe (for the colour-blind)")
    ascii: bool = Field(False, description="only ASCII on the screen")
    reduced_motion: bool = Field(False, description="nothing moves or blinks, and ages go on every 5 s instead of every second")
    read_only: bool = Field(False, description="look, and change nothing: no launch, stop, resume, remedy or save")
    poll_s: Annotated[float, Field(ge=0.5, le=600)] = Field(5.0, description="seconds between two looks at the machine")
    keys: dict[str, str] = Field(default_factory=dict, description='other keys: "run.stop" = "x", by place and action')
    alerts: AlertSettings = AlertSettings()


class SettingsError(ValueError):
    """The settings cannot be used; the message is one sentence that names the field and the file."""


def default_path() -> Path:
    """``settings.toml`` in the user's configuration folder."""
    return platformdirs.user_config_path("eagle3-console") / "settings.toml"


def load(path: Path) -> Settings:
    """The settings in ``path``, the defaults where there is none. Raises SettingsError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}); the defaults are used.") from error
    try:
        return Settings.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML ({error}); the defaults are used.") from error
    except ValidationError as error:
        from eagle3.core import refusals  # only where something is wrong: settings are read before the first picture

        where, what = next(iter(refusals.wrong_fields(error, Settings).items()))
        raise SettingsError(f"{where} in {path}: {what.rstrip('.')}; the defaults are used.") from error
