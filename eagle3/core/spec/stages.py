"""The numbers of the stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from eagle3.core.spec.base import Count, Duration, PositiveInt, Section, field
from eagle3.core.verdict import MIN_PROMPTS


class Data(Section):
    """Which prompts, and how many of them."""

    prompts: str = field("builtin", "'builtin', or the path of a JSONL file of conversations in the container")
    train_prompts: PositiveInt = field(64, "conversations to train on", "prompts")
    heldout_prompts: Annotated[int, Field(ge=4)] = field(20, "conversations kept out of the training", "prompts")
    prompt_tokens: PositiveInt = field(56, "expected tokens of a prompt with its template; only the estimate uses it", "tokens")
    seed: int = field(0, "which prompts are held out")
    heldout_kinds: list[str] = field([], "kinds of prompt that are held out alone and never trained on; empty: some of each")


class Regenerate(Section):
    """The target answers the prompts itself."""

    max_new_tokens: PositiveInt = field(96, "longest answer of a turn", "tokens")
    temperature: Annotated[float, Field(ge=0, le=2)] = field(0.0, "0 answers greedily")
    concurrency: PositiveInt = field(16, "requests in flight", "requests")
    request_timeout_s: Duration = field(300.0, "how long one answer may take", "s")


class Extract(Section):
    """The target's hidden states are stored."""

    concurrency: PositiveInt = field(8, "requests in flight at most", "requests")
    request_timeout_s: Duration = field(300.0, "how long one sample may take, besides what its length adds", "s")
    slowest_tok_s: Duration = field(50.0, "a sample of n tokens may take n divided by this longer", "tokens/s")
    tries: PositiveInt = field(3, "how often a sample is asked for before it is put aside", "times")
    backoff_s: Duration = field(0.5, "pause before a sample is asked for again; it doubles each time", "s")
    p95_factor: Annotated[float, Field(ge=0)] = field(
        8.0, "a server of the run's own: requests in flight are halved when the 95th percentile of seconds a token is beyond so "
        "many times the first samples' median; 0: never", "times",
    )  # fmt: skip
    storage: Literal["target", "bfloat16", "float8_e4m3"] = field(
        "target", "how states are stored: as the target computes them, rounded, or in 8 bits with a scale a sample and layer"
    )
    verify: Literal["hash", "changed"] = field(
        "hash", "what a resume hashes again: every state, or those whose size, time or inode is not that of the last look"
    )
    rank: Count = field(0, "which share of the samples this run extracts, from 0; `eagle3 import` joins the shares", "shares")
    world: PositiveInt = field(1, "shares; with more than one the run ends after extract", "shares")

    @model_validator(mode="after")
    def _share_exists(self) -> Extract:
        if self.rank >= self.world:
            raise ValueError(f"extract.rank ({self.rank}) must be below extract.world ({self.world})")
        return self


class Vocabulary(Section):
    """The tokens that the draft can propose."""

    size: Annotated[int, Field(ge=16)] = field(8192, "tokens that the draft can propose", "tokens")


