"""What a vLLM that is there already is asked before a stage relies on it: the model, its room, its version, and whether it
answers or extracts. A server in extraction mode must not answer (doubled tokens with a good status), and one that answers
cannot extract; neither shows in a health check."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from eagle3.engines import listening
from eagle3.engines.listening import Listener
from eagle3.engines.server import ServerKind
from eagle3.runner import handed, proctable, vllm
from eagle3.runner.handed import Handed, NotItsFile
from eagle3.stages.context import StageContext, StageError

_LAYERS = "eagle_aux_hidden_state_layer_ids"
_PROBE_TOKENS = 48
"""Three blocks of a prefix cache: asked for twice, a cache that is on shows by rows that are missing."""
_PROBE_MOST_BYTES = 1 << 30
"""Far more than the states of so few tokens are, of whatever layers."""


class Silent(StageError):
    """Nothing answers at the address."""


@dataclass(frozen=True)
class About:
    """A server that can do what it is wanted for. ``pid`` is 0 where its process cannot be seen from here. ``handed``: which
    files one in extraction mode may hand over."""

    words: str
    pid: int
    handed: Handed | None = None


def ask(ctx: StageContext, name: ServerKind, url: str, http: httpx.Client) -> About:
    """Ask the server at ``url`` whether it can serve as ``name``. Raises Silent where nothing answers, StageError where it
    cannot, in one sentence."""
    field = "server.extract_url" if name == "extract" else "server.url"
    try:
        models = _get(http, "/v1/models")
    except httpx.HTTPError as error:
        raise Silent(
            f"No vLLM answers at {url} ({error or type(error).__name__}); start it, correct {field}, or leave it empty so that "
            "the run starts its own."
        ) from error
    version = _version(http)
    who = f"The vLLM at {url} (version {version or 'unknown'})"
    root = _offers(ctx, who, models)
    found = process_of(url)
    if found.rivals:
        pids = ", ".join(map(str, found.rivals))
        raise StageError(f"{who} is more than one: the processes {pids} share its port and its requests; end all but one.")
    its = _handed(found.process, who)
    if name == "extract":
        its = _extracts(ctx, who, http, found, its)
    else:
        _answers(ctx, who, http, its)
    told = f"the vLLM at {url}, version {version or 'unknown'}"
    if found.process is not None:
        told += f", pid {found.process.pid}{_because(found.assumed)}"
    if root and root != str(ctx.model_dir):
        told += f", serving {root} (the spec's target is {ctx.model_dir})"
    return About(told, found.process.pid if found.process is not None else 0, its)


def _offers(ctx: StageContext, who: str, models: Any) -> str:
    """The folder or name of the model that it serves, once it is the one asked for and has room enough."""
    listed = [one for one in (models.get("data") if isinstance(models, dict) else None) or [] if isinstance(one, dict)]
    wanted, target = ctx.spec.target.served_name, ctx.spec.target
    found = next((one for one in listed if one.get("id") == wanted), None)
    if found is None:
        names = ", ".join(f"'{one.get('id')}'" for one in listed) or "nothing"
        raise StageError(f"{who} offers {names}, not '{wanted}' (target.served_name); set it to the name of the target there.")
    room = found.get("max_model_len")
    if isinstance(room, int) and room < target.max_model_len:
        raise StageError(
            f"{who} takes {room} tokens and the spec asks for {target.max_model_len} (target.max_model_len); lower that, or "
            "start the server with more."
        )
    return str(found.get("root") or "")


def _answers(ctx: StageContext, who: str, http: httpx.Client, its: Handed | None) -> None:
    """A short answer with token ids, from a server that is not in extraction mode."""
    body = {
        "model": ctx.spec.target.served_name, "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 2, "temperature": 0, "return_token_ids": True,
    }  # fmt: skip
    reply = _post(ctx, who, http, "/v1/chat/completions", body)
    if named := _handle(reply):
        left = ""
        try:
            _remove(its, named)
        except NotItsFile:
            left = f" The file that it named, {str(named)[:300]!a}, was left alone."
        raise StageError(
            f"{who} is in extraction mode, and such a server answers with wrong tokens; give it as server.extract_url, and a "
            f"plain one as server.url.{left}"
        )
    choices = reply.get("choices") or [{}]
    if not reply.get("prompt_token_ids") or not choices[0].get("token_ids"):
        raise StageError(
            f"{who} gives no token ids with its answers, so no draft can be trained on them; vLLM 0.11 or newer gives them: "
            "leave server.url empty, so that the run starts its own."
        )


def _extracts(ctx: StageContext, who: str, http: httpx.Client, found: Listener, its: Handed | None) -> Handed:
    """States of the right shape, twice the same number of rows, of layers and in a folder that its command line names."""
    from eagle3.states.checking import StateError, check, parse

    target = ctx.spec.target
    ids = list(range(100, 100 + _PROBE_TOKENS))
    body = {"model": target.served_name, "prompt": ids, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    for _ in range(2):
        named = _handle(_post(ctx, who, http, "/v1/completions", body))
        if named is None:
            raise StageError(
                f"{who} generates and cannot extract: its answer names no file of hidden states; give it as server.url, and "
                "leave server.extract_url empty, so that the run starts its own in extraction mode (an older vLLM has none)."
            )
        if its is None:
            raise StageError(_unseen(who, found))
        content = _states(who, its, named)
        try:
            check(parse(content), ids, layers=len(target.captured_layers), hidden_size=target.hidden_size)
        except StateError as error:
            raise StageError(
                f"{who} extracts, but not what the run needs: {error}; start it with the layer ids {target.captured_layers} and "
                "--no-enable-prefix-caching."
            ) from error
    assert its is not None, "each of the two looks has refused one without"
    layers = layer_ids(proctable.command_line(found.process.pid)) if found.process is not None else None
    if layers is None:
        raise StageError(_unseen(who, found, layers=True))
    if layers != target.captured_layers:
        raise StageError(
            f"{who} extracts the layers {layers} and the run needs {target.captured_layers}; start it with these, or leave "
            "server.extract_url empty."
        )
    return its


def _states(who: str, its: Handed, named: Any) -> bytes:
    """The bytes of the file that an answer names, which is then removed. Raises StageError."""
    from eagle3.states.checking import StateError, read_states

    try:
        raw = its.named(named)
    except NotItsFile as error:
        raise StageError(str(error)) from error
    try:
        try:
            asyncio.run(_written(its, raw))
            return read_states(raw, _PROBE_MOST_BYTES)
        finally:
            its.remove(raw)
    except (OSError, StateError) as error:
        raise StageError(
            f"{who} writes its states to {its.folder}, where this process cannot read and remove them ({error}); extraction "
            "needs a folder that both see and may write: leave server.extract_url empty, so that the run starts its own."
        ) from error


def _unseen(who: str, found: Listener, *, layers: bool = False) -> str:
    """Why its states cannot be taken. ``layers``: its command line can be seen and names none."""
    if found.process is None or layers:
        why = "its command line names none" if layers else f"its process is not visible here{_because(found.assumed)}"
        return (
            f"{who} extracts, but of which layers cannot be seen, nor into which folder: {why}, and a "
            "draft of other layers is broken; leave server.extract_url empty, so that the run starts its own."
        )
    return (
        f"{who} extracts, but into which folder its command line does not say, and only files from there are taken: start it "
        "with shared_storage_path in --kv-transfer-config, or leave server.extract_url empty, so that the run starts its own."
    )


def _because(why: str) -> str:
    return f" ({why})" if why else ""


def _handed(process: psutil.Process | None, who: str) -> Handed | None:
    remedy = "look at that server, or leave server.extract_url empty, so that the run starts its own"
    return handed.of_process(process.pid, who, remedy=remedy) if process is not None else None


def process_of(url: str) -> Listener:
    """The vLLM process of this machine that listens at ``url``: told that port, and found with its socket where that can be
    seen."""
    address = urlsplit(url)
    if not listening.is_here(address.hostname, [socket.gethostname()]):
        return Listener(None)
    port = address.port or (443 if address.scheme == "https" else 80)
    told = [one for one in psutil.process_iter(["cmdline"]) if _told_port(one.info["cmdline"] or []) == port]
    return listening.listener(port, told, loopback=address.hostname != socket.gethostname())


def _told_port(words: list[str]) -> int | None:
    """The port that a command line tells a vLLM to listen on; None for one that tells none, or no vLLM."""
    port = _option(words, "--port")
    if port is None and vllm.is_server(words):
        return vllm.DEFAULT_PORT
    return int(port) if port and port.isdigit() and "vllm" in " ".join(words) else None


def layer_ids(command: list[str]) -> list[int] | None:
    """The layer ids that a vLLM's command line asks to extract; None where it names none."""
    text = _option(command, "--speculative_config") or _option(command, "--speculative-config")
    try:
        found = _within(json.loads(text or "null"))
        return [int(layer) for layer in found] if found is not None else None
    except (ValueError, TypeError):
        return None


