"""A real vLLM server with a real draft, once: what the fake cannot prove."""

import json
import shutil
from pathlib import Path

import pytest

from eagle3 import draft_folder
from eagle3.core.verdict import BROKEN, WORDS
from eagle3.stages import evaluate, export
from tests.stages.drafts import random_draft
from tests.stages.runs import TARGET, context, rows


def of_two_kinds(path: Path) -> None:
    held = [json.loads(line) for line in path.read_text().splitlines()]
    for row in held:
        row["kind"] = "sum" if row["id"] in ("held-0", "held-1") else "talk"
    path.write_text("".join(json.dumps(row) + "\n" for row in held))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_random_draft_is_served_from_its_exported_folder_counted_and_found_broken(tmp_path: Path) -> None:
    """The exported folder takes the draft's place before the evaluation, so what vLLM loads is what would be handed over."""
    more = {"evaluate__concurrencies": [2], "evaluate__temperatures": [0, 0.7], "evaluate__ngram": True}
    ctx = context(tmp_path, evaluate__max_new_tokens=24, evaluate__lossless_prompts=2, evaluate__min_drafts=20, **more)
    of_two_kinds(tmp_path / "data" / "prompts.jsonl")
    draft = tmp_path / "train" / "draft"
    random_draft(draft, TARGET, ctx.spec.target.auxiliary_layers)
    export.run(ctx)
    shutil.rmtree(draft)
    shutil.copytree(tmp_path / "export", draft)
    assert draft_folder.read_config(draft)["speculators_config"]["verifier"]["name_or_path"] is None

    found = evaluate.run(ctx)

    served = found["served"]
    assert served["prompts"] == 8
    assert served["accepted"] == sum(served["accepted_per_pos"])
    assert len(served["acc_pos"]) == 3
    assert not served["new_window"]
    # Every step of the target drafts once and yields its own token and those accepted; each answer's first token comes from
    # the prompt alone, and its last step may be cut off by the limit.
    assert served["drafts"] + served["accepted"] == pytest.approx(served["tokens"] - served["prompts"], abs=4 * served["prompts"])
    assert served["tokens"] == served["tokens_no_draft"], "greedy answers have the same length with and without the draft"
    lossless = found["lossless"]
    assert lossless["of"] == 2
    assert lossless["identical"] + len(lossless["divergences"]) == 2
    assert all(divergence["tie"] for divergence in lossless["divergences"])
    assert found["verdict"] == BROKEN and found["verdict"] in WORDS
    assert found["versions"]["vllm"]
    # Each answer's own acceptance adds up to the server's counters, so nothing was asked for twice.
    assert {kind: figures["prompts"] for kind, figures in found["kinds"].items()} == {"sum": 2, "talk": 6}
    assert sum(figures["drafts"] for figures in found["kinds"].values()) == served["drafts"]
    assert sum(figures["accepted"] for figures in found["kinds"].values()) == served["accepted"]
    assert [point["concurrency"] for point in found["curve"]] == [2, 8]
    assert all(point["ngram"]["tok_s"] > 0 for point in found["curve"])
    [sampled] = found["temperatures"]
    assert sampled["drafts"] > 0 and sampled["kinds"]
    assert not [event for event in rows(tmp_path, "events.jsonl") if event["kind"] == "counters"]
    kept = json.loads((tmp_path / "evaluate" / "served.json").read_text())
    assert kept["figures"]["served"]["drafts"] == served["drafts"]
    assert [event["kind"] for event in rows(tmp_path, "events.jsonl")][-1] == "verdict"
