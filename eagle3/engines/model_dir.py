"""Is a model's folder there and whole? Answered from file names, sizes and headers, without loading a weight, so that a
truncated download is found in a second and not after a server's start."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Any

from eagle3.core.spec import Target
from eagle3.stages.context import StageError

_LFS = b"version https://git-lfs"
_MAX_HEADER_BYTES = 100 * 1024 * 1024
_READ_WHOLE_BYTES = 64 * 1024 * 1024
_SAMPLES, _SAMPLE_BYTES = 64, 4096
_SHARD = re.compile(r"(?P<stem>.+)-\d+-of-(?P<count>\d+)\.safetensors")
_COUNTED = frozenset({".json", ".safetensors", ".model", ".tiktoken", ".txt", ".jinja", ".py"})
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "tokenizer_config.json")


def check_model_dir(path: Path) -> dict[str, Any]:
    """The folder's ``config.json``. Raises StageError, naming the file, when the folder, the configuration, the tokenizer
    or a shard is missing, a shard is shorter or longer than its header says, or a file is only a Git LFS pointer."""
    if not path.is_dir():
        raise StageError(absent(path))
    config = _json(path / "config.json")
    if not any((path / name).is_file() for name in _TOKENIZERS):
        raise StageError(f"{path} holds no tokenizer (none of {', '.join(_TOKENIZERS)}); copy the model's folder again, whole.")
    index_path = path / "model.safetensors.index.json"
    if index_path.is_file():
        weight_map = _json(index_path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise StageError(f"{index_path} has no weight_map; fetch this file again.")
        expected: dict[str, set[str]] = {}
        for tensor, shard in weight_map.items():
            expected.setdefault(str(shard), set()).add(str(tensor))
    else:
        expected = {name: set() for file in sorted(path.glob("*.safetensors")) for name in _shards_of(file.name)}
        if not expected:
            raise StageError(f"{path} holds no *.safetensors file; convert the model to safetensors or fetch it again.")
    for number, (shard, tensors) in enumerate(sorted(expected.items()), 1):
        held = check_safetensors(path / shard, of=f" (shard {number} of {len(expected)})" if len(expected) > 1 else "")
        if lacking := sorted(tensors - held):
            raise StageError(
                f"{path / shard} lacks {lacking[0]} and {len(lacking) - 1} more that the index promises; fetch it again."
            )
    return config


def _shards_of(name: str) -> list[str]:
    """All that belong to a shard called ``…-00001-of-00004.safetensors``, so that one is missed without an index too."""
    found = _SHARD.fullmatch(name)
    if found is None:
        return [name]
    width, count = len(found["count"]), int(found["count"])
    return [f"{found['stem']}-{number:0{width}}-of-{found['count']}.safetensors" for number in range(1, min(count, 100_000) + 1)]


def fingerprint(path: Path) -> str:
    """16 hex digits that change when the folder's model does, whatever its path and its files' times are.

    Names and sizes of all files that a model is loaded from, the content of the small ones, and of each large one 64
    pieces: another training changes weights everywhere, and hashing hundreds of gigabytes at each resume would take long.
    """
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()) if path.is_dir() else []:
        if file.suffix not in _COUNTED or not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode("utf-8", "surrogateescape"))
        with file.open("rb") as content:
            if size <= _READ_WHOLE_BYTES:
                digest.update(hashlib.file_digest(content, "sha256").digest())
                continue
            for sample in range(_SAMPLES):
                content.seek((size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(content.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def absent(path: Path) -> str:
    """That the target's folder is not there, as a sentence."""
    return f"The target's folder {path} is not there; correct target.model, or for a preset's target run `eagle3 target NAME`."


def check_safetensors(path: Path, *, of: str = "") -> set[str]:
    """The names of a safetensors file's tensors. Raises StageError when the file is missing, cut off or not one at all."""
    if not path.is_file():
        raise StageError(f"{path} is missing{of}; fetch this file again.")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(_LFS))
        if start == _LFS:
            raise StageError(f"{path} is only a Git LFS pointer{of}; run `git lfs pull` in {path.parent}.")
        file.seek(0)
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise StageError(f"{path} is cut off within its header ({size:,} bytes){of}; fetch this file again.")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        tensors = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
        end = 8 + length + max(tensors.values(), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise StageError(f"{path} has no readable safetensors header{of}; fetch this file again.", detail=str(error)) from error
    if size != end:
        what = "cut off" if size < end else "longer than it should be"
        raise StageError(f"{path} is {what}: {size:,} of {end:,} bytes{of}; fetch this file again.")
    return set(tensors)


def check_shape(config: dict[str, Any], target: Target, path: Path) -> None:
    """Raise StageError when the model is not of the size that the spec says, so that layer ids or tokens would be wrong."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    for field in ("hidden_size", "num_hidden_layers", "vocab_size"):
        found, said = text.get(field), getattr(target, field)
        if field == "vocab_size" and not (found and said):  # one of the two does not say
            continue
        if found != said:
            raise StageError(f"{path} has {field} {found}, the spec says target.{field} = {said}; correct the target preset.")


def misfit(path: Path, target: Target) -> str:
    """Why the model in a folder is not the one that the spec describes, as a sentence; empty where it is, or is not there."""
    if not (path / "config.json").is_file():
        return ""
    try:
        check_shape(_json(path / "config.json"), target, path)
    except StageError as error:
        return str(error)
    return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StageError(f"{path} cannot be read ({error.strerror}); copy the model's folder again, whole.") from error
    if content.startswith(_LFS):
        raise StageError(f"{path} is only a Git LFS pointer; run `git lfs pull` in {path.parent}.")
    try:
        value = json.loads(content)
    except ValueError as error:
        raise StageError(f"{path} is not JSON ({error}); fetch this file again.") from error
    if not isinstance(value, dict):
        raise StageError(f"{path} does not hold an object; fetch this file again.")
    return value
