"""Checks of the GPUs: the driver and what torch was built for, each card's health, who holds memory, how they are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from eagle3.core.readiness.checks.words import GIB, all_of, bytes_label, env_python, first_few
from eagle3.core.readiness.registry import Context, Facts, Finding, check
from eagle3.core.readiness.report import Action
from eagle3.core.readiness.statuses import Status
from eagle3.core.readiness.wants import gpus_of, utilization_of
from eagle3.core.spec import STAGES

FAKE_NVML = "fake: a compiled libnvidia-ml.so.1 under the real nvidia-ml-py"
LITTLE_BYTES = GIB
"""A card's driver and display hold some hundred MiB without anybody computing on it."""
LOW_POWER = 0.9

Card = Mapping[str, Any]


def cards_of(facts: Facts) -> Sequence[Card]:
    """The cards, none where the driver did not answer well: then ``gpu.driver`` says so, once."""
    return facts["gpu"]["gpus"] if facts["gpu"]["status"] == "ok" else []


def per_card(cards: Sequence[Card], judged: Callable[[Card], tuple[Status, str, str]]) -> Iterator[Finding]:
    """One finding for each card that is not well, and one for all the others. ``judged``: status, evidence, remedy."""
    well: dict[str, list[int]] = {}
    for card in cards:
        status, evidence, remedy = judged(card)
        if status == "ok":
            well.setdefault(evidence, []).append(card["index"])
        else:
            yield Finding(status, evidence, remedy, which=str(card["index"]), title=f"GPU {card['index']}")
    if well:
        total = sum(map(len, well.values()))
        some = len(well) > 1 or total < len(cards)
        parts = [f"{evidence}{f' (GPU {first_few(which, 8)})' if some else ''}" for evidence, which in well.items()]
        yield Finding("ok", first_few(parts, 2) + ("" if some or total == 1 else f", on all {total}"))


@check(
    "gpu.driver", title="GPU driver", needs=("gpu",), proof=f"real here: an nvidia-smi that hangs; {FAKE_NVML}",
    why="Without an answer from the driver nothing is known of the cards, and CUDA will most likely not start either.",
    catches="NVML lost after a daemon reload (nvidia-docker#1730), a wedged driver that no longer answers (vllm#25127)",
)  # fmt: skip
def driver(facts: Facts, context: Context) -> Iterator[Finding]:
    report = facts["gpu"]
    if report["status"] == "ok":
        cuda = f", CUDA {report['cuda_driver']}" if report.get("cuda_driver") else ""
        names = first_few(sorted({str(card.get("name") or "GPU") for card in report["gpus"]}))
        yield Finding("ok", f"{len(report['gpus'])} × {names}; driver {report['driver']}{cuda}, told by {report['source']}")
    elif report["status"] == "none" and context.device != "cuda":
        yield Finding(
            "skipped", f"no GPU ({report['text']}); {'this run needs none' if context.device else 'none was asked for'}"
        )
    elif report["status"] == "none":
        remedy = "Start the container with its GPUs (docker --gpus all), or choose a machine of kind cpu."
        yield Finding("fail", f"no GPU: {report['text']}", remedy)
    else:
        yield Finding(
            "unknown",
            str(report["text"]),
            "Run nvidia-smi there and see dmesg for 'NVRM: Xid'; restart the container, then the host.",
        )


@check(
    "gpu.count", title="GPUs of the machine", needs=("gpu",), proof=FAKE_NVML,
    why="A server that spreads over more cards than there are does not start; a card off the bus is missed by everybody.",
    catches="fewer cards than the server is spread over (vllm#5790): one off the bus, or CUDA_VISIBLE_DEVICES of another job",
)  # fmt: skip
def count(facts: Facts, context: Context) -> Iterator[Finding]:
    cards = cards_of(facts)
    if not cards:
        return
    lost = [card["index"] for card in cards if card.get("lost") or not card.get("uuid")]
    visible = facts["gpu"].get("visible")
    usable = len(cards) - len(lost)
    evidence = f"{len(cards)} there" + (f", {len(lost)} of them lost (GPU {first_few(lost)})" if lost else "")
    if visible is not None:
        usable = min(usable, len([part for part in str(visible).split(",") if part.strip()]))
        evidence += f"; CUDA_VISIBLE_DEVICES={visible!r} shows {usable}"
    wanted = gpus_of(context.spec) if context.spec is not None else 0
    if wanted:
        evidence += f"; the run uses {wanted}"
    strange = _other_hardware(cards, context)
    if usable < wanted:
        remedy = (
            "Unset CUDA_VISIBLE_DEVICES there." if visible is not None else "Give the container more GPUs, or lower their number."
        )
        yield Finding("fail", evidence, remedy)
    elif strange:
        remedy = "Choose the machine's own preset, or write one (presets/machines)."
        yield Finding("warn", f"{evidence}; {strange}", remedy)
    elif lost:
        yield Finding("warn", evidence, "See dmesg for 'fallen off the bus'; reset the card or restart the host.")
    else:
        yield Finding("ok", evidence)


