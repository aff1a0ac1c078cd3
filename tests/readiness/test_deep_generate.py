"""A server is well when it generates, not when it answers. The servers here are real; only what they say is pretended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3.readiness import generate
from tests.readiness.support import Pretender, judged, tree, wants
from tests.support.processes import begun


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests serve on this machine at the same time: they count what they are asked, and one that hangs is waited for."""
    monkeypatch.setattr(generate.vllm, "_of_processes", list)


def asked(tmp_path: Path, url: str, **more: Any) -> dict[str, Any]:
    return generate.generate(wants(tmp_path, urls=[url]), watch_s=0.05, **more)


def test_a_server_that_answers_200_and_generates_nothing_fails_and_the_same_one_mended_is_ok(tmp_path: Path) -> None:
    server = Pretender(tokens=0)
    with server.serving() as url:
        check = judged("deep.generate", asked(tmp_path, url))[f"vllm.generates:{url}"]
        assert check.status == "fail" and server.asked == 3, "three tries: a burst is no illness"
        assert "while /health says ok" in check.evidence and "no token generated" in check.evidence
        server.tokens = 1
        check = judged("deep.generate", asked(tmp_path, url))[f"vllm.generates:{url}"]
        assert check.status == "ok" and "' Paris'" in check.evidence


def test_a_server_that_never_answers_costs_its_limit_and_no_more(tmp_path: Path) -> None:
    with Pretender(hang=True).serving() as url:
        facts = asked(tmp_path, url, limit_s=0.3)
    [server] = facts["servers"]
    assert [answer["text"] for answer in server["answers"]] == ["no answer within 0 s"] * 3
    assert judged("deep.generate", facts)[f"vllm.generates:{url}"].status == "fail"


def test_a_server_whose_tokens_move_is_left_alone(tmp_path: Path) -> None:
    server = Pretender(busy=True)
    with server.serving() as url:
        check = judged("deep.generate", asked(tmp_path, url))[f"vllm.generates:{url}"]
    assert (check.status, server.asked) == ("ok", 0) and "is at work" in check.evidence


def test_a_dead_engine_behind_status_500_is_told_with_its_words(tmp_path: Path) -> None:
    server = Pretender(status=500)
    server.extra = {"error": {"message": "EngineCore encountered an issue."}}
    with server.serving() as url:
        check = judged("deep.generate", asked(tmp_path, url))[f"vllm.generates:{url}"]
    assert check.status == "fail" and "status 500: EngineCore encountered an issue." in check.evidence


def test_what_an_extraction_server_leaves_for_the_probe_is_removed_and_nothing_else(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    states, text, elsewhere = raw / "states.safetensors", raw / "precious.txt", tmp_path / "precious.safetensors"
    for path in (states, Path(f"{states}.lock"), text, elsewhere):
        path.write_bytes(b"x")
    where = {"kv_connector": "HiddenStates", "kv_connector_extra_config": {"shared_storage_path": str(raw)}}
    told = ["--kv_transfer_config", json.dumps(where)]
    asleep = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()", *told])
    server = Pretender()
    try:
        begun(asleep)
        with server.serving() as url:
            for pid, handle in ((os.getpid(), states), (asleep.pid, states), (asleep.pid, text), (asleep.pid, elsewhere)):
                found = {"url": url, "pid": pid, "run_id": "", "health": "ok", "models": ["target"]}
                server.extra = {"kv_transfer_params": {"hidden_states_path": str(handle)}}
                assert generate._one(dict(found), 5.0, 1, 0.0)["status"] == "answered"
                assert states.exists() == (pid == os.getpid()), "only what its command line says is its folder"
    finally:
        asleep.kill()
        asleep.wait()
    assert tree(tmp_path) == ["precious.safetensors", "raw", "raw/precious.txt"]


def test_no_server_is_no_failure(tmp_path: Path) -> None:
    assert judged("deep.generate", {"servers": []})["vllm.generates"].status == "skipped"
