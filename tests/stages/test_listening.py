"""The process of a server that is there already: the one that listens, by the kernel's own tables. Real processes and sockets."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from eagle3.engines.asking_given import process_of
from eagle3.engines.listening import Listener, is_here, listener, sockets
from tests.support.ports import held_port

LISTENS = """
import signal, socket, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
with socket.socket() as one:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("0.0.0.0", port)); one.listen(); print("ready", flush=True); signal.pause()
"""
FORKS = LISTENS.replace("print(", "import os; os.fork() and os.fork(); os.getpid() == os.getpgrp() and print(")
ASKS = "import signal; print('ready', flush=True); signal.pause()"
STARTS = "import signal, subprocess, sys; child = subprocess.Popen(sys.argv[1:]); child.wait()"

Start = Callable[..., int]


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as found:
        yield found


@pytest.fixture
def start(port: int) -> Iterator[Start]:
    """Starts a process whose command line is a vLLM's on the port; gives its pid once it is what ``script`` makes it."""
    with ExitStack() as ending:

        def begun(script: str, *before: str) -> int:
            words = [*before, sys.executable, "-S", "-c", script, "vllm", "serve", "--port", str(port)]
            process = ending.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True))
            ending.callback(lambda: os.killpg(process.pid, 9))
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            return process.pid

        yield begun


def found(port: int) -> Listener:
    return process_of(f"http://127.0.0.1:{port}")


def test_of_two_that_were_told_the_port_the_one_that_listens_is_taken(port: int, start: Start) -> None:
    start(ASKS)
    serves = start(LISTENS)
    start(ASKS)
    one = found(port)
    assert (one.process and one.process.pid, one.assumed, one.rivals) == (serves, "", ())


def test_one_that_listens_by_a_child_is_found_and_not_what_merely_started_it(port: int, start: Start) -> None:
    outer = start(LISTENS, sys.executable, "-S", "-c", STARTS)
    one = found(port)
    assert one.process is not None and one.process.pid != outer and psutil.Process(outer) in one.process.parents()
    # Where the child's command line says nothing, as that of vLLM's own processes, its parent stands for it.
    alone = listener(port, [psutil.Process(outer)], loopback=True)
    assert alone.process is not None and alone.process.pid == outer


def test_a_server_whose_children_have_its_socket_and_its_command_line_is_one(port: int, start: Start) -> None:
    serves = start(FORKS)
    one = found(port)
    assert (one.process and one.process.pid, one.rivals) == (serves, ()) and len(psutil.Process(serves).children()) == 2


def test_where_none_of_them_listens_none_is_taken_and_it_is_said(port: int, start: Start) -> None:
    pid = start(ASKS)
    one = found(port)
    assert one.process is None and one.assumed == f"what was told that port (pid {pid}) does not listen on it"


def test_two_that_share_a_port_are_rivals_whose_requests_nobody_can_tell_apart(port: int, start: Start) -> None:
    pids = {start(LISTENS), start(LISTENS)}
    assert set(found(port).rivals) == pids and found(port).process is None


def test_a_process_whose_sockets_this_user_may_not_read_is_taken_at_its_word_and_that_is_said(port: int, start: Start) -> None:
    # As root everything can be read, so the look is another user's; as another user, root's first process is looked at.
    pid, (reading, writing) = start(LISTENS) if os.geteuid() == 0 else 1, multiprocessing.Pipe(duplex=False)

    listener(port, [psutil.Process(pid)], loopback=True)  # so that the other user need not read our Python's files

    def look() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        one = listener(port, [psutil.Process(pid)], loopback=True)
        writing.send((one.process.pid if one.process else 0, one.assumed))

    child = multiprocessing.get_context("fork").Process(target=look)
    child.start()
    assert reading.poll(30)
    taken, assumed = reading.recv()
    child.join(30)
    assert taken == pid and assumed.startswith(f"the open sockets of pid {pid} cannot be read, it is another user's (root)")
    assert assumed.endswith("so its command line is taken at its word")


def test_one_in_a_network_of_its_own_is_taken_at_its_word_where_it_listens_there(port: int, start: Start) -> None:
    alone = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    start(ASKS, *alone)
    assert found(port).process is None, "it listens nowhere"
    pid = start(LISTENS, *alone)
    one = found(port)
    assert one.process is not None and one.process.pid == pid and "in another network namespace" in one.assumed


@pytest.mark.parametrize(
    ("table", "address", "reached"),
    [
        ("tcp", "0100007F", True), ("tcp", "00000000", True), ("tcp", "0500000A", False),
        ("tcp6", "00000000000000000000000000000000", True), ("tcp6", "00000000000000000000000001000000", True),
        ("tcp6", "0000000000000000FFFF00000100007F", True), ("tcp6", "B80D0120000000000000000001000000", False),
    ],
)  # fmt: skip
def test_only_what_a_client_on_the_loopback_reaches_counts(tmp_path: Path, table: str, address: str, reached: bool) -> None:
    line = f"   0: {address}:1F90 00000000:0000 {{}} 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100 0 0 10 0"
    (tmp_path / table).write_text(f"  sl  local_address …\n{line.format('0A')}\n{line.format('01').replace('4242', '7')}\n")
    assert sockets(tmp_path, 8080, loopback=True) == ({4242} if reached else set())
    assert sockets(tmp_path, 8080) == {4242} and sockets(tmp_path, 8081) == set()


def test_this_machine_is_known_by_its_loopback_and_its_name() -> None:
    assert all(is_here(host, ["box"]) for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1", "box"))
    assert not any(is_here(host, ["box"]) for host in ("10.0.0.5", "elsewhere", "", None))
