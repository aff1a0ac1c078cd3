"""The probes as one command: a line a section, whatever one of them meets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.presets import resolve
from eagle3.core.readiness.registry import REGISTRY
from eagle3.core.readiness.wants import wants as asked_of
from eagle3.readiness import asking, probe, sections
from eagle3.runner import deepcheck
from tests.readiness.support import ROOT, gone, tree, wants


def run(*arguments: str, stdin: Any = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=env, timeout=100, stdin=stdin, check=False
    )


def test_the_command_tells_what_it_does_and_then_what_it_found_and_leaves_the_workspace_as_it_was(tmp_path: Path) -> None:
    workspace, file = tmp_path / "ws", tmp_path / "wants.json"
    workspace.mkdir()
    file.write_text(json.dumps(wants(workspace)))
    done = run("-m", "eagle3", "probe", "--wants", str(file), "--section", "deep.disk", "--section", "deep.canary")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("doing") or line["section"] for line in lines] == ["deep.disk"] * 2 + ["deep.canary"] * 2, done.stderr
    limits = [line["limit_s"] for line in lines if "doing" in line]
    assert limits == [sections.DISK_LIMIT_S, probe.CANARY_S], "each says how long it may take at most"
    assert lines[1]["facts"]["took_s"] > 0 and "no run was named" in lines[3]["facts"]["skipped"]
    assert (done.returncode, tree(workspace)) == (0, [])


def test_a_large_models_canary_has_the_time_of_its_servers_start_and_first_answer_and_the_whole_check_has_more() -> None:
    kimi = resolve("full", "kimi-k2.5", "8x-rtx-pro-6000")
    asked = asked_of(kimi, "~/eagle3")
    canary_s = probe.limit_s(asked, "deep.canary")
    assert canary_s > kimi.server.start_timeout_s + kimi.extract.request_timeout_s == 3600 + 1500
    assert deepcheck.limit_s(asked) >= canary_s + deepcheck.LIMIT_S, "what is asked before it takes time too"
    assert deepcheck.limit_s({}) == deepcheck.LIMIT_S


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_wants_that_say_nothing_are_refused_in_words(tmp_path: Path, content: str) -> None:
    file = tmp_path / "wants.json"
    file.write_text(content)
    done = run("-m", "eagle3.readiness", "--wants", str(file))
    assert (done.returncode, done.stdout) == (2, "") and "does not say what is wanted" in done.stderr


def test_a_probe_that_meets_a_defect_says_so_and_the_next_ones_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> dict[str, Any]:
        raise ZeroDivisionError("no such disk")

    monkeypatch.setattr(sections, "disk", breaks)
    told: list[dict[str, Any]] = []
    probe.run(wants(tmp_path), told.append, scratch=tmp_path / "scratch", only=["deep.disk", "deep.canary"])
    assert told[1]["facts"]["error"] == "the probe met a defect: ZeroDivisionError: no such disk"
    assert told[3]["section"] == "deep.canary" and tree(tmp_path) == []


def test_a_question_past_its_limit_leaves_no_process(tmp_path: Path) -> None:
    # A shell, which is there in no time: an interpreter may take longer than the limit on a busy machine.
    script = "setsid sleep 600 & echo $! > pid; echo waiting for the driver >&2; sleep 600"
    outcome = asking.ask(["/bin/sh", "-c", script], limit_s=5, cwd=tmp_path)
    assert outcome.timed_out and outcome.said == "gave no answer in 5 s; its last line: waiting for the driver"
    assert gone(int((tmp_path / "pid").read_text()))


def test_every_section_of_deep_facts_is_asked_and_judged() -> None:
    needed = {name for declared in REGISTRY.declared.values() if declared.deep for name in declared.needs}
    assert needed == set(sections.ORDER)


def test_each_deep_check_is_named_by_a_test_that_makes_it_fail() -> None:
    texts = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_deep_*.py"))
    assert [d.id for d in REGISTRY.declared.values() if d.deep and d.id not in texts] == []
