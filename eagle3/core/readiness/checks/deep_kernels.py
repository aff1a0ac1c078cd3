"""Does each device compute, and do they add up together?"""

from __future__ import annotations

from collections.abc import Iterable

from eagle3.core.readiness.registry import Context, Facts, Finding, check


@check(
    "gpu.kernel", title="A kernel runs on each device",
    why="A build of torch without this GPU's architecture, or a sick card, shows at the first kernel: here, not in the run.",
    catches="vllm#24383 SM120 invalid argument; vllm#46721 FP8 on SM120; a CPU build of torch on a GPU machine",
    proof="real here on the processor and for a torch that sees no GPU; SM120 and a sick card: gpu machine",
    needs=("deep.kernels",), deep=True,
)  # fmt: skip
def kernel(facts: Facts, context: Context) -> Iterable[Finding]:
    """One finding a device: its products and attention against the same in float64."""
    for device in facts["deep.kernels"]["devices"]:
        which = device["device"]
        if device.get("skipped"):
            yield Finding("skipped", f"{which} is not free: {device['skipped']}", "Check again when it is.", which=which)
            continue
        if device.get("error"):
            remedy = (
                "Install the torch build that fits this GPU and driver in the worker's environment; see dmesg for Xid messages."
            )
            yield Finding("fail", f"{which}: {device['error']}", remedy, which=which)
            continue
        wrong = [op for op in device["ops"] if not op["ok"]]
        name = device.get("name") or "the processor"
        if wrong:
            text = "; ".join(f"{op['op']} in {op['dtype']}: {op['error']}" for op in wrong)
            built = ", ".join(device.get("architectures") or ()) or device["build"]
            remedy = (
                f"torch {device['torch']} is built for {built}: install a build for capability {device['capability'] or 'cpu'}."
            )
            yield Finding("fail", f"{which} ({name}): {text}", remedy, which=which)
        else:
            done = ", ".join(f"{op['op']} {op['dtype']}" for op in device["ops"])
            yield Finding("ok", f"{name}: {done} right, torch {device['torch']}", which=which)


@check(
    "gpu.allreduce", title="Ranks can talk to each other",
    why="A hang between two GPUs shows at two ranks and not at four, or only at eight: each count to be used is tried.",
    catches="vllm#33041 IOMMU/ACS NCCL hang; rtx6kpro#15 hangs at 2 ranks and passes at 4",
    proof="real here over gloo: two ranks add up, and a rank that never joins; an NCCL hang: gpu machine",
    needs=("deep.allreduce",), deep=True,
)  # fmt: skip
def allreduce(facts: Facts, context: Context) -> Iterable[Finding]:
    """One finding a rank count."""
    for tried in facts["deep.allreduce"]["counts"]:
        ranks, which = tried["ranks"], str(tried["ranks"])
        if tried.get("skipped"):
            held = "; ".join(f"{device}: {owner}" for device, owner in sorted((tried.get("held") or {}).items()))
            yield Finding("skipped", f"{ranks} ranks: {tried['skipped']}" + (f" ({held})" if held else ""), which=which)
        elif tried["ok"]:
            yield Finding("ok", f"{ranks} ranks over {tried['backend']} in {tried['seconds']:.1f} s", which=which)
        else:
            hint = (
                "NCCL_P2P_DISABLE=1 tells whether peer access hangs; look at IOMMU and ACS settings (dmesg, nvidia-smi topo -m)."
            )
            remedy = hint if tried.get("backend") == "nccl" else "See the log of the check."
            yield Finding("fail", f"{ranks} ranks: {_how(tried)}", remedy, which=which)


def _how(tried: Facts) -> str:
    hanging = ", ".join(str(rank) for rank in tried.get("hanging") or ())
    if tried.get("error"):
        return str(tried["error"])
    late = [str(rank) for rank in range(tried["ranks"]) if rank not in (tried.get("started") or ())]
    if late:
        return f"rank {', '.join(late)} did not start within {tried['start_s']:.0f} s"
    came = f"{len(tried.get('joined') or ())} of {tried['ranks']} joined, {len(tried.get('reduced') or ())} had the sum"
    return f"no end within {tried['limit_s']:.0f} s; rank {hanging} hangs ({came})"
