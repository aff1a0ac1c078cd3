"""The parts of telling: failures are few words, the queue has an end, and nothing that is noticed is noticed twice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner import alerts, rundir
from eagle3.runner.alert_ledger import Ledger
from eagle3.runner.alerts import Alerter
from eagle3.runner.conditions import EventTail, LowDisk, is_guard, log_tail
from eagle3.runner.hooks import KINDS, Hooks
from eagle3.runner.launch import launch
from tests.runner.support import rows, shell, state_is, wait_end, wait_for


class Told:
    """An alerter with a folder of its own, and the events that it wrote."""

    def __init__(self, folder: Path, command: list[str], **more: Any) -> None:
        self.folder = folder
        self.events: list[tuple[str, str, str]] = []
        options: dict[str, Any] = {"timeout_s": 10.0, "min_interval_s": 0.0, "retry_s": 1e-5, **more}
        hooks = Hooks(command=command, webhook="", on=frozenset(KINDS), **options)
        self.alerter = Alerter(hooks, Ledger(folder), {"run_id": "r"}, lambda *event: self.events.append(event))

    def tell(self, fact: str, kind: str = "guard") -> None:
        self.alerter.tell(fact, kind, f"text of {fact}")

    def statuses(self, status: str) -> list[str]:
        return [row["id"] for row in rows(self.folder / "alerts.jsonl") if row["status"] == status]


def test_a_hook_that_always_fails_is_one_warning_in_so_many_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "WARN_EVERY", 4)
    told = Told(tmp_path, ["/bin/sh", "-c", "exit 3"])
    told.tell("f0")
    told.tell("f1")
    wait_for(lambda: len(told.statuses("failed")) == 2)
    assert [kind for kind, _, _ in told.events] == ["alert_failed", "alert_failed"], "of six failures"
    assert "(5 failures so far)" in told.events[1][1] and told.events[0][2] == "warn"


def test_a_hook_that_works_again_is_said_to(tmp_path: Path) -> None:
    told = Told(tmp_path, ["/bin/sh", "-c", f"test -e {tmp_path}/well"])
    told.tell("a")
    wait_for(lambda: told.statuses("failed"))
    (tmp_path / "well").touch()
    told.tell("b")
    wait_for(lambda: len(told.events) == 2)  # the ledger has it before the event is written
    assert told.events[-1] == ("alert_delivered", "alerts are delivered again, after 3 failures", "info")


def test_telling_never_waits_and_a_queue_that_is_full_drops_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "QUEUE_LENGTH", 3)
    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    told = Told(tmp_path, ["/bin/sh", "-c", f'{waits}; echo "$EAGLE3_ALERT_ID" >> {tmp_path}/order'], timeout_s=60.0)
    told.tell("first")
    wait_for(lambda: told.statuses("sending"))
    for number in range(6):
        told.tell(f"f{number}")
    assert told.statuses("dropped") == ["f3", "f4", "f5"]
    told.tell("end-1", "finish")
    (tmp_path / "go").touch()
    told.alerter.close()
    assert (tmp_path / "order").read_text().split() == ["first", "end-1", "f0", "f1", "f2"], "the end goes before what waits"


def test_an_alert_in_whatever_script_is_written_down_so_that_it_outlives_its_supervisor(tmp_path: Path) -> None:
    told = Told(tmp_path, ["/bin/true"])
    told.alerter.tell("bar", "guard", "─" * 2000, detail="█" * 3000)
    told.alerter.close()
    assert told.statuses("due") == ["bar"]
    (alert,) = [json.loads(line)["alert"] for line in (tmp_path / "alerts.jsonl").read_text().splitlines() if '"due"' in line]
    assert set(alert["text"]) == {"─"} and set(alert["detail"]) == {"█"}, "cut between two letters"


def test_a_ledger_that_cannot_be_written_costs_no_alert(tmp_path: Path) -> None:
    place = tmp_path / "told"
    told = Told(tmp_path / "no-such-folder", ["/bin/sh", "-c", f'echo "$EAGLE3_ALERT_ID" >> {place}'])
    told.tell("a")
    told.tell("a")
    told.alerter.close()
    assert place.read_text() == "a\n", "and it is still told once"


def test_a_ledger_of_which_a_disk_tore_a_line_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    Ledger(tmp_path).write("a", "stall", "due", alert={"id": "a"})
    with (tmp_path / "alerts.jsonl").open("a") as file:
        file.write('{"id": "b", "sta\n[1]\n{"id": "c", "status": "due"}\n')
    found = Ledger(tmp_path)
    assert found.known("a") and found.known("c") and not found.known("b")
    assert found.due() == [{"id": "a"}]


@given(st.lists(st.integers(0, 4000), max_size=60), st.integers(1, 2000))
def test_a_disk_at_the_brink_is_low_once(free: list[int], floor: int) -> None:
    disk, changes = LowDisk(floor), []
    for free_bytes in free:
        changed = disk.look(free_bytes)
        assert disk.low or free_bytes >= floor * 1.25 or changed is None
        if changed is not None:
            changes.append(changed)
            assert (free_bytes < floor * 1.25) if changed else (free_bytes >= floor * 1.5)
    assert all(a != b for a, b in itertools.pairwise(changes)) and (not changes or changes[0])


def test_no_floor_and_an_unknown_disk_say_nothing() -> None:
    assert LowDisk(0).look(0) is None and LowDisk(10).look(None) is None


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 3)), max_size=20), st.integers(0, 3))
def test_the_tail_gives_every_row_once_however_it_grows(
    tmp_path_factory: pytest.TempPathFactory, added: Any, before: int
) -> None:
    file = tmp_path_factory.mktemp("tail") / "events.jsonl"
    for number in range(before):
        rundir.append_line(file, {"n": -number})
    tail, found = EventTail(file), []
    for number, looks in added:
        with file.open("ab") as events:  # in two writes, as a reader may see it
            line = json.dumps({"n": number}).encode() + b"\n"
            events.write(line[:5])
            events.flush()
            found += tail.rows() if looks == 3 else []
            events.write(line[5:])
        for _ in range(looks):
            found += tail.rows()
    found += tail.rows()
    assert [row["n"] for row in found] == [number for number, _ in added]
    assert len({row["offset"] for row in found}) == len(added)


def test_a_tail_survives_torn_lines_and_a_file_that_was_replaced(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    tail = EventTail(file)
    file.write_bytes(b'{"n": 1}\nnot json\n\xff\xfe\n{"n": 2}\n' + b"x" * 100 + b"\n")
    assert [row["n"] for row in tail.rows()] == [1, 2]
    file.write_bytes(b'{"n": 3}\n')
    assert [row["n"] for row in tail.rows()] == [3]


@pytest.mark.parametrize(
    ("row", "guard"),
    [
        ({"kind": "guard-loss", "level": "warn"}, True),
        ({"kind": "guard", "level": "info"}, True),
        ({"kind": "rows", "level": "error"}, True),
        ({"kind": "rows", "level": "warn"}, False),
        ({"kind": "failed", "level": "error"}, False),
        ({"kind": "guard-loss", "level": "warn", "attempt": 2}, False),
        ({"kind": "gpu_fault", "level": "error", "actor": "supervisor"}, False),
    ],
)
def test_what_is_a_guard(row: dict[str, Any], guard: bool) -> None:
    assert is_guard({"attempt": 1, "actor": "worker", **row}, 1) is guard


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first line\nsecond line\n")
    assert log_tail(tmp_path / "log", 15) == "second line\n" and log_tail(tmp_path / "log", 1000) == "first line\nsecond line\n"
    assert log_tail(tmp_path / "missing", 10) == ""


def test_files_that_a_foreign_hand_spoilt_do_not_take_the_supervisor_from_its_run(workspace: Path) -> None:
    run_dir = Path(launch(workspace, "r", "", shell("while [ ! -e go ]; do sleep 0.05; done", heartbeat_s=0.1))["run_dir"])
    rundir.write_json(run_dir / "progress.json", {"attempt": 1, "quiet_until": "tomorrow", "t": []})
    (run_dir / "ranks").mkdir()
    (run_dir / "ranks/0.json").write_text('{"attempt": 1, "step": "x", "t": null}')
    wait_for(lambda: "watch_defect" in (run_dir / "events.jsonl").read_text())
    (run_dir / "progress.json").unlink()
    assert state_is(run_dir, "running")()
    (run_dir / "go").touch()
    assert wait_end(run_dir)["code"] == 0
    assert (run_dir / "events.jsonl").read_text().count("watch_defect") == 1
