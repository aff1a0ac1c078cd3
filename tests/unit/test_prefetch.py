"""A target comes from a hub through the real client: its size first, room first, and an interrupted download goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from safetensors.numpy import save
from typer.testing import CliRunner

from eagle3 import cli, hub
from eagle3.core.presets import resolve
from eagle3.engines.model_dir import fingerprint
from tests.runner.support import wait_for
from tests.support.hub import COMMIT, Hub, serving

ROOT = Path(__file__).parents[2]
REPO = "acme/tiny"


FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
WANTED = {"config.json", "tokenizer.json", "model.safetensors.index.json", FIRST, SECOND}
LEFT = WANTED | {hub.SOURCE_FILE}


def model() -> dict[str, bytes]:
    import numpy as np

    return {
        "config.json": b'{"hidden_size": 8, "num_hidden_layers": 4}',
        "tokenizer.json": b"{}",
        FIRST: save({"a": np.arange(1 << 18, dtype=np.float32)}),
        SECOND: save({"b": np.arange(1 << 18, dtype=np.float32)}),
        "model.safetensors.index.json": json.dumps({"weight_map": {"a": FIRST, "b": SECOND}}).encode(),
        "pytorch_model.bin": b"another format",
        "picture.png": b"a picture",
    }


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub(REPO, model())) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield found


def words(source: str = f"hub:{REPO}") -> list[str]:
    return ["prefetch", "--set", f"target.source={source}", "--set", "target.model={cache}/targets/tiny"]


def prefetch(*more: str, source: str = f"hub:{REPO}") -> Any:
    return CliRunner().invoke(cli.app, [*words(source), *more])


def place(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "targets" / "tiny"


def test_the_target_is_downloaded_whole_and_only_what_a_model_is_loaded_from(acme: Hub, tmp_path: Path) -> None:
    done = prefetch()
    assert done.exit_code == 0, done.output
    assert "acme/tiny: 5 files, 2.0 MiB; 2.0 MiB to download." in done.stdout
    assert done.stdout.splitlines()[-1] == f"smollm2-135m is at {place(tmp_path)}, whole."
    assert {path.name for path in place(tmp_path).iterdir()} == LEFT
    assert (place(tmp_path) / SECOND).read_bytes() == acme.files[SECOND]
    assert not hub.partial_folder(place(tmp_path)).exists()


def test_a_downloaded_target_tells_its_commit_and_is_the_same_target_without_it(acme: Hub, tmp_path: Path) -> None:
    prefetch()
    assert hub.commit_of(place(tmp_path)) == COMMIT
    before = fingerprint(place(tmp_path))
    (place(tmp_path) / hub.SOURCE_FILE).unlink()
    assert (hub.commit_of(place(tmp_path)), fingerprint(place(tmp_path))) == ("", before)


def test_prompts_that_are_too_few_are_said_before_the_paid_hours(acme: Hub, tmp_path: Path) -> None:
    done = prefetch("--dry-run", "--set", "data.train_prompts=5000", "--json")
    assert json.loads(done.stdout)["prompts"] == {"asked": 5020, "there": 288}
    assert "The run asks for 5020 prompts and there are 288" in done.stderr
    assert "prompts" not in prefetch("--dry-run").stdout, "enough of them are not worth a word"
    missing = prefetch("--dry-run", "--set", f"data.prompts={tmp_path}/none.jsonl")
    assert missing.exit_code == 0 and f"{tmp_path}/none.jsonl" in missing.stdout


def test_what_a_spec_file_asks_for_is_brought(acme: Hub, tmp_path: Path) -> None:
    spec = resolve("pilot", "smollm2-135m", "cpu", {"target.source": f"hub:{REPO}", "target.model": "{cache}/targets/tiny"})
    (tmp_path / "mine.toml").write_text(spec.to_toml())
    told = json.loads(CliRunner().invoke(cli.app, ["prefetch", str(tmp_path / "mine.toml"), "--dry-run", "--json"]).stdout)
    assert (told["source"], told["files"]) == (REPO, 5)


def test_a_target_that_is_there_asks_the_hub_nothing(acme: Hub, tmp_path: Path) -> None:
    prefetch()
    acme.status = (500, "")
    assert prefetch().exit_code == 0


def test_a_dry_run_says_what_is_missing_and_downloads_nothing(acme: Hub, tmp_path: Path) -> None:
    told = json.loads(prefetch("--dry-run", "--json").stdout)
    assert (told["there"], told["files"], told["commit"]) == (False, 5, COMMIT)
    assert told["bytes"] == told["missing_bytes"] == sum(len(acme.files[name]) for name in WANTED)
    assert not place(tmp_path).parent.exists()


def test_a_disk_without_room_is_told_before_a_byte_is_downloaded(
    acme: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "FLOOR_BYTES", 1 << 60)
    done = prefetch()
    assert done.exit_code == 1
    assert "acme/tiny needs 2.0 MiB more of its 2.0 MiB, and the disk of" in done.stderr
    assert "EAGLE3_CACHE" in done.stderr
    assert not place(tmp_path).parent.exists()


def test_a_download_that_was_killed_keeps_the_files_that_were_whole(acme: Hub, tmp_path: Path) -> None:
    acme.stall = SECOND
    process = subprocess.Popen(
        [sys.executable, "-m", "eagle3", *words()], cwd=ROOT, env=dict(os.environ), stdout=subprocess.DEVNULL
    )
    partial = hub.partial_folder(place(tmp_path))
    try:
        wait_for(lambda: acme.stalled.is_set() and hub._size(partial / FIRST) == len(acme.files[FIRST]))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    acme.stall = ""
    acme.release.set()
    assert not place(tmp_path).exists()
    assert json.loads(prefetch("--dry-run", "--json").stdout)["missing_bytes"] < len(acme.files[SECOND]) + 1000
    acme.sent.clear()
    done = prefetch()
    assert done.exit_code == 0, done.output
    assert "1.0 MiB of it are there already" in done.stdout
    assert SECOND in acme.sent and FIRST not in acme.sent
    assert {path.name for path in place(tmp_path).iterdir()} == LEFT


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ((404, "RepoNotFound"), "has no repository acme/tiny, or it is private"),
        (
            (403, "GatedRepo"),
            "do that on its page, then set HF_TOKEN (of a run: --secret HF_TOKEN).",
        ),
        ((404, "RevisionNotFound"), "acme/tiny has no revision main"),
        ((500, "oops"), "answers acme/tiny with 500"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_with_the_way_out(acme: Hub, status: tuple[int, str], said: str) -> None:
    acme.status = status
    done = prefetch()
    assert done.exit_code == 1
    assert said in done.stderr and "Traceback" not in done.output
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_hub_that_is_not_there_is_one_sentence(acme: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = prefetch()
    assert done.exit_code == 1
    assert "http://127.0.0.1:9 cannot be reached for acme/tiny" in done.stderr


def test_a_repository_without_safetensors_is_refused(acme: Hub) -> None:
    del acme.files[FIRST], acme.files[SECOND]
    done = prefetch()
    assert done.exit_code == 1
    assert "acme/tiny holds no *.safetensors file" in done.stderr


def test_a_model_that_came_broken_is_not_taken_for_one(acme: Hub, tmp_path: Path) -> None:
    acme.files[SECOND] = acme.files[SECOND][:-9]
    done = prefetch()
    assert done.exit_code == 1
    assert f"{SECOND} is cut off" in done.stderr
    assert not place(tmp_path).exists()


def test_a_source_may_name_a_revision() -> None:
    assert hub.split_source("a/b@v2") == ("a/b", "v2")
    assert hub.split_source("a/b") == ("a/b", "main")
