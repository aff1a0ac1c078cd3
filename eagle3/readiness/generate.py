"""One token from each server that is found: a health endpoint says 200 while the engine behind it is dead.

Three tries, since a burst of load is no illness; none where tokens move anyway, for then the engine lives. An extraction
server leaves a file and a lock behind each answer: both are removed.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from eagle3.runner import handed, proctable, rundir, state, vllm

LIMIT_S = 15.0
TRIES = 3
_BODY_BYTES = 1 << 20
_MOVING = re.compile(r"^vllm:(prompt_tokens_total|generation_tokens_total)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_open = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def generate(wants: Dict[str, Any], *, limit_s: float = LIMIT_S, tries: int = TRIES, watch_s: float = 1.0) -> Dict[str, Any]:
    """``{"servers": [{"url","model","pid","run_id","status","moving","answers":[…],"text"}]}``; status is one of "moving",
    "answered", "silent" and "loading"."""
    summaries = [state.summary(run_dir, time.time()) for run_dir in rundir.runs(wants["workspace"])]
    live = vllm.live([Path(s["run_dir"]) for s in summaries], summaries)
    found = vllm.servers(live, [str(url) for url in wants.get("urls") or ()])
    return {"servers": [_one(server, limit_s, tries, watch_s) for server in found]}


def _one(server: Dict[str, Any], limit_s: float, tries: int, watch_s: float) -> Dict[str, Any]:
    told: Dict[str, Any] = {
        "url": server["url"], "pid": server["pid"], "run_id": server["run_id"], "health": server["health"],
        "model": (server.get("models") or [""])[0], "status": "silent", "moving": None, "answers": [], "text": "",
    }  # fmt: skip
    if server["health"] == "unknown":
        return {**told, "status": "loading", "text": server["text"]}
    before = _tokens(server["url"])
    if before is not None and (server.get("running") or 0) > 0:
        time.sleep(watch_s)
        after = _tokens(server["url"])
        told["moving"] = None if after is None else after - before
        if told["moving"]:
            return {**told, "status": "moving", "text": f"{told['moving']:.0f} tokens in {watch_s:.0f} s"}
    for _ in range(tries):
        answer = _ask(server["url"], told["model"], server["pid"], limit_s)
        told["answers"].append(answer)
        if answer["tokens"]:
            return {**told, "status": "answered", "text": answer["text"]}
    return told


def _ask(url: str, model: str, pid: Optional[int], limit_s: float) -> Dict[str, Any]:
    """One completion of one token; ``{"tokens","text","seconds","status"}``. Never raises."""
    begun = time.monotonic()
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    try:
        status, raw = _post(f"{url.rstrip('/')}/v1/completions", body, limit_s)
        reply = json.loads(raw.decode("utf-8"))
        if status != 200:
            message = (reply.get("error") or reply) if isinstance(reply, dict) else reply
            text = str(message.get("message", message) if isinstance(message, dict) else message)[:200]
            return {"tokens": 0, "text": f"status {status}: {text}", "seconds": time.monotonic() - begun, "status": status}
        _discard((reply.get("kv_transfer_params") or {}).get("hidden_states_path"), pid)
        tokens = int((reply.get("usage") or {}).get("completion_tokens") or 0)
        text = str(reply["choices"][0].get("text", "")) if reply.get("choices") else ""
        said = repr(text) if tokens else "status 200, and no token generated"
        return {"tokens": tokens, "text": said, "seconds": time.monotonic() - begun, "status": status}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "reason", None) or error
        late = isinstance(reason, TimeoutError) or "timed out" in str(reason)
        text = f"no answer within {limit_s:.0f} s" if late else f"{type(error).__name__}: {reason}"
        return {"tokens": 0, "text": text[:200], "seconds": time.monotonic() - begun, "status": 0}


def _post(url: str, body: Dict[str, Any], limit_s: float) -> Tuple[int, bytes]:
    end = time.monotonic() + limit_s
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        response = _open.open(request, timeout=limit_s)
    except urllib.error.HTTPError as error:
        response = error
    parts: List[bytes] = []
    with response:
        while sum(map(len, parts)) < _BODY_BYTES:
            part = response.read1(65536)
            if not part:
                break
            parts.append(part)
            if time.monotonic() > end:
                raise TimeoutError(f"timed out after {limit_s:.0f} s")
        return int(response.getcode()), b"".join(parts)


def _tokens(url: str) -> Optional[float]:
    with contextlib.suppress(OSError, ValueError):  # no metrics: then the generation tells
        status, body = vllm.get(f"{url.rstrip('/')}/metrics", 2.0)
        found = _MOVING.findall(body.decode("utf-8", "replace")) if status == 200 else []
        return sum(float(value) for _, value in found) if found else None
    return None


def _discard(named: Any, pid: Optional[int]) -> None:
    """Remove the states that the probe itself caused: a file that a server of this user may hand over, and its lock."""
    if not named or pid is None or not proctable.is_ours(pid):
        return
    its = handed.of_process(pid, "The server")
    if its is None:
        return
    deadline = time.monotonic() + 5.0
    # Refused, or not readable: nobody needs the file, and what is not known to be the server's stays.
    with contextlib.suppress(handed.NotItsFile, OSError):
        file = its.named(named)
        # The file may come after the answer: the lock is held until it is written.
        while not its.there(file) and time.monotonic() < deadline:
            time.sleep(0.02)
        its.remove(file)
