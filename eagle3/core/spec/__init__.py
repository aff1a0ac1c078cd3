"""RunSpec: the one description of a run. Size + target + machine + overrides resolve to it; its hash
stands in every record, so that a figure can always be traced to what produced it.

Every field states its unit in its name or beside its description; ``docs/spec.md`` lists them all. A layer id k is the
*input* of decoder layer k (the output of layer k-1); id ``num_hidden_layers`` is the last layer's output before the final norm.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from eagle3.core.spec.alerts import Alerts
from eagle3.core.spec.base import Count, Section, field, required
from eagle3.core.spec.guards import Guards
from eagle3.core.spec.machine import Devices, Hardware, Server
from eagle3.core.spec.service import Service
from eagle3.core.spec.stages import Data, Evaluate, Extract, Regenerate, Train, Vocabulary
from eagle3.core.spec.target import MODEL_FIELDS, DraftShape, Target
from eagle3.core.stage_order import STAGES

__all__ = [
    "MODEL_FIELDS",
    "STAGES",
    "Alerts",
    "Data",
    "Devices",
    "DraftShape",
    "Evaluate",
    "Extract",
    "Guards",
    "Hardware",
    "Regenerate",
    "RunSpec",
    "Section",
    "Server",
    "Service",
    "Target",
    "Train",
    "Vocabulary",
    "hash_of",
]


class RunSpec(Section):
    """A run, whole: what is trained for what, on which machine, with which numbers."""

    v: Literal[1] = field(1, "version of this format")
    size: str = required("preset of numbers")
    machine: str = required("preset of the machine")
    workspace: str = field("~/eagle3", "folder in the container that holds the runs")
    worker_python: str = field("", "interpreter with transformers >= 5 and speculators; empty: the one that starts the run")
    server_python: str = field("", "interpreter with vLLM; empty: worker_python")
    group: str | None = field(None, "Unix group that may read and stop the run")
    services: list[Service] = field([], "what must yield to the run, and who has agreed")
    share_device: bool = field(False, "start although other processes hold the run's GPUs")
    time_limit_s: Annotated[float, Field(ge=0)] = field(0.0, "an attempt is stopped after so long; 0: none", "s")
    forked_from: str = field("", "the run, and the stage or checkpoint of it, that this one was forked from; fork writes it")
    disk_floor_bytes: Count = field(
        1 << 30, "free space below which extract waits (guards.disk_wait_s) and other stages end", "bytes"
    )
    log_limit_bytes: Annotated[int, Field(ge=1 << 20)] = field(
        256 << 20, "space on disk of a log; beyond it the log's middle is given back to the disk", "bytes"
    )
    grace_s: Annotated[float, Field(ge=0)] = field(30.0, "time between TERM and KILL on a stop", "s")
    device: Literal["cpu", "cuda"] = field("cpu", "what torch computes on")
    engine: Literal["vllm", "transformers"] = field(
        "vllm", "what answers the prompts and gives the hidden states; transformers is for small targets and needs no vLLM"
    )
    hardware: Hardware = Hardware()
    devices: Devices = Devices()
    target: Target
    data: Data = Data()
    server: Server = Server()
    regenerate: Regenerate = Regenerate()
    extract: Extract = Extract()
    vocabulary: Vocabulary = Vocabulary()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    guards: Guards = Guards()
    alerts: Alerts = Alerts()

    @model_validator(mode="after")
    def _counts_fit(self) -> RunSpec:
        served, heldout, lossless = self.evaluate.prompts, self.data.heldout_prompts, self.evaluate.lossless_prompts
        if served > heldout:
            raise ValueError(f"evaluate.prompts ({served}) must not exceed data.heldout_prompts ({heldout})")
        if lossless > served:
            raise ValueError(f"evaluate.lossless_prompts ({lossless}) must not exceed evaluate.prompts ({served})")
        return self

    @model_validator(mode="after")
    def _one_engine(self) -> RunSpec:
        if self.engine == "transformers" and (self.server.url or self.server.extract_url):
            raise ValueError("engine is transformers, and server.url or server.extract_url names a vLLM; leave one of them out")
        return self

    @model_validator(mode="after")
    def _devices_exist(self) -> RunSpec:
        gpus, spread = self.hardware.gpus, self.server.tensor_parallel
        known = f"{gpus} (0 to {gpus - 1})" if gpus else "none"
        for stage in ("regenerate", "extract", "train", "evaluate"):
            named = self.devices.of(stage)
            if len(set(named)) < len(named):
                raise ValueError(f"devices.{stage} {named} names a GPU twice")
            if beyond := [gpu for gpu in named if gpu >= gpus]:
                raise ValueError(f"devices.{stage} names GPU {beyond[0]}, and {self.machine} has {known}")
            if stage != "train" and named and len(named) < spread:
                raise ValueError(f"devices.{stage} names {len(named)} GPUs, and server.tensor_parallel is {spread}")
        return self

    @model_validator(mode="after")
    def _ranks_fit(self) -> RunSpec:
        gpus, packs = self.devices.train, self.train.packs_per_step
        if gpus and self.train.ranks > len(gpus):
            raise ValueError(f"train.ranks ({self.train.ranks}) must not exceed the {len(gpus)} GPUs of devices.train")
        if packs % self.train_ranks:
            raise ValueError(f"train.packs_per_step ({packs}) must be a multiple of the {self.train_ranks} ranks of the training")
        if self.train.export_best and not self.train.keep_best:
            raise ValueError("train.export_best needs train.keep_best = true")
        return self

    @property
    def train_ranks(self) -> int:
        """Processes that train together."""
        return self.train.ranks or max(1, len(self.devices.train))

    @property
    def packs_per_step(self) -> int:
        """Packs whose gradients are averaged into one optimizer step, over all ranks."""
        return self.train.packs_per_step or self.train_ranks

    def to_toml(self) -> str:
        """The resolved spec as it is written to ``spec.toml``; unset optional fields are left out."""
        # Only those who write a spec need tomlkit; the worker reads, in an environment that may lack it.
        import tomlkit

        return tomlkit.dumps(self.model_dump(exclude_none=True))

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON."""
        return hash_of(self.model_dump())

    @classmethod
    def from_toml(cls, text: str) -> RunSpec:
        """The spec of a ``spec.toml``. Raises TOMLDecodeError and ValidationError."""
        return cls.model_validate(tomllib.loads(text))


def hash_of(value: Any) -> str:
    """A short stable hash of any JSON value (16 hex digits of SHA-256 of its canonical form)."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
