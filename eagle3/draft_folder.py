"""A draft's folder as vLLM serves it (``config.json`` and ``*.safetensors`` in speculators' format): is it whole, and does
its vocabulary map hold? A map that is missing or wrong loads without complaint and then accepts nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from eagle3.stages.context import StageError

KINDS = ("eagle3", "peagle", "dflash", "dspark")
"""The kinds of draft that a run may train (``train.kind``)."""


@dataclass(frozen=True)
class DraftFacts:
    """What a whole draft is made of. ``parameters`` counts the weights, not the vocabulary map; ``sha256`` is of the
    configuration and the weights together."""

    files: tuple[str, ...]
    bytes: int
    parameters: int
    draft_vocab_size: int
    vocab_size: int
    sha256: str


def check(folder: Path) -> DraftFacts:
    """The facts of a whole draft. Raises StageError, naming the file, where one is missing, cut short or contradicts
    another."""
    config = read_config(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise _broken(folder, "it holds no *.safetensors")
    shapes: dict[str, tuple[int, ...]] = {}
    maps: dict[str, Any] = {}
    for path in weights:
        try:
            # Opening reads the header and refuses a file that is shorter or longer than the header says.
            with safe_open(path, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
                    if name in ("d2t", "t2d"):
                        maps[name] = tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise _broken(folder, f"{path.name} is not a whole safetensors file ({error})") from error
    _check_map(folder, config, maps)
    return DraftFacts(
        files=("config.json", *(path.name for path in weights)),
        bytes=sum(path.stat().st_size for path in (folder / "config.json", *weights)),
        parameters=sum(_size(shape) for name, shape in shapes.items() if name not in ("d2t", "t2d")),
        draft_vocab_size=int(maps["d2t"].shape[0]),
        vocab_size=int(maps["t2d"].shape[0]),
        sha256=_digest([folder / "config.json", *weights]),
    )


def digest(folder: Path) -> str:
    """The SHA-256 of a draft's config and weights, as in ``DraftFacts``; of whatever is there, and whether vLLM would serve it
    or not (a draft of the target's whole vocabulary carries no map)."""
    return _digest([path for path in (folder / "config.json", *sorted(folder.glob("*.safetensors"))) if path.is_file()])


def read_config(folder: Path) -> dict[str, Any]:
    """The draft's ``config.json``. Raises StageError where it is missing, no JSON, or not a draft's."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _broken(folder, "config.json is missing") from error
    except ValueError as error:
        raise _broken(folder, f"config.json is no JSON ({error})") from error
    if config.get("speculators_model_type") not in KINDS or not isinstance(config.get("transformer_layer_config"), dict):
        raise _broken(folder, "config.json does not describe a draft in speculators' format")
    return config


def portable_config(config: dict[str, Any], verifier: str | None) -> dict[str, Any]:
    """A copy without paths of this machine and without code. ``verifier``: the target's hub id, or None where it has none:
    vLLM is given the target on its command line and does not follow this name; speculators does, and must be told
    where the target is before it loads the draft again. Other absolute paths shrink to their last part."""
    portable: dict[str, Any] = _without_paths(config)
    # It points to Python code that the folder does not carry and that neither vLLM nor speculators needs.
    portable.pop("auto_map", None)
    named = portable.get("speculators_config", {}).get("verifier")
    if isinstance(named, dict):
        named["name_or_path"] = verifier
    return portable


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items() if not (key == "_name_or_path" and _is_path(item))}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    return Path(value).name if _is_path(value) else value


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("/", "~"))


def _check_map(folder: Path, config: dict[str, Any], maps: dict[str, Any]) -> None:
    missing = [name for name in ("d2t", "t2d") if name not in maps]
    if missing:
        raise _broken(folder, f"the vocabulary map {' and '.join(missing)} is missing from its weights")
    # d2t holds offsets: draft token i is the target's token i + d2t[i]; t2d marks the target's tokens that the draft knows.
    targets = np.arange(len(maps["d2t"])) + maps["d2t"]
    known = np.flatnonzero(maps["t2d"])
    if len(targets) != config.get("draft_vocab_size"):
        raise _broken(folder, f"d2t maps {len(targets)} tokens and draft_vocab_size is {config.get('draft_vocab_size')}")
    if not np.array_equal(targets, known):
        raise _broken(folder, "d2t and t2d do not describe the same tokens")


def _broken(folder: Path, what: str) -> StageError:
    return StageError(f"The draft {folder} cannot be served: {what}. Train it again: remove that folder and resume the run.")


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
