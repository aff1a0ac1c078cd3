"""Checks of the machine: its clock, processors, memory and limits, the login, and who else is there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eagle3.core.readiness.checks.words import GIB, bytes_label, first_few
from eagle3.core.readiness.registry import Context, Facts, Finding, check
from eagle3.core.readiness.statuses import Status
from eagle3.core.shape import loader_bytes
from eagle3.core.wording import duration_label

CLOCK_WARN_S, CLOCK_FAIL_S = 60.0, 3600.0
OLDEST_GLIBC = (2, 28)
LOW_MEMORY_BYTES, LEAST_MEMORY_BYTES = 6 * GIB, 3 * GIB
"""A pilot on a CPU holds about 4 GiB at its widest (a server and its cache); a worker alone takes nearly 3."""
SHM_BYTES, SHM_LEAST_BYTES = 8 * GIB, 1 * GIB
OPEN_FILES, OPEN_FILES_LEAST = 4096, 512
PROCESSES = 4096
SLOW_SHELL_S = 2.0
MANY_ZOMBIES = 50
MEND_FIRST = "Mend that interpreter first, then ask again."


@check(
    "host.clock", title="Clock", needs=("host",), proof="fake: the clock passed in",
    why="Certificates and tokens are refused under a wrong clock, and times in records mislead.",
    catches="containers whose clock lags, so that TLS refuses every certificate (esgf-docker#9)",
)  # fmt: skip
def clock(facts: Facts, context: Context) -> Iterator[Finding]:
    """Offset to our clock. The container answered at some moment of the round trip: half of it is the uncertainty."""
    if context.local_now is None:
        yield Finding("skipped", "asked on the machine itself: there is no other clock to compare with")
        return
    half_s = (context.round_trip_s or 0.0) / 2
    offset_s = float(facts["now"]) - (context.local_now - half_s)
    least_s = max(0.0, abs(offset_s) - half_s)
    evidence = f"{offset_s:+.1f} s against this machine, give or take {half_s:.1f} s"
    if least_s >= CLOCK_WARN_S:
        status: Status = "fail" if least_s >= CLOCK_FAIL_S else "warn"
        yield Finding(status, evidence, "Set the clock there, or start its time service: timedatectl set-ntp true")
    else:
        yield Finding("ok", evidence)


@check(
    "host.libc", title="System", needs=("host",), proof="fake: the name and version that the C library gives",
    why="The published wheels of torch and vLLM are built against glibc 2.28 or newer and do not load on others.",
    catches="vllm._C cannot be imported: GLIBC_2.32 not found (vllm#6562, vllm#39609)",
)  # fmt: skip
def libc(facts: Facts, context: Context) -> Iterator[Finding]:
    host = facts["host"]
    where = f"in a {host['container']} container" if host.get("container") else "no container that it tells of"
    about = f"{host['os']}, kernel {host['kernel']}, {host['arch']}, {host['libc'] or 'C library unknown'}; {where}"
    version = re.fullmatch(r"glibc (\d+)\.(\d+).*", str(host["libc"]))
    remedy = "Use an image with glibc 2.28 or newer (Debian 10, Ubuntu 20.04, RHEL 8 and later)."
    if version is None:
        status: Status = "fail" if "musl" in str(host["libc"]) else "unknown"
        yield Finding(status, about, remedy)
    elif (int(version[1]), int(version[2])) < OLDEST_GLIBC:
        yield Finding("fail", about, remedy)
    else:
        yield Finding("ok", about)


@check(
    "host.cpus", title="Processors", needs=("host",), proof="fake: cgroup files under another root",
    why="Threads beyond what the container may use wait for each other; work of others does the same.",
    catches="two-thread training at 10 s a step where other processes hold both cores (measured here)",
)  # fmt: skip
def cpus(facts: Facts, context: Context) -> Iterator[Finding]:
    host = facts["host"]
    cores, limit, load = int(host["cpus"]), host.get("cpu_limit"), (host.get("load") or [None])[0]
    usable = min(float(cores), limit) if limit else float(cores)
    evidence = f"{cores} cores" + (f", limited to {limit:.1f} of them" if limit else "")
    evidence += "" if load is None else f"; load {load:.1f}"
    if limit and limit < cores:
        yield Finding("warn", evidence, f"Raise the container's limit (docker --cpus), or count on {limit:.1f} cores.")
    elif load is not None and load > usable + 0.5 and context.device != "cuda":
        yield Finding("warn", evidence, "Wait until the other work there is done, or count on a slower run.")
    else:
        yield Finding("ok", evidence)


@check(
    "host.memory", title="Memory", needs=("host",), proof="fake: cgroup files (both versions) and meminfo under another root",
    why="Beyond its limit the container's largest process is killed, usually the server or the trainer.",
    catches="a worker ended by the out-of-memory killer while the model loads (vllm#586)",
)  # fmt: skip
def memory(facts: Facts, context: Context) -> Iterator[Finding]:
    host = facts["host"]
    total, free = host.get("memory_total_bytes"), host.get("memory_available_bytes")
    if total is None or free is None:
        yield Finding("unknown", "the kernel does not say how much memory there is", "Look with `free -h` there.")
        return
    limit, used, kills = host.get("memory_limit_bytes"), host.get("memory_used_bytes"), host.get("oom_kills")
    evidence = f"{bytes_label(free)} available of {bytes_label(total)}"
    if limit is not None:
        # A group's use counts its page cache, which goes when memory is wanted: never more room than the limit, though.
        left = max(0, limit - (used or 0))
        evidence += f"; the container is limited to {bytes_label(limit)} and uses {bytes_label(used)}"
        free = min(free, max(left, limit // 2 if used is None else left))
    evidence += f"; {kills} killed for memory so far" if kills else ""
    if free < LEAST_MEMORY_BYTES:
        yield Finding("fail", evidence, "Free memory there, or raise the container's limit (docker --memory).")
    elif free < LOW_MEMORY_BYTES or kills:
        yield Finding("warn", evidence, "See what holds memory there (ps aux --sort -rss), or raise the container's limit.")
    else:
        yield Finding("ok", evidence)


@check(
    "host.shm", title="Shared memory", needs=("host",), proof="real here: a small tmpfs",
    why="NCCL and the workers of data loaders exchange through /dev/shm; docker gives 64 MiB by default.",
    catches="NCCL: error while creating a shared memory segment, with two GPUs in docker (vllm#1710, vllm#6574, nccl#290)",
)  # fmt: skip
def shm(facts: Facts, context: Context) -> Iterator[Finding]:
    found = facts["host"]["shm"]
    if found.get("error"):
        yield Finding("warn", found["error"], "Mount a tmpfs at /dev/shm (docker --ipc=host, or --shm-size=16g).")
        return
    free = int(found["free_bytes"])
    evidence = f"{bytes_label(free)} free of {bytes_label(found['total_bytes'])} in {found['path']}"
    packs = loader_bytes(context.spec) if context.spec is not None else 0
    size = max(16, -(-(packs + SHM_LEAST_BYTES) // GIB))
    remedy = f"Start the container with --ipc=host or --shm-size={size}g, or delete what was left in /dev/shm."
    if context.device == "cuda" and free < packs + SHM_LEAST_BYTES:
        waiting = f"; {bytes_label(packs)} of packs wait there while the training computes" if packs >= SHM_LEAST_BYTES else ""
        yield Finding("fail", evidence + waiting, remedy)
    elif free < (SHM_BYTES if context.device == "cuda" else SHM_LEAST_BYTES // 16):
        yield Finding("warn", evidence, remedy)
    else:
        yield Finding("ok", evidence)


@check(
    "host.limits", title="Limits of a process", needs=("host",), proof="real here: a process with a lowered limit",
    why="A server with many requests in flight opens many files and threads.",
    catches="'Too many open files' under load or with eight GPUs at the limit of 1024 (vllm#7920, pytorch#137695), "
            "too few processes (vllm#878)",
)  # fmt: skip
def limits(facts: Facts, context: Context) -> Iterator[Finding]:
    host = facts["host"]
    files, tasks, locked = (host["limits"][name] for name in ("nofile", "nproc", "memlock"))
    group = host.get("tasks") or {}
    said = [f"open files {_limit(files)}", f"processes {_limit(tasks)}"]
    said.append(f"locked memory {'without limit' if locked is None else bytes_label(locked)}")
    if group.get("limit"):
        said.append(f"{group['used']} of {group['limit']} tasks in the container")
    evidence = ", ".join(said)
    few = [
        what
        for what, value, least in (("-n", files, OPEN_FILES), ("-u", tasks, PROCESSES))
        if value is not None and value < least
    ]
    room = group["limit"] - (group.get("used") or 0) if group.get("limit") else PROCESSES
    if (files is not None and files < OPEN_FILES_LEAST) or room < 64:
        yield Finding("fail", evidence, "Raise it: ulimit -n 65535, docker --ulimit nofile=65535, or --pids-limit=-1.")
    elif few or room < PROCESSES // 4:
        yield Finding("warn", evidence, f"Raise it: ulimit {few[0] if few else '-u'} 65535, or docker --ulimit.")
    else:
        yield Finding("ok", evidence)


@check(
    "host.locale", title="Locale", needs=("python",), proof="real here: an interpreter under LC_ALL=C without its UTF-8 help",
    why="Texts are read and logged in the locale's encoding wherever a package names none.",
    catches="a training that ends with UnicodeEncodeError ('ascii' codec) in a container without a locale (fastprogress#21)",
)  # fmt: skip
def locale(facts: Facts, context: Context) -> Iterator[Finding]:
    worker = facts["python"]["worker"]
    if worker.get("error"):
        yield Finding("unknown", f"the worker's interpreter does not say: {worker['error']}", MEND_FIRST)
        return
    encoding = str(worker["encoding"])
    evidence = f"Python reads and writes text there as {encoding}"
    if encoding.lower().replace("-", "").replace("_", "") == "utf8":
        yield Finding("ok", evidence)
    else:
        yield Finding("warn", evidence, "Set LANG=C.UTF-8 (or PYTHONUTF8=1) for the login and in the image.")


@check(
    "host.shell", title="Login shell", needs=("host",), proof="real here: a .bashrc that prints, and one that does not end",
    why="Every login runs the shell's start-up file: noise breaks scp and the like, slowness is paid at each connect.",
    catches="a .bashrc that starts pyenv and makes each command 382 ms instead of 32 (measured), shells that never answer "
            "(vscode-remote#2509)",
)  # fmt: skip
def shell(facts: Facts, context: Context) -> Iterator[Finding]:
    found = facts["host"]["shell"]
    if found.get("error"):
        yield Finding(
            "warn", found["error"], "See its start-up files (~/.bashrc, ~/.zshrc, ~/.config/fish): nothing may wait there."
        )
        return
    noise = int(found["out_bytes"]) + int(found["err_bytes"])
    evidence = f"{found['path']}: {found['took_s'] * 1000:.0f} ms to do nothing"
    startup = "Put `case $- in *i*) ;; *) return;; esac` first into the start-up file, before what prints or loads."
    if noise:
        sample = " ".join(str(found.get("sample") or "").split())[:80]
        yield Finding("warn", f"{evidence}, and {noise} bytes of its own ({sample!r})", startup)
    elif float(found["took_s"]) > SLOW_SHELL_S:
        yield Finding("warn", evidence, startup)
    else:
        yield Finding("ok", f"{evidence}, quiet")


@check(
    "host.proxy", title="Proxy", needs=("host",), proof="real here: the variables in the environment",
    why="Clients that honour the proxy send requests for 127.0.0.1 to it, and it knows no such server.",
    catches="a server that is up and answers 502 or 503 to its own machine (vllm#1519, OpenLLM#79)",
)  # fmt: skip
def proxy(facts: Facts, context: Context) -> Iterator[Finding]:
    found = {name: value for name, value in facts["host"]["proxy"].items() if name != "no_proxy" and value}
    excepted = str(facts["host"]["proxy"].get("no_proxy") or "")
    if not found:
        yield Finding("ok", "no proxy is set")
        return
    names = {word.strip() for word in excepted.split(",")}
    evidence = f"{first_few(f'{name}={value}' for name, value in found.items())}; no_proxy={excepted or '(not set)'}"
    if names & {"*", "127.0.0.1", "127.0.0.0/8"} and names & {"*", "localhost"}:
        yield Finding("ok", evidence)
    else:
        yield Finding("warn", evidence, "export no_proxy=localhost,127.0.0.1,::1 for the login there.")


@check(
    "host.company", title="Who else is there", needs=("host",),
    proof="real here: a second helper; fake: a utmp file under another root",
    why="Two operators on one machine start runs into each other's GPUs and stop each other's servers.",
    catches="helpers that outlive their connection (vscode-remote#6281), a trainer started beside another one's server "
            "(speculators#886)",
)  # fmt: skip
def company(facts: Facts, context: Context) -> Iterator[Finding]:
    host = facts["host"]
    logins, helpers = host["sessions"], host["helpers"]
    orphans = [h for h in helpers if h["orphan"]]
    said = []
    if logins:
        said.append("logged in: " + first_few(f"{s['user']}{' from ' + s['from'] if s['from'] else ''}" for s in logins))
    watching = [h for h in helpers if not h["orphan"]]
    if watching:
        said.append("watching: " + first_few(f"{h['user']} since {duration_label(h['age_s'])}" for h in watching))
    if orphans:
        pids = first_few(h["pid"] for h in orphans)
        yield Finding(
            "warn", "; ".join([*said, f"{len(orphans)} helpers without a connection (pid {pids})"]),
            f"End them: kill {' '.join(str(h['pid']) for h in orphans[:5])}",
        )  # fmt: skip
    elif said:
        yield Finding("warn", "; ".join(said), "Agree with them on who uses which GPU before a launch.")
    else:
        yield Finding("ok", "nobody else, as far as it tells")


@check(
    "host.stuck", title="Processes that cannot end", needs=("host",), proof="real here: a process in state D, and zombies",
    why="A process that waits in the driver holds its GPU until the machine is restarted; zombies mean that nobody reaps.",
    catches="a lock that waits in the kernel for ever (vscode-remote#7192), processes that no signal ends (vllm#25127), "
            "zombies where the first process does not reap",
)  # fmt: skip
def stuck(facts: Facts, context: Context) -> Iterator[Finding]:
    host = facts["host"]
    held, dead = host["stuck"], host["zombies"]
    if held:
        names = first_few(f"{p['name'][:60]} (pid {p['pid']})" for p in held)
        remedy = "See dmesg for what they wait for; where it is the GPU's driver or a dead disk, only a restart helps."
        yield Finding("warn", f"waiting in the kernel, not to be killed: {names}", remedy)
    if int(dead["count"]) >= MANY_ZOMBIES:
        parents = first_few(f"{count} of {name}" for name, count in dead["parents"].items())
        yield Finding(
            "warn", f"{dead['count']} dead processes that nobody has reaped: {parents}", "Start the container with --init.",
            which="zombies", title="Dead processes",
        )  # fmt: skip
    if not held and int(dead["count"]) < MANY_ZOMBIES:
        yield Finding("ok", f"none; {dead['count']} dead ones not reaped yet" if dead["count"] else "none")


def _limit(value: int | None) -> str:
    return "without limit" if value is None else f"{value:,}"
