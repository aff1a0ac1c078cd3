"""The channel answers every line, whatever is in it, and ends only with its stdin."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner.serve import MAX_AT_ONCE, MAX_REQUEST_BYTES, Server
from tests.runner.support import RUNNER, Channel, old_python, shell, wait_for


class Served:
    """A server on pipes in this process, with a ``handle`` of the test's own."""

    def __init__(self, handle: Callable[[str, dict[str, Any]], dict[str, Any]], limits_s: dict[str, float] | None = None) -> None:
        requests, self._to = os.pipe()
        self._from, replies = os.pipe()
        self._replies = os.fdopen(self._from, "rb")
        server = Server(os.fdopen(replies, "wb"), "@@", handle=handle, limits_s=limits_s or {})
        self.thread = threading.Thread(target=lambda: server.run(os.fdopen(requests, "rb")), daemon=True)
        self.thread.start()

    def send(self, line: bytes) -> None:
        os.write(self._to, line + b"\n")

    def ask(self, number: int, verb: str) -> None:
        self.send(json.dumps({"id": number, "verb": verb, "args": {}}).encode())

    def reply(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._replies.readline().removeprefix(b"@@"))
        return found

    def close(self) -> None:
        os.close(self._to)
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_hello_says_who_answers(channel: Channel) -> None:
    answer = channel.result("hello")
    assert answer["pid"] == channel.process.pid and answer["home"] and answer["user"]
    version = subprocess.run([old_python(), "-V"], capture_output=True, text=True).stdout.split()[1]
    assert answer["python"] == version


def test_garbage_is_answered_and_survived(channel: Channel) -> None:
    deep = b"[" * 100_000
    for line in (
        b"not json",
        b"\xff\x00\xfe",
        b"[1, 2]",
        b"null",
        b'{"id": 7}',
        b'{"id": 8, "verb": "fly"}',
        b'{"verb": 5, "args": 3}',
        deep,
    ):
        channel.send(line)
        reply = channel.receive()
        assert not reply["ok"] and reply["error"]["code"] == "usage" and reply["error"]["text"] and reply["now"] > 0
    channel.send(b"")
    channel.send(b"x" * (MAX_REQUEST_BYTES + 10))
    assert "longer than" in channel.receive()["error"]["text"]
    assert channel.result("hello")


def test_a_missing_argument_is_named(channel: Channel) -> None:
    error = channel.ask("read", workspace="/tmp")["error"]
    assert error["code"] == "usage" and "'run_id'" in error["text"]
    assert channel.ask("read", workspace="/tmp", run_id="none", files=[])["error"]["code"] == "not_found"


