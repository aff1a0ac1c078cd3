"""Section "model": is the target's folder there and whole? From names, sizes and headers; no weight is read."""

from __future__ import annotations

import contextlib
import json
import re
import struct
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

from eagle3.runner.facts import places

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "spiece.model")
_LFS = b"version https://git-lfs"
_MAX_HEADER_BYTES = 100 << 20
_MAX_JSON_BYTES = 64 << 20
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHARD = re.compile(r"(?P<stem>.+)-\d+-of-(?P<count>\d+)\.safetensors")
_CONFIG = (
    "model_type", "architectures", "hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings", "head_dim",
    "torch_dtype", "dtype", "tie_word_embeddings",
)  # fmt: skip


def facts(wants: Dict[str, Any], root: Path) -> Dict[str, Any]:
    """``{"asked","folder","hub_id","found","config","shards","tokenizer","template","code",…}``. Empty but for ``asked``
    where no model was asked for."""
    asked = str(wants.get("model") or "")
    if not asked:
        return {"asked": ""}
    folder = places.expand(asked)
    hub_id = asked if _HUB_ID.fullmatch(asked) and not folder.exists() else ""
    if hub_id:
        snapshot = snapshot_of(hub_id, places.hub_cache())
        where = {"hub_id": hub_id, "cache": str(places.hub_cache())}
        if snapshot is None:
            return {"asked": asked, **where, "folder": "", "found": False}
        return {"asked": asked, **where, **described(snapshot)}
    return {"asked": asked, "hub_id": "", **described(folder)}


def snapshot_of(hub_id: str, cache: Path) -> Optional[Path]:
    """The cached snapshot that ``main`` stands for, else the newest; None where nothing of it is cached."""
    home = cache / f"models--{hub_id.replace('/', '--')}"
    with contextlib.suppress(OSError, ValueError):  # no ref, or no text: whatever is there will do
        named = home / "snapshots" / (home / "refs" / "main").read_text(encoding="ascii").strip()
        if named.is_dir():
            return named
    try:
        found = [entry for entry in (home / "snapshots").iterdir() if entry.is_dir()]
    except OSError:
        return None
    return max(found, key=lambda entry: entry.stat().st_mtime) if found else None


def described(folder: Path) -> Dict[str, Any]:
    """The folder's configuration, shards, tokenizer files, chat template and custom code."""
    if not folder.is_dir():
        return {"folder": str(folder), "found": False, "is_file": folder.is_file()}
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    config = _json(folder / "config.json")
    tokenizer = _json(folder / "tokenizer_config.json")
    return {
        "folder": str(folder),
        "found": True,
        "config": _config(config),
        "shards": shards(folder, names),
        "tokenizer": {
            "files": [name for name in TOKENIZERS if name in names],
            "pointers": [name for name in names if name.endswith((".json", ".model", ".jinja")) and _is_pointer(folder / name)],
            "error": tokenizer.get("error", ""),
        },
        "template": _template(folder, names, tokenizer),
        "code": _code(names, config, tokenizer),
        "parts": [name for name in names if name.endswith((".incomplete", ".aria2", ".part", ".tmp"))],
    }


def shards(folder: Path, names: List[str]) -> Dict[str, Any]:
    """``{"count","bytes","missing","broken","lacking","other","index"}``: what the index or the names promise, against what is
    there. ``broken`` is ``[{"name","why","have_bytes","want_bytes"}]``; ``other`` weight files that are no safetensors."""
    index = _json(folder / "model.safetensors.index.json")
    promised: Dict[str, Set[str]] = {}
    for tensor, shard in (index.get("weight_map") or {}).items():
        promised.setdefault(str(shard), set()).add(str(tensor))
    if not promised:
        promised = {name: set() for file in names if file.endswith(".safetensors") for name in _family(file)}
    missing, broken, lacking = [], [], []
    size = 0
    for name, tensors in sorted(promised.items()):
        file = folder / name
        try:
            size += file.stat().st_size
        except OSError:
            missing.append(name)
            continue
        fault, held = _header(file)
        if fault:
            broken.append({"name": name, **fault})
        elif tensors - held:
            lacking.append({"name": name, "tensors": len(tensors - held), "first": sorted(tensors - held)[0]})
    return {
        "count": len(promised),
        "bytes": size,
        "missing": missing,
        "broken": broken,
        "lacking": lacking,
        "other": [name for name in names if name.endswith((".bin", ".pth", ".gguf", ".pt"))],
        "index": index.get("error", "") if "error" in index and index["error"] != "missing" else "",
    }


