"""What of a spec cannot work on this very machine: paths that are not here, prompts that cannot be used.

For the commands that run in the container; a console asks about another machine, of which it knows the spec alone
(`core.problems`).
"""

from __future__ import annotations

from eagle3.core.spec import RunSpec
from eagle3.engines.model_dir import absent
from eagle3.stages.context import StageError
from eagle3.stages.prepare import look_at_prompts
from eagle3.targets import model_dir


def problems_here(spec: RunSpec) -> list[str]:
    """One sentence each, in the words in which the run would fail; empty where all is here. Reads the prompts file whole."""
    found = [told for told in (_target(spec),) if told]
    try:
        look_at_prompts(spec)
    except StageError as error:
        found.append(str(error))
    return found


def _target(spec: RunSpec) -> str:
    folder = model_dir(spec.target.model)
    fetched = spec.target.source and "{cache}" in spec.target.model
    if fetched or folder.exists():
        return ""
    return absent(folder)
