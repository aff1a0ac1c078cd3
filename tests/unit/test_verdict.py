"""The verdict: one word that the evidence carries, and a sentence with the figures that carry it."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.acceptance import Acceptance, of_histogram, together
from eagle3.core.evaluation import Point, Speed
from eagle3.core.lossless import Divergence, Lossless
from eagle3.core.verdict import (
    BROKEN,
    INSUFFICIENT,
    MIN_PROMPTS,
    NOT_USEFUL,
    UNDERTRAINED,
    UNDERTRAINED_BELOW,
    USEFUL,
    USEFUL_SPEEDUP,
    WORDS,
    Evidence,
    Verdict,
    judge,
)


def acceptance(*per_pos: int, drafts: int = 1000) -> Acceptance:
    return Acceptance(drafts, drafts * len(per_pos), sum(per_pos), per_pos)


def verdict(
    served: Acceptance, tok_s: float | None = 20.0, tok_s_no_draft: float | None = 30.0, lossless: Lossless | None = None
) -> Verdict:
    return judge(Evidence(served, tok_s, tok_s_no_draft, 8, lossless), min_drafts=200, broken_below=0.10)


def diverged(*, tie: bool) -> Lossless:
    gap = 0.001 if tie else 3.0
    return Lossless(3, 4, 150, 0.02, [Divergence("held-1", 7, " cat", " dog", gap, gap, tie, "The")])


def test_few_drafts_are_no_evidence_however_good_they_look() -> None:
    found = verdict(acceptance(100, 90, 80, drafts=107), tok_s=99)
    assert found.verdict == INSUFFICIENT
    assert "107 drafts" in found.verdict_text and "200" in found.verdict_text


def test_a_position_0_clearly_under_the_threshold_is_broken_and_says_what_to_check() -> None:
    found = verdict(acceptance(12, 1, 0))
    assert found.verdict == BROKEN
    assert "layer ids" in found.verdict_text and "1.2%" in found.verdict_text


def test_a_broken_draft_that_training_knew_no_better_is_sent_back_to_training() -> None:
    """Measured after 30 steps: 8.0 % simulated, 8.0 % served."""
    low = Acceptance(1343, 4029, 114, (107, 7, 0))
    found = judge(Evidence(low, 20.0, 30.0, 8, simulated_first=0.0798), min_drafts=200, broken_below=0.10)
    assert found.verdict == BROKEN
    assert "serving does what was trained: train longer" in found.verdict_text


def test_a_broken_draft_that_training_thought_good_is_sent_to_the_layer_ids() -> None:
    found = judge(Evidence(acceptance(12, 1, 0), 20.0, 30.0, 8, simulated_first=0.4), min_drafts=200, broken_below=0.10)
    assert found.verdict == BROKEN
    assert "what is served is not what was trained: check the layer ids" in found.verdict_text


def test_a_position_0_too_near_to_the_threshold_is_not_called_broken() -> None:
    found = verdict(acceptance(22, 1, 0, drafts=210))
    assert found.verdict == INSUFFICIENT
    assert "broken from undertrained" in found.verdict_text


def test_a_slower_draft_is_not_useful_on_this_machine_whatever_its_length() -> None:
    """The measured run: length 1.28, 49 s without a draft and 69 s with it."""
    found = verdict(acceptance(220, 50, 10), tok_s=2000 / 69, tok_s_no_draft=2000 / 49)
    assert found.verdict == NOT_USEFUL
    assert found.thresholds["accept_len"] == 1.28
    assert found.thresholds["break_even_len"] == pytest.approx(1.28 * 69 / 49, abs=1e-3)
    assert "1.80" in found.verdict_text and "also undertrained" in found.verdict_text


def test_a_well_trained_draft_on_a_slow_machine_is_not_called_undertrained() -> None:
    found = verdict(acceptance(750, 550, 400))
    assert found.verdict == NOT_USEFUL
    assert "undertrained" not in found.verdict_text


def test_a_break_even_that_no_draft_of_that_width_reaches_is_said() -> None:
    found = verdict(acceptance(400, 200, 100), tok_s=5, tok_s_no_draft=30)
    assert "No draft of 3 tokens can reach that." in found.verdict_text


def test_a_draft_that_gains_little_and_accepts_little_is_undertrained() -> None:
    found = verdict(acceptance(200, 40, 10), tok_s=30.6, tok_s_no_draft=30)
    assert found.verdict == UNDERTRAINED
    assert "36%" in found.verdict_text


def test_a_well_trained_draft_that_gains_nothing_is_the_machines_matter() -> None:
    assert verdict(acceptance(700, 500, 300), tok_s=30.6, tok_s_no_draft=30).verdict == NOT_USEFUL


def test_a_faster_draft_is_useful_and_a_weak_one_could_gain_more() -> None:
    assert "Longer training" not in verdict(acceptance(700, 500, 300), tok_s=50).verdict_text
    found = verdict(acceptance(300, 100, 30), tok_s=38)
    assert found.verdict == USEFUL
    assert "Longer training should gain more" in found.verdict_text


def test_without_the_speed_without_a_draft_a_good_draft_stays_undecided() -> None:
    assert verdict(acceptance(700, 500, 300), tok_s_no_draft=None).verdict == INSUFFICIENT
    assert verdict(acceptance(200, 50, 10), tok_s_no_draft=None).verdict == UNDERTRAINED


def test_answers_that_change_by_more_than_rounding_are_broken_and_ties_are_not() -> None:
    found = verdict(acceptance(700, 500, 300), tok_s=50, lossless=diverged(tie=False))
    assert found.verdict == BROKEN
    assert "held-1" in found.verdict_text
    assert verdict(acceptance(700, 500, 300), tok_s=50, lossless=diverged(tie=True)).verdict == USEFUL


def test_counters_that_contradict_each_other_are_no_evidence() -> None:
    found = verdict(Acceptance(1000, 3000, 700, (400, 200, 50)))
    assert found.verdict == INSUFFICIENT
    assert "contradict" in found.verdict_text


@given(
    drafts=st.integers(0, 5000),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    tok_s=st.none() | st.floats(0.1, 1e4),
    plain=st.none() | st.floats(0.1, 1e4),
)
def test_there_is_always_one_word_one_sentence_and_the_counts(
    drafts: int, shares: list[float], tok_s: float | None, plain: float | None
) -> None:
    left, per_pos = drafts, []
    for share in shares:
        left = int(left * share)
        per_pos.append(left)
    found = verdict(acceptance(*per_pos, drafts=drafts), tok_s, plain)
    assert found.verdict in WORDS
    assert found.verdict_text.lower().startswith(found.verdict)
    assert found.thresholds["drafts"] == drafts
    assert found.thresholds["min_drafts"] == 200


@given(tok_s=st.floats(1, 1e3), plain=st.floats(1, 1e3), first=st.integers(0, 1000))
def test_slower_is_the_same_as_a_length_under_break_even(tok_s: float, plain: float, first: int) -> None:
    evidence = Evidence(acceptance(first), tok_s, plain, 8)
    assert evidence.speedup is not None and evidence.break_even_len is not None
    assert (evidence.speedup < 1) == (evidence.break_even_len > evidence.acceptance.accept_len)


def test_a_gain_beyond_the_acceptance_length_means_that_the_machine_was_busy() -> None:
    """Measured: 1.63 times the speed from a draft of which nothing was accepted, on a machine with other work to do."""
    found = verdict(acceptance(200, 50, 10), tok_s=49, tok_s_no_draft=30)
    assert found.verdict == INSUFFICIENT
    assert "something else used the machine" in found.verdict_text


def test_speeds_measured_beside_other_work_are_called_rough() -> None:
    busy = Evidence(acceptance(220, 50, 10), 20.0, 30.0, 8, other_cpu=0.4)
    found = judge(busy, min_drafts=200, broken_below=0.1)
    assert found.verdict == NOT_USEFUL
    assert "other work took up to 40% of the CPU" in found.verdict_text


def over_concurrency(*speedups: float, ngram: float | None = None, drafts: int = 1000) -> Verdict:
    """A draft of length 2.5 at 1, 4, 16, … requests in flight."""
    good = acceptance(700 * drafts // 1000, 500 * drafts // 1000, 300 * drafts // 1000, drafts=drafts)
    beside = Speed(100 * ngram) if ngram else None
    points = tuple(Point(4**i, Speed(100.0), Speed(100.0 * gain, good), beside) for i, gain in enumerate(speedups))
    return judge(Evidence(good, 100 * speedups[0], 100.0, 1, points=points), min_drafts=200, broken_below=0.1)


def test_a_draft_that_gains_while_few_requests_are_in_flight_is_useful_up_to_there() -> None:
    """Reported of Kimi-K2.6 with k = 3: 1.29 at one request, 1.14 at 64, slower at 128."""
    found = over_concurrency(1.29, 1.14, 0.98)
    assert (found.verdict, found.thresholds["useful_up_to"]) == (USEFUL, 4)
    assert found.verdict_text.startswith("Useful up to concurrency 4: ")
    assert "1.29× at 1, 1.14× at 4, 0.98× at 16" in found.verdict_text
    assert found.thresholds["speedups"] == {"1": 1.29, "4": 1.14, "16": 0.98}


def test_a_curve_that_is_useful_to_its_end_says_that_no_more_was_measured() -> None:
    assert "concurrency 16, the highest measured" in over_concurrency(1.5, 1.4, 1.3).verdict_text


def test_a_gain_above_a_loss_is_no_useful_up_to() -> None:
    found = over_concurrency(0.9, 1.2, 0.9)
    assert (found.verdict, found.thresholds["useful_up_to"], found.thresholds["useful_at"]) == (USEFUL, None, [4])
    assert "not at every lower one" in found.verdict_text


def test_a_loss_at_every_concurrency_is_not_useful_and_tells_the_best_of_them() -> None:
    found = over_concurrency(0.6, 0.9, 0.5)
    assert found.verdict == NOT_USEFUL
    assert "at concurrency 4 (0.90×)" in found.verdict_text


def test_one_speed_that_cannot_be_spoils_the_evidence() -> None:
    found = over_concurrency(1.2, 3.0, 0.9)
    assert found.verdict == INSUFFICIENT
    assert "at concurrency 4 (3.00×), more than" in found.verdict_text


def test_what_needs_no_training_is_named_beside_what_does() -> None:
    assert (
        "N-gram speculation, which needs no training, reaches 1.40× at 1." in over_concurrency(1.2, 0.9, ngram=1.4).verdict_text
    )


@pytest.mark.parametrize(("beside_plain", "word"), [(0.354, INSUFFICIENT), (0.1, USEFUL)])
def test_a_gain_over_a_speed_that_other_work_held_down_is_no_evidence(beside_plain: float, word: str) -> None:
    """Measured: 36.6 tokens/s without a draft while others took 35 % of the CPU, 45.5 with it while they took 6 %."""
    served = Acceptance(1301, 3903, 480, (352, 101, 27))
    point = Point(8, Speed(36.6, other_cpu=beside_plain), Speed(45.5, served, 0.062))
    found = judge(Evidence(served, 45.5, 36.6, 8, other_cpu=beside_plain, points=(point,)), min_drafts=200, broken_below=0.1)
    assert found.verdict == word
    if word == INSUFFICIENT:
        assert "35% of the CPU beside the one without a draft and 6% beside the other" in found.verdict_text


def of_answers(*histograms: list[int]) -> Acceptance:
    return together([of_histogram(one, 3 * sum(one)) for one in histograms])


def by_answer(served: Acceptance, *, tok_s: float = 20.0, prompts: int | None = None) -> Verdict:
    return judge(Evidence(served, tok_s, 30.0, 8, prompts=prompts), min_drafts=200, broken_below=0.1)


def test_many_drafts_of_few_prompts_are_no_evidence_for_those_of_one_answer_resemble_each_other() -> None:
    """Measured: 293 drafts of 4 prompts were called undertrained."""
    few = by_answer(of_answers(*[[60, 10, 2, 1]] * 4), tok_s=30.6)
    assert few.verdict == INSUFFICIENT
    assert f"292 drafts came of 4 prompts and {MIN_PROMPTS} prompts are needed" in few.verdict_text
    assert (few.thresholds["prompts"], few.thresholds["min_prompts"]) == (4, MIN_PROMPTS)
    told = by_answer(acceptance(190, 30, 10), prompts=4)
    assert told.verdict == INSUFFICIENT, "the prompts count where the server does not tell each answer's drafts, too"
    assert by_answer(of_answers(*[[60, 10, 2, 1]] * MIN_PROMPTS), tok_s=30.6).verdict == UNDERTRAINED


def test_answers_that_differ_much_are_not_called_undertrained_as_firmly_as_ones_that_are_alike() -> None:
    """Both accept 30 % at position 0, of 800 drafts of 8 prompts."""
    alike = by_answer(of_answers(*[[70, 20, 6, 4]] * 8), tok_s=30.6)
    assert alike.verdict == UNDERTRAINED
    unlike = by_answer(of_answers(*[[95, 5, 0, 0], [45, 35, 12, 8]] * 4), tok_s=30.6)
    assert alike.thresholds["acc_pos_0"] == unlike.thresholds["acc_pos_0"] == 0.3
    assert unlike.verdict == NOT_USEFUL, "its speed alone is sure"
    assert unlike.thresholds["acc_pos_0_interval"][1] > UNDERTRAINED_BELOW


def test_an_interval_that_counts_drafts_as_independent_is_marked_in_the_sentence() -> None:
    assert "drafts taken for independent" in by_answer(acceptance(220, 50, 10), prompts=20).verdict_text
    known = by_answer(of_answers(*[[60, 10, 2, 1]] * 20))
    assert "drafts taken for independent" not in known.verdict_text
    assert "of 20 prompts" in known.verdict_text and known.thresholds["answers"] == 20


def timed(*gains: float) -> Evidence:
    """A good draft whose answers gain so much each, at 4 requests in flight."""
    good = acceptance(700, 500, 300)
    plain = tuple((90.0, 9.0) for _ in gains)
    draft = tuple((90.0, 9.0 / gain) for gain in gains)
    faster = sum(seconds for _, seconds in plain) / sum(seconds for _, seconds in draft)
    point = Point(4, Speed(100.0, each=plain), Speed(100.0 * faster, good, each=draft))
    return Evidence(good, 100.0 * faster, 100.0, 4, points=(point,), prompts=len(gains))


def test_a_gain_counts_only_where_it_is_clear_of_the_spread_between_the_prompts() -> None:
    steady = judge(timed(*[1.15, 1.2] * 5), min_drafts=200, broken_below=0.1)
    assert (steady.verdict, steady.thresholds["useful_up_to"]) == (USEFUL, 4)
    low, high = steady.thresholds["speedup_intervals"]["4"]
    assert 1.1 < low < steady.thresholds["speedup"] < high < 1.25
    assert f"({steady.thresholds['speedup']:.2f}×, {low:.2f} to {high:.2f})" in steady.verdict_text
    unsteady = judge(timed(*[0.7, 2.5] * 5), min_drafts=200, broken_below=0.1)
    assert unsteady.thresholds["speedup"] > USEFUL_SPEEDUP and unsteady.thresholds["useful_at"] == []
    assert unsteady.verdict == INSUFFICIENT
    assert "too near to what counts as a gain" in unsteady.verdict_text


def test_a_loss_is_told_only_where_no_gain_is_within_its_spread() -> None:
    assert judge(timed(*[0.9, 0.92] * 5), min_drafts=200, broken_below=0.1).verdict == NOT_USEFUL
    assert judge(timed(*[0.6, 1.7] * 5), min_drafts=200, broken_below=0.1).verdict == INSUFFICIENT


def test_the_documentation_has_each_word_with_its_thresholds() -> None:
    text = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    table = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", text.partition("## The verdict")[2], re.MULTILINE))
    assert set(table) - {"word"} == set(WORDS)
    assert f"{USEFUL_SPEEDUP:.2f} times" in table[USEFUL] and "1.05" in table[NOT_USEFUL]
    assert "`min_prompts`" in table[INSUFFICIENT] and "above 1" in table[USEFUL]
    for word in (UNDERTRAINED, NOT_USEFUL):
        assert f"{UNDERTRAINED_BELOW:.0%}".replace("%", " %") in table[word]
