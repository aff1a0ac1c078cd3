"""A run directory as a finished training leaves it, made by hand: small, and every record true."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def put(run_dir: Path, name: str, content: bytes) -> dict[str, Any]:
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def stage(run_dir: Path, name: str, **files: bytes) -> None:
    outputs = {path.replace("__", "/"): put(run_dir, path.replace("__", "/"), content) for path, content in files.items()}
    put(run_dir, f"stages/{name}.json", json.dumps({"v": 1, "stage": name, "attempt": 1, "outputs": outputs, "t": 1}).encode())


def finished_run(workspace: Path) -> Path:
    """The run "parent" with five finished stages, two states and two checkpoints."""
    run_dir = workspace / "runs" / "parent"
    put(run_dir, "launch.json", b'{"v": 1}')
    put(run_dir, "spec.toml", b"v = 1\n")
    stage(run_dir, "prepare", **{"data/prompts.jsonl": b"{}\n"})
    stage(run_dir, "regenerate", **{"data/samples.jsonl": b'{"index": 0}\n', "data/baseline.json": b"{}"})
    put(run_dir, "data/answers.part.jsonl", b'{"v": 1}\n')
    rows = [{"index": n, "bytes": len(put(run_dir, f"states/hs_{n}.safetensors", bytes([n]) * 4000)) and 4000} for n in (0, 1)]
    stage(run_dir, "extract", **{"states/manifest.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in rows)})
    stage(run_dir, "vocabulary", **{"vocabulary/d2t.npy": b"d2t"})
    stage(run_dir, "train", **{"train/draft/model.safetensors": b"draft", "train/untrained/model.safetensors": b"untrained"})
    for step in (50, 100):
        files = {
            name: put(run_dir, f"train/checkpoints/step-{step}/{name}", b"%d" % step)
            for name in ("weights.safetensors", "state.pt")
        }
        put(run_dir, f"train/checkpoints/step-{step}/complete.json", json.dumps({"step": step, "files": files}).encode())
    put(run_dir, "logs/server-plain.log", b"loud")
    return run_dir
