"""A model's folder is checked by headers and sizes alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle3.engines import model_dir
from eagle3.engines.model_dir import check_model_dir, check_safetensors, fingerprint
from eagle3.stages.context import StageError
from tests.stages.runs import TARGET

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of two shards, whole."""
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "num_hidden_layers": 2}))
    (tmp_path / "tokenizer.json").write_text("{}")
    for name, shard in zip(("a", "b"), SHARDS, strict=True):
        save_file({name: np.zeros((8, 8), np.float32)}, tmp_path / shard)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))
    return tmp_path


def test_a_whole_folder_gives_its_configuration(folder: Path) -> None:
    assert check_model_dir(folder)["hidden_size"] == 8


def test_the_real_target_is_whole() -> None:
    assert check_model_dir(TARGET)["num_hidden_layers"] == 30


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / SHARDS[1]).unlink()
    with pytest.raises(StageError, match=rf"{SHARDS[1]} is missing \(shard 2 of 2\)"):
        check_model_dir(folder)


def test_a_truncated_shard_is_named_with_its_sizes(folder: Path) -> None:
    whole = (folder / SHARDS[0]).read_bytes()
    (folder / SHARDS[0]).write_bytes(whole[:-10])
    with pytest.raises(StageError, match=rf"{SHARDS[0]} is cut off: {len(whole) - 10} of {len(whole)} bytes"):
        check_model_dir(folder)


@pytest.mark.parametrize("left", [0, 4, 12])
def test_a_shard_cut_off_within_its_header_is_named(folder: Path, left: int) -> None:
    (folder / SHARDS[0]).write_bytes((folder / SHARDS[0]).read_bytes()[:left])
    with pytest.raises(StageError, match=rf"{SHARDS[0]} is cut off within its header"):
        check_model_dir(folder)


def test_a_shard_with_bytes_too_many_is_named(folder: Path) -> None:
    with (folder / SHARDS[0]).open("ab") as file:
        file.write(b"more")
    with pytest.raises(StageError, match="longer than it should be"):
        check_model_dir(folder)


def test_a_git_lfs_pointer_is_recognised(folder: Path) -> None:
    (folder / SHARDS[1]).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(StageError, match=rf"{SHARDS[1]} is only a Git LFS pointer.*git lfs pull"):
        check_model_dir(folder)


def test_a_shard_without_a_tensor_of_the_index_is_named(folder: Path) -> None:
    save_file({"other": np.zeros(2, np.float32)}, folder / SHARDS[1])
    with pytest.raises(StageError, match=rf"{SHARDS[1]} lacks b"):
        check_model_dir(folder)


def test_a_file_of_something_else_is_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes((5).to_bytes(8, "little") + b"hello")
    with pytest.raises(StageError, match="no readable safetensors header"):
        check_safetensors(tmp_path / "x.safetensors")


def test_no_folder_no_configuration_no_tokenizer_and_no_weights_are_each_said(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"is not there; correct target\.model"):
        check_model_dir(tmp_path / "none")
    with pytest.raises(StageError, match=r"config\.json cannot be read"):
        check_model_dir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StageError, match="holds no tokenizer"):
        check_model_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StageError, match=r"holds no \*\.safetensors"):
        check_model_dir(tmp_path)


def test_a_torn_configuration_is_named(folder: Path) -> None:
    (folder / "config.json").write_text('{"hidden_size":')
    with pytest.raises(StageError, match=r"config\.json is not JSON"):
        check_model_dir(folder)


def test_a_shard_that_is_missing_without_an_index_is_named_by_the_others_names(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    check_model_dir(folder)
    (folder / SHARDS[0]).unlink()
    with pytest.raises(StageError, match=rf"{SHARDS[0]} is missing \(shard 1 of 2\)"):
        check_model_dir(folder)


def test_the_fingerprint_is_that_of_the_content_wherever_the_folder_lies(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("copy") / "model"
    shutil.copytree(folder, copy)
    (copy / "README.md").write_text("not loaded by anyone")
    assert fingerprint(copy) == fingerprint(folder)
    save_file({"a": np.ones((8, 8), np.float32)}, copy / SHARDS[0])
    assert fingerprint(copy) != fingerprint(folder)
    assert fingerprint(tmp_path_factory.mktemp("none") / "missing") != fingerprint(folder)


def test_other_weights_in_a_large_file_show_in_the_fingerprint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_dir, "_READ_WHOLE_BYTES", 1000)
    noise = np.random.default_rng(1)
    save_file({"a": noise.standard_normal((64, 64), np.float32)}, folder / SHARDS[0])
    before = fingerprint(folder)
    save_file({"a": noise.standard_normal((64, 64), np.float32)}, folder / SHARDS[0])
    assert fingerprint(folder) != before
