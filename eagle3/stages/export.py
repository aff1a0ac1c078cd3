"""Stage export: the trained draft as a folder that vLLM serves as it is, with a model card.

The folder is put together beside its place and renamed, so ``export/`` is whole or not there at all.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3 import draft_folder
from eagle3.core import model_card
from eagle3.core.spec import RunSpec
from eagle3.stages.context import StageContext
from eagle3.versions import versions_here

STAGE = "export"
OUTPUTS = ("export/config.json", "export/*.safetensors", "export/README.md")

NOT_SAID = {
    "workspace", "worker_python", "server_python", "group", "grace_s", "disk_floor_bytes", "forked_from", "hardware", "devices",
}  # fmt: skip
"""Fields that the model card does not tell."""

_CARRIED = ("*.safetensors", "*.safetensors.index.json")


def spec_part(spec: RunSpec) -> dict[str, Any]:
    """What makes the stage run again when it changes: all that the model card says. A field at its default is left out: older
    runs lack the newer ones, and a finished run's card is not written again for them. A default that changes shows all the
    same, since a run's spec holds every value."""
    return {"spec": spec.model_dump(exclude=NOT_SAID, exclude_defaults=True)}


def run(ctx: StageContext) -> dict[str, Any]:
    """Write ``export/``. Raises StageError where the draft is not whole or the disk too full."""
    draft = ctx.run_dir / "train" / "draft"
    facts = draft_folder.check(draft)
    ctx.check_disk(facts.bytes)
    ctx.journal.progress(STAGE, 0, 1, "folder")
    place, building = ctx.run_dir / "export", ctx.run_dir / ".export.building"
    shutil.rmtree(building, ignore_errors=True)
    try:
        _build(ctx, draft, building, facts)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    _put_in_place(building, place)
    size_bytes = sum(path.stat().st_size for path in place.iterdir())
    ctx.journal.progress(STAGE, 1, 1, "folder")
    ctx.journal.event("export", f"The draft stands in {place}, {size_bytes / 1e6:.1f} MB, with its model card.")
    return {"path": str(place), "bytes": size_bytes, "parameters": facts.parameters, "draft_vocab_size": facts.draft_vocab_size}


def _build(ctx: StageContext, draft: Path, building: Path, facts: draft_folder.DraftFacts) -> None:
    building.mkdir()
    for pattern in _CARRIED:
        for path in sorted(draft.glob(pattern)):
            _link_or_copy(path, building / path.name)
    config = draft_folder.portable_config(draft_folder.read_config(draft), model_card.hub_id(ctx.spec))
    _write(building / "config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    card = model_card.render(
        ctx.spec,
        ctx.figures,
        run_id=ctx.run_dir.name,
        target=model_card.hub_id(ctx.spec) or _from_home(ctx.model_dir),
        draft=asdict(facts),
        versions={**versions_here(), **ctx.figures.get("evaluate", {}).get("versions", {})},
    )
    _write(building / "README.md", card)
    draft_folder.check(building)


def _from_home(path: Path) -> str:
    """The path with ``~`` for the home folder: the card must not tell who made it."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


def _link_or_copy(source: Path, target: Path) -> None:
    """A second name for the weights where the file system gives one: they are never changed in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    # save_pretrained makes the weights private to their owner; who may read the run may serve the draft.
    target.chmod(0o644)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(building: Path, place: Path) -> None:
    older = place.with_name(".export.older")
    shutil.rmtree(older, ignore_errors=True)
    if place.exists():
        # A folder cannot be renamed over one that holds files.
        place.rename(older)
    building.rename(place)
    shutil.rmtree(older, ignore_errors=True)
