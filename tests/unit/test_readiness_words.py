"""A report in words and in Markdown: the worst first, what to do below it, and nothing from outside that styles or commands."""

from __future__ import annotations

from eagle3.core.harmless import clean_line, clean_lines
from eagle3.core.readiness.report import Action, Check, Report, concluded
from eagle3.core.readiness.statuses import Status
from eagle3.core.readiness.words import groups_of, lines, markdown, verdict_line

HOSTILE = "a|b `c` [d](x) <i> \x1b[31m\x1b]52;c;eA==\x07\u202ef\u200bg"


def check(id: str, status: Status, **more: object) -> Check:
    return Check(id=id, group=id.partition(".")[0], status=status, title=f"Title of {id}", **more)  # type: ignore[arg-type]


def report(*checks: Check, deep: bool = True) -> Report:
    about = {"size": "pilot", "target": "smollm2-135m", "machine": "cpu"}
    return concluded(checks, host="box", as_of=1_764_496_800.0, deep=deep, about=about)


FOUND = report(
    check("host.clock", "ok", evidence="+0.0 s"),
    check("disk.free:/data", "ok", evidence="37 GiB"),
    check("disk.needs:/data", "fail", evidence="needs 9 GiB, 3 free", remedy="Free 6 GiB.", why="It fills.", detail="a\n```\nb"),
    check("gpu.ecc:3", "warn", evidence=HOSTILE, action=Action(verb="free_gpu", command="kill 7")),
)


def test_the_group_with_the_worst_check_comes_first_and_the_worst_check_in_it() -> None:
    assert [(name, [c.id for c in found]) for name, found in groups_of(FOUND.checks)] == [
        ("disk", ["disk.needs:/data", "disk.free:/data"]), ("gpu", ["gpu.ecc:3"]), ("host", ["host.clock"]),
    ]  # fmt: skip


def test_words_name_the_verdict_the_first_to_fix_and_what_to_do() -> None:
    said = lines(FOUND)
    assert said[0] == "box: ✗ not ready: 1 failed, 1 to look at; first: Title of disk.needs:/data: needs 9 GiB, 3 free"
    assert said[1] == "judged for pilot · smollm2-135m · cpu; deep"
    assert "  ✗ failed   disk.needs:/data  needs 9 GiB, 3 free" in said
    assert said[said.index("  ✗ failed   disk.needs:/data  needs 9 GiB, 3 free") + 1].strip() == "→ Free 6 GiB."
    assert any("→ kill 7" in line for line in said)
    assert not any("host.clock" in line for line in lines(FOUND, only_wrong=True))


def test_deep_checks_that_were_not_run_are_counted_not_listed() -> None:
    idle = [check(f"model.{name}", "skipped", deep=True, evidence="not run") for name in "ab"]
    said = "\n".join(lines(report(check("model.found", "ok"), *idle, deep=False)))
    assert "2 deep checks not run" in said and "model.a" not in said


def test_markdown_shows_outside_text_as_text() -> None:
    text = markdown(FOUND)
    assert text.startswith("## Readiness of box: not ready\n")
    assert "As of 2025-11-30 10:00:00 UTC by its clock; deep and light checks; judged for pilot · smollm2-135m · cpu." in text
    assert "a\\|b \\`c\\` \\[d\\](x) \\<i\\>" in text
    for character in ("\x1b", "\x07", "\u202e", "\u200b"):
        assert character not in text
    row = next(line for line in text.splitlines() if "gpu.ecc" in line)
    assert row.replace("\\|", "").count("|") == 6, "the table keeps its columns"
    assert text.count("```") == 2, "a fence in the details does not end the block"


def test_a_verdict_has_a_word_and_a_symbol() -> None:
    assert verdict_line(report(check("host.clock", "ok"))) == "✓ ready: Every check passed."


def test_zero_width_and_direction_marks_are_removed() -> None:
    assert clean_line("pay\u200bpal\u2066\u00ad\ufeff.com\u202e") == "paypal.com"
    assert clean_lines("a\r\nb\n" * 3, most=2) == ["a", "b", "… 5 more lines"]
