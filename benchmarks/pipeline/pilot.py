"""The part ``pilot``: our run from its command to its verdict, against the packages' own commands one after another.

The same prompts, optimizer, steps and threads; the same servers with the same arguments. The peer's row of commands: a plain
server, answers, a benchmark without a draft, data preparation, an extraction server, states, training, a server with the
draft, a benchmark. Ours does more in its time (it checks, compares texts, judges); that is not subtracted.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from benchmarks.figures import Figure, Figures
from benchmarks.options import Options
from benchmarks.pipeline import peer
from benchmarks.pipeline.material import Run, call, ours
from benchmarks.pipeline.server import Server, extraction


def measure(options: Options) -> Figures:
    """Both walls, their ratio, and the parts of each."""
    run = ours(options)
    folder = Path(tempfile.mkdtemp(prefix="eagle3-peer-"))
    try:
        parts = _peer(run, folder)
    except BaseException as error:
        error.add_note(f"The peer's logs are in {folder}.")
        raise
    shutil.rmtree(folder, ignore_errors=True)
    theirs = sum(parts.values())
    return {
        "the pilot's wall against the packages' commands": Figure(run.wall_s / theirs, "×", "<= 0.9"),
        "the pilot, ours": Figure(run.wall_s, "s"),
        "the pilot by the packages' commands": Figure(theirs, "s"),
        **{f"ours: {stage}": Figure(seconds, "s") for stage, seconds in run.stages.items()},
        **{f"theirs: {name}": Figure(seconds, "s") for name, seconds in parts.items()},
    }


def _peer(run: Run, folder: Path) -> dict[str, float]:
    spec, log, parts = run.spec, folder / "log", {}
    conversations, prompts = _prompts(run, folder)
    with Server(spec, folder, "plain") as server:
        parts["plain server"] = server.start_s
        parts["regenerate-responses"] = call(peer.regenerate(spec, server.url, conversations, folder / "answers.jsonl"), log)
        parts["bench serve, no draft"] = call(peer.serve_benchmark(spec, server.url, prompts, spec.evaluate.prompts), log)
    share, tokens = _in_order(folder / "answers.jsonl", conversations, folder / "rows.jsonl")
    parts["prepare-data"] = call(peer.prepare(spec, folder / "rows.jsonl", folder / "prepared"), log)
    with extraction(spec, folder) as server:
        parts["extraction server"] = server.start_s
        parts["generate-offline-data"] = call(peer.extract(spec, server.url, folder / "prepared", folder / "states"), log)
    packs = max(1, -(-tokens // spec.train.pack_tokens))
    command = peer.train(spec, folder / "prepared", folder / "states", folder / "draft", share, packs)
    parts["train"] = call(command, log)
    speculative = {"method": "eagle3", "model": str(_draft(folder / "draft")), "num_speculative_tokens": 3}
    with Server(spec, folder, "draft", ["--speculative_config", json.dumps(speculative)]) as server:
        parts["server with the draft"] = server.start_s
        parts["bench serve, draft"] = call(peer.serve_benchmark(spec, server.url, prompts, spec.evaluate.prompts), log)
    return parts


def _prompts(run: Run, folder: Path) -> tuple[Path, Path]:
    """Our prompts as conversations, those to train on first, and the held-out ones as the benchmark reads them."""
    rows = [json.loads(line) for line in (run.run_dir / "data" / "prompts.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["split"] != "train")
    conversations, prompts = folder / "conversations.jsonl", folder / "prompts.jsonl"
    chats = [{"id": row["id"], "split": row["split"], "messages": _chat(row["turns"])} for row in rows]
    conversations.write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))
    heldout = [{"prompt": row["turns"][0]} for row in rows if row["split"] == "heldout"]
    prompts.write_text("".join(f"{json.dumps(row)}\n" for row in heldout[: run.spec.evaluate.prompts]))
    return conversations, prompts


def _chat(turns: list[str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": turn} for turn in turns]


def _in_order(answers: Path, conversations: Path, rows: Path) -> tuple[float, int]:
    """The answers, which came as they were ready, in the order of the conversations: else the held-out ones would be trained
    on. The share of rows to train on, and the tokens of these."""
    train = [json.loads(line)["split"] == "train" for line in conversations.read_text().splitlines()]
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    found.sort(key=lambda row: row["metadata"]["idx"])
    rows.write_text("".join(f"{json.dumps({'input_ids': r['input_ids'], 'loss_mask': r['loss_mask']})}\n" for r in found))
    trained = [row for row in found if train[row["metadata"]["idx"]]]
    return len(trained) / len(found), sum(len(row["input_ids"]) for row in trained)


def _draft(folder: Path) -> Path:
    """The newest checkpoint that the training left."""
    checkpoints = [path.parent for path in folder.rglob("config.json") if path.parent.name.isdigit()]
    if not checkpoints:
        raise RuntimeError(f"speculators left no checkpoint in {folder}: {[str(p) for p in folder.iterdir()]}")
    return max(checkpoints, key=lambda path: int(path.name))