def _within(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    if _LAYERS in value:
        return value[_LAYERS]
    return next((found for one in value.values() if (found := _within(one)) is not None), None)


def _option(words: list[str], name: str) -> str | None:
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _get(http: httpx.Client, path: str) -> Any:
    response = http.get(path).raise_for_status()
    try:
        return response.json()
    except ValueError:
        return None


def _version(http: httpx.Client) -> str:
    try:
        found = _get(http, "/version")
    except httpx.HTTPError:
        return ""
    return str(found.get("version") or "") if isinstance(found, dict) else ""


def _post(ctx: StageContext, who: str, http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one small request. The first one of a cold model may take as long as any."""
    try:
        response = http.post(path, json=body, timeout=httpx.Timeout(ctx.spec.regenerate.request_timeout_s, connect=5.0))
    except httpx.HTTPError as error:
        raise Silent(f"{who} does not answer a short request ({error or type(error).__name__}); look at its log.") from error
    try:
        found = response.json()
    except ValueError:
        found = None
    if not response.is_success or not isinstance(found, dict):
        raise StageError(f"{who} answers a short request with status {response.status_code}: {response.text[:200]!r}.")
    return found


def _handle(reply: dict[str, Any]) -> Any:
    """What the answer names as a file of hidden states, whatever that is; None where it names none."""
    told = reply.get("kv_transfer_params")
    return (told.get("hidden_states_path") or None) if isinstance(told, dict) else None


def _remove(its: Handed | None, named: Any) -> None:
    """Remove the file that the answer to our question left. Raises NotItsFile where it may be somebody else's."""
    if its is None:
        raise NotItsFile
    its.remove(its.named(named))


async def _written(its: Handed, raw: Path) -> None:
    from eagle3.stages.landing import written

    await written(its, raw)
