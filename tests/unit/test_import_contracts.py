"""Who may import whom, checked twice: in the sources (import-linter) and in a process that imports the real thing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TORCH = {"torch", "transformers", "vllm", "speculators", "numpy"}
CONSOLE = {"textual", "plotext"}
WIRE = {"asyncssh", "cryptography"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)


def loaded_by(module: str) -> set[str]:
    """The top-level packages in memory after `import module` in a fresh process."""
    done = run("-c", f"import {module}, sys; print('\\n'.join({{name.partition('.')[0] for name in sys.modules}}))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_import_contracts_of_pyproject_are_kept() -> None:
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command(['--no-cache']))"
    done = run("-c", code)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("eagle3.core.presets", TORCH | CONSOLE | WIRE),
        ("eagle3.core.records", TORCH | CONSOLE | WIRE),
        ("eagle3.cli", TORCH | CONSOLE | WIRE),
        ("eagle3.work", TORCH | CONSOLE | WIRE),
        ("remote.container", TORCH | CONSOLE | WIRE),
        ("tui.cli", TORCH | CONSOLE | WIRE),
    ],
)
def test_importing_it_leaves_the_heavy_packages_alone(module: str, never: set[str]) -> None:
    assert loaded_by(module) & never == set()


def test_the_runner_needs_nothing_but_the_standard_library() -> None:
    script = "import sys; sys.path.insert(0, '.'); import eagle3.runner.serve; print(chr(10).join(sys.modules))"
    done = run("-I", "-S", "-c", script)
    assert done.returncode == 0, done.stderr
    strangers = {name.partition(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names - {"__main__", "eagle3"}
    assert strangers == set()