def _family(name: str) -> List[str]:
    """All shards that belong to ``…-00001-of-00004.safetensors``, so that one is missed without an index too."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return [name]
    width, count = len(match["count"]), min(int(match["count"]), 100_000)
    return [f"{match['stem']}-{number:0{width}}-of-{match['count']}.safetensors" for number in range(1, count + 1)]


def _header(file: Path) -> "tuple[Dict[str, Any], Set[str]]":
    """What is wrong with a safetensors file (nothing: empty), and the names of its tensors.

    Format: 8 bytes with the header's length, the header in JSON, then the data that ``data_offsets`` divide.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as content:
            head = content.read(8)
            if head + content.read(len(_LFS) - 8) == _LFS:
                return {"why": "only a Git LFS pointer", "have_bytes": size, "want_bytes": None}, set()
            content.seek(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
            if length > min(size - 8, _MAX_HEADER_BYTES):
                return {"why": "cut off within its header", "have_bytes": size, "want_bytes": None}, set()
            header = json.loads(content.read(length).decode("utf-8"))
        tensors = {name: int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"}
    except OSError as error:
        return {"why": f"cannot be read: {error.strerror}", "have_bytes": None, "want_bytes": None}, set()
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return {"why": "has no readable header", "have_bytes": size, "want_bytes": None}, set()
    want = 8 + length + max(tensors.values(), default=0)
    if size != want:
        return {"why": "cut off" if size < want else "longer than its header says", "have_bytes": size, "want_bytes": want}, set()
    return {}, set(tensors)


def _config(config: Dict[str, Any]) -> Dict[str, Any]:
    """The fields that a run depends on; those of the text part where the model has several."""
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    found = {name: text[name] for name in _CONFIG if name in text}
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if isinstance(quantization, dict):
        found["quantization"] = str(quantization.get("quant_method") or "yes")
    return {**found, "error": config.get("error", "")}


def _template(folder: Path, names: List[str], tokenizer: Dict[str, Any]) -> str:
    """Where the chat template is; empty where there is none."""
    if "chat_template.jinja" in names and not _is_pointer(folder / "chat_template.jinja"):
        return "chat_template.jinja"
    if "chat_template.json" in names:
        return "chat_template.json"
    return "tokenizer_config.json" if tokenizer.get("chat_template") else ""


def _code(names: List[str], config: Dict[str, Any], tokenizer: Dict[str, Any]) -> Dict[str, Any]:
    """Custom code that the model asks for: the classes named in ``auto_map``, the files there, and those missing."""
    wanted: List[str] = []
    for source in (config, tokenizer):
        entries = source.get("auto_map")
        for value in entries.values() if isinstance(entries, dict) else []:
            wanted += [str(part) for part in (value if isinstance(value, list) else [value]) if part]
    files = sorted({f"{name.split('--')[-1].rpartition('.')[0]}.py" for name in wanted if "." in name and "--" not in name})
    return {
        "classes": sorted(set(wanted)),
        "files": [name for name in names if name.endswith(".py")],
        "missing": [name for name in files if name not in names],
    }


def _is_pointer(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(len(_LFS)) == _LFS
    except OSError:
        return False


def _json(file: Path) -> Dict[str, Any]:
    """A small JSON object; ``{"error": why}`` where there is none ("missing" for a file that is not there)."""
    try:
        if file.stat().st_size > _MAX_JSON_BYTES:
            return {"error": f"{file.name} is too large to be one"}
        content = file.read_bytes()
    except FileNotFoundError:
        return {"error": "missing"}
    except OSError as error:
        return {"error": f"{file.name} cannot be read: {error.strerror}"}
    if content.startswith(_LFS):
        return {"error": f"{file.name} is only a Git LFS pointer"}
    try:
        value = json.loads(content.decode("utf-8"))
    except ValueError as error:
        return {"error": f"{file.name} is not JSON: {error}"}
    return value if isinstance(value, dict) else {"error": f"{file.name} holds no object"}
