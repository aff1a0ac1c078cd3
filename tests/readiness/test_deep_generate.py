"""A server is well when it generates, not when it answers. The servers here are real; only what they say is pretended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from eagle3.readiness import generate
from tests.readiness.support import Pretender, judged, tree, wants


def asked(tmp_path: Path, url: str, **more: Any) -> dict[str, Any]:
    facts = generate.generate(wants(tmp_path, urls=[url]), watch_s=0.05, **more)
    facts["servers"] = [server for server in facts["servers"] if server["url"] == url]
    return facts


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
    states, other = tmp_path / "states.safetensors", tmp_path / "precious.txt"
    for path in (states, Path(f"{states}.lock"), other):
        path.write_bytes(b"x")
    server = Pretender()
    with server.serving() as url:
        found = {"url": url, "pid": os.getpid(), "run_id": "", "health": "ok", "models": ["target"]}
        for handle in (str(states), str(other)):
            server.extra = {"kv_transfer_params": {"hidden_states_path": handle}}
            assert generate._one(dict(found), 5.0, 1, 0.0)["status"] == "answered"
    assert tree(tmp_path) == ["precious.txt"]


def test_no_server_is_no_failure(tmp_path: Path) -> None:
    assert judged("deep.generate", {"servers": []})["vllm.generates"].status == "skipped"
