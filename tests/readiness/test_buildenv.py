"""A run's own environment, really built, from a wheel that lies in a folder; none that is in use is touched."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.runner import buildenv, jobs, proctable
from eagle3.runner.errors import VerbError
from eagle3.runner.remedies import remedy
from tests.readiness.support import ROOT, fill_wheel
from tests.runner.support import wait_for
from tests.support.processes import begun


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "ws"
    place.mkdir()
    yield place
    for folder in place.glob("checks/*"):

        def left(folder: Path = folder) -> list[proctable.Process]:
            return jobs.bearers(folder)

        proctable.end_all(left, grace_s=0)


def args(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Two small wheels, one of which needs what is nowhere and is therefore installed alone."""
    wheels = tmp_path / "wheels"
    if not wheels.is_dir():
        fill_wheel(wheels, "alpha", "1.0")
        fill_wheel(wheels, "beta", "2.0", requires=("nowhere>=1",))
    asked = {"requirements": ["alpha==1.0"], "no_deps": ["beta==2.0"], "tool": "pip", "python": sys.executable}
    return {**asked, "options": ["--no-index", "--find-links", str(wheels)], **more}


def built(workspace: Path, check_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = wait_for(lambda: (a := jobs.read(workspace, check_id))["done"] and a, deadline_s=110)
    return answer


def test_an_environment_is_shown_built_logged_and_never_built_again(workspace: Path, tmp_path: Path) -> None:
    shown = remedy(workspace, "build_env", args(tmp_path))
    [plan] = shown["items"]
    assert Path(plan["folder"]).parent == workspace / "env" and not Path(plan["folder"]).exists()
    assert [command[1:3] for command in plan["commands"]] == [["-m", "venv"], ["-m", "pip"], ["-m", "pip"]]
    # Half of an earlier build lies there: it is replaced.
    Path(plan["folder"]).mkdir(parents=True)
    (Path(plan["folder"]) / "half").write_text("x")
    shown = remedy(workspace, "build_env", args(tmp_path))
    assert shown["items"][0]["replaces"]
    started = remedy(workspace, "build_env", args(tmp_path), preview=False, token=shown["token"])
    ended = built(workspace, started["check_id"])
    steps = [json.loads(line) for line in ended["lines"]]
    assert steps[-1]["step"] == "complete" and ended["exit"]["code"] == 0, ended
    assert "Successfully installed alpha-1.0" in jobs.read(workspace, started["check_id"])["log"], "the log streams"
    says = subprocess.run(
        [plan["python"], "-c", "import alpha, beta; print(alpha.NAME, beta.NAME)"], capture_output=True, text=True
    )
    assert says.stdout == "alpha beta\n" and not (Path(plan["folder"]) / "half").exists()
    again = remedy(workspace, "build_env", args(tmp_path))
    assert again["items"] == [] and "it is there already" in again["refused"][0]["why"]


def test_an_environment_that_a_process_uses_is_refused(workspace: Path, tmp_path: Path) -> None:
    [plan] = remedy(workspace, "build_env", args(tmp_path))["items"]
    python = Path(plan["python"])
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    shown = remedy(workspace, "build_env", args(tmp_path))
    user = subprocess.Popen([str(python), "-S", "-c", "import time; time.sleep(600)"])
    try:
        begun(user)
        now = remedy(workspace, "build_env", args(tmp_path))
        assert now["items"] == [] and f"in use by process {user.pid}" in now["refused"][0]["why"]
        with pytest.raises(VerbError, match="not what the preview showed"):
            remedy(workspace, "build_env", args(tmp_path), preview=False, token=shown["token"])
        # The job itself looks again: between the token and its start somebody may have begun to use it.
        file = workspace / "plan.json"
        file.write_text(json.dumps(plan))
        assert buildenv.build(file) == 1 and python.exists()
    finally:
        user.kill()
        user.wait(10)


def test_a_build_that_fails_says_which_command_and_leaves_no_complete_environment(workspace: Path, tmp_path: Path) -> None:
    asked = args(tmp_path, requirements=[], no_deps=["no-such-thing==9"], tool="pip")
    shown = remedy(workspace, "build_env", asked)
    # No second venv for a failure: the one that has just been made would do, so pip of this interpreter is asked.
    [plan] = shown["items"]
    plan["commands"] = [
        ["true"],
        [sys.executable, "-m", "pip", "install", "--target", str(tmp_path / "t"), *plan["commands"][1][5:]],
    ]
    started = buildenv.start(workspace, plan)
    ended = built(workspace, started["check_id"])
    assert ended["exit"]["code"] == 1 and json.loads(ended["lines"][-1])["ok"] is False
    assert "no-such-thing" in ended["log"] and not (Path(plan["folder"]) / buildenv.COMPLETE).exists()


def test_an_interpreter_too_old_for_the_worker_is_refused_and_one_that_fits_is_found(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\necho 3.8.18\n")
    old.chmod(0o755)
    with pytest.raises(VerbError, match=r"is version 3\.8\.18; the worker needs 3\.11"):
        remedy(workspace, "build_env", {"what": "worker", "tool": "pip", "python": str(old)})
    # A helper under the old one, with a newer one on its PATH.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.11").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(buildenv.sys, "executable", str(old))
    assert buildenv._base_python() == str(tmp_path / "bin" / "python3.11")


@pytest.mark.parametrize(
    "more",
    [
        {"requirements": ["--target=/etc"]},
        {"requirements": ["-r /etc/passwd"]},
        {"options": ["--target", "/etc"]},
        {"options": ["--prefix=/usr"]},
        {"python": "/no/such/python"},
        {"tool": "conda"},
        {"requirements": [], "no_deps": []},
    ],
)
def test_what_would_write_elsewhere_or_cannot_work_is_refused_before_anything_happens(
    workspace: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    with pytest.raises(VerbError) as caught:
        remedy(workspace, "build_env", args(tmp_path, **more))
    assert caught.value.code == "usage" and not (workspace / "env").exists()


def test_the_list_of_the_workers_packages_is_the_pinned_one(workspace: Path) -> None:
    [plan] = remedy(workspace, "build_env", {"what": "worker", "tool": "pip"})["items"]
    assert plan["commands"][1][-1].startswith("torch==") and "--no-deps" in plan["commands"][2]
    for ours, pinned in (("torch", "torch"), ("worker", "container")):
        text = (ROOT / "eagle3" / "runner" / "environments" / f"{ours}.txt").read_text()
        assert text == (ROOT / "requirements" / f"{pinned}.txt").read_text(), f"copy requirements/{pinned}.txt there"