class Train(Section):
    """The training of the draft."""

    kind: Literal["eagle3", "peagle", "dflash", "dspark"] = field("eagle3", "kind of draft; all but eagle3 are experimental")
    max_steps: PositiveInt = field(180, "optimizer steps; epochs follow from it", "steps")
    ttt_steps: Annotated[int, Field(ge=1, le=32)] = field(3, "training-time-test steps: positions trained ahead", "positions")
    pack_tokens: PositiveInt = field(512, "tokens in one packed sequence", "tokens")
    ranks: Annotated[int, Field(ge=0, le=64)] = field(
        0, "processes that train together; 0: one for each GPU of devices.train, or one", "processes"
    )
    packs_per_step: Annotated[int, Field(ge=0, le=1024)] = field(
        0, "packs of one optimizer step, shared out evenly among the ranks; 0: one for each rank", "packs"
    )
    parallel: Literal["ddp", "fsdp"] = field("ddp", "several ranks each hold the whole draft (ddp) or a part of it (fsdp)")
    learning_rate: Annotated[float, Field(gt=0, le=1)] = field(1e-3, "peak learning rate")
    warmup_steps: Count = field(10, "steps until the learning rate is at its peak", "steps")
    optimizer: Literal["adamw", "muon"] = field("adamw", "optimizer; Muon is very slow on a CPU")
    dtype: Literal["float32", "bfloat16"] = field("float32", "precision of the forward and backward pass")
    attention: str = field("eager", "transformers' attn_implementation of the draft")
    checkpoint_every_steps: PositiveInt = field(50, "how often the training is saved", "steps")
    checkpoint_every_minutes: Annotated[float, Field(ge=0)] = field(
        0.0, "saved too when the last save is so long ago; 0: by steps alone", "min"
    )
    validate_every_steps: PositiveInt = field(60, "how often the held-out samples are scored", "steps")
    keep_last: PositiveInt = field(2, "checkpoints kept", "checkpoints")
    keep_best: bool = field(False, "keep the checkpoint with the best held-out acceptance length beside the last ones")
    export_best: bool = field(False, "the draft is the best checkpoint's, not the last step's; needs keep_best")
    tensorboard: bool = field(False, "write the training's figures as TensorBoard files too, to train/tensorboard")
    seed: int = field(0, "initial weights and order of the samples")


class Evaluate(Section):
    """The draft behind a real server."""

    prompts: PositiveInt = field(20, "held-out prompts served with the draft", "prompts")
    concurrency: PositiveInt = field(8, "requests in flight", "requests")
    concurrencies: list[PositiveInt] = field([], "more numbers of requests in flight to measure at, for a curve", "requests")
    temperatures: list[Annotated[float, Field(ge=0, le=2)]] = field(
        [0.0], "temperatures at which acceptance is measured; 0 is always among them: speeds and texts are compared there"
    )
    ngram: bool = field(False, "also measure n-gram speculation, which needs no draft; one more start of the server")
    max_new_tokens: PositiveInt = field(96, "longest answer", "tokens")
    num_speculative_tokens: Annotated[int, Field(ge=1, le=32)] = field(3, "tokens that the draft proposes at a time", "tokens")
    lossless_prompts: PositiveInt = field(4, "prompts whose answers are compared with and without the draft", "prompts")
    min_drafts: PositiveInt = field(200, "fewer drafts than this: the verdict is 'insufficient evidence'", "drafts")
    min_prompts: PositiveInt = field(
        MIN_PROMPTS,
        "fewer prompts than this: 'insufficient evidence' too, for drafts of one answer resemble each other",
        "prompts",
    )
    broken_below: Annotated[float, Field(ge=0, le=1)] = field(
        0.10, "served position-0 acceptance under this means broken (layer ids, vocabulary, norms)", "probability"
    )

    @property
    def levels(self) -> list[int]:
        """Every number of requests in flight that is measured, ascending."""
        return sorted({self.concurrency, *self.concurrencies})

    @property
    def sampled(self) -> list[float]:
        """The temperatures above 0, ascending."""
        return sorted({t for t in self.temperatures if t > 0})

    def settings(self) -> dict[str, object]:
        """What a measurement depends on. A field that older runs lack is left out while it changes nothing, so that what they
        have measured stands."""
        unchanged = {
            "concurrencies": self.levels == [self.concurrency],
            "temperatures": not self.sampled,
            "ngram": not self.ngram,
            "min_prompts": self.min_prompts == MIN_PROMPTS,
        }
        return self.model_dump(exclude={name for name, so in unchanged.items() if so})

    @model_validator(mode="after")
    def _can_be_measured(self) -> Evaluate:
        if self.concurrencies and max(self.concurrencies) > self.prompts:
            raise ValueError(f"concurrencies {self.concurrencies} must not exceed prompts ({self.prompts}), the most in flight")
        if 0.0 not in self.temperatures:
            raise ValueError(f"temperatures {self.temperatures} must hold 0: speeds and texts are compared there")
        return self
