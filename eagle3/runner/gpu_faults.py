"""What is wrong with the GPUs, judged from one report after the other and from Xid events. Pure.

A fault is told once, when it appears, with the card, what was seen and the next step.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

CLEAN_REPORTS = 3
"""A card that was slowed counts as well again after so many reports without it: clocks flicker."""

_SLOWED_BY = ("hardware slowdown", "too hot (software slowdown)", "too hot (hardware slowdown)", "power brake (external)")
"""Of the reasons for lower clocks, those that are no normal work: a card at its power limit is just busy."""

_CORDON = "Cordon the node; reboot it, and have the card checked when it happens again."
_XIDS: Dict[int, Tuple[str, str, str]] = {
    13: ("warn", "graphics engine exception", "Usually the program's own fault: look at the log for the failing kernel."),
    31: ("warn", "memory page fault", "Usually the program's own fault: an illegal address; look at the log."),
    43: ("warn", "the GPU stopped processing", "Usually the program's own fault; the card is well."),
    45: ("warn", "work was preempted and removed", "Follows another error or a killed process; look for the Xid before it."),
    48: ("error", "uncorrectable ECC error in memory", "Cordon the node; reset the GPU when nothing runs on it."),
    61: ("error", "internal microcontroller breakpoint", _CORDON),
    62: ("error", "internal microcontroller halt", _CORDON),
    63: ("warn", "a row of memory is to be remapped", "Reset the GPU when the run has ended."),
    64: ("error", "a row of memory could not be remapped", "Cordon the node; have the card replaced if it happens again."),
    74: ("error", "NVLink error", "Cordon the node; reset the GPUs, then check the link and its bridge."),
    79: ("error", "the GPU has fallen off the bus", _CORDON),
    92: ("warn", "many corrected ECC errors", "Plan a check of the card's memory."),
    94: ("error", "contained ECC error: the program that met it is ended", "Resume the run; reset the GPU when it has ended."),
    95: ("error", "uncontained ECC error", "Cordon the node; reset the GPU before anything else runs on it."),
    119: ("error", "the GPU's system processor does not answer", _CORDON),
    120: ("error", "the GPU's system processor met an error", _CORDON),
}
"""Level, meaning and next step of the Xids that a run meets. Source: NVIDIA, "XID Errors", docs.nvidia.com/deploy/xid-errors."""


class Fault(NamedTuple):
    """``key`` tells one fact from another; ``level`` is error or warn; ``text`` names card, evidence and next step."""

    key: str
    level: str
    text: str


def xid_fault(found: Dict[str, Any], number: int) -> Fault:
    """The fault of an Xid event ``{"xid","index","uuid"}``; ``number`` counts the events of the attempt."""
    xid = int(found["xid"])
    level, meaning, step = _XIDS.get(xid, ("error", "an error of the GPU or its driver", f"Look up Xid {xid} in NVIDIA's list."))
    return Fault(f"xid-{number}", level, f"{_name(found)}: Xid {xid}, {meaning}. {step}")


class Faults:
    """Compares each report with what was known before."""

    def __init__(self) -> None:
        self._cards: Dict[str, Dict[str, Any]] = {}
        self._errors: Dict[str, int] = {}
        self._told: Set[str] = set()
        self._clean: Dict[str, int] = {}
        self._times: Dict[str, int] = {}

    def look(self, report: Dict[str, Any]) -> List[Fault]:
        """The faults that ``report`` (core.records.GpuReport) shows for the first time."""
        if report.get("status") != "ok":
            return self._unanswered(report)
        found: List[Fault] = []
        self._told.discard("unanswered")
        here: Set[str] = set()
        for card in report.get("gpus") or []:
            key = str(card.get("uuid") or f"index-{card.get('index')}")
            if card.get("lost"):
                known = key if key in self._cards else self._by_index(card.get("index")) or key
                here.add(known)
                found += self._once(
                    f"lost-{known}", "error", self._cards.get(known, card), "NVML says that the GPU is lost", _CORDON
                )
                continue
            here.add(key)
            self._cards[key] = card
            found += self._card(key, card)
        for key in sorted(set(self._cards) - here):
            evidence = f"NVML listed {len(self._cards)} GPUs and lists {len(here)}"
            found += self._once(f"lost-{key}", "error", self._cards[key], f"it is gone: {evidence}", _CORDON)
        return found

    def _unanswered(self, report: Dict[str, Any]) -> List[Fault]:
        text = str(report.get("text") or "")
        if re.search(r"GPU is lost|fallen off the bus", text, re.IGNORECASE):
            return self._once("lost", "error", None, text, _CORDON)
        if not self._cards:
            return []
        return self._once("unanswered", "warn", None, f"they do not answer any more: {text}", "See dmesg for Xid messages.")

    def _card(self, key: str, card: Dict[str, Any]) -> List[Fault]:
        found: List[Fault] = []
        errors = card.get("ecc_uncorrected")
        if isinstance(errors, int):
            before = self._errors.setdefault(key, errors)
            if errors > before:
                what = f"{errors - before} new uncorrectable ECC errors ({errors} since the driver was loaded)"
                found.append(Fault(f"ecc-{key}-{errors}", "error", f"{_name(card)}: {what}. {_XIDS[48][2]}"))
            self._errors[key] = errors
        if card.get("remap_failed"):
            found += self._once(
                f"remap-failed-{key}", "error", card, "its memory cannot be repaired by remapping", "Have it replaced."
            )
        if card.get("remap_pending") or card.get("retired_pending"):
            step = "Reset the GPU when the run has ended."
            found += self._once(f"remap-{key}", "warn", card, "memory with errors waits to be taken out of use", step)
        slowed = [words for words in card.get("throttle") or [] if words in _SLOWED_BY]
        found += self._slowed(key, card, slowed)
        return found

    def _slowed(self, key: str, card: Dict[str, Any], slowed: List[str]) -> List[Fault]:
        name = f"slowed-{key}"
        if not slowed:
            self._clean[name] = self._clean.get(name, 0) + 1
            if self._clean[name] >= CLEAN_REPORTS:
                self._told.discard(name)
            return []
        self._clean[name] = 0
        figures = ((card.get("temperature_c"), "°C"), (card.get("power_w"), "W"))
        state = ", ".join(f"{value:.0f} {unit}" for value, unit in figures if value is not None)
        what = f"its clocks are slowed: {', '.join(slowed)}{f' ({state})' if state else ''}"
        return self._once(name, "warn", card, what, "Check cooling and power; the run goes on, slower.")

    def _once(self, key: str, level: str, card: Optional[Dict[str, Any]], what: str, step: str) -> List[Fault]:
        if key in self._told:
            return []
        self._told.add(key)
        self._times[key] = self._times.get(key, 0) + 1
        return [Fault(f"{key}-{self._times[key]}", level, f"{_name(card) if card else 'the GPUs'}: {what.rstrip('.')}. {step}")]

    def _by_index(self, index: Any) -> str:
        return next((key for key, card in self._cards.items() if card.get("index") == index), "")


def _name(card: Dict[str, Any]) -> str:
    index, uuid = card.get("index"), str(card.get("uuid") or "")
    return f"GPU {'?' if index is None else index}{f' ({uuid})' if uuid else ''}"
