"""The worker's environment is really built before a run, from wheels in a folder; what is there is not built again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3 import cli, environments
from eagle3.runner import buildenv, jobs, proctable
from tests.readiness.support import fill_wheel

LISTS = {"torch": ["alpha==1.0"], "worker": ["beta==2.0"]}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace for an environment of two small wheels, on a machine where the target is there."""
    monkeypatch.setattr(buildenv, "_pinned", LISTS.__getitem__)
    fill_wheel(tmp_path / "wheels", "alpha", "1.0")
    fill_wheel(tmp_path / "wheels", "beta", "2.0", requires=("nowhere>=1",))
    monkeypatch.setattr(environments, "TELL_EVERY_S", 0.2)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    place = tmp_path / "ws"
    yield place
    for folder in place.glob("checks/*"):
        proctable.end_all(lambda folder=folder: jobs.bearers(folder), grace_s=0)  # type: ignore[misc]


def prefetch(workspace: Path, *more: str) -> Any:
    places = ["--workspace", str(workspace), "--set", f"target.model={workspace.parent / 'model'}", "--set", "target.source="]
    pip = ["--pip", "--no-index", "--pip", f"--find-links={workspace.parent / 'wheels'}"]
    return CliRunner().invoke(cli.app, ["prefetch", "--environments", *places, *pip, *more])


@pytest.mark.long
def test_an_environment_is_previewed_built_with_its_progress_and_then_found(workspace: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("eagle3.targets.whole", lambda folder: folder)
    shown = json.loads(prefetch(workspace, "--dry-run", "--json").stdout)["environment"]
    assert not shown["there"] and not Path(shown["folder"]).exists() and shown["needs_bytes"] == 2 << 30
    done = prefetch(workspace)
    assert done.exit_code == 0, done.output
    python = Path(shown["python"])
    assert f"--set worker_python={python}" in done.stdout.splitlines()[-2]
    assert "It has no vLLM in it: --set server_python=" in done.stdout.splitlines()[-1]
    assert "To build: a Python" in done.stdout and "about 2.0 GiB" in done.stdout and "/s" in done.stdout
    says = subprocess.run([str(python), "-c", "import alpha, beta; print(alpha.NAME, beta.NAME)"], capture_output=True, text=True)
    assert says.stdout == "alpha beta\n"
    made = (python.parent.parent / buildenv.COMPLETE).stat().st_mtime_ns
    assert prefetch(workspace).exit_code == 0, "asked again it is there"
    assert (python.parent.parent / buildenv.COMPLETE).stat().st_mtime_ns == made
    assert len(list(workspace.glob("checks/env-*"))) == 1, "and nothing was started"


@pytest.mark.long
def test_a_build_under_way_is_joined_and_one_that_fails_names_its_command_and_last_line(workspace: Path) -> None:
    args: dict[str, Any] = {"what": "worker", "tool": "pip", "python": sys.executable}
    plan = environments.planned(str(workspace), "cpu", args)
    [item] = environments.remedy(str(workspace), "build_env", args)["items"]
    item["commands"] = [["sh", "-c", "sleep 1; echo 'no matching distribution' >&2; exit 3"]]
    started = buildenv.start(workspace, item)
    said: list[str] = []
    with pytest.raises(environments.NotReady, match=r"ended with code 3 \(no matching distribution\); mend that and ask again"):
        environments.build(str(workspace), plan, args, said.append)
    assert said[0] == f"A build is under way ({started['check_id']}); joining it."


def test_a_disk_without_room_is_said_before_anything_is_made(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environments.NEEDS_BYTES, "cpu", 1 << 60)
    done = prefetch(workspace, "--dry-run")
    assert done.exit_code == 1 and "The environment needs about 1048576 TiB more" in done.stderr
    assert not (workspace / "env").exists()


def test_an_option_that_would_write_elsewhere_is_refused(workspace: Path) -> None:
    done = prefetch(workspace, "--dry-run", "--pip", "--target=/etc")
    assert done.exit_code == 1 and "--target=/etc is not allowed" in done.stderr
