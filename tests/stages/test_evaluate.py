"""The stage evaluate as a whole, its servers being programs that take vLLM's command line and answer as it does."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3.stages import baseline, evaluate
from eagle3.stages.context import StageContext, StageError
from tests.stages.drafts import tiny_draft
from tests.stages.fake_vllm import ACCEPTED_A_REQUEST, DRAFTS_A_REQUEST, TELLS_EACH, as_interpreter
from tests.stages.runs import context, rows


def prepared(tmp_path: Path, *, fails_with: str = "", **overrides: Any) -> StageContext:
    """A run that has come to the stage evaluate."""
    run_dir = tmp_path / "run"
    ctx = context(run_dir, server__env={}, **overrides)
    tiny_draft(run_dir / "train" / "draft")
    ctx.server_python = as_interpreter(tmp_path, fails_with=fails_with)
    ctx.figures["train"] = {"steps": 24}
    return ctx


def started_servers(tmp_path: Path) -> list[list[str]]:
    return rows(tmp_path, "argv.jsonl")  # type: ignore[return-value]


def test_the_draft_server_differs_from_the_plain_one_by_the_draft_alone(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    evaluate.run(ctx)
    plain, draft = started_servers(tmp_path)
    extra = draft.index("--speculative_config")
    without_draft = draft[:extra] + draft[extra + 2 :]
    port = plain.index("--port") + 1
    assert plain[:port] + plain[port + 1 :] == without_draft[:port] + without_draft[port + 1 :]
    assert json.loads(draft[extra + 1]) == {
        "method": "eagle3", "model": str(ctx.run_dir / "train" / "draft"), "num_speculative_tokens": 3,
    }  # fmt: skip


def test_the_figures_are_those_of_the_counters_without_the_warm_up(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    found = evaluate.run(ctx)
    served = found["served"]
    assert served["drafts"] == 8 * DRAFTS_A_REQUEST
    assert served["accept_len"] == 1 + sum(ACCEPTED_A_REQUEST) / DRAFTS_A_REQUEST
    assert served["acc_pos"] == [n / DRAFTS_A_REQUEST for n in ACCEPTED_A_REQUEST]
    assert served["prompts"] == 8
    assert served["answers"] is None, "this server does not tell each answer's acceptance"
    assert found["lossless"]["identical"] == found["lossless"]["of"] == 4
    assert found["versions"]["vllm"] == "9.9.9"
    assert found["verdict"] and found["verdict_text"] and found["thresholds"]["drafts"] == served["drafts"]
    [row] = rows(ctx.run_dir, "metrics.jsonl")
    assert (row["stage"], row["split"], row["step"], row["acc_pos"]) == ("evaluate", "val", 24, served["acc_pos"])
    assert all((ctx.run_dir / name).is_file() for name in evaluate.OUTPUTS)


def test_a_baseline_from_regenerate_saves_the_plain_server(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    evaluate.run(ctx)
    (ctx.run_dir / evaluate.SERVED).unlink()
    evaluate.run(ctx)
    assert ["--speculative_config" in argv for argv in started_servers(tmp_path)] == [False, True, True]


def test_figures_left_whole_stand_and_no_server_is_started_for_them(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    found = evaluate.run(ctx)
    assert json.loads(json.dumps(found)) == evaluate.run(ctx)
    assert len(started_servers(tmp_path)) == 2


@pytest.mark.parametrize("name", [evaluate.LOSSLESS, evaluate.SERVED])
def test_figures_whose_files_are_cut_short_are_measured_anew(tmp_path: Path, name: str) -> None:
    ctx = prepared(tmp_path)
    evaluate.run(ctx)
    whole = (ctx.run_dir / evaluate.LOSSLESS).read_bytes()
    path = ctx.run_dir / name
    path.write_bytes(path.read_bytes()[:-9])
    evaluate.run(ctx)
    assert ["--speculative_config" in argv for argv in started_servers(tmp_path)] == [False, True, True]
    assert (ctx.run_dir / evaluate.LOSSLESS).read_bytes() == whole


def test_a_baseline_of_its_own_leaves_the_output_of_regenerate_alone(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    (ctx.run_dir / baseline.FILE).write_text('{"key": "of other settings"}')
    evaluate.run(ctx)
    assert (ctx.run_dir / baseline.FILE).read_text() == '{"key": "of other settings"}'
    assert (ctx.run_dir / baseline.OWN_FILE).is_file()


def test_a_baseline_measured_anew_makes_the_evaluation_anew(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    evaluate.run(ctx)
    path = ctx.run_dir / baseline.OWN_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "tok_s_no_draft": 123.0}))
    assert evaluate.run(ctx)["served"]["tok_s_no_draft"] == 123.0


def test_another_draft_is_evaluated_anew(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    evaluate.run(ctx)
    tiny_draft(ctx.run_dir / "train" / "draft", known=(1, 2, 5, 9))
    evaluate.run(ctx)
    assert len(started_servers(tmp_path)) == 3


def test_a_server_that_dies_loading_the_draft_ends_the_stage_with_its_reason(tmp_path: Path) -> None:
    ctx = prepared(tmp_path, fails_with="ValueError: four auxiliary layers where three are expected")
    with pytest.raises(StageError, match=r"while it was loading: ValueError: four auxiliary layers where three"):
        evaluate.run(ctx)
    assert not (ctx.run_dir / evaluate.SERVED).exists()
    assert not list((ctx.run_dir / "servers").glob("*.json")), "no server is announced that is gone"
    assert baseline.load(ctx) is not None, "what was measured before stays for the resume"


def test_a_missing_draft_ends_the_stage_before_any_server_is_started(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    (ctx.run_dir / "train" / "draft" / "model.safetensors").unlink()
    with pytest.raises(StageError, match=r"holds no \*\.safetensors"):
        evaluate.run(ctx)
    assert started_servers(tmp_path) == []


def test_the_thresholds_are_part_of_what_makes_the_stage_run_again(tmp_path: Path) -> None:
    first, second = (evaluate.spec_part(context(tmp_path, evaluate__min_drafts=n).spec) for n in (50, 60))
    assert first != second
    assert "port" not in first["server"]


EVERYTHING = {
    "evaluate__concurrency": 2,
    "evaluate__concurrencies": [1, 4],
    "evaluate__temperatures": [0, 0.7],
    "evaluate__ngram": True,
}


def of_two_kinds(ctx: StageContext) -> None:
    """Six of the held-out prompts are talk, two are sums."""
    held = rows(ctx.run_dir, "data/prompts.jsonl")
    for row in held:
        row["kind"] = "sum" if row["id"] in ("held-0", "held-1") else "talk"
    (ctx.run_dir / "data" / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))


def test_one_run_measures_all_three_ways_at_every_concurrency_and_sampled_text_for_acceptance_alone(tmp_path: Path) -> None:
    ctx = prepared(tmp_path, **EVERYTHING)
    (tmp_path / TELLS_EACH).touch()
    of_two_kinds(ctx)
    found = evaluate.run(ctx)
    assert [point["concurrency"] for point in found["curve"]] == [1, 2, 4]
    for point in found["curve"]:
        assert min(point["tok_s"], point["tok_s_no_draft"], point["ngram"]["tok_s"]) > 0
        assert point["drafts"] == point["ngram"]["drafts"] == 8 * DRAFTS_A_REQUEST
        assert {kind: figures["drafts"] for kind, figures in point["kinds"].items()} == {
            "sum": 2 * DRAFTS_A_REQUEST, "talk": 6 * DRAFTS_A_REQUEST,
        }  # fmt: skip
    assert found["served"]["concurrency"] == 2
    assert found["served"]["tok_s"] == found["curve"][1]["tok_s"]
    [sampled] = found["temperatures"]
    assert (sampled["temperature"], sampled["drafts"], "tok_s" in sampled) == (0.7, 8 * DRAFTS_A_REQUEST, False)
    assert list(found["thresholds"]["speedups"]) == ["1", "2", "4"]
    plain, draft, ngram = started_servers(tmp_path)
    assert "--speculative_config" not in plain
    assert [json.loads(argv[argv.index("--speculative_config") + 1])["method"] for argv in (draft, ngram)] == ["eagle3", "ngram"]


@pytest.mark.parametrize("tells_each", [True, False], ids=["each answer tells its own", "the server has counters alone"])
def test_acceptance_is_told_by_kind_of_prompt_with_its_counts(tmp_path: Path, tells_each: bool) -> None:
    ctx = prepared(tmp_path)
    if tells_each:
        (tmp_path / TELLS_EACH).touch()
    of_two_kinds(ctx)
    found = evaluate.run(ctx)
    assert {kind: (figures["prompts"], figures["drafts"]) for kind, figures in found["kinds"].items()} == {
        "sum": (2, 2 * DRAFTS_A_REQUEST), "talk": (6, 6 * DRAFTS_A_REQUEST),
    }  # fmt: skip
    for figures in found["kinds"].values():
        low, high = figures["accept_len_interval"]
        assert low < figures["accept_len"] == 1 + sum(ACCEPTED_A_REQUEST) / DRAFTS_A_REQUEST < high
    assert found["served"]["drafts"] == 8 * DRAFTS_A_REQUEST, "what is asked again for the kinds is in no other figure"


def test_what_each_answer_gave_is_kept_so_that_the_intervals_can_be_made_anew(tmp_path: Path) -> None:
    ctx = prepared(tmp_path, **EVERYTHING)
    (tmp_path / TELLS_EACH).touch()
    found = evaluate.run(ctx)
    each = json.loads((ctx.run_dir / evaluate.SERVED).read_text())["each"]
    assert each["prompts"] == [f"held-{n}" for n in range(8)]
    assert list(each["draft"]) == list(each["ngram"]) == ["1", "2", "4"] and list(each["sampled"]) == ["0.7"]
    for row in [*each["draft"]["2"], *each["sampled"]["0.7"]]:
        assert (row["drafts"], row["accepted_per_pos"]) == (DRAFTS_A_REQUEST, list(ACCEPTED_A_REQUEST))
        assert row["tokens"] > 0 and row["s"] > 0
    assert found["served"]["answers"] == found["thresholds"]["answers"] == 8
    for point in found["curve"]:
        low, high = point["speedup_interval"]
        assert low < point["speedup"] < high
        assert found["thresholds"]["speedup_intervals"][str(point["concurrency"])] == [low, high]


def test_a_baseline_of_an_older_version_gives_a_gain_without_an_interval(tmp_path: Path) -> None:
    ctx = prepared(tmp_path)
    evaluate.run(ctx)
    path = ctx.run_dir / baseline.OWN_FILE
    older = json.loads(path.read_text())
    del older["load"]["each"]
    path.write_text(json.dumps(older))
    served = evaluate.run(ctx)["served"]
    assert served["speedup"] > 0 and served["speedup_interval"] is None


def test_fewer_prompts_than_the_spec_wants_give_no_firm_verdict(tmp_path: Path) -> None:
    found = evaluate.run(prepared(tmp_path, evaluate__min_prompts=9, evaluate__min_drafts=50))
    assert found["verdict"] == "insufficient evidence"
    assert "80 drafts came of 8 prompts and 9 prompts are needed" in found["verdict_text"]


def test_a_finished_evaluation_of_an_older_run_is_not_repeated_for_fields_that_it_lacked(tmp_path: Path) -> None:
    spec = context(tmp_path).spec
    assert not {"concurrencies", "temperatures", "ngram", "min_prompts"} & set(evaluate.spec_part(spec)["evaluate"])
    asked = context(tmp_path, **EVERYTHING).spec
    assert {"concurrencies", "temperatures", "ngram"} <= set(evaluate.spec_part(asked)["evaluate"])