@check(
    "gpu.cuda", title="CUDA of the driver and of torch", needs=("gpu", "python"), proof=f"{FAKE_NVML}; torch's own version.py",
    why="A driver runs what was built for its CUDA version or older ones; a CPU build of torch sees no GPU at all.",
    catches="'The NVIDIA driver on your system is too old' (pytorch#25581), a +cpu torch in a GPU container",
)  # fmt: skip
def cuda(facts: Facts, context: Context) -> Iterator[Finding]:
    if not cards_of(facts) or context.device == "cpu":
        return
    runs = facts["gpu"].get("cuda_driver")
    for role in all_of(facts):
        torch = (env_python(facts, role).get("packages") or {}).get("torch") or {}
        title = f"CUDA of the driver and of the {role}'s torch"
        if not torch.get("version"):
            continue  # python.packages tells of a torch that is not there
        built = str(torch.get("cuda") or "")
        evidence = f"the driver runs CUDA {runs or 'unknown'}, torch {torch['version']} is built for {built or 'no GPU'}"
        remedy = "Install torch for a CUDA version that the driver knows, or have the driver updated."
        if not built:
            status: Status = "unknown" if torch.get("hip") else "fail" if context.device == "cuda" else "warn"
            yield Finding(status, evidence, "Install a CUDA build of torch into that environment.", which=role, title=title)
        elif not runs:
            yield Finding(
                "unknown", evidence, "Run nvidia-smi there; its head says which CUDA version the driver runs.", role, title
            )
        elif _number(runs)[0] < _number(built)[0]:
            yield Finding("fail", evidence, remedy, role, title)
        elif _number(runs) < _number(built):
            yield Finding(
                "warn", f"{evidence}: same major version, but kernels compiled at run time may fail", remedy, role, title
            )
        else:
            yield Finding("ok", evidence, which=role, title=title)


@check(
    "gpu.memory", title="GPU memory", needs=("gpu",), proof=FAKE_NVML,
    why="vLLM refuses to start where less is free than the share it was told to take.",
    catches="trainer and server on one GPU (speculators#886), memory still held after a SIGKILL (vllm#55510)",
)  # fmt: skip
def memory(facts: Facts, context: Context) -> Iterator[Finding]:
    spec = context.spec
    asked = utilization_of(spec) if spec is not None and context.device == "cuda" else None
    used_by_run = {gpu for stage in STAGES for gpu in spec.devices.of(stage)} if spec is not None else set()
    # What holds a card may have agreed to yield, or to share it: the launch looks at that itself.
    excused = spec is not None and (spec.share_device or any(service.consent for service in spec.services))

    def judged(card: Card) -> tuple[Status, str, str]:
        wanted = asked if not used_by_run or card["index"] in used_by_run else None
        used, total = card.get("memory_used_bytes"), card.get("memory_total_bytes")
        if used is None or not total:
            return "unknown", f"{card.get('name') or 'it'} does not say how much memory it uses", "Run nvidia-smi there."
        evidence = f"{bytes_label(total - used)} free of {bytes_label(total)}"
        if wanted is not None and (total - used) / total < wanted:
            held = f"{evidence}, and the server takes {wanted:.0%} (gpu-memory-utilization)"
            if excused:
                return "warn", held, "See that what yields to the run, or shares the card with it, leaves the server its share."
            return "fail", held, "Free the card (see who holds it), or lower --gpu-memory-utilization in server.args."
        if used > LITTLE_BYTES and wanted is None:
            return "warn", evidence, "See who holds it before a run is started there."
        return "ok", evidence, ""

    yield from per_card(cards_of(facts), judged)


