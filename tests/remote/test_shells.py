"""Whatever shell greets the login, and however it does so: the helper comes up, or the reason is a sentence."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3.core.spec import RunSpec
from remote import bare
from remote.bundle import bundle
from remote.container import Container
from remote.errors import NoPython
from tests.remote.conftest import Open, Quick
from tests.support.processes import begun
from tests.support.sshd import Sshd

LOUD = (
    r"""printf 'Welcome to \377\376 the box\n{"id": 1, "ok": true}\n\033[2J and half a line'; """
    r"""printf 'mind the \351 gap\n' >&2; sleep 0.3"""
)
"""What the start-up files run: words and control codes on both streams, bytes that are no UTF-8, no last line end, slow."""

SHELLS = {"bash": (".bashrc", "{}\n"), "fish": (".config/fish/config.fish", "{}\n"), "tcsh": (".tcshrc", "{}\n")}
"""Login shell -> the start-up file that it reads before a command, and how a command line stands in it."""


@pytest.fixture(params=SHELLS)
def loud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sshd]:
    """A server whose account has this login shell and a start-up file that talks."""
    name = request.param
    found = shutil.which(name)
    assert found, f"these tests need {name}; `tools/system-packages` brings it"
    banner = tmp_path / "banner"
    banner.write_bytes(b"Authorised use \xff only\n")
    server = Sshd(tmp_path / "sshd", shell=found, more_config=f"Banner {banner}\nPrintMotd yes\n")
    file, line = SHELLS[name]
    (server.home / file).parent.mkdir(parents=True, exist_ok=True)
    (server.home / file).write_text(line.format(f"sh -c {shlex.quote(LOUD)}"))
    yield server.start()
    server.stop()


def greeted(server: Sshd) -> subprocess.CompletedProcess[bytes]:
    """What the login shell says before a command that says nothing."""
    env = {**os.environ, "HOME": str(server.home), "SSH_CLIENT": "x", "SHLVL": "0"}
    return subprocess.run([server.shell, "-c", "true"], env=env, capture_output=True, check=True)


async def test_the_helper_comes_up_behind_a_loud_login_shell(loud: Sshd, quick: Quick, opened: Open, spec: RunSpec) -> None:
    place = "~/it's a place!"
    greeting = greeted(loud)
    assert b"\xff\xfe the box" in greeting.stdout and b"gap" in greeting.stderr, "the start-up file is not read"

    container = await opened(loud.url, settings=quick(loud), workspace=place)
    assert container.uploads == 1
    assert (loud.home / "it's a place!" / "lib" / bundle().version / "runner.pyz").is_file()
    assert (await container.launch(spec, "behind-a-shell"))["already"] is False
    await container.stop("behind-a-shell")
    assert [run.run_id for run in (await container.probe()).runs] == ["behind-a-shell"]
    listed = await container.eagle3("ls", "--json", "--workspace", str(loud.home / "it's a place!"), python=sys.executable)
    assert [run["run_id"] for run in json.loads(listed.out)] == ["behind-a-shell"], listed

    again = await opened(loud.url, settings=quick(loud), workspace=place)
    assert again.uploads == 0


async def test_without_python_any_login_shell_tells_what_there_is(loud: Sshd, quick: Quick) -> None:
    container = Container(loud.url, python="python-not-there", settings=quick(loud))
    with pytest.raises(NoPython) as caught:
        await container.open()
    await container.close()
    assert "There is no python-not-there" in caught.value.text
    assert caught.value.probe.host["memory_total_bytes"] > 0
    assert caught.value.probe.disks
    assert not (loud.home / "eagle3").exists()


POSIX = [["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"], ["ksh"], ["mksh"], ["yash"], ["zsh", "--emulate", "sh"]]


@pytest.fixture(params=[words for words in POSIX if shutil.which(words[0])], ids=" ".join)
def posix_shell(request: pytest.FixtureRequest) -> list[str]:
    """Each POSIX shell of this machine; ``sh`` is on all of them."""
    words: list[str] = request.param
    return words


@pytest.fixture
def vllm_process(tmp_path: Path) -> Iterator[int]:
    """A process whose command line is that of a vLLM server."""
    script = tmp_path / "vllm"
    script.write_text("import sys\nsys.stdin.read()\n")
    command = [sys.executable, str(script), "serve", "some/model", "--port", "8123", "--api-key", "not-for-you"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    yield begun(process).pid
    process.communicate()


SMI = """#!/bin/sh
echo '0, GPU-aaaa, 97871, 1024, 3, 41, 580.65, NVIDIA RTX PRO 6000, Server'
echo '1, GPU-bbbb, 97871, 0, [N/A], 40, 580.65, X'
"""


def ask(shell: list[str], python: str, home: Path, path: str = "") -> bare.Answers:
    env = {"PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"], "HOME": str(home)}
    script = bare.script(python, f"{home}/not/made/yet", "@mark@")
    done = subprocess.run([*shell, "-s"], input=script, env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return bare.Answers.of([line.removeprefix("@mark@") for line in lines if line.startswith("@mark@")])


def test_a_posix_shell_describes_the_machine(posix_shell: list[str], tmp_path: Path, vllm_process: int) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(SMI)
    (tools / "nvidia-smi").chmod(0o755)
    answers = ask(posix_shell, "python-not-there", tmp_path, str(tools))
    assert answers.complete and not bare.usable(answers)
    seen = bare.probe(answers)
    assert seen.host["kernel"] == os.uname().release and seen.host["cpus"] == os.cpu_count()
    assert seen.host["memory_total_bytes"] >= seen.host["memory_available_bytes"] > 0
    disk = shutil.disk_usage(tmp_path)
    assert seen.disks[0].total_bytes == pytest.approx(disk.total, rel=0.01)
    assert [(gpu.name, gpu.memory_total_bytes, gpu.utilization_pct) for gpu in seen.gpu.gpus] == [
        ("NVIDIA RTX PRO 6000, Server", 97871 << 20, 3), ("X", 97871 << 20, None),
    ]  # fmt: skip
    assert [(server.url, server.health) for server in seen.vllm if server.pid == vllm_process] == [
        ("http://127.0.0.1:8123", "unknown")
    ]
    assert "not-for-you" not in seen.model_dump_json()
    error = bare.no_python("box", "python-not-there", answers)
    assert any(sys.version.split()[0] in words for words in error.found) or error.found
    assert not (tmp_path / "not").exists()


def test_a_new_enough_python_is_answered_with_one_line_and_no_search(posix_shell: list[str], tmp_path: Path) -> None:
    answers = ask(posix_shell, sys.executable, tmp_path)
    assert bare.usable(answers)
    assert [key for key, _ in answers.lines] == ["python", "end"]


def test_a_driver_that_does_not_answer_is_unknown_not_absent(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert bare.probe(ask(["sh"], "python-not-there", tmp_path, str(tmp_path))).gpu.status == "unknown"


def old_pythons() -> list[Path]:
    """Real interpreters under 3.8, as far as this machine has some."""
    roots = [Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions", Path("/opt/python")]
    found = [path for root in roots for path in sorted(root.glob("*/bin/python"))]
    return [path for path in found if path.parent.parent.name.startswith(("2.7", "3.6", "3.7"))]


def pretends(folder: Path) -> Path:
    """Stands in for an old Python where there is none: it refuses ``-I`` as 2.7 does and tells its version."""
    path = folder / "python3"
    path.write_text('#!/bin/sh\ncase "$1" in -I) echo "Unknown option: -I" >&2; exit 2;; esac\nprintf 3.6.8\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("python", [None, *old_pythons()], ids=lambda path: path.parent.parent.name if path else "emulated")
async def test_a_python_that_is_too_old_starts_nothing_and_a_newer_one_is_proposed(
    sshd: Sshd, quick: Quick, tmp_path: Path, python: Path | None
) -> None:
    """The helper is in place already, put there by a console that named another Python."""
    chosen = python or pretends(tmp_path)
    container = Container(sshd.url, python=str(chosen), settings=quick(sshd))
    with pytest.raises(NoPython) as caught:
        await container.open()
    await container.close()
    assert f"{chosen} on " in caught.value.text and "is version " in caught.value.text
    assert "needs python3 ≥ 3.8" in caught.value.text
    assert caught.value.remedy.startswith("Use the one at /") and "--python /" in caught.value.remedy
    proposed = caught.value.remedy.rpartition("--python ")[2].rstrip(".")
    assert bare.usable(ask(["sh"], proposed, tmp_path))
