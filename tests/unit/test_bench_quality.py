"""The benchmark of the drafts' quality: what is held against what, and what its figures say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.measure import figures
from benchmarks.quality.runs import JUDGED, PILOT, QUICK, TRAINED, UNTRAINED, Planned
from eagle3.core.acceptance import Acceptance
from eagle3.core.presets import override, parse_override, resolve
from eagle3.core.records import Result
from eagle3.core.spec import RunSpec


def spec_of(planned: Planned, *more: str) -> RunSpec:
    changes = dict(map(parse_override, [f"{name}={value}" for name, value in (JUDGED | dict(planned.changes)).items()]))
    return override(resolve(planned.size, "smollm2-135m", "cpu"), changes)


def test_all_drafts_are_judged_on_the_same_prompts_in_the_same_way() -> None:
    trained, pilot, untrained = map(spec_of, (TRAINED, PILOT, UNTRAINED))
    assert trained.evaluate == pilot.evaluate == untrained.evaluate
    assert trained.data.heldout_kinds == pilot.data.heldout_kinds == ["chat"]
    assert (trained.data.train_prompts, pilot.data.train_prompts) == (240, 64)
    assert untrained.data == trained.data and untrained.train.max_steps == 1


def test_the_untrained_draft_takes_over_what_the_trained_one_made(tmp_path: Path) -> None:
    command = UNTRAINED.command(tmp_path)
    assert command[3:7] == ["fork", "trained", "--id", "untrained"]
    assert not any(word.startswith("data.") for word in command), "a fork keeps its parent's prompts"


def test_a_look_whether_it_works_is_a_spec_too() -> None:
    assert override(spec_of(TRAINED), dict(map(parse_override, [f"{k}={v}" for k, v in QUICK.items()]))).train.max_steps == 4


def result(*per_pos: int, drafts: int = 1300) -> Result:
    served: dict[str, Any] = Acceptance(drafts, 3 * drafts, sum(per_pos), per_pos).figures() | {"speedup": 0.6}
    return Result(served=served, val={"accept_len": 1.5})


@pytest.mark.parametrize(("pilot_first", "apart"), [(260, True), (390, False)])
def test_a_gain_counts_only_where_the_intervals_stay_apart(pilot_first: int, apart: bool) -> None:
    found = figures({"trained": result(400, 120, 30), "pilot": result(pilot_first, 110, 30), "untrained": result(3, 0, 0)})
    assert found["gap between the intervals, trained over pilot"].met is apart
    assert found["gap between the intervals, trained over untrained"].met
    length = found["acceptance length served, trained"]
    assert length.n == 1300 and length.spread is not None and length.spread[0] < length.value < length.spread[1]
