"""The life of a run's own server, on real processes that behave as vLLM does at its worst. No vLLM is needed."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from eagle3.engines.choice import answering_server, extraction_server, measured_server, speculating_server
from eagle3.engines.cpu import cpu_environment, usable_cores
from eagle3.engines.ports import claim_port
from eagle3.engines.prometheus import parse_counters
from eagle3.engines.server_log import last_error
from eagle3.engines.vllm_server import VllmServer
from eagle3.stages.context import StageContext, StageError, Stopped
from tests.stages.fake_vllm import as_interpreter
from tests.stages.runs import context
from tests.support.waiting import until

SERVING = """
import signal, sys
from tests.stages.fake_vllm import FakeVllm
with FakeVllm(port=int(sys.argv[sys.argv.index("--port") + 1])):
    signal.pause()
"""


def program(folder: Path, body: str) -> str:
    """An interpreter that runs ``body`` whatever it is told."""
    path = folder / "python"
    root = Path(__file__).parents[2]
    path.write_text(f"#!{sys.executable}\nimport sys; sys.path.insert(0, {str(root)!r})\n{body}")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    (tmp_path / "bin").mkdir()
    return context(tmp_path / "run", server__start_timeout_s=60)


def with_program(ctx: StageContext, body: str) -> StageContext:
    ctx.server_python = program(ctx.run_dir.parent / "bin", body)
    return ctx


def test_a_server_that_answers_is_recorded_while_it_lives_and_gone_afterwards(ctx: StageContext) -> None:
    with_program(ctx, SERVING)
    record = ctx.run_dir / "servers" / "plain.json"
    with VllmServer(ctx, "plain") as server:
        assert json.loads(record.read_text()) | {"t": 0} == {
            "v": 1, "url": server.base_url, "pid": server.pid, "kind": "plain", "model": "target", "t": 0,
        }  # fmt: skip
        assert server.start_s > 0
        assert server.counters()["vllm:num_requests_running"] == 0
        pid = server.pid
    assert not psutil.pid_exists(pid)
    assert not record.exists()


def test_what_a_server_leaves_in_its_folder_for_sockets_goes_with_it(ctx: StageContext) -> None:
    leaves = "import os; (open(os.environ['VLLM_RPC_BASE_PATH'] + '/left', 'w')).close()\n"
    with_program(ctx, leaves + SERVING)
    with VllmServer(ctx, "plain") as server:
        sockets = Path(server.environment()["VLLM_RPC_BASE_PATH"])
        assert (sockets / "left").is_file()
    assert not sockets.exists()


def test_a_server_that_dies_while_loading_is_an_error_with_its_own_last_words(ctx: StageContext) -> None:
    with_program(
        ctx,
        "print('(EngineCore pid=7) ERROR 11-30 05:44:30 [core.py:133] ValueError: No room for the KV cache')\n"
        "print('(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.')\n"
        "raise SystemExit(3)\n",
    )
    with pytest.raises(StageError) as caught, VllmServer(ctx, "extract"):
        pytest.fail("it never answered")
    said = str(caught.value)
    assert said.startswith(
        "The extract vLLM server ended with code 3 while it was loading: ValueError: No room for the KV cache."
    )
    assert str(ctx.run_dir / "logs" / "server-extract.log") in said
    assert "Engine core initialization failed" in caught.value.detail


def test_what_is_found_wrong_while_a_server_loads_ends_its_start(ctx: StageContext) -> None:
    with_program(ctx, "import time\ntime.sleep(600)\n")
    server = VllmServer(ctx, "plain", meanwhile=lambda: refuse("The tokenizer cannot be loaded."))
    with pytest.raises(StageError, match="tokenizer cannot be loaded"), server:
        pytest.fail("it never answered")
    assert not psutil.pid_exists(server.pid)


def refuse(why: str) -> None:
    raise StageError(why)


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("worker", "told"),
    [
        (f"(Worker_TP3 pid=9) ERROR 11-30 05:44:29 [multiproc_executor.py:953] {OUT_OF_MEMORY}", OUT_OF_MEMORY),
        (
            "(EngineCore pid=7) ERROR 11-30 05:44:29 [multiproc_executor.py:315] Worker proc VllmWorker-3 died unexpectedly "
            "(exit code: -9), shutting down executor.",
            "Worker proc VllmWorker-3 died unexpectedly (exit code: -9), shutting down executor.",
        ),
    ],
    ids=["a worker that fails", "a worker that is killed"],
)
def test_of_a_server_spread_over_gpus_the_worker_that_failed_is_quoted_and_not_those_that_waited_for_it(
    tmp_path: Path, worker: str, told: str
) -> None:
    where = "(EngineCore pid=7) ERROR 11-30 05:44:30 [core.py:1510]"
    waited = "See stack trace for root cause."
    (tmp_path / "log").write_text(
        "===== extract server, 2026-11-30 05:40:00 =====\n"
        f"{worker}\n"
        f"{where} Exception: WorkerProc initialization failed due to an exception in a background process. {waited}\n"
        f"{where} RuntimeError: Executor failed.\n"
        "(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    )
    assert last_error(tmp_path / "log") == told


async def test_a_servers_children_go_with_it_even_when_they_ignore_the_polite_way(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3.engines.process_tree._TERM_GRACE_S", 0.3)
    note = ctx.run_dir / "child"
    with_program(
        ctx,
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    os.setsid()\n"
        f"    open({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "    while True: time.sleep(60)\n" + SERVING,
    )
    with VllmServer(ctx, "plain"):
        await until(lambda: note.exists() and note.read_text() != "", "the child to say its pid")
        child = psutil.Process(int(note.read_text()))
    assert not child.is_running()


def test_a_server_that_never_answers_is_given_up_and_ended(ctx: StageContext, tmp_path: Path) -> None:
    slow = context(tmp_path / "slow", server__start_timeout_s=0.5)
    with_program(slow, "import time\ntime.sleep(600)\n")
    server = VllmServer(slow, "plain")
    with pytest.raises(StageError, match=r"did not answer within 0 s \(server\.start_timeout_s\)"), server:
        pytest.fail("it never answered")
    assert not psutil.pid_exists(server.pid)


def test_a_stop_while_the_model_loads_is_honoured(ctx: StageContext) -> None:
    with_program(ctx, "import time\ntime.sleep(600)\n")
    ctx.stop_requested = lambda: True
    server = VllmServer(ctx, "plain")
    with pytest.raises(Stopped), server:
        pytest.fail("it never answered")
    assert not psutil.pid_exists(server.pid)


def test_loading_announces_how_long_nothing_may_be_heard(ctx: StageContext) -> None:
    with_program(ctx, "raise SystemExit(1)\n")
    with pytest.raises(StageError), VllmServer(ctx, "draft"):
        pytest.fail("it never answered")
    progress = json.loads((ctx.run_dir / "progress.json").read_text())
    assert progress["stage"] == "evaluate" and progress["quiet_until"] > progress["t"]
    assert progress["reason"] == "the draft vLLM server loads smollm2-135m"


async def test_a_server_that_ends_while_it_works_is_noticed_with_its_reason(ctx: StageContext) -> None:
    with_program(ctx, SERVING)
    with VllmServer(ctx, "plain") as server:
        server.check_alive()
        with (ctx.run_dir / "logs" / "server-plain.log").open("a") as log:
            log.write("(EngineCore pid=7) ERROR [core.py:1] torch.OutOfMemoryError: 3 GiB asked for\n")
        psutil.Process(server.pid).kill()
        await until(lambda: server._process is not None and server._process.poll() is not None, "the server to end")
        with pytest.raises(
            StageError, match=r"ended by signal 9 while it was working: torch\.OutOfMemoryError: 3 GiB asked for\."
        ):
            server.counters()


def test_a_busy_port_is_said_before_anything_starts(ctx: StageContext, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = context(tmp_path / "busy", server__port=taken.getsockname()[1])
        with pytest.raises(StageError, match=r"Port \d+ \(server\.port\) cannot be used"), VllmServer(busy, "plain"):
            pytest.fail("it never answered")


@pytest.mark.parametrize(
    ("given_out", "lowest", "below"),
    [("32768\t60999\n", 20_000, 30_000), ("1024\t65535\n", 1024, 65_536), ("nonsense", 1, 65_536), (None, 1, 65_536)],
)
def test_a_free_port_is_none_that_the_kernel_gives_to_others_while_the_server_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_out: str | None, lowest: int, below: int
) -> None:
    monkeypatch.setattr("eagle3.engines.ports._GIVEN_OUT", tmp_path / "range")
    if given_out is not None:
        (tmp_path / "range").write_text(given_out)
    for _ in range(20):
        port, claim = claim_port(0)
        with claim:
            assert lowest <= port < below


def test_an_interpreter_that_is_not_there_is_named(ctx: StageContext) -> None:
    ctx.server_python = "/no/such/python"
    said = r"/no/such/python, cannot start \(No such file or directory\); set server_python"
    with pytest.raises(StageError, match=said), VllmServer(ctx, "plain"):
        pytest.fail("it never answered")
    assert not (ctx.run_dir / "servers" / "plain.json").exists()


def test_the_command_is_the_specs_then_the_callers(ctx: StageContext) -> None:
    folder = ctx.run_dir.parent / "bin"
    ctx.server_python = as_interpreter(folder)
    with VllmServer(ctx, "plain", extra_args=["--seed", "7"]):
        argv = json.loads((folder / "argv.jsonl").read_text().splitlines()[-1])
    assert argv[1:5] == ["-m", "vllm.entrypoints.openai.api_server", "--model", str(ctx.model_dir)]
    assert argv[-3:] == ["--enforce-eager", "--seed", "7"]


@pytest.mark.parametrize(
    ("config", "exact"),
    [({}, False), ({"kv_lora_rank": 512}, True), ({"text_config": {"kv_lora_rank": 512}}, True)],
    ids=["Llama", "DeepSeek-V3", "Kimi-K2.5"],
)
def test_a_target_with_mla_gets_pytorchs_own_operators_on_a_cpu(ctx: StageContext, config: dict[str, Any], exact: bool) -> None:
    ctx.model_dir = ctx.run_dir.parent / "target"
    ctx.model_dir.mkdir()
    (ctx.model_dir / "config.json").write_text(json.dumps(config))
    assert ('{"custom_ops": ["none"]}' in VllmServer(ctx, "extract").command(1)) is exact


def test_each_stages_server_sees_the_gpus_of_its_stage_alone(tmp_path: Path) -> None:
    devices = {"regenerate": [0, 1], "extract": [2], "evaluate": [3]}
    ctx = context(tmp_path, hardware__gpus=4, **{f"devices__{stage}": gpus for stage, gpus in devices.items()})
    servers = {
        "regenerate": answering_server(ctx), "extract": extraction_server(ctx, tmp_path / "raw"),
        "evaluate": speculating_server(ctx, "draft", []),
    }  # fmt: skip
    seen = {stage: server.environment()["CUDA_VISIBLE_DEVICES"] for stage, server in servers.items()}  # type: ignore[attr-defined]
    assert seen == {"regenerate": "0,1", "extract": "2", "evaluate": "3"}
    assert measured_server(ctx).environment()["CUDA_VISIBLE_DEVICES"] == "3", "with and without the draft on the same GPUs"  # type: ignore[attr-defined]
    here = context(tmp_path / "here", engine="transformers", hardware__gpus=4, devices__extract=[1])
    transformers = extraction_server(here, tmp_path / "raw")
    assert transformers.environment()["CUDA_VISIBLE_DEVICES"] == "1"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HUB_OFFLINE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
    ],
)
def test_the_environment_is_offline_silent_and_fast_on_a_cpu(ctx: StageContext, name: str, value: str) -> None:
    assert VllmServer(ctx, "plain").environment()[name] == value


def test_vllm_gives_up_loading_no_earlier_than_the_run_does(tmp_path: Path) -> None:
    ctx = context(tmp_path, server__start_timeout_s=3600.5)
    assert VllmServer(ctx, "extract").environment()["VLLM_ENGINE_READY_TIMEOUT_S"] == "3601"
    own = context(tmp_path / "own", server__start_timeout_s=3600, server__env={"VLLM_ENGINE_READY_TIMEOUT_S": "60"})
    assert VllmServer(own, "plain").environment()["VLLM_ENGINE_READY_TIMEOUT_S"] == "60", "the spec's own word wins"


def test_the_callers_environment_wins_over_the_specs_and_the_connector_stands_first_on_the_path(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    server = VllmServer(ctx, "extract", env={"VLLM_CPU_KVCACHE_SPACE": "2"}, pythonpath=ctx.run_dir)
    assert server.environment()["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert server.environment()["PYTHONPATH"] == f"{ctx.run_dir}{os.pathsep}/elsewhere"


def test_counters_are_summed_over_engines_and_keep_their_own_labels() -> None:
    text = "".join(
        f"{line}\n"
        for line in (
            "# TYPE vllm:spec_decode_num_drafts_total counter",
            'vllm:spec_decode_num_drafts_total{engine="0",model_name="t"} 3',
            'vllm:spec_decode_num_drafts_total{engine="1",model_name="t"} 4',
            "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter",
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="t",position="0"} 2',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="t",position="0"} 1',
            "# TYPE process_open_fds gauge",
            "process_open_fds 9",
        )
    )
    assert parse_counters(text) == {
        "vllm:spec_decode_num_drafts_total": 7.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total": {"0": 3.0},
    }


@pytest.mark.parametrize(
    ("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("nonsense", None)]
)
def test_a_containers_quota_limits_the_threads(tmp_path: Path, quota: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    unlimited = usable_cores(quota_file=tmp_path / "none")
    assert usable_cores(quota_file=tmp_path / "cpu.max") == (unlimited if cores is None else cores)


def test_intels_openmp_is_loaded_where_the_servers_environment_has_it(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    python = str(tmp_path / "bin" / "python")
    assert "LD_PRELOAD" not in cpu_environment(python)
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert cpu_environment(python)["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")


def test_a_port_of_a_run_that_is_still_loading_is_busy_although_nobody_listens_on_it(ctx: StageContext, tmp_path: Path) -> None:
    with_program(ctx, SERVING)
    with VllmServer(ctx, "plain") as server:
        port = int(server.base_url.rpartition(":")[2])
    beside = context(tmp_path / "beside", server__port=port)
    beside.server_python = ctx.server_python
    claimed, claim = claim_port(port)
    assert claimed == port
    with (
        claim,
        pytest.raises(StageError, match=rf"Port {port} \(server\.port\) belongs to .* another run"),
        VllmServer(beside, "plain"),
    ):
        pytest.fail("it never answered")
    for _ in range(2):  # given back, again and again
        with VllmServer(beside, "plain"):
            pass
