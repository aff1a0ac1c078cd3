"""A value that a field does not take is refused in one plain sentence, made from the field, whatever the kind of error."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from eagle3.core import presets, refusals, spec_docs
from eagle3.core.presets import SpecError
from eagle3.core.spec.base import Section, field

FIELDS = [name for name, *_ in spec_docs.rows() if "[]" not in name]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=80)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=5,
)
PYDANTICS = re.compile(
    r"[Ii]nput should|[Vv]alue error|[Vv]alid (integer|number|string|boolean|list|dict)|unable to|Field required"
)
"""The library's own wording, which says what it did and not what the field is for."""


class Part(Section):
    count: Annotated[int, Field(ge=1, le=9)] = field(1, "how many", "parts")


class Form(Section):
    """A field of every kind, with every kind of bound."""

    whole: Annotated[int, Field(ge=1, le=1_000_000)] = field(1, "a bounded number", "steps")
    share: Annotated[float, Field(gt=0, lt=1)] = field(0.5, "an open interval")
    flag: bool = field(False, "a flag")
    word: Literal["warm", "cold", "dry"] = field("warm", "a choice")
    pair: Literal["a", "b"] = field("a", "a choice of two")
    name: Annotated[str, Field(min_length=2)] = field("ab", "a text of some length")
    three: list[int] = field([1, 2, 3], "exactly three", "layer ids", min_length=3, max_length=3)
    some: list[Annotated[float, Field(ge=0)]] = field([], "numbers", max_length=2)
    words: dict[str, str] = field({}, "a table")
    limit: Annotated[int, Field(ge=0)] | None = field(None, "a number or nothing", "s")
    part: Part = Part()
    parts: list[Part] = field([], "tables")
    needed: str


KINDS: list[tuple[dict[str, Any], str]] = [
    ({"whole": "abc"}, "whole: a whole number of 1 to 1,000,000 (steps), not 'abc'."),
    ({"whole": 3.5}, "whole: a whole number of 1 to 1,000,000 (steps), not 3.5."),
    ({"whole": 0}, "whole: a whole number of 1 to 1,000,000 (steps), not 0."),
    ({"share": 1}, "share: a number above 0 and below 1, not 1."),
    ({"share": float("nan")}, "share: a number above 0 and below 1, not nan."),
    ({"flag": "perhaps"}, "flag: true or false, not 'perhaps'."),
    ({"word": "wet"}, "word: one of 'warm', 'cold', 'dry', not 'wet'."),
    ({"pair": 3}, "pair: 'a' or 'b', not 3."),
    ({"name": "x"}, "name: text of at least 2 characters, not 'x'."),
    ({"name": ["x"]}, "name: text of at least 2 characters, not ['x']."),
    ({"three": [1]}, "three: a list of exactly 3 whole numbers (layer ids), not [1]."),
    ({"three": [1, 2, 3, 4]}, "three: a list of exactly 3 whole numbers (layer ids), not [1, 2, 3, 4]."),
    ({"three": [1, "x", 3]}, "three.1: a whole number (layer ids), not 'x'."),
    ({"some": [-1]}, "some.0: a number of 0 or more, not -1."),
    ({"some": 5}, "some: a list of at most 2 numbers of 0 or more, not 5."),
    ({"words": ["x"]}, "words: a table of texts by name, not ['x']."),
    ({"words": {"x": 1}}, "words.x: text, not 1."),
    ({"limit": -1}, "limit: a whole number of 0 or more (s), not -1."),
    ({"part": 5}, "part: a section with fields of its own, not 5."),
    ({"part": {"count": 10}}, "part.count: a whole number of 1 to 9 (parts), not 10."),
    ({"part": {"coumt": 1}}, "part.coumt: there is no such field; the nearest is part.count."),
    ({"xyzzy": 1}, "xyzzy: there is no such field."),
    ({"parts": [5]}, "parts.0: a section with fields of its own, not 5."),
    ({"parts": "x"}, "parts: a list of tables, not 'x'."),
]


@pytest.mark.parametrize(("wrong", "sentence"), KINDS, ids=[sentence.split(",")[0] for _, sentence in KINDS])
def test_each_kind_of_error_is_told_by_what_the_field_takes(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Form.model_validate({"needed": "x", **wrong})
    assert refusals.explain(caught.value, Form) == sentence
    [(name, told)] = refusals.wrong_fields(caught.value, Form).items()
    assert sentence == f"{name}: {told}" or sentence.startswith(f"{name}.")


def test_what_is_missing_is_asked_for() -> None:
    with pytest.raises(ValidationError) as caught:
        Form.model_validate({"whole": 0, "share": 2})
    assert refusals.wrong_fields(caught.value, Form)["needed"] == "it is missing; give text."
    assert refusals.explain(caught.value, Form).endswith("; 2 more fields wrong.")


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(FIELDS), value=VALUES)
def test_whatever_is_given_to_a_field_of_a_run_is_taken_or_refused_in_one_sentence(name: str, value: Any) -> None:
    try:
        presets.resolve("pilot", "smollm2-135m", "cpu", {name: value})
    except SpecError as error:
        text = str(error)
        where, _, told = text.partition(": ")
        assert where == "spec" or name.startswith(where.split(".")[0])
        assert told.endswith(".") and "\n" not in text and len(text) < 300
        assert not PYDANTICS.search(text.replace(repr(value), ""))


@settings(deadline=None, max_examples=30)
@given(name=st.sampled_from(FIELDS))
def test_the_bounds_that_a_refusal_names_are_the_fields_own(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        presets.resolve("pilot", "smollm2-135m", "cpu", {name: b"no field takes bytes that are no text: \xff"})
    bound = re.match(rf"{re.escape(name)}: a whole number of ([\d,]+)", str(caught.value))
    if bound:
        below = int(bound[1].replace(",", "")) - 1
        with pytest.raises(SpecError, match=rf"^{re.escape(name)}: .* not {below}\."):
            presets.resolve("pilot", "smollm2-135m", "cpu", {name: below})


def test_our_own_words_stay_one_line_whatever_value_they_quote() -> None:
    with pytest.raises(SpecError) as caught:
        presets.resolve("pilot", "smollm2-135m", "cpu", {"server.url": "a\nb" * 500})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
