"""Recording what the console received, and the same console on the recording: no connection, its own clock, nothing to change."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from tests.tui.conftest import Clock, MakeApp
from tests.tui.support.container import FakeContainer
from tests.tui.support.driving import seen, until, until_seen
from tests.tui.support.folders import NOW, write_run
from tui import messages
from tui.launchpad import player
from tui.recording import Recorder, RecordingError, load
from tui.replaying import ReplayClock
from tui.settings import Settings
from tui.state import LinkState

SECRET = "hf_abcdefghijklmnop"


def private_text(path: Path) -> str:
    """What the recording holds, unpacked; nobody else may read it."""
    assert path.stat().st_mode & 0o777 == 0o600
    return zlib.decompress(path.read_bytes()).decode()


def broken(path: Path) -> list[Path]:
    """The recording cut in its middle, cut a little later, and with one byte spoilt."""
    whole = path.read_bytes()
    spoilt = bytearray(whole)
    spoilt[len(whole) * 2 // 3] ^= 0xFF
    parts = [path.with_name(f"broken-{number}") for number in range(3)]
    for part, data in zip(parts, (whole[: len(whole) // 2], whole[: len(whole) * 3 // 4], bytes(spoilt)), strict=True):
        part.write_bytes(data)
    return parts


def recordings(folder: Path) -> list[Path]:
    return list(folder.glob("*.recording"))


async def recorded(container: FakeContainer, make_app: MakeApp, clock: Clock, path: Path) -> None:
    """A short recording: a run is followed, its log goes on, and then the link is lost."""
    run = write_run(container.root, "pilot-kept")
    log = run / "attempts/1/run.log"
    app = make_app(run_id="pilot-kept", record_to=path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "2 Readiness", "7 Notes", "recording · ● up", "pilot-kept", "step 61")
        clock.now += 10
        with log.open("a") as file:
            file.write("the last words of hf_abcdefg")
        await until_seen(pilot, "the last words")
        with log.open("a") as file:
            file.write("hijklmnop\n")
        await until(pilot, lambda: "hijklmnop" in "".join(app.console_state.open_run.log), "the rest")  # type: ignore[union-attr]
        clock.now += 10
        container.down = "The host is gone."
        await until_seen(pilot, "The host is gone.")
        clock.now += 10
        await until(pilot, lambda: app.recorder is not None, "the recorder")


@pytest.fixture
async def path(container: FakeContainer, make_app: MakeApp, clock: Clock, tmp_path: Path) -> Path:
    found = tmp_path / "kept.recording"
    await recorded(container, make_app, clock, found)
    return found


async def test_a_recording_is_private_packed_and_holds_no_secret(path: Path) -> None:
    text = private_text(path)
    assert "the last words of hf_[hidden]" in text and SECRET not in text and "hijklmnop" not in text
    head, *entries = [json.loads(line) for line in text.splitlines()]
    assert head["hosts"] == ["box"] and entries[-1][2] == "end"
    assert {entry[2] for entry in entries} >= {"link", "probe", "news", "end"}


async def test_the_console_on_a_recording_shows_what_was_seen_and_changes_nothing(path: Path) -> None:
    recording = load(path)
    assert recording.problem == "" and recording.begun == NOW
    app = player(recording, 40.0, Settings(), run_id="pilot-kept")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "replay · ✗ down", "pilot-kept", "the last words of hf_[hidden]")
        await pilot.press("s")
        await until_seen(pilot, "This is a replay of box", "be changed in")
        await pilot.press("ctrl+r")
        await until_seen(pilot, "to connect to")
        app.clear_notifications()
        await pilot.press("1")
        await until_seen(pilot, "✗ down since", "The host is gone.")
        await pilot.press("7")
        await until_seen(pilot, "it holds only what the console had received")
        await pilot.press("2", "1")
        await until_seen(pilot, "replay")
        assert app.clock() == recording.ended, "the recording's time stands still at its end"


async def test_a_recording_that_was_cut_or_spoilt_plays_up_to_its_end_and_says_so(path: Path) -> None:
    for part in broken(path):
        recording = load(part)
        assert recording.entries and "breaks off here" in recording.problem, part.name
    app = player(recording, 1000.0, Settings())
    async with app.run_test(size=(120, 40)) as pilot:
        await until_seen(pilot, "pilot-kept", "Replay of box, recorded", "breaks off here")


def test_what_is_no_recording_is_said_in_one_sentence(tmp_path: Path) -> None:
    for name, data, words in (
        ("text", b"hello", "is no recording"),
        ("empty", b"", "is no recording"),
        ("packed", zlib.compress(b"[1]\n"), "is no recording"),
        ("newer", zlib.compress(b'{"kind":"eagle3-recording","v":9}\n'), "newer console"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RecordingError, match=words):
            load(tmp_path / name)
    with pytest.raises(RecordingError, match="cannot be read"):
        load(tmp_path / "nowhere")


HEAD = {"kind": "eagle3-recording", "v": 1, "hosts": ["box"], "poll_s": 1.0, "begun": NOW}


def packed(path: Path, *lines: object) -> Path:
    """A recording of these lines, each a value or its JSON, as anybody could write one."""
    text = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    path.write_bytes(zlib.compress(text, 1))
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"begun": None}, {"begun": float("nan")}, {"begun": 1e300}, {"begun": 10**400}, {"poll_s": 0}, {"poll_s": float("inf")},
        {"hosts": "box"}, {"hosts": []}, {"hosts": ["\x1b]0;mine\x07"]},
    ],
)  # fmt: skip
def test_a_first_line_that_says_what_cannot_be_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(RecordingError, match=r"The first line of .* is damaged"):
        load(packed(tmp_path / "a", HEAD | change))


@pytest.mark.parametrize(
    "line",
    [
        [float("nan"), "box", "probe", "", {}], [1e300, "box", "probe", "", {}], [-5.0, "box", "probe", "", {}],
        b'[1' + b"0" * 400 + b',"box","probe","",{}]', b"[" * 100_000, [NOW, "b\x1b[2Jox", "probe", "", {}],
    ],
)  # fmt: skip
def test_a_line_that_says_what_cannot_be_is_where_a_recording_breaks_off(tmp_path: Path, line: object) -> None:
    found = load(packed(tmp_path / "a", HEAD, [NOW, "box", "failed", "", {"text": "gone"}], line))
    assert len(found.entries) == 1 and found.problem == "The recording breaks off here: it is damaged."


def test_a_line_longer_than_any_console_writes_is_where_a_recording_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [NOW, "box", "news", "r", {"log": "".join(f"{number**3:x}" for number in range(3000))}]
    path = packed(tmp_path / "a", HEAD, long)
    assert len(load(path).entries) == 1
    monkeypatch.setattr("tui.recording.LINE_LIMIT_BYTES", 4000)
    found = load(path)
    assert not found.entries and "breaks off here" in found.problem


async def test_what_somebody_elses_recording_says_is_no_command_to_the_terminal(path: Path) -> None:
    head, *entries = [json.loads(line) for line in private_text(path).splitlines()]
    for entry in entries:
        if entry[2] == "news" and entry[4].get("log"):
            entry[4]["log"] += "\x1b]52;c;c3RvbGVu\x07 and\x1b[2J more\n"
    app = player(load(packed(path, head, *entries)), 40.0, Settings(), run_id="pilot-kept")
    async with app.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "pilot-kept")
        log = app.console_state.open_run.log  # type: ignore[union-attr]
        await until(pilot, lambda: "and more" in "".join(log), "the log")
        assert "\x1b" not in "".join(log)


async def test_a_probe_or_a_piece_of_news_that_is_none_is_told_and_the_replay_goes_on(tmp_path: Path) -> None:
    lines = [
        [NOW, "box", "link", "", {"status": "up", "since": "yesterday"}],
        [NOW, "box", "probe", "", {"runs": 5}],
        [NOW, "box", "news", "r", {"summary": {}, "thinned": [float("inf"), 1]}],
        [NOW + 1, "box", "link", "", {"status": "down", "since": NOW, "reason": "It said goodbye."}],
        [NOW + 1, "", "end", "", {}],
    ]
    app = player(load(packed(tmp_path / "a", HEAD, *lines)), 1.0, Settings(), run_id="r")
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until_seen(pilot, "cannot be understood", "✗ down since")


async def test_w_records_from_now_on_and_ends_it(
    container: FakeContainer, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(container.root, "pilot-kept")
    app = make_app(run_id="pilot-kept")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until_seen(pilot, "step 61")
        await pilot.press("W")
        await until_seen(pilot, "recording · ", "Recording into")
        await until(pilot, lambda: app.recorder is not None and app.recorder.text_bytes > 20_000, "the run's beginning")
        await pilot.press("W")
        await until_seen(pilot, "eagle3-tui replay")
    [path] = recordings(tmp_path)
    first = next(entry for entry in load(path).entries if entry.kind == "news")
    assert first.fresh and len(first.data["rows"]) > 60


def test_a_recording_ends_at_its_limit_and_a_file_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.recording.LIMIT_BYTES", 400)
    recorder = Recorder(tmp_path / "a", lambda: NOW, ["box"], 5.0, list)
    for _ in range(4):
        recorder.take("box", messages.LinkChanged(LinkState("up", NOW, "with " + "words " * 10)))
    assert recorder.full
    recorder.close("full")
    assert load(tmp_path / "a").problem == ""
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "a", lambda: NOW, ["box"], 5.0, list)


def test_what_is_known_to_be_secret_is_hidden_whatever_it_looks_like(tmp_path: Path) -> None:
    secrets: list[str] = []
    recorder = Recorder(tmp_path / "a", lambda: NOW, ["box"], 5.0, lambda: secrets)
    secrets.append("correct horse")  # typed while it was recorded
    recorder.take("box", messages.ProbeFailed("it said: correct horse battery"))
    recorder.close()
    assert load(tmp_path / "a").entries[0].data == {"text": "it said: [hidden] battery"}


def test_the_clock_of_a_recording_runs_at_its_speed_and_stands_still_at_the_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a", clock := Clock(), ["box"], 5.0, list)
    clock.now += 60
    recorder.take("box", messages.LinkChanged(LinkState("up", NOW)))
    recorder.close()
    ticks = [100.0]
    replay = ReplayClock(load(tmp_path / "a"), 8.0, lambda: ticks[0])
    assert replay() == NOW
    ticks[0] += 5
    assert replay() == NOW + 40
    ticks[0] += 100
    assert replay() == NOW + 60 and replay.at_end


async def test_every_host_of_a_recording_is_there(
    container: FakeContainer, make_app: MakeApp, clock: Clock, tmp_path: Path
) -> None:
    from tui.fleet import Place

    root = tmp_path / "others"
    root.mkdir()
    other = FakeContainer(root)
    write_run(root, "pilot-there")
    app = make_app(others=[Place("spare", other)], record_to=tmp_path / "two")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: all(m.console.probe.at for m in app.members.values()), "both")
        clock.now += 5
        await until(pilot, lambda: seen(app).count("● up since") == 2, "both links")
    again = player(load(tmp_path / "two"), 100.0, Settings())
    async with again.run_test(size=(80, 24)) as pilot:
        await until_seen(pilot, "Hosts", "box", "spare", "1 running")
