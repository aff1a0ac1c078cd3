"""The target's folder: copies of a small real one, each spoilt in one way that downloads are spoilt in."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from eagle3.core.readiness.checks.model import READS_FILES_ITSELF
from eagle3.core.spec import RunSpec
from tests.readiness.environments import environment, package
from tests.readiness.light import SMOL, fault, gathered, judged, mended, tree, unclear

ROOT = Path(__file__).parents[2]
TARGET = SMOL.target.model_copy(update={"hidden_size": 8, "num_hidden_layers": 30, "source": "", "model": "set below"})
FIRST, SECOND, INDEX = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"


def shard(*names: str, short: int = 0) -> bytes:
    """A safetensors file with tensors of 64 bytes each, ``short`` bytes cut off at the end."""
    header = {name: {"dtype": "F32", "shape": [16], "data_offsets": [64 * i, 64 * i + 64]} for i, name in enumerate(names)}
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    content = struct.pack("<Q", len(head)) + head + b"\x01" * 64 * len(names)
    return content[: len(content) - short]


def model(folder: Path, **changes: Any) -> dict[str, Any]:
    """The facts of a whole two-shard model, with files replaced (None: removed)."""
    config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 30, "max_position_embeddings": 4096}
    files: dict[str, Any] = {
        "config.json": json.dumps(config), FIRST: shard("a", "b"), SECOND: shard("c"),
        INDEX: json.dumps({"weight_map": {"a": FIRST, "b": FIRST, "c": SECOND}}),
        "tokenizer.json": "{}", "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}),
    }  # fmt: skip
    files |= {"config.json": json.dumps({**config, **changes.pop("config")})} if "config" in changes else {}
    tree(folder, {name: content for name, content in {**files, **changes.pop("files", {})}.items() if content is not None})
    return gathered("model", model=str(folder), **changes)


def spec(**changes: Any) -> RunSpec:
    return SMOL.model_copy(update={"target": TARGET.model_copy(update=changes)})


def test_a_whole_model_passes_every_check(tmp_path: Path) -> None:
    facts = model(tmp_path / "whole")
    for id in ("found", "config", "length", "shards", "whole", "tokenizer", "template", "code"):
        mended(f"model.{id}", facts, spec())
    assert "2 of 2 shards" in mended("model.shards", facts)[0].evidence


SPOILT: list[tuple[str, dict[str, Any], str]] = [
    ("model.shards", {SECOND: None}, f"1 of 2 shards are missing: {SECOND}"),
    ("model.shards", {SECOND: None, INDEX: None}, "1 of 2 shards are missing"),
    ("model.shards", {FIRST: shard("a")}, "lacks b and 0 more that the index promises"),
    ("model.shards", {INDEX: LFS}, "only a Git LFS pointer"),
    ("model.shards", {INDEX: None, FIRST: None, SECOND: None, "model.bin": b"x"}, "no *.safetensors file (model.bin are there)"),
    ("model.whole", {FIRST: shard("a", "b", short=3)}, "is cut off"),
    ("model.whole", {FIRST: shard("a", "b")[:20]}, "cut off within its header"),
    ("model.whole", {FIRST: shard("a", "b") + b"!"}, "longer than its header says"),
    ("model.whole", {FIRST: LFS}, "only a Git LFS pointer"),
    ("model.whole", {FIRST: struct.pack("<Q", 4) + b"oops" + bytes(9)}, "has no readable header"),
    ("model.config", {"config.json": "{"}, "not JSON"),
    ("model.config", {"config.json": None}, "missing"),
    ("model.tokenizer", {"tokenizer.json": None}, "holds no tokenizer"),
    ("model.tokenizer", {"tokenizer.json": LFS}, "tokenizer.json: only Git LFS pointers"),
    ("model.tokenizer", {"tokenizer_config.json": "["}, "not JSON"),
    ("model.template", {"tokenizer_config.json": "{}"}, "neither chat_template.jinja nor"),
    ("model.found", {"model-00003-of-00002.safetensors.incomplete": b""}, "unfinished downloads"),
]


@pytest.mark.parametrize(("id", "files", "words"), SPOILT, ids=[f"{line[0]}: {line[2]}" for line in SPOILT])
def test_a_spoilt_folder_is_told_and_passes_once_mended(tmp_path: Path, id: str, files: dict[str, Any], words: str) -> None:
    fault(id, model(tmp_path / "spoilt", files=files), words, spec())
    mended(id, model(tmp_path / "mended"), spec())


def test_a_truncated_copy_of_the_real_target_is_told_with_its_bytes(tmp_path: Path) -> None:
    real = Path(gathered("model", spec=SMOL)["model"]["folder"])
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in real.iterdir():
        os.link(file, copy / file.name) if file.stat().st_dev == copy.stat().st_dev else (copy / file.name).symlink_to(file)
    size = (real / "model.safetensors").stat().st_size
    mended("model.whole", gathered("model", model=str(copy)))
    (copy / "model.safetensors").unlink()
    with (real / "model.safetensors").open("rb") as whole, (copy / "model.safetensors").open("wb") as cut:
        cut.write(whole.read(1 << 20))
    fault("model.whole", gathered("model", model=str(copy)), f"{1 << 20:,} of {size:,} bytes", status="fail")


def test_another_model_than_the_spec_describes_fails(tmp_path: Path) -> None:
    facts = model(tmp_path / "m", config={"num_hidden_layers": 28})
    fault("model.config", facts, "num_hidden_layers is 28 and the spec says 30", spec(), status="fail")
    mended("model.config", facts)
    other = model(tmp_path / "v", config={"vocab_size": 49280})
    fault("model.config", other, "vocab_size is 49280 and the spec says 49152", spec(), status="fail")
    nested = model(tmp_path / "n", config={"hidden_size": None, "text_config": {"hidden_size": 8, "num_hidden_layers": 30}})
    mended("model.config", nested, spec())


def test_longer_texts_than_the_model_was_made_for_fail(tmp_path: Path) -> None:
    facts = model(tmp_path / "m", config={"max_position_embeddings": 512})
    fault("model.length", facts, "target.max_model_len is 1,024, the model goes to 512 tokens", spec(), status="fail")
    mended("model.length", facts, spec(max_model_len=512))
    unclear("model.length", model(tmp_path / "n", config={"max_position_embeddings": None}), "has no max_position", spec())


def test_custom_code_must_be_there_and_be_allowed(tmp_path: Path) -> None:
    asks = {"auto_map": {"AutoConfig": "configuration_kimi.KimiConfig", "AutoTokenizer": ["tokenization.Slow", None]}}
    facts = model(tmp_path / "m", config=asks, files={"configuration_kimi.py": "", "tokenization.py": ""})
    fault("model.code", facts, "it needs its own code (configuration_kimi.KimiConfig", spec(), status="fail")
    mended("model.code", facts, spec(trust_remote_code=True))
    missing = model(tmp_path / "n", config=asks)
    fault(
        "model.code", missing, "configuration_kimi.py, tokenization.py is not there", spec(trust_remote_code=True), status="fail"
    )


def test_a_tiktoken_model_needs_the_packages_that_read_it(tmp_path: Path) -> None:
    facts = model(tmp_path / "m", files={"tokenizer.json": None, "tiktoken.model": b"x"})
    bare = environment(tmp_path / "bare")
    lacking = {**facts, **gathered("python", pythons={"worker": bare, "server": bare})}
    fault("model.tokenizer", lacking, "tiktoken.model needs tiktoken in the worker's environment", spec(), status="fail")
    old = environment(tmp_path / "old", package("tiktoken", "0.9"))
    half = {**facts, **gathered("python", pythons={"worker": old, "server": old})}
    fault("model.tokenizer", half, "tiktoken.model needs blobfile in the worker's environment", spec(), status="fail")
    for name, packages in {
        "older": [package("tiktoken", "0.9"), package("blobfile", "3.0")],
        "reads files itself": [package("tiktoken", "0.14.0")],
    }.items():
        able = environment(tmp_path / name, *packages)
        mended("model.tokenizer", {**facts, **gathered("python", pythons={"worker": able, "server": able})}, spec())


def test_the_workers_list_of_packages_reads_kimis_tokenizer() -> None:
    pins = dict(line.split("==") for line in (ROOT / "requirements" / "container.txt").read_text().splitlines() if "==" in line)
    assert Version(pins["tiktoken"]) >= READS_FILES_ITSELF


def test_a_target_that_is_not_there_is_told_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault("model.found", gathered("model", model=str(tmp_path / "no")), "is not there", spec(), status="fail")
    comes = gathered("model", model=str(tmp_path / "no"))
    assert (
        "eagle3 target" in fault("model.found", comes, "the run fetches it", spec(source="pypi-gguf:x==1"), status="warn").remedy
    )
    assert judged("model.shards", comes, spec()) == judged("model.template", comes, spec()) == []
    assert [c.status for c in judged("model.found", gathered("model"))] == ["skipped"]
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    told = fault("model.found", gathered("model", model="org/name"), "org/name is not in the cache", spec(), status="fail")
    assert "hf download org/name" in told.remedy
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    model(snapshot)
    tree(tmp_path / "hub/models--org--name", {"refs/main": "abc\n", "snapshots/old/config.json": "{}"})
    assert str(snapshot) in mended("model.found", gathered("model", model="org/name"), spec())[0].evidence
