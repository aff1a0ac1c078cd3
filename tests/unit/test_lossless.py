"""Answers with and without a draft: the same, a tie, or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.core.lossless import Answer, compare


def answer(prompt_id: str, tokens: list[str], top: list[dict[str, float]] | None = None) -> Answer:
    return Answer(
        prompt_id=prompt_id,
        text="".join(tokens),
        token_ids=[sum(map(ord, token)) for token in tokens],
        tokens=tokens,
        logprobs=[-0.1] * len(tokens),
        top=top if top is not None else [{token: -0.1} for token in tokens],
    )


@given(st.lists(st.text(min_size=1, max_size=3), max_size=20))
def test_an_answer_is_identical_to_itself(tokens: list[str]) -> None:
    found = compare([answer("a", tokens)], [answer("a", tokens)], 0.02)
    assert (found.identical, found.of, found.divergences) == (1, 1, [])
    assert found.tokens == len(tokens)


def test_a_tie_is_shown_with_its_place_its_tokens_and_its_gap() -> None:
    top = [{"The": -0.1}, {" cat": -1.001, " dog": -1.003}, {" sat": -0.2}]
    without = answer("a", ["The", " cat", " sat"], top)
    with_draft = answer("a", ["The", " dog", " ran"], [{"The": -0.1}, {" dog": -1.002, " cat": -1.002}, {" ran": -0.3}])
    found = compare([without], [with_draft], 0.02)
    [divergence] = found.divergences
    assert (divergence.position, divergence.without, divergence.with_draft) == (1, " cat", " dog")
    assert divergence.gap == pytest.approx(0.002)
    assert divergence.gap_with == pytest.approx(0.0)
    assert divergence.tie and divergence.context == "The"
    assert (found.identical, found.tokens, found.errors) == (0, 1, [])
    assert "a tie in rounding" in divergence.sentence()


def test_a_clear_preference_overruled_is_an_error() -> None:
    without = answer("a", ["yes"], [{"yes": -0.1, "no": -2.4}])
    with_draft = answer("a", ["no"], [{"yes": -0.1, "no": -2.4}])
    found = compare([without], [with_draft], 0.02)
    assert found.errors == found.divergences
    assert "more than rounding explains" in found.divergences[0].sentence()


def test_a_token_far_from_the_likely_ones_is_an_error_with_an_unknown_gap() -> None:
    found = compare([answer("a", ["yes"])], [answer("a", ["zzz"])], 0.02)
    [divergence] = found.errors
    assert divergence.gap is None
    assert "an unknown gap" in divergence.sentence()


def test_an_answer_that_ends_earlier_parts_where_it_ends() -> None:
    found = compare([answer("a", ["x", "y"])], [answer("a", ["x"])], 0.02)
    [divergence] = found.divergences
    assert (divergence.position, divergence.without, divergence.with_draft) == (1, "y", "<end>")


def test_answers_to_other_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="different prompts"):
        compare([answer("a", ["x"])], [answer("b", ["x"])], 0.02)


def test_an_answer_survives_the_disk() -> None:
    kept = answer("a", ["x", "y"])
    assert Answer.from_json(kept.to_json()) == kept
