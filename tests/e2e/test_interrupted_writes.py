"""Any file that a finished run has left may be cut short: what vouches for it notices, and a resume makes it again as it was.

One finished run of a tiny target is copied for each case.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3 import work
from eagle3.core.spec import STAGES
from eagle3.journal import Journal
from eagle3.stages.context import StageContext
from tests.e2e.mortal_run import MortalRun, rows
from tests.stages.tiny_models import tiny_llama

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LENGTHS = {"empty": 0.0, "half": 0.5, "two bytes short": 1.0}
NOT_THE_STAGES = ("spec.toml", "launch.json", "attempts/")
"""Written by the launcher and the supervisor, whose tests look after them."""


class RunsAgain(Exception):
    """Raised in place of a stage's work."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalRun]:
    folder = tmp_path_factory.mktemp("finished")
    run = MortalRun(folder, tiny_llama(folder / "tiny-llama"))
    run.attempt()
    assert run.wait_until("finished", "failed", "stopped") == "finished", run.errors()
    yield run
    run.close()


@pytest.fixture
def whole(finished: MortalRun) -> Iterator[MortalRun]:
    """The finished run, and put back as it was afterwards."""
    kept = finished.workspace.with_name("kept")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(finished.run_dir, kept)
    yield finished
    shutil.rmtree(finished.run_dir)
    kept.rename(finished.run_dir)
    finished.attempts = 1


def cut(path: Path, share: float) -> bytes:
    """Cut a file short; gives what it held. At a share of 1 it loses its last two bytes: one of JSON may be a mere line end."""
    content = path.read_bytes()
    path.unlink()  # a file may have two names
    path.write_bytes(content[: min(int(len(content) * share), max(0, len(content) - 2))])
    return content


def runs_again(run_dir: Path, spec: Any, model_dir: Path, stage: str) -> bool:
    """Whether the worker would do the stage's work again."""
    module = import_module(f"eagle3.stages.{stage}")

    def run(ctx: StageContext) -> dict[str, Any]:
        raise RunsAgain

    parts = {name: getattr(module, name) for name in ("OUTPUTS", "spec_part", "whole") if hasattr(module, name)}
    ctx = StageContext(run_dir, spec, Journal(run_dir, 9), model_dir, "", "", lambda: False)
    try:
        work.run_stage(ctx, stage, SimpleNamespace(**parts, run=run))
    except RunsAgain:
        return True
    return False


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("stage", STAGES)
def test_each_file_of_a_stage_cut_short_makes_it_run_again(whole: MortalRun, stage: str, length: str) -> None:
    run_dir, model = whole.run_dir, Path(whole.spec.target.model)
    record = run_dir / "stages" / f"{stage}.json"
    assert not runs_again(run_dir, whole.spec, model, stage)
    vouched = record.read_bytes()
    files = [run_dir / path for path in outputs_of(record)] + sorted(run_dir.glob("states/hs_*")) * (stage == "extract")
    assert files
    for path in [*files, record]:
        if path.stat().st_size == 0:
            continue
        content = cut(path, LENGTHS[length])
        assert runs_again(run_dir, whole.spec, model, stage), path
        path.write_bytes(content)
        record.write_bytes(vouched)


def outputs_of(record: Path) -> list[str]:
    """The files that a stage's record vouches for."""
    (row,) = rows(record)
    return list(row["outputs"])


@pytest.mark.parametrize("case", ["what the records vouch for", "everything", "everything but what the records vouch for"])
def test_a_run_whose_files_are_cut_short_ends_as_it_was(whole: MortalRun, case: str) -> None:
    run_dir, before = whole.run_dir, whole.made()
    outputs = {path for stage in STAGES for path in outputs_of(run_dir / "stages" / f"{stage}.json")}
    outputs |= {str(path.relative_to(run_dir)) for path in run_dir.glob("states/hs_*")}
    everything = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    ours = {path for path in everything if not path.startswith(NOT_THE_STAGES)}
    chosen = {
        # What was measured stands where the draft comes out the same: only its companion is cut here.
        "what the records vouch for": outputs - {"evaluate/served.json"},
        "everything": ours,
        "everything but what the records vouch for": ours - outputs - {path for path in ours if path.startswith("stages/")},
    }[case]
    assert chosen
    for path in sorted(chosen):
        cut(run_dir / path, 0.5)
    whole.attempt()
    assert whole.wait_until("finished", "failed", "stopped") == "finished", whole.errors()
    whole.records()
    after = whole.made()
    for name, value in before.items():
        if name == "losses" and case != "everything":
            continue  # nothing was trained, or only from its last checkpoint on
        assert after[name] == value, name
