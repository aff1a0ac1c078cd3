"""The prompts that an import is evaluated on, and the rows that ask one of them: those are never trained on.

A dataset made elsewhere does not say of which prompts it was made, so its tokens are asked. Where the operator names the file
that the dataset was made of, a draft would else be served on the very prompts that it was trained on, and accept too much.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagle3.rows import Row
from eagle3.runner.errors import VerbError
from eagle3.stages import prepare
from eagle3.stages.context import StageContext
from eagle3.stages.prompts import Prompt, normalised
from eagle3.stages.samples import Message, Template


def choose(ctx: StageContext, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The held-out prompts of an import: those that a run of the same spec holds out first, as many as data.heldout_prompts and
    the supply allow. It trains on none, so none is asked for besides.

    Raises StageError for an unknown kind, VerbError (usage) where there are fewer than evaluate.prompts.
    """
    data, least = ctx.spec.data, ctx.spec.evaluate.prompts
    found = prepare.first(prepare.of_kinds(prompts, data.heldout_kinds), data.heldout_prompts, data.seed)
    if len(found) < least:
        raise VerbError(
            "usage", f"evaluate.prompts asks for {least} prompts, and data.prompts and data.heldout_prompts give {len(found)}.",
            "Lower evaluate.prompts, or give a larger data.prompts file.",
        )  # fmt: skip
    return found


class Asked:
    """Tells the rows whose conversation begins with one of the prompts.

    By the tokens, as the target's chat template renders the prompt; and by the words before the first answer, without case and
    repeated blanks, since the dataset may have been made with another system prompt or on another day's template.
    """

    def __init__(self, prompts: Sequence[Prompt], template: Template) -> None:
        self._template = template
        self._ids: dict[int, set[tuple[int, ...]]] = {}
        tails: set[str] = {""}
        for prompt in prompts:
            said: list[Message] = [{"role": "system", "content": prompt.system}] if prompt.system else []
            said.append({"role": "user", "content": prompt.turns[0]})
            plain, invited = template.render(said, invite=False), template.render(said)
            for ids in (plain, invited):
                self._ids.setdefault(len(ids), set()).add(tuple(ids))
            if invited[: len(plain)] == plain:
                words = normalised(template.decode(invited[len(plain) :])).split()
                tails.update(" ".join(words[:count]) for count in range(1, len(words) + 1))
        self._tails = sorted(tails)
        self._words = tuple({normalised(prompt.turns[0]) for prompt in prompts})

    def by(self, row: Row) -> bool:
        """Whether the row asks one of them."""
        ids = row["input_ids"]
        if any(length <= len(ids) and tuple(ids[:length]) in known for length, known in self._ids.items()):
            return True
        mask = row["loss_mask"]
        before = normalised(self._template.decode(ids[: mask.index(1) if 1 in mask else len(ids)]))
        bodies = (before.removesuffix(tail).rstrip() for tail in self._tails if before.endswith(tail))
        return any(body.endswith(self._words) and self._whole(body) for body in bodies)

    def _whole(self, body: str) -> bool:
        """Whether a prompt at the end is not only the end of another word: "hi" in "delhi"."""
        lengths = (len(words) for words in self._words if body.endswith(words))
        return any(length == len(body) or not body[-length - 1].isalnum() for length in lengths)