@check(
    "gpu.holders", title="Who holds GPU memory", needs=("gpu",), proof=f"{FAKE_NVML}, real processes",
    why="Memory held by a process that no live run owns is lost to every run until that process ends.",
    catches="orphans that hold the GPUs after a SIGKILL (vllm#55510), torchrun workers that survive a cancel (skypilot#3742)",
)  # fmt: skip
def holders(facts: Facts, context: Context) -> Iterator[Finding]:
    cards = cards_of(facts)
    if not cards:
        return
    owned = 0
    for pid, held in _by_process(cards).items():
        process, size, where = held["process"], held["bytes"], f"on GPU {first_few(held['cards'], 8)}"
        amount = bytes_label(size) if size else "memory"
        title = f"Process {pid}"
        if process.get("owned"):
            owned += 1
        elif not process.get("seen"):
            yield Finding(
                "warn", f"PID {pid} holds {amount} {where}; it is not in this container", "Find its container on the host.",
                str(pid), title,
            )  # fmt: skip
        elif process.get("run_id"):
            yield Finding(
                "fail" if context.device == "cuda" else "warn",
                f"PID {pid} holds {amount} {where} and no run owns it: its run {process['run_id']} is {process['run_state']} "
                f"({process['name'][:60]})",
                "End it: it is left over from that run.", str(pid), title,
                action=Action(
                    verb="free_gpu", args={"pids": [pid]},
                    label=f"end process {pid}", confirm=f"End process {pid}, left over from run {process['run_id']}?",
                    command=f"kill {pid}",
                ),
            )  # fmt: skip
        else:
            yield Finding(
                "warn",
                f"PID {pid} of {process['user'] or '?'} holds {amount} {where} and no run owns it: {process['name'][:80]}",
                "Ask whose it is; stop it before a run uses that card.", str(pid), title,
            )  # fmt: skip
    hidden = [card for card in cards if (card.get("memory_used_bytes") or 0) > 2 * GIB and not card.get("processes")]
    for card in hidden:
        yield Finding(
            "warn", f"{bytes_label(card['memory_used_bytes'])} are in use and no process tells of it",
            "A process of another container, or of none any more: see `fuser -v /dev/nvidia*` on the host, else reset the card.",
            f"gpu{card['index']}", f"GPU {card['index']}",
        )  # fmt: skip
    if not hidden and owned == len(_by_process(cards)):
        yield Finding("ok", f"{owned} processes, all of live runs" if owned else "nobody")


@check(
    "gpu.ecc", title="GPU memory errors", needs=("gpu",), proof=FAKE_NVML,
    why="An uncorrectable memory error ends every process on the card, and rows that wait for remapping will bring more.",
    catches="'CUDA error: uncorrectable ECC error encountered' hours into a run (vllm#5222, trl#4149)",
)  # fmt: skip
def ecc(facts: Facts, context: Context) -> Iterator[Finding]:
    def judged(card: Card) -> tuple[Status, str, str]:
        errors, pending, failed = card.get("ecc_uncorrected"), card.get("remap_pending"), card.get("remap_failed")
        if failed:
            return "fail", "a row of its memory could not be remapped", "Have the card replaced; leave it out until then."
        if errors:
            return (
                "fail",
                f"{errors} uncorrected errors since the driver's last reset",
                "Reset the card (nvidia-smi -r) or leave it out.",
            )
        if pending:
            return (
                "warn",
                "rows of its memory wait for a reset to be remapped",
                "Reset the card (nvidia-smi -r) before a long run.",
            )
        if errors is None:
            off = "its error correction is off" if card.get("ecc_on") is False else "the driver does not tell of errors"
            return "unknown", off, "Ask `nvidia-smi -q -d ECC` on the host."
        return "ok", "no uncorrected error", ""

    yield from per_card(cards_of(facts), judged)


@check(
    "gpu.throttle", title="GPU clocks", needs=("gpu",), proof=FAKE_NVML,
    why="A card that is held back by heat or power runs at a fraction of its speed and makes the others wait.",
    catches="cards halved by a power brake or heat while everything seems well (reverse-engineering-dell-idrac#3)",
)  # fmt: skip
def throttle(facts: Facts, context: Context) -> Iterator[Finding]:
    def judged(card: Card) -> tuple[Status, str, str]:
        reasons, heat = card.get("throttle"), card.get("temperature_c")
        warm = f", {heat} °C" if heat is not None else ""
        if reasons is None:
            return "unknown", f"the driver does not say what holds its clocks{warm}", "Ask `nvidia-smi -q -d PERFORMANCE` there."
        if reasons:
            return "warn", f"held back by {first_few(reasons)}{warm}", "See to its cooling and power, or leave it out of the run."
        return "ok", "not held back", ""

    yield from per_card(cards_of(facts), judged)


