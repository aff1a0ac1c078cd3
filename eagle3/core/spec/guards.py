"""What the guards do when they trip, and when that is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from eagle3.core.spec.base import Count, PositiveInt, Section, field

Response = Literal["off", "warn", "pause", "stop"]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]

_HOW = "off, warn (an event), pause (held, saved, until somebody lets it go on) or stop (it ends, resumable)"


class Guards(Section):
    """What goes wrong quietly, and what is done about it."""

    nan: Literal["stop"] = field("stop", "a loss or gradient that is no finite number always ends the training")
    gradient: Response = field("warn", f"a gradient norm far beyond the usual: {_HOW}")
    gradient_factor: Positive = field(20.0, "how far beyond the median of the last steps", "times")
    gradient_steps: PositiveInt = field(50, "steps that the median is of; armed after as many", "steps")
    flat_loss: Response = field("warn", f"a loss that does not fall any more: {_HOW}")
    flat_loss_steps: Count = field(
        0,
        "steps whose two halves are compared, at least 4; armed after as many; 0: half of train.max_steps, 100 to 1,000",
        "steps",
    )
    flat_loss_share: Share = field(0.002, "fall from the first half to the second under this is flat", "share")
    first_position: Response = field("warn", f"a first position that stays wrong: {_HOW}")
    first_position_below: Share = field(0.02, "accuracy of the first position under this", "probability")
    first_position_tokens: PositiveInt = field(200_000, "tokens trained on before it is judged", "tokens")
    first_position_steps: PositiveInt = field(
        200, "steps of the training before it is judged: a few large ones pass the tokens and have taught nothing", "steps"
    )
    memory: Response = field("warn", f"GPU memory that creeps up: {_HOW}")
    memory_share: Share = field(0.10, "growth in parts of the card", "share")
    memory_after_steps: Count = field(100, "steps of an attempt after which growth is counted", "steps")
    clock: Response = field("warn", f"a clock that jumps, in whatever stage: {_HOW}")
    clock_jump_s: Positive = field(60.0, "difference between the clock and a steady one, from one heartbeat to the next", "s")
    server: Literal["warn", "pause", "stop"] = field(
        "warn",
        "a server that dies: warn (told, and started again up to server.restarts times), pause (told, and held until somebody "
        "lets it go on, then started again) or stop (the first death ends the stage, resumable); after the last restart it ends",
    )
    stall: Literal["off", "warn", "stop"] = field(
        "warn",
        "a run that falls silent: off, warn (an event, and its threads' stacks in the log) or stop (it ends, resumable); no "
        "pause, since what is silent obeys none",
    )
    stall_s: Positive = field(300.0, "silence before that; ten times the usual gap between rows where that is longer", "s")
    repeated: Response = field("stop", f"answers of repeated tokens: {_HOW}")
    repeated_share: Share = field(0.30, "of an answer's tokens equal to the one before: repeated", "share")
    repeated_answers: Share = field(0.10, "such answers among all", "share")
    answers_at_least: PositiveInt = field(8, "answers, or samples, before they are judged", "answers")
    blind: Response = field("warn", f"samples with no token that the loss sees: {_HOW}")
    blind_share: Share = field(0.20, "such samples among all", "share")
    coverage: Response = field("warn", f"a draft vocabulary that lacks too much: {_HOW}")
    coverage_below: Share = field(0.95, "share of the held-out answers' tokens that it holds", "share")
    coverage_tokens: PositiveInt = field(200, "held-out tokens before it is judged", "tokens")
    quarantined: Response = field("stop", f"too many samples put aside for want of whole states: {_HOW}")
    quarantined_share: Share = field(
        0.05, "such samples among those asked for; and, among all prompts, those that a server that lives cannot answer", "share"
    )
    quarantined_at_least: PositiveInt = field(20, "samples before they are judged; at the end all are", "samples")
    disk_wait_s: Annotated[float, Field(ge=0)] = field(
        21600.0,
        "how long extract, or a training that saves, waits for space at the disk's floor before it ends; 0: it ends at once",
        "s",
    )
