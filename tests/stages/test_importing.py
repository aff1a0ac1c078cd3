"""States that were made elsewhere become a run that trains on them; what does not fit is refused whole."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from datasets import Dataset
from safetensors.torch import load_file, save_file
from speculators.cli.generate_offline_data import _generate_and_save_hidden_states
from typer.testing import CliRunner

from eagle3 import work
from eagle3.cli import app
from eagle3.core.spec import RunSpec
from eagle3.journal import Journal
from eagle3.rows import read_rows
from eagle3.runner import rundir
from eagle3.stages import extract, prepare, regenerate, train, vocabulary
from eagle3.stages.context import StageContext
from tests.stages.extraction import Extractor, made, nan, run, sample
from tests.stages.fake_vllm import FakeVllm
from tests.stages.runs import TARGET, rows

COUNT = 16
SMALL = [
    "--size",
    "smoke",
    "--set",
    "data.heldout_prompts=6",
    "--set",
    "evaluate.prompts=4",
    "--set",
    "evaluate.lossless_prompts=2",
]


def dataset(folder: Path, **columns: list[Any]) -> Path:
    """What prepare-data leaves, in its own format."""
    given = {name: [sample(index, 12)[name] for index in range(COUNT)] for name in ("input_ids", "loss_mask")} | columns
    found = Dataset.from_dict({name: values for name, values in given.items() if values})
    found.set_format(type="torch")
    found.save_to_disk(str(folder))
    return folder


def speculators(folder: Path, answer: Any = lambda before, ids: None, **columns: list[Any]) -> Path:
    """A folder as speculators' own commands leave it: its code asks the server and writes the files."""
    dataset(folder, **columns)
    with FakeVllm(Extractor(folder / "raw", answer)) as server:
        asyncio.run(
            _generate_and_save_hidden_states(
                model=None, endpoint=f"{server.base_url}/v1", preprocessed_data=str(folder), output=None, max_samples=None,
                concurrency=4, validate_outputs=False, request_timeout=30, max_retries=0, fail_on_error=False,
                max_consecutive_errors=None, world_size=1, rank=0,
            )
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def made_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speculators(tmp_path_factory.mktemp("speculators") / "data")


def imported(workspace: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["import", *arguments, "--workspace", str(workspace)])


def context(run_dir: Path) -> StageContext:
    spec = RunSpec.from_toml((run_dir / "spec.toml").read_text())
    return StageContext(run_dir, spec, Journal(run_dir, 1), TARGET, "", "", lambda: False)


def refused(workspace: Path, *arguments: str, code: int = 2) -> str:
    """The sentence; and nothing is left behind."""
    found = imported(workspace, *arguments, "--id", "new")
    assert found.exit_code == code, found.output
    assert not (workspace / "runs" / "new").exists() and not list(workspace.glob("runs/.new-*"))
    return found.output


def test_what_speculators_made_becomes_a_run_whose_first_stages_are_whole(made_elsewhere: Path, tmp_path: Path) -> None:
    found = imported(tmp_path, str(made_elsewhere), "--id", "new", *SMALL, "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout.splitlines()[-1])
    assert (told["samples"], told["put_aside"], told["repeated"]) == (COUNT, 0, 0)
    ctx = context(tmp_path / "runs" / "new")
    for name, module in (("prepare", prepare), ("regenerate", regenerate), ("extract", extract)):
        work.run_stage(ctx, name, module)
    skipped = [row["text"] for row in rows(ctx.run_dir, "events.jsonl") if row["kind"] == "stage-skipped"]
    assert skipped == [f"{name} is whole from the import; it is not repeated." for name in ("prepare", "regenerate", "extract")]
    samples = read_rows(ctx.run_dir / "data" / "samples.jsonl")
    assert [row["index"] for row in samples] == list(range(COUNT))
    assert sum(row["split"] == "heldout" for row in samples) == 6
    assert vocabulary.run(ctx)["size"] == ctx.spec.vocabulary.size


def test_the_states_are_linked_and_not_copied_and_the_source_stays(made_elsewhere: Path, tmp_path: Path) -> None:
    # The same file system, so that a hard link can be.
    workspace = made_elsewhere.parent / "workspace"
    assert imported(workspace, str(made_elsewhere), "--id", "new", *SMALL).exit_code == 0
    for index in range(COUNT):
        theirs = made_elsewhere / "hidden_states" / f"hs_{index}.safetensors"
        assert theirs.samefile(workspace / "runs" / "new" / "states" / theirs.name)


def test_states_may_be_stored_smaller_than_they_came(made_elsewhere: Path, tmp_path: Path) -> None:
    assert imported(tmp_path, str(made_elsewhere), "--id", "new", *SMALL, "--set", "extract.storage=float8_e4m3").exit_code == 0
    stored = load_file(tmp_path / "runs" / "new" / "states" / "hs_3.safetensors")
    assert stored["hidden_states"].dtype == torch.float8_e4m3fn
    assert load_file(made_elsewhere / "hidden_states" / "hs_3.safetensors")["hidden_states"].dtype == torch.float32


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_draft_is_trained_on_them(made_elsewhere: Path, tmp_path: Path) -> None:
    options = ["--set", "train.max_steps=3", "--set", "train.pack_tokens=64", "--set", "train.warmup_steps=1"]
    assert imported(tmp_path, str(made_elsewhere), "--id", "new", *SMALL, *options).exit_code == 0
    ctx = context(tmp_path / "runs" / "new")
    vocabulary.run(ctx)
    assert train.run(ctx)["steps"] == 3


def spoilt(source: Path, folder: Path, index: int, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    """A copy of the states with one file changed."""
    folder.mkdir()
    for path in (source / "hidden_states").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    file = folder / f"hs_{index}.safetensors"
    save_file(change(load_file(file)), file)
    return folder


def fewer_layers(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return tensors | {"hidden_states": tensors["hidden_states"][:, :3].contiguous()}


def narrower(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return tensors | {"hidden_states": tensors["hidden_states"][:, :, :64].contiguous()}


def rounded(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return tensors | {"hidden_states": tensors["hidden_states"].to(torch.bfloat16)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (fewer_layers, "the shape [12, 3, 576], not [12, 4, 576]"),
        (narrower, "the shape [12, 4, 64], not [12, 4, 576]"),
        (rounded, "bfloat16, and the target runs in float32"),
    ],
)
def test_states_that_do_not_fit_the_target_are_refused_whole(
    made_elsewhere: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], said: str
) -> None:
    states = spoilt(made_elsewhere, tmp_path / "states", 3, change)
    text = refused(tmp_path / "workspace", str(made_elsewhere), "--states", str(states), *SMALL)
    assert said in text and "Name the target that it was made for" in text


def test_a_few_bad_files_are_put_aside_where_that_is_allowed_and_many_are_refused(tmp_path: Path, made_elsewhere: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors | {"hidden_states": nan(tensors["token_ids"].tolist())}

    states = spoilt(made_elsewhere, tmp_path / "states", 3, spoil)
    (states / "hs_5.safetensors").unlink()  # speculators leaves out what fails, and ends with 0
    text = refused(tmp_path / "workspace", str(made_elsewhere), "--states", str(states), *SMALL)
    assert "2 of 16 samples have no right states (sample 3 ('row-3'): some of its states are NaN or infinite; sample 5" in text
    allowed = [*SMALL, "--set", "guards.quarantined_share=0.2", "--id", "new", "--json"]
    found = imported(tmp_path / "workspace", str(made_elsewhere), "--states", str(states), *allowed)
    assert json.loads(found.stdout.splitlines()[-1])["put_aside"] == 2
    assert extract.whole(context(tmp_path / "workspace" / "runs" / "new")) == ""


def test_a_row_with_the_states_of_another_is_put_aside_with_it(tmp_path: Path, made_elsewhere: Path) -> None:
    other = load_file(made_elsewhere / "hidden_states" / "hs_2.safetensors")["hidden_states"]
    states = spoilt(made_elsewhere, tmp_path / "states", 9, lambda tensors: tensors | {"hidden_states": other})
    text = refused(tmp_path / "workspace", str(made_elsewhere), "--states", str(states), *SMALL)
    assert "2 of 16 samples" in text and "sample 2" in text and "sample 9" in text


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"loss_mask": []}, "has no loss_mask"),
        ({"id": ["one"] * COUNT}, "Rows 0 and 1 of"),
        ({"loss_mask": [[1, 1]] * COUNT}, "has 12 tokens and a loss mask of 2"),
        ({"input_ids": [[50_000 + i, *range(11)] for i in range(COUNT)]}, "and smollm2-135m has 49152 tokens"),
        ({"loss_mask": [[0] * 12] * COUNT}, "0 samples can be trained on"),
    ],
)
def test_a_dataset_that_cannot_be_learnt_from_is_refused_in_one_sentence(
    tmp_path: Path, made_elsewhere: Path, columns: dict[str, list[Any]], said: str
) -> None:
    data = dataset(tmp_path / "data", **columns)
    assert said in refused(tmp_path / "workspace", str(data), "--states", str(made_elsewhere / "hidden_states"), *SMALL)


def test_what_is_no_import_at_all_is_refused(tmp_path: Path, made_elsewhere: Path) -> None:
    assert "is neither a folder of speculators' prepare-data" in refused(tmp_path / "workspace", str(tmp_path))
    assert "There is no hs_<number>.safetensors" in refused(
        tmp_path / "w", str(made_elsewhere), "--states", str(tmp_path), *SMALL
    )
    states = spoilt(made_elsewhere, tmp_path / "states", 3, lambda tensors: tensors)
    (states / "hs_3.safetensors").rename(states / "hs_400.safetensors")
    text = refused(tmp_path / "workspace", str(made_elsewhere), "--states", str(states), *SMALL)
    assert "hs_400.safetensors belongs to row 400, and the dataset in" in text


def test_a_run_that_exists_is_never_written_over(tmp_path: Path, made_elsewhere: Path) -> None:
    assert imported(tmp_path, str(made_elsewhere), "--id", "new", *SMALL).exit_code == 0
    before = (tmp_path / "runs" / "new" / "states" / "manifest.jsonl").read_bytes()
    again = imported(tmp_path, str(made_elsewhere), "--id", "new", *SMALL)
    assert again.exit_code == 2 and "exists already" in again.output
    assert (tmp_path / "runs" / "new" / "states" / "manifest.jsonl").read_bytes() == before


# ---------------------------------------------------------------- the shares of one run


def share(workspace: Path, rank: int, world: int = 3) -> Path:
    """A run that has extracted its share, with the records that the worker writes."""
    ctx = made(
        workspace / "runs" / f"share-{rank}", 7, extract__rank=rank, extract__world=world, workspace=str(workspace),
        guards__quarantined="off",
    )  # fmt: skip
    run(ctx)
    (ctx.run_dir / "spec.toml").write_text(ctx.spec.to_toml())
    for name, module in (("prepare", prepare), ("regenerate", regenerate), ("extract", extract)):
        record = {
            "v": 1, "stage": name, "attempt": 1, "inputs": work.inputs_hash(ctx, name, module), "spec_hash": ctx.spec.hash,
            "outputs": work.outputs(ctx.run_dir, module.OUTPUTS), "figures": {"samples": 1}, "seconds": 1.0, "t": 1.0,
        }  # fmt: skip
        rundir.write_json(ctx.path("stages", f"{name}.json"), record)
    return ctx.run_dir


def test_shares_join_into_the_run_that_one_alone_would_have_made(tmp_path: Path) -> None:
    alone, _ = run(made(tmp_path / "alone", 7, guards__quarantined="off"))
    for rank in range(3):
        share(tmp_path, rank)
    found = imported(tmp_path, "share-2", "share-0", "share-1", "--id", "joined", "--json")
    assert found.exit_code == 0, found.output
    joined = tmp_path / "runs" / "joined"
    assert (joined / "states" / "manifest.jsonl").read_bytes() == alone.manifest.read_bytes()
    ctx = context(joined)
    assert (ctx.spec.extract.rank, ctx.spec.extract.world) == (0, 1)
    for name, module in (("prepare", prepare), ("regenerate", regenerate), ("extract", extract)):
        record = rundir.read_object(joined / "stages" / f"{name}.json")
        assert work.stale(ctx, record, work.inputs_hash(ctx, name, module), module) == ""


def test_shares_that_are_not_all_or_not_of_one_run_are_refused(tmp_path: Path) -> None:
    for rank in range(3):
        share(tmp_path, rank)
    assert "share 1 of 3 is not among them" in refused(tmp_path, "share-0", "share-2")
    assert "one share is named twice" in refused(tmp_path, "share-0", "share-1", "share-2", "share-2")
    samples = tmp_path / "runs" / "share-2" / "stages" / "regenerate.json"
    record = json.loads(samples.read_text())
    record["outputs"]["data/samples.jsonl"]["sha256"] = "0" * 64
    samples.write_text(json.dumps(record))
    assert "other files data/samples.jsonl, so they are no shares of one run" in refused(
        tmp_path, "share-0", "share-1", "share-2"
    )


def test_a_share_whose_states_have_changed_is_refused_by_name(tmp_path: Path) -> None:
    for rank in range(3):
        share(tmp_path, rank)
    file = tmp_path / "runs" / "share-1" / "states" / "hs_4.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    text = refused(tmp_path, "share-0", "share-1", "share-2")
    assert "The states of sample 4 in share-1 cannot be used: hs_4.safetensors is not what the manifest says" in text


# ---------------------------------------------------------------- what a hostile or an unlucky folder holds


def header_of(dtype: str) -> bytes:
    """A whole state file of a number format that torch does not load."""
    tensors = {
        "hidden_states": {"dtype": dtype, "shape": [1, 2], "data_offsets": [0, 1]},
        "token_ids": {"dtype": "I64", "shape": [1], "data_offsets": [1, 9]},
    }
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(9)


def test_what_is_no_file_of_states_is_put_aside_and_the_others_are_taken(tmp_path: Path, made_elsewhere: Path) -> None:
    states = spoilt(made_elsewhere, tmp_path / "states", 0, lambda tensors: tensors)
    for index in range(2, 7):
        (states / f"hs_{index}.safetensors").unlink()
    os.mkfifo(states / "hs_2.safetensors")
    with (states / "hs_3.safetensors").open("wb") as file:
        file.truncate(1 << 42)
    (states / "hs_4.safetensors").mkdir()
    (states / "hs_5.safetensors").write_bytes(header_of("F4"))
    (states / "hs_6.safetensors").symlink_to("/dev/zero")
    (states / "hs_07.safetensors").write_bytes(b"another name of row 7")
    allowed = [*SMALL, "--set", "guards.quarantined_share=0.5", "--id", "new", "--json"]
    found = imported(tmp_path / "workspace", str(made_elsewhere), "--states", str(states), *allowed)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout.splitlines()[-1])["put_aside"] == 5
    reasons = {row["index"]: row["reason"] for row in rows(tmp_path / "workspace" / "runs" / "new", "states/quarantine.jsonl")}
    assert "is no file" in reasons[2] and "is no file" in reasons[6] and "is no file" in reasons[4]
    assert "never beyond" in reasons[3] and "not a whole safetensors file" in reasons[5]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"input_ids": [["a"] * 12] * COUNT}, "Row 0 of"),
        ({"input_ids": [[-1] * 12] * COUNT}, "Row 0 of"),
        ({"input_ids": [None] * COUNT}, "Row 0 of"),
        ({"id": ["\x1b]0;mine\x07"] * COUNT}, "has control characters"),
    ],
)
def test_rows_that_are_none_are_refused_in_one_sentence(
    tmp_path: Path, made_elsewhere: Path, columns: dict[str, list[Any]], said: str
) -> None:
    data = dataset(tmp_path / "data", **columns)
    text = refused(tmp_path / "workspace", str(data), "--states", str(made_elsewhere / "hidden_states"), *SMALL)
    assert said in text and "\x1b" not in text


