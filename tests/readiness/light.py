"""Facts gathered from a container that truly has a fault, and what is judged of them.

Every check needs a case here that makes it fail (`fault`, or `unclear` where the truth cannot be had) and the mended one
(`mended`); ``test_table`` sees to it that none lacks one.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from eagle3.core.presets import resolve
from eagle3.core.readiness.judge import judge
from eagle3.core.readiness.report import Check
from eagle3.core.readiness.wants import wants, with_pythons
from eagle3.core.spec import RunSpec
from eagle3.runner.facts import gather

ROOT = Path(__file__).resolve().parents[2]
SMOL = resolve("smoke", "smollm2-135m", "cpu")
ON_GPUS = SMOL.model_copy(update={"device": "cuda"})


def asked(
    spec: RunSpec | None = None, workspace: str = "/nowhere/eagle3", taken: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """What a console would ask the container for, with this interpreter as the worker's."""
    # A login shell that does nothing: what this machine's own start-up files do is not the subject, and takes its time.
    # And much patience: a busy machine is not the subject either.
    return {**with_pythons(wants(spec, workspace, taken=taken), sys.executable), "shell": "/bin/true", "patience": 10.0, **more}


def gathered(*sections: str, root: Path = Path("/"), **wanted: Any) -> dict[str, Any]:
    """The facts of ``sections``, from this machine; ``root`` holds another proc and sys."""
    return gather(wanted.pop("wants", None) or asked(**wanted), sections, root=root)


def judged(id: str, facts: Mapping[str, Any], spec: RunSpec | None = None, **more: Any) -> list[Check]:
    """The findings of one check. Only the sections that ``facts`` has were asked for."""
    names = {name for name, value in facts.items() if isinstance(value, dict)}
    report = judge(facts, spec, host="container", deep=False, asked=names, **more)
    return [check for check in report.checks if check.kind == id]


def fault(id: str, facts: Mapping[str, Any], words: str, spec: RunSpec | None = None, *, status: str = "", **more: Any) -> Check:
    """The finding of check ``id`` that says ``words``, which must be a warn or a fail (or just ``status``) and say why it
    matters and what to do."""
    found = judged(id, facts, spec, **more)
    told = [c for c in found if words in c.evidence]
    assert told, f"{id} says {[(c.status, c.evidence) for c in found]}, not {words!r}"
    assert told[0].status in ([status] if status else ["warn", "fail"]), (told[0].status, told[0].evidence)
    assert told[0].why and told[0].remedy
    return told[0]


def unclear(id: str, facts: Mapping[str, Any], words: str, spec: RunSpec | None = None, **more: Any) -> Check:
    """As `fault` where the truth cannot be had: the finding must be unknown."""
    return fault(id, facts, words, spec, status="unknown", **more)


def mended(id: str, facts: Mapping[str, Any], spec: RunSpec | None = None, **more: Any) -> list[Check]:
    """The findings of check ``id``, which must all be ok, and be there."""
    found = judged(id, facts, spec, **more)
    assert found and {c.status for c in found} == {"ok"}, [(c.id, c.status, c.evidence) for c in found]
    return found


def changed(facts: Mapping[str, Any], where: str, value: Any) -> dict[str, Any]:
    """A copy of ``facts`` with one fact changed, named by its path ("host.load")."""
    result: dict[str, Any] = copy.deepcopy(dict(facts))
    *parents, last = where.split(".")
    place: Any = result
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return result


def in_process(sections: Iterable[str], prepare: str = "", *, env: Mapping[str, str] | None = None, before: Iterable[str] = (),
               **wanted: Any) -> dict[str, Any]:  # fmt: skip
    """Facts gathered in a process of its own, after the Python lines ``prepare``; ``before`` is a command that it runs under."""
    script = (
        f"import json, sys\n{prepare}\nfrom eagle3.runner.facts import gather\n"
        "wants, sections = json.loads(sys.argv[1])\nprint('@@' + json.dumps(gather(wants, sections)))"
    )
    arguments = json.dumps([wanted.pop("wants", None) or asked(**wanted), list(sections)])
    done = subprocess.run(
        [*before, sys.executable, "-S", "-c", script, arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        timeout=60,
        check=False,
    )
    line = next((line for line in done.stdout.decode().splitlines() if line.startswith("@@")), None)
    assert line is not None, done.stderr.decode()
    found: dict[str, Any] = json.loads(line[2:])
    return found


def with_mounts(sections: Iterable[str], mounts: Iterable[str], **wanted: Any) -> dict[str, Any]:
    """Facts gathered in a mount namespace of its own, after the shell lines ``mounts``. Skips, which CI counts as a failure,
    where this user may not mount."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    script = " && ".join([*mounts, "true"])
    if subprocess.run([*unshare, "sh", "-c", script], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a file system, so the fault cannot be made")
    return in_process(sections, before=[*unshare, "sh", "-c", f'{script} && exec "$@"', "sh"], **wanted)


def tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """``root`` with these files in it: the lowest edge at which a machine can be another one."""
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root
