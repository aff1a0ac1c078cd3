"""Imports are proved, not believed: the faults are real packages on a real path."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3.readiness import sections
from tests.readiness.support import judged, package, status, wants

CUDA_TORCHVISION = """
import torch

@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets.new_empty((0,))
"""
"""What the CUDA build's ``_meta_registrations`` does. Its operators come from a library that a CPU torch cannot load."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that every interpreter asked here imports from first."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]))
    return place


def imports(tmp_path: Path, modules: list[str], *, limit_s: float = 90.0, **more: Any) -> dict[str, Any]:
    return sections.imports(wants(tmp_path, modules={"worker": modules}, **more), tmp_path, "worker", limit_s=limit_s)


@pytest.mark.timeout(240)
def test_a_cuda_torchvision_beside_a_cpu_torch_breaks_transformers_and_its_removal_mends_it(site: Path, tmp_path: Path) -> None:
    package(site, "torchvision", CUDA_TORCHVISION, version="0.28.0")
    broken = judged("deep.imports.worker", imports(tmp_path, ["transformers.modeling_utils"]))
    check = next(iter(broken.values()))
    assert (check.status, "operator torchvision::nms does not exist" in check.evidence) == ("fail", True), check
    assert "pip uninstall -y torchvision" in check.remedy

    for left in site.iterdir():
        shutil.rmtree(left)
    mended = judged("deep.imports.worker", imports(tmp_path, ["transformers.modeling_utils"]))
    assert {name: c.status for name, c in mended.items()} == {"python.imports_worker": "ok"}


def test_an_import_that_hangs_is_named_and_hides_none_of_the_others(site: Path, tmp_path: Path) -> None:
    package(site, "sleeper", "import time\ntime.sleep(600)\n")
    facts = imports(tmp_path, ["json", "sleeper", "email"], limit_s=15)
    assert [(p["name"], p["ok"], p["timed_out"]) for p in facts["packages"]] == [
        ("json", True, False), ("sleeper", False, True), ("email", True, False),
    ]  # fmt: skip
    check = judged("deep.imports.worker", facts)["python.imports_worker:sleeper"]
    assert check.status == "fail" and "no answer in 15 s" in check.evidence and "-X importtime" in check.remedy


def test_a_module_that_is_missing_or_ends_the_interpreter_is_one_failure_and_the_rest_goes_on(site: Path, tmp_path: Path) -> None:
    package(site, "crasher", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    facts = imports(tmp_path, ["no_such_module", "crasher", "json"])
    told = {p["name"]: p["error"] for p in facts["packages"]}
    assert told["no_such_module"] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "SIGSEGV" in told["crasher"] and told["json"] == ""
    assert status("deep.imports.worker", facts) == {
        "python.imports_worker:no_such_module": "fail", "python.imports_worker:crasher": "fail",
    }  # fmt: skip


def test_a_module_that_asks_a_question_gets_no_answer_instead_of_waiting(site: Path, tmp_path: Path) -> None:
    package(site, "asker", "input('Do you wish to run the custom code? [y/N] ')\n")
    [told] = imports(tmp_path, ["asker"], limit_s=30)["packages"]
    assert (told["ok"], told["timed_out"]) == (False, False) and told["error"].startswith("EOFError")


def test_noise_on_stdout_without_end_costs_neither_memory_nor_the_answer(site: Path, tmp_path: Path) -> None:
    package(site, "noisy", "import sys\nfor _ in range(64): sys.stdout.write('x' * (1 << 20))\n")
    [told] = imports(tmp_path, ["noisy"])["packages"]
    assert told["ok"]


def test_an_interpreter_that_is_not_there_is_one_failure_that_says_so(tmp_path: Path) -> None:
    facts = imports(tmp_path, ["json", "email"], pythons={"worker": str(tmp_path / "no" / "python")})
    [check] = judged("deep.imports.worker", facts).values()
    assert check.status == "fail" and "cannot be started: No such file or directory" in check.evidence
    assert check.action is not None and check.action.verb == "build_env"


def test_the_servers_interpreter_is_asked_for_its_own_packages(tmp_path: Path) -> None:
    asked = wants(tmp_path, modules={"server": ["json", "no_such_vllm"]})
    told = judged("deep.imports.server", sections.imports(asked, tmp_path, "server"))
    check = told["python.imports_server:no_such_vllm"]
    assert check.status == "fail" and check.action is None, "the server's vLLM is the operator's to choose"
    asked = wants(tmp_path, modules={"server": ["json"]})
    assert status("deep.imports.server", sections.imports(asked, tmp_path, "server")) == {"python.imports_server": "ok"}