@pytest.mark.parametrize("spoil", ["arrow", "state"])
def test_a_dataset_that_was_cut_is_refused_in_one_sentence(tmp_path: Path, made_elsewhere: Path, spoil: str) -> None:
    data = dataset(tmp_path / "data")
    if spoil == "arrow":
        file = next(data.glob("*.arrow"))
        file.write_bytes(file.read_bytes()[:-700])
    else:
        (data / "state.json").write_text("{}")
    text = refused(tmp_path / "workspace", str(data), "--states", str(made_elsewhere / "hidden_states"), *SMALL)
    assert "cannot be read" in text


def test_a_share_that_names_files_elsewhere_puts_nothing_there(tmp_path: Path) -> None:
    theirs = tmp_path / "far" / "deep" / "share"
    theirs.parent.mkdir(parents=True)
    share(tmp_path, 0, world=1).rename(theirs)
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "far" / "outside").write_text("theirs")
    file = theirs / "stages" / "prepare.json"
    record = json.loads(file.read_text())
    record["outputs"]["../../outside"] = {"bytes": 6, "sha256": hashlib.sha256(b"theirs").hexdigest()}
    file.write_text(json.dumps(record))
    assert imported(tmp_path, str(theirs), "--id", "joined").exit_code == 0
    assert (tmp_path / "outside").read_text() == "mine"


def test_a_share_whose_files_are_not_those_of_its_record_is_refused(tmp_path: Path) -> None:
    for rank in range(2):
        share(tmp_path, rank, world=2)
    samples = tmp_path / "runs" / "share-0" / "data" / "samples.jsonl"
    whole = samples.read_bytes()
    samples.write_bytes(whole.replace(b'"split":"train"', b'"split":"other"', 1))
    assert "data/samples.jsonl of share-0 is not what its stage regenerate left" in refused(tmp_path, "share-0", "share-1")
    samples.write_bytes(whole)
    manifest = tmp_path / "runs" / "share-1" / "states" / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes() + b'{"more":1}\n')
    assert "The manifest of the states of share-1 cannot be read" in refused(tmp_path, "share-0", "share-1")
