"""Runs side by side: which are shown and in what order, what differs between their specs, their figures, their curves.
Pure; no Textual.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3.core.evaluation import between_label
from eagle3.core.records import RunSummary
from eagle3.core.run_states import LIVE_STATES
from eagle3.core.wording import run_words
from tui.formats import UNKNOWN, duration_label, number_label, state_label
from tui.plotting.figures import FIGURES, Line
from tui.plotting.view import Axis
from tui.state import Known, RunView
from tui.themes.palette import ACCENT, BAD, CALM, TEXT, WARN

MOST = 6
"""Runs that are overlaid at once."""
COLOURS = (ACCENT, WARN, CALM.violet, CALM.blue, TEXT, BAD)
SORTS = ("live first", "newest", "oldest", "name", "state", "target")
UNTOLD = ("workspace", "worker_python", "server_python", "v")
"""Fields of a spec that say where a run is, not what it does: never a difference worth telling."""


@dataclass(frozen=True)
class Choice:
    """What of the runs is shown: words that a run must all have, somewhere in its line, and the order."""

    words: str = ""
    sort: str = SORTS[0]

    def next_sort(self) -> Choice:
        return replace(self, sort=SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])

    def of(self, runs: Sequence[Known[RunSummary]]) -> list[Known[RunSummary]]:
        """The runs chosen, in order."""
        wanted = self.words.lower().split()
        found = [known for known in runs if all(word in _line(known.value) for word in wanted)]
        return sorted(found, key=lambda known: _place(known.value, self.sort))


def _line(run: RunSummary) -> str:
    return " ".join([run.run_id, state_label(run.state), *run_words(run), run.actor, *run.label.values()]).lower()


def _place(run: RunSummary, sort: str) -> tuple[Any, ...]:
    age = -(run.created_at or 0.0)
    match sort:
        case "newest":
            return (age, run.run_id)
        case "oldest":
            return (-age, run.run_id)
        case "name":
            return (run.run_id,)
        case "state":
            return (run.state, age, run.run_id)
        case "target":
            return (run.label.get("target", ""), age, run.run_id)
    return (run.state not in LIVE_STATES, age, run.run_id)


@dataclass
class Compared:
    """The runs that are laid side by side, in the order in which they were marked; ``problems`` by run."""

    run_ids: tuple[str, ...] = ()
    views: dict[str, RunView] = field(default_factory=dict)
    specs: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def take(self, run_id: str, view: RunView | None, spec_toml: str, problem: str) -> None:
        """What was read of a run, or why it could not be; of a run that is not compared any more it is dropped."""
        if run_id not in self.run_ids:
            return
        if view is None:
            self.problems[run_id] = problem
        else:
            self.views[run_id], self.specs[run_id] = view, spec_toml

    @property
    def ended(self) -> bool:
        """Whether all of them have been read and have ended, so that nothing more will come."""
        return all(run_id in self.views and self.views[run_id].ended for run_id in self.run_ids)

    def colour(self, run_id: str) -> str:
        return COLOURS[self.run_ids.index(run_id) % len(COLOURS)] if run_id in self.run_ids else COLOURS[0]

    def curves(self, figure: str, axis: Axis) -> list[Line]:
        """One line a run: what the figure's first line (for acceptance: the first position) is in that run, held-out as dots
        of the same colour."""
        found = []
        for run_id in self.run_ids:
            lines = FIGURES[figure].lines(self.views[run_id].metrics, axis) if run_id in self.views else []
            for dots in (False, True):
                first = next((line for line in lines if line.dots is dots), None)
                if first is not None:
                    found.append(replace(first, colour=self.colour(run_id), name=run_id + (" held-out" if dots else "")))
        return found

    def differences(self) -> list[tuple[str, dict[str, str]]]:
        """The fields of the specs that are not the same in all runs, with each run's value."""
        return differing({run_id: fields(self.specs[run_id]) for run_id in self.run_ids if run_id in self.specs})

    def figures(self) -> list[tuple[str, dict[str, str]]]:
        """The figures by name, with each run's value; those that no run has are left out."""
        of_run = {run_id: figures_of(self.views[run_id]) for run_id in self.run_ids if run_id in self.views}
        names = list(dict.fromkeys(name for figures in of_run.values() for name in figures))
        return [(name, {run_id: figures.get(name, UNKNOWN) for run_id, figures in of_run.items()}) for name in names]


def fields(spec_toml: str) -> dict[str, Any]:
    """A spec as dotted fields. One that cannot be read has none."""
    try:
        return dict(_flat(tomllib.loads(spec_toml), ""))
    except tomllib.TOMLDecodeError:
        return {}


def _flat(table: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found


def differing(specs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    """Fields with more than one value among the specs; a field that a spec lacks is "–" there."""
    names = list(dict.fromkeys(name for spec in specs.values() for name in spec if name not in UNTOLD))
    found = []
    for name in names:
        values = {run_id: str(spec[name]) if name in spec else UNKNOWN for run_id, spec in specs.items()}
        if len(set(values.values())) > 1:
            found.append((name, values))
    return found


def figures_of(view: RunView) -> dict[str, str]:
    """What one run measured. Simulated and served acceptance never share a name."""
    found: dict[str, str] = {"State": " ".join(run_words(view.summary)) if view.summary else state_label(view.state)}
    if (row := view.metrics.last("train", "train")) is not None:
        found |= {"Training loss": number_label(row.loss), "Step": f"{row.step:,}"}
    if (row := view.metrics.last("train", "val")) is not None:
        found["Held-out loss"] = number_label(row.loss)
        found["Held-out by position"] = " ".join(number_label(value) for value in row.acc_pos)
        found["Simulated length"] = number_label(row.accept_len)
    if (result := view.result) is not None:
        served = result.served
        found["Served length"] = number_label(served.get("accept_len"))
        found["Served length, 95 %"] = between_label(served.get("accept_len_interval"), served.get("answers")) or UNKNOWN
        found["Served drafts"] = f"{served['drafts']:,}" if isinstance(served.get("drafts"), int) else UNKNOWN
        found["Tokens/s with draft"] = number_label(served.get("tok_s"))
        found["Tokens/s without"] = number_label(served.get("tok_s_no_draft"))
        found["Verdict"] = result.verdict or UNKNOWN
        found["Wall"] = duration_label(result.wall_s)
    if view.summary is not None:
        found |= {name: duration_label(seconds) for name, seconds in view.summary.stages.items()}
    return {name: value for name, value in found.items() if value != UNKNOWN}
