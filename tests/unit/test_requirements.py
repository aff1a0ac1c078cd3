"""The pinned files: exact, whole, at one with each other and with pyproject.toml, and free of what breaks an install."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))


def pins(path: Path) -> dict[str, Requirement]:
    """What one file pins, by canonical name. Raises InvalidRequirement for an option such as an index."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    found: dict[str, Requirement] = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}
    assert len(found) == len(lines), f"{path.name} names something twice"
    return found


def version(requirement: Requirement) -> Version:
    """The one version that a pin allows."""
    [specifier] = requirement.specifier
    assert specifier.operator == "==", requirement
    return Version(specifier.version)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_holds_exact_public_versions_only_and_says_why(path: Path) -> None:
    assert path.read_text().startswith("# ")
    for requirement in pins(path).values():
        assert requirement.url is None
        assert version(requirement).local is None, f"{requirement}: a local version is on no common index"


def test_the_same_package_has_the_same_version_in_every_file() -> None:
    seen: dict[str, tuple[Version, str]] = {}
    for path in FILES:
        for name, requirement in pins(path).items():
            known, where = seen.setdefault(name, (version(requirement), path.name))
            assert version(requirement) == known, f"{name} in {path.name} and {where}"


def test_what_breaks_or_bloats_an_install_is_left_out() -> None:
    for path in FILES:
        names = set(pins(path))
        assert not names & {"torchvision", "torchaudio", "torchcodec", "triton"}, path.name
        assert not [name for name in names if name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"], path.name


@pytest.mark.parametrize(
    ("extra", "files"),
    [("console", ["console.txt"]), ("container", ["container.txt", "torch.txt"])],
)
def test_the_pins_of_a_side_satisfy_what_pyproject_asks_for(extra: str, files: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = {name: version(pin) for file in files for name, pin in pins(ROOT / "requirements" / file).items()}
    asked = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"][extra],
    ]
    for wanted in map(Requirement, asked):
        name = canonicalize_name(wanted.name)
        assert name in pinned, f"{extra}: {wanted} is pinned nowhere"
        assert pinned[name] in wanted.specifier, f"{extra}: {wanted} against {pinned[name]}"
