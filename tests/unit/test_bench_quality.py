"""The benchmark of the drafts' quality: what is held against what, and what its figures say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.measure import figures
from benchmarks.quality.runs import JUDGED, PILOT, QUICK, TRAINED, UNTRAINED, Judged, Planned, finish
from eagle3.core.acceptance import Acceptance, together
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


def judged(*accepted: int, drafts: int = 65) -> Judged:
    """A run of which so many tokens were accepted in each answer, at position 0."""
    each = [Acceptance(drafts, 3 * drafts, one, (one, 0, 0)) for one in accepted]
    served: dict[str, Any] = together(each).figures() | {"speedup": 0.6}
    return Judged(Result(served=served, val={"accept_len": 1.5}), [(one.accepted, one.drafts) for one in each])


HARD_AND_EASY = [6, 30] * 10
"""Tokens accepted: prompts differ by far more than drafts do."""


@pytest.mark.parametrize(("gains", "apart"), [([3, 4], True), ([-8, 10], False)])
def test_a_gain_counts_prompt_by_prompt_where_it_is_clear_of_what_it_is_on_others(gains: list[int], apart: bool) -> None:
    pilot = judged(*HARD_AND_EASY)
    trained = judged(*[one + gain for one, gain in zip(HARD_AND_EASY, gains[::-1] * 5 + gains * 5, strict=True)])
    found = figures({"trained": trained, "pilot": pilot, "untrained": judged(*[0, 1] * 10)})
    longer = found["trained is longer than pilot by at least"]
    assert longer.met is apart and longer.n == 20
    assert found["trained is longer than untrained by at least"].met
    length = found["acceptance length served, trained"]
    assert length.n == 20 and length.spread is not None and length.spread[0] < length.value < length.spread[1]
    alone = [found[f"acceptance length served, {name}"].spread for name in ("trained", "pilot")]
    assert alone[0] is not None and alone[1] is not None and alone[0][0] < alone[1][1], "apart only by prompt"


def test_a_run_that_keeps_no_counts_by_answer_is_named(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "trained"
    (run / "evaluate").mkdir(parents=True)
    (run / "result.json").write_text('{"v": 1, "run_id": "trained", "served": {"concurrency": 8}}')
    (run / "evaluate" / "served.json").write_text('{"v": 1, "figures": {}}')
    with pytest.raises(RuntimeError, match="keeps no counts by answer"):
        finish(TRAINED, tmp_path)
    rows = [{"tokens": 9, "s": 1.0, "drafts": 7, "accepted_per_pos": [2, 1, 0]}]
    (run / "evaluate" / "served.json").write_text(json.dumps({"v": 1, "each": {"draft": {"8": rows}}}))
    assert finish(TRAINED, tmp_path).answers == [(3, 7)]