@check(
    "gpu.power", title="GPU power limit", needs=("gpu",), proof=FAKE_NVML,
    why="A limit below the card's usual one slows it down, mostly unnoticed since a restart sets or forgets it.",
    catches="one card of four capped to half its power (reverse-engineering-dell-idrac#3)",
)  # fmt: skip
def power(facts: Facts, context: Context) -> Iterator[Finding]:
    def judged(card: Card) -> tuple[Status, str, str]:
        limit, usual, draw = card.get("power_limit_w"), card.get("power_default_w"), card.get("power_w")
        if limit is None or not usual:
            return "unknown", "the driver does not tell its power limit", "Ask `nvidia-smi -q -d POWER` there."
        evidence = f"limit {limit:.0f} W of {usual:.0f} W" + (f", draws {draw:.0f} W" if draw is not None else "")
        if limit < LOW_POWER * usual:
            return "warn", evidence, f"nvidia-smi -i {card['index']} -pl {usual:.0f} sets the usual limit, where that is wanted."
        return "ok", f"limit {limit:.0f} W of {usual:.0f} W", ""

    yield from per_card(cards_of(facts), judged)


@check(
    "gpu.mode", title="GPU mode", needs=("gpu",), proof=FAKE_NVML,
    why="A server with several processes needs them all on the card; a card cut into slices is not the card of the preset.",
    catches="'all CUDA-capable devices are busy' for every second process under exclusive mode (pytorch-image-models#1033)",
)  # fmt: skip
def mode(facts: Facts, context: Context) -> Iterator[Finding]:
    def judged(card: Card) -> tuple[Status, str, str]:
        found = card.get("compute_mode")
        if found is None:
            return "unknown", "the driver does not tell its mode", "Ask `nvidia-smi -q -d COMPUTE` there."
        if found == "prohibited":
            return "fail", "computing on it is prohibited", f"nvidia-smi -i {card['index']} -c DEFAULT"
        if found != "default":
            return "warn", f"mode {found}: one process at a time", f"nvidia-smi -i {card['index']} -c DEFAULT"
        if card.get("mig"):
            return "warn", "cut into slices (MIG)", f"nvidia-smi -i {card['index']} -mig 0, where nobody uses the slices."
        return "ok", "default, whole", ""

    yield from per_card(cards_of(facts), judged)


@check(
    "gpu.topology", title="Between the GPUs", needs=("gpu",), proof=FAKE_NVML,
    why="Where cards cannot read each other's memory, NCCL goes through the host: slower, and known to hang.",
    catches="NCCL that hangs for want of peer access behind an IOMMU (vllm#33041), or at two ranks only (rtx6kpro#15)",
)  # fmt: skip
def topology(facts: Facts, context: Context) -> Iterator[Finding]:
    cards, links = cards_of(facts), facts["gpu"].get("links") or []
    if len(cards) < 2:
        return
    if not links or any(link["peer"] is None for link in links):
        yield Finding("unknown", "the driver does not tell how they are joined", "Ask `nvidia-smi topo -m` and `-p2p r` there.")
        return
    paths: dict[str, int] = {}
    for link in links:
        paths[link["path"] or "unknown path"] = paths.get(link["path"] or "unknown path", 0) + 1
    evidence = "; ".join(f"{count} pairs over {path}" for path, count in sorted(paths.items()))
    blind = [link for link in links if link["peer"] != "ok"]
    if blind:
        first = blind[0]
        told = f"{evidence}; {len(blind)} pairs without peer access (GPU {first['a']} and {first['b']}: {first['peer']})"
        remedy = "Prove an all-reduce with --deep; where it hangs, set NCCL_P2P_DISABLE=1 or switch the IOMMU's ACS off."
        yield Finding("warn", told, remedy)
    else:
        yield Finding("ok", f"{evidence}; all may read each other's memory")


def _other_hardware(cards: Sequence[Card], context: Context) -> str:
    """In what the cards are not those of the machine preset; empty where they are, or where no preset names any."""
    hardware = context.spec.hardware if context.spec is not None else None
    if hardware is None or not hardware.gpus:
        return ""
    names = sorted({str(card.get("name") or "") for card in cards})
    if hardware.gpu_name and not all(hardware.gpu_name.lower() in name.lower() for name in names):
        return f"the preset {context.spec.machine if context.spec else ''} is of {hardware.gpu_name}, here are {first_few(names)}"
    least = min((card["memory_total_bytes"] for card in cards if card.get("memory_total_bytes")), default=0)
    if least and least < 0.9 * hardware.gpu_memory_bytes:
        return f"the preset counts on {bytes_label(hardware.gpu_memory_bytes)} a card, the smallest here has {bytes_label(least)}"
    return ""


def _by_process(cards: Sequence[Card]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for card in cards:
        for process in card.get("processes") or []:
            entry = found.setdefault(int(process["pid"]), {"process": process, "bytes": 0, "cards": []})
            entry["bytes"] += int(process.get("used_bytes") or 0)
            entry["cards"].append(card["index"])
    return found


def _number(version: str) -> tuple[int, int]:
    major, _, minor = str(version).partition(".")
    return int(major), int(minor.split(".")[0] or 0)
