"""The shipped prompts: enough of them, well formed, and no two alike."""

import importlib.resources
import itertools
import json
import re
from collections import Counter
from typing import Any

SHINGLE_LIMIT = 0.3
BAG_LIMIT = 0.6
SHINGLE_WORDS = 3
MIN_WORDS, MAX_WORDS = 5, 60

_STOP_TEXT = """
a about all also an and any are as at be because been but by can could d did do does
don for from get give had has have he her here him his how i if in into is it its just
like ll m me my no not of on one only or our out please re s she should so some such t
than that the their them then there these they this those to too up us ve very was we
were what when where which while who why will with would you your
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    found = words(text)
    size = min(SHINGLE_WORDS, len(found))
    return frozenset(tuple(found[i : i + size]) for i in range(len(found) - size + 1))


def bag(text: str) -> frozenset[str]:
    return frozenset(words(text)) - STOP_WORDS


def jaccard(left: frozenset[Any], right: frozenset[Any]) -> float:
    union = len(left | right)
    return len(left & right) / union if union else 0.0


def near_duplicates(texts: dict[str, str]) -> list[tuple[str, str, float, float]]:
    """Pairs of names whose texts are too alike, with both similarities."""
    sets = [(name, shingles(text), bag(text)) for name, text in texts.items()]
    pairs = []
    for (name_a, shingles_a, bag_a), (name_b, shingles_b, bag_b) in itertools.combinations(sets, 2):
        by_shingle = jaccard(shingles_a, shingles_b)
        by_bag = jaccard(bag_a, bag_b)
        if by_shingle >= SHINGLE_LIMIT or by_bag >= BAG_LIMIT:
            pairs.append((name_a, name_b, round(by_shingle, 3), round(by_bag, 3)))
    return pairs


def raw_lines() -> list[str]:
    source = importlib.resources.files("eagle3") / "data" / "prompts.jsonl"
    text = source.read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


def prompts() -> list[dict[str, Any]]:
    return [json.loads(line) for line in raw_lines()]


def test_there_are_at_least_256_prompts() -> None:
    assert len(prompts()) >= 256


def test_there_are_at_least_six_kinds_with_at_least_40_prompts_each() -> None:
    counts = Counter(prompt["kind"] for prompt in prompts())
    assert sum(count >= 40 for count in counts.values()) >= 6
    assert min(counts.values()) >= 40


def test_every_line_holds_exactly_an_id_a_kind_and_turns() -> None:
    for prompt in prompts():
        assert list(prompt) == ["id", "kind", "turns"]
        assert isinstance(prompt["id"], str)
        assert isinstance(prompt["kind"], str)
        assert isinstance(prompt["turns"], list)
        assert all(isinstance(turn, str) for turn in prompt["turns"])


def test_ids_are_unique_and_name_their_kind() -> None:
    ids = [prompt["id"] for prompt in prompts()]
    assert len(set(ids)) == len(ids)
    for prompt in prompts():
        assert re.fullmatch(re.escape(prompt["kind"]) + r"-\d{3}", prompt["id"])


def test_a_chat_has_two_turns_and_every_other_kind_has_one() -> None:
    for prompt in prompts():
        assert len(prompt["turns"]) == (2 if prompt["kind"] == "chat" else 1), prompt["id"]


def test_every_turn_is_between_5_and_60_words_long() -> None:
    for prompt in prompts():
        for turn in prompt["turns"]:
            assert MIN_WORDS <= len(turn.split()) <= MAX_WORDS, prompt["id"]


def test_no_line_or_turn_has_blanks_at_its_ends_or_unprintable_characters() -> None:
    for line in raw_lines():
        assert line and line == line.strip()
    for prompt in prompts():
        for turn in prompt["turns"]:
            assert turn == turn.strip()
            assert turn.isprintable(), prompt["id"]


def test_no_two_prompts_are_near_duplicates() -> None:
    texts = {prompt["id"]: " ".join(prompt["turns"]) for prompt in prompts()}
    assert near_duplicates(texts) == []


def test_no_two_single_turns_are_near_duplicates() -> None:
    texts = {f"{prompt['id']}/{number}": turn for prompt in prompts() for number, turn in enumerate(prompt["turns"], 1)}
    assert near_duplicates(texts) == []


def test_the_detector_rejects_a_template_filled_with_another_noun() -> None:
    texts = {
        "a": "Write a short poem about a lonely robot who finds a garden.",
        "b": "Write a short poem about a lonely pirate who finds a garden.",
    }
    [(name_a, name_b, by_shingle, by_bag)] = near_duplicates(texts)
    assert (name_a, name_b) == ("a", "b")
    assert by_shingle >= SHINGLE_LIMIT
    assert by_bag >= BAG_LIMIT


def test_the_detector_rejects_the_same_words_in_another_order() -> None:
    texts = {
        "a": "How do bees build honeycomb from wax during summer?",
        "b": "During summer, from wax, honeycomb: how do bees build it?",
    }
    [(_, _, by_shingle, by_bag)] = near_duplicates(texts)
    assert by_shingle < SHINGLE_LIMIT
    assert by_bag >= BAG_LIMIT


def test_the_detector_rejects_shared_phrasing_built_of_common_words() -> None:
    texts = {
        "a": "What should I do if I have to get there and no one is in the barn?",
        "b": "What should I do if I have to get there and no one is in the office?",
    }
    [(_, _, by_shingle, by_bag)] = near_duplicates(texts)
    assert by_shingle >= SHINGLE_LIMIT
    assert by_bag < BAG_LIMIT


def test_the_detector_passes_a_distinct_pair() -> None:
    texts = {
        "a": "Write a short poem about a lonely robot who finds a garden.",
        "b": "How many litres of paint are needed for a wall of forty square metres?",
    }
    assert near_duplicates(texts) == []
