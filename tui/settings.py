"""What an operator may choose once and for all, in ``settings.toml`` of their configuration folder. Options of the command
line win over it. A mistake in it is told in one sentence and never ends the console.

Plain dataclasses, read by hand: pydantic alone would be a quarter of the time to the first picture.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import platformdirs

from tui.alerting import KINDS, quiet_span

ThemeName = Literal["calm", "paper", "contrast", "safe"]
POLL_S = (0.5, 600.0)
"""The shortest and the longest pause between two looks at the machine."""


@dataclass(frozen=True)
class AlertSettings:
    """How a person is told while they look elsewhere. Runs have alerts of their own, which need no console."""

    bell: bool = True
    """Ring the terminal's bell."""
    desktop: bool = True
    """A desktop notification (OSC 9), while the terminal is not in front."""
    command: tuple[str, ...] = ()
    """A command that is given the alert as JSON on stdin."""
    kinds: tuple[str, ...] = KINDS
    quiet_hours: str = ""
    """No bell, notification or command between these times: 22:00-07:00."""


@dataclass(frozen=True)
class Settings:
    theme: ThemeName = "calm"
    """Calm (dark), paper (light), contrast, safe (for the colour-blind)."""
    ascii: bool = False
    """Only ASCII on the screen."""
    reduced_motion: bool = False
    """Nothing moves or blinks, and ages go on every 5 s instead of every second."""
    read_only: bool = False
    """Look, and change nothing: no launch, stop, resume, remedy or save."""
    poll_s: float = 5.0
    """Seconds between two looks at the machine."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Other keys: ``"run.stop" = "x"``, by place and action."""
    alerts: AlertSettings = field(default_factory=AlertSettings)


_YES = frozenset({"true", "yes", "on", "1", "1.0", "y", "t"})
_NO = frozenset({"false", "no", "off", "0", "0.0", "n", "f"})


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
    import tomllib  # most operators have no such file

    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML ({error}); the defaults are used.") from error
    try:
        alerts = AlertSettings(**_checked(told.pop("alerts", {}), ALERT_FIELDS, "alerts"))
        return Settings(**_checked(told, FIELDS), alerts=alerts)
    except _WrongError as error:
        raise SettingsError(f"{error.where} in {path}: {error}; the defaults are used.") from error


class _WrongError(ValueError):
    def __init__(self, where: str, text: str) -> None:
        super().__init__(text)
        self.where = where


def _checked(told: object, fields: Mapping[str, Callable[[Any], object]], section: str = "") -> dict[str, Any]:
    """What is told, each by the rule of its field. Raises _WrongError for the first that cannot be used."""
    if not isinstance(told, dict):
        raise _WrongError(section, f"write it as a table, [{section}]")
    found = {}
    for name, value in told.items():
        where = f"{section}.{name}" if section else name
        if name not in fields:
            import difflib  # only where something is wrong

            near = difflib.get_close_matches(name, fields, n=1)
            nearest = f"; the nearest is {where.removesuffix(name)}{near[0]}" if near else ""
            raise _WrongError(where, f"there is no such field{nearest}")
        try:
            found[name] = fields[name](value)
        except ValueError as error:
            raise _WrongError(where, str(error)) from error
    return found


def _flag(value: object) -> bool:
    """Words and numbers for it too: files with these have been taken before."""
    told = str(value).lower() if isinstance(value, bool | int | float | str) else ""
    if told not in _YES | _NO:
        raise ValueError("write true or false")
    return told in _YES


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("write a text in quotes")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError('write a list of texts, ["…", "…"]')
    return tuple(value)


def _theme(value: object) -> str:
    if value not in get_args(ThemeName):
        raise ValueError(f"there are {', '.join(get_args(ThemeName))}")
    return str(value)


def _pause(value: object) -> float:
    """A number in quotes too: files with one have been taken before."""
    told = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):  # then it is none, as it was
            told = float(value)
    if not POLL_S[0] <= told <= POLL_S[1]:
        raise ValueError(f"write seconds from {POLL_S[0]:g} to {POLL_S[1]:g}")
    return told


def _keys(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError('write a table of texts, "run.stop" = "x"')
    return value


def _kinds(value: object) -> tuple[str, ...]:
    if unknown := sorted(set(_texts(value)) - set(KINDS)):
        raise ValueError(f"there is no alert '{unknown[0]}'; there are {', '.join(KINDS)}")
    return _texts(value)


def _hours(value: object) -> str:
    quiet_span(_text(value))
    return _text(value)


FIELDS: Mapping[str, Callable[[Any], object]] = {
    "theme": _theme, "ascii": _flag, "reduced_motion": _flag, "read_only": _flag, "poll_s": _pause, "keys": _keys,
}  # fmt: skip
ALERT_FIELDS: Mapping[str, Callable[[Any], object]] = {
    "bell": _flag, "desktop": _flag, "command": _texts, "kinds": _kinds, "quiet_hours": _hours,
}  # fmt: skip
