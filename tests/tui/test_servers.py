"""The servers in full, and all the rows of a long run: on a key, with what came from outside as text only."""

from __future__ import annotations

from eagle3.core.records import Gpu, GpuReport, Service, Services
from remote.follow import Thinned
from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import write_run
from tui.screens.servers import servers_text
from tui.widgets.gpus import gpu_text

SERVICE = Service(
    kind="unit", name="vllm.service", pid=4711, user="serve", state="active (running)", live=True, since=1_764_490_000.0,
    url="http://127.0.0.1:8000", command=["vllm", "serve", "a model\x1b[31m"], environment={"HF_TOKEN": "[hidden]"},
)  # fmt: skip


async def test_the_servers_are_shown_in_full_with_unit_command_and_environment(
    container: FakeContainer, make_app: MakeApp
) -> None:
    container.serving = Services(services=[SERVICE])
    async with make_app().run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "● up since")
        await pilot.press("V")
        screen = await until_seen(pilot, "vllm.service", "active (running) since 2025-11-30", "vllm serve 'a model'", "[hidden]")
        assert "\x1b" not in screen
        await pilot.press("escape")
        await until_seen(pilot, "Runs")


def test_why_servers_are_not_known_is_said() -> None:
    assert servers_text(None, "The link is lost.").plain == "The link is lost."
    assert "No vLLM server was found" in servers_text(Services(systemd="no systemctl here"), "").plain
    assert "Units are not known: no systemctl here" in servers_text(Services(systemd="no systemctl here"), "").plain


async def test_a_thinned_picture_says_so_and_is_made_whole_on_a_key(container: FakeContainer, make_app: MakeApp) -> None:
    write_run(container.root, "run-a", steps=100)
    container.thinned = Thinned(rows=100, kept=20, hasty=False)
    async with make_app(run_id="run-a").run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "● running", "20 of 100 rows", "A reads all")
        view = pilot.app.console_state.open_run  # type: ignore[attr-defined]
        assert len(view.metrics.rows("train", "train")) < 60
        await pilot.press("A")
        await until(pilot, lambda: len(view.metrics.rows("train", "train")) == 100, "all the rows")
        await until(pilot, lambda: "rows" not in seen(pilot.app).splitlines()[12] and view.thinned is None, "a whole picture")  # type: ignore[arg-type]


def test_what_is_wrong_with_a_card_stands_above_it() -> None:
    gpu = Gpu(index=3, throttle=["thermal slowdown"], ecc_uncorrected=2)
    words = gpu_text(GpuReport(status="ok", gpus=[gpu, Gpu(index=4, lost=True)]), 90).plain
    assert "▲ GPU 3: 2 uncorrected memory errors; clocks held down: thermal slowdown" in words
    assert "▲ GPU 4: lost" in words