def test_a_slow_verb_does_not_hold_up_a_quick_one(channel: Channel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        channel.send(json.dumps({"id": "slow", "verb": "http", "args": {"url": url, "timeout_s": 50}}).encode())
        channel.send(json.dumps({"id": "quick", "verb": "hello"}).encode())
        assert channel.receive()["id"] == "quick"
    assert channel.receive()["id"] == "slow", "answered once nobody listens any more"


def test_the_channel_ends_with_its_stdin_even_while_a_verb_hangs(channel: Channel, silent_port: int) -> None:
    url = f"http://127.0.0.1:{silent_port}/"
    channel.send(json.dumps({"id": 1, "verb": "http", "args": {"url": url, "timeout_s": 50}}).encode())
    assert channel.close() == 0


def test_every_line_of_the_output_bears_the_marker(workspace: Path) -> None:
    requests = b"\n".join(
        json.dumps({"id": n, "verb": v, "args": {"workspace": str(workspace)}}).encode()
        for n, v in enumerate(["hello", "list"] * 5)
    )
    command = [old_python(), "-I", "-S", str(RUNNER), "serve", "--marker", "\x02Q7:"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(requests + b"\n")
    child.stdin.flush()
    lines = [child.stdout.readline() for _ in range(10)]
    child.stdin.close()
    assert child.stdout.read() == b"" and child.wait(timeout=20) == 0
    child.stdout.close()
    assert sorted(json.loads(line.removeprefix(b"\x02Q7:"))["id"] for line in lines) == list(range(10))


def test_only_loopback_is_asked(channel: Channel) -> None:
    for url in (
        "http://192.0.2.1/",
        "http://example.org/",
        "file:///etc/passwd",
        "http://127.0.0.1.example.org/",
        "",
        "http://[::1",
    ):
        assert channel.ask("http", url=url)["error"]["code"] == "usage"


def test_a_verb_that_hangs_is_answered_as_late_once() -> None:
    go = threading.Event()

    def handle(verb: str, _: dict[str, Any]) -> dict[str, Any]:
        if verb == "hang":
            go.wait()
        return {}

    served = Served(handle, {"hang": 0.1})
    served.ask(1, "hang")
    reply = served.reply()
    assert reply["id"] == 1 and reply["error"]["code"] == "busy" and "hang" in reply["error"]["text"]
    go.set()
    served.ask(2, "quick")
    assert served.reply()["id"] == 2
    served.close()


def test_too_many_hanging_verbs_are_refused_and_room_comes_back() -> None:
    go = threading.Event()

    def handle(verb: str, _: dict[str, Any]) -> dict[str, Any]:
        if verb == "hang":
            go.wait()
        return {}

    served = Served(handle)
    for number in range(MAX_AT_ONCE + 1):
        served.ask(number, "hang")
    assert served.reply()["error"]["code"] == "busy"
    go.set()
    assert {served.reply()["ok"] for _ in range(MAX_AT_ONCE)} == {True}

    def asked_again() -> bool:
        served.ask(99, "quick")
        return bool(served.reply()["ok"])

    wait_for(asked_again)
    served.close()


def test_a_defect_in_a_verb_is_reported_and_survived() -> None:
    def handle(verb: str, _: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError("oops")

    served = Served(handle)
    for number in range(2):
        served.ask(number, "x")
        error = served.reply()["error"]
        assert error["code"] == "failed" and "ZeroDivisionError" in error["text"] and "Traceback" in error["detail"]
    served.close()


@given(
    st.lists(
        st.one_of(st.binary(max_size=60), st.text(max_size=40).map(lambda t: json.dumps({"id": 1, "verb": t}).encode())),
        max_size=8,
    )
)
def test_any_lines_get_at_most_one_answer_each_and_never_end_the_loop(lines: list[bytes]) -> None:
    output = io.BytesIO()
    answered = threading.Semaphore(0)
    server = Server(output, "@@", handle=lambda *_: answered.release() or {}, limits_s={})  # type: ignore[func-returns-value]
    content = b"".join(line.replace(b"\n", b" ") + b"\n" for line in lines)
    server.run(io.BytesIO(content))
    expected = sum(1 for line in lines if line.replace(b"\n", b" ").strip())
    wait_for(lambda: output.getvalue().count(b"\n") == expected)
    for line in output.getvalue().splitlines():
        assert "ok" in json.loads(line.removeprefix(b"@@"))


def test_a_launch_over_the_channel_can_be_listed_read_and_stopped(workspace: Path, channel: Channel) -> None:
    place = {"workspace": str(workspace)}
    assert channel.result("list", **place) == {"runs": [], "watchers": []}
    channel.result("launch", **place, run_id="r", spec_toml="", launch=shell("echo up; exec sleep 600"), actor="ann")
    assert [(run["run_id"], run["state"]) for run in channel.result("list", **place)["runs"]] == [("r", "running")]
    wait_for(
        lambda: channel.result("read", **place, run_id="r", files=[{"name": "run.log"}])["files"]["run.log"]["text"] == "up\n"
    )
    assert channel.result("stop", **place, run_id="r", mode="now", actor="ann")["mode"] == "now"
    wait_for(lambda: channel.result("read", **place, run_id="r")["summary"]["state"] == "stopped")
    assert channel.ask("stop", **place, run_id="other")["error"]["code"] == "not_found"


def test_packed_answers_are_frames_of_one_stream_and_resemblance_costs_nothing() -> None:
    output = io.BytesIO()
    server = Server(output, "@@", packed=True, handle=lambda verb, args: {"text": "the same again " * 20})
    for number in range(3):
        server.answer(server.outcome(number, "hello", {}))
    frames, unpacker = output.getvalue(), zlib.decompressobj()
    sizes = []
    for number in range(3):
        assert frames.startswith(b"@@=")
        length, _, frames = frames[3:].partition(b":")
        sizes.append(int(length))
        assert json.loads(unpacker.decompress(frames[: sizes[-1]]))["id"] == number
        frames = frames[sizes[-1] :]
    assert frames == b"" and max(sizes[1:]) < sizes[0]
