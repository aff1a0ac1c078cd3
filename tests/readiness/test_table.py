"""The docs list every check, each cites a failure, and each is made to fail and to pass in a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eagle3.core.readiness.registry import Declared
from eagle3.core.readiness.table import REGISTRY, document, main, table
from tests.readiness.light import ROOT

HERE = Path(__file__).parent
TESTS = "\n".join(path.read_text() for path in sorted(HERE.glob("test_*.py")) if path.name != Path(__file__).name)
LIGHT = [declared for declared in REGISTRY.declared.values() if not declared.deep]
CITED = re.compile(r"[\w./-]+#\d+|met here|measured")


def ids(declared: Declared) -> str:
    return declared.id


def test_the_table_in_the_docs_is_current(tmp_path: Path) -> None:
    """Rewrite it: python -m eagle3.core.readiness.table docs/readiness.md"""
    text = (ROOT / "docs" / "readiness.md").read_text()
    assert document(text) == text
    stale = tmp_path / "stale.md"
    stale.write_text(text.replace("| `host.clock` |", "| `host.watch` |"))
    assert main([str(stale)]) == 0 and stale.read_text() == text
    with pytest.raises(ValueError, match="lacks the lines"):
        document("nothing")
    assert all(f"| `{declared.id}` |" in table() for declared in REGISTRY.declared.values())


@pytest.mark.parametrize("declared", LIGHT, ids=ids)
def test_a_check_says_why_it_is_there_and_how_it_is_proved(declared: Declared) -> None:
    assert CITED.search(declared.catches), f"{declared.id} cites no failure that somebody had"
    assert declared.why.endswith(".") and declared.needs
    assert re.match(r"real here|fake: \S|gpu machine", declared.proof), declared.proof


@pytest.mark.parametrize("declared", LIGHT, ids=ids)
def test_a_light_check_is_made_to_fail_and_to_pass(declared: Declared) -> None:
    name = re.escape(declared.id)
    group, _, last = declared.id.partition(".")
    fails = rf'(?:fault|unclear)\(\s*"{name}"|^    \("{name}", '
    assert re.search(fails, TESTS, re.MULTILINE), f"nothing makes {declared.id} fail"
    looped = rf'for id in \([^)]*"{last}"[^)]*\):\s+mended\(f"{group}\.'
    passes = rf'mended\(\s*"{name}"|for id in \([^)]*"{name}"|{looped}|WELL = \([^)]*"{name}"'
    assert re.search(passes, TESTS), f"nothing makes {declared.id} pass"
