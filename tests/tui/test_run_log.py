"""The log on the Run screen: it follows, it stays where the reader is, and it costs little."""

from __future__ import annotations

from tests.tui.conftest import MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import until, until_seen
from tests.tui.support.folders import write_run
from tui.widgets.log import RunLog


async def test_the_log_follows_until_the_reader_scrolls_up(container: FakeContainer, make_app: MakeApp) -> None:
    run = write_run(container.root, "run-a", steps=60)
    async with make_app(run_id="run-a").run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "step 59", "follows")
        await pilot.press("pageup")
        await until_seen(pilot, "scrolled up")
        top = pilot.app.screen.query_one(RunLog).scroll_y
        with (run / "attempts/1/run.log").open("a") as log:
            log.write("brand new line\n")
        await until(pilot, lambda: pilot.app.console_state.open_run.log[-1] == "brand new line", "news")  # type: ignore
        assert pilot.app.screen.query_one(RunLog).scroll_y == top
        await pilot.press("end")
        await until_seen(pilot, "brand new line")


async def test_a_line_of_the_log_lays_no_screen_out_anew_until_it_needs_a_bar(
    container: FakeContainer, make_app: MakeApp
) -> None:
    run = write_run(container.root, "run-a", steps=2)
    async with make_app(run_id="run-a").run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "step 1 loss", "follows")
        log, compositor = pilot.app.screen.query_one(RunLog), pilot.app.screen._compositor
        await pilot.pause()
        assert not log.show_vertical_scrollbar
        laid_out = compositor.full_map
        with (run / "attempts/1/run.log").open("a") as file:
            file.write("one more line\n")
        await until_seen(pilot, "one more line")
        assert compositor.full_map is laid_out
        with (run / "attempts/1/run.log").open("a") as file:
            file.write("".join(f"line {n}\n" for n in range(60)))
        await until_seen(pilot, "line 59")
        assert log.show_vertical_scrollbar and log.vertical_scrollbar.window_virtual_size == len(log.lines)
