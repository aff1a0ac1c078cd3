"""What a machine decides: its hardware, which GPUs a stage uses, and how vLLM is started on it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from eagle3.core.spec.base import Count, Duration, PositiveInt, Section, field


class Hardware(Section):
    """The machine itself. Numbers are the maker's; the estimate derives times from them where nothing was measured."""

    kind: Literal["cpu", "gpu"] = field("cpu", "which of a size's numbers apply")
    gpus: Count = field(0, "GPUs of the machine", "GPUs")
    gpu_name: str = field("", "the GPUs' name, or part of it, as NVML tells it")
    gpu_memory_bytes: Count = field(0, "memory of one GPU", "bytes")
    gpu_bf16_flops: Annotated[float, Field(ge=0)] = field(0.0, "dense bfloat16 rate of one GPU, by its data sheet", "FLOP/s")
    interconnect: Literal["none", "pcie", "nvlink"] = field("none", "what the GPUs talk over")
    disk_bytes_s: Annotated[float, Field(gt=0)] = field(2e9, "assumed rate of the workspace's disk", "bytes/s")
    env: dict[str, str] = field({}, "environment of every process that uses several GPUs, such as NCCL's")


class Devices(Section):
    """Which GPUs a stage uses, by their index; empty on a machine without any."""

    regenerate: list[Count] = field([], "GPUs of the plain server", "GPU indices")
    extract: list[Count] = field([], "GPUs of the extraction server", "GPU indices")
    train: list[Count] = field([], "GPUs of the training", "GPU indices")
    evaluate: list[Count] = field([], "GPUs of the server with the draft", "GPU indices")

    def of(self, stage: str) -> list[int]:
        """The GPUs of a stage; none for one that needs none."""
        return list(getattr(self, stage, []))


class Server(Section):
    """How the run starts a vLLM server of its own."""

    args: list[str] = field([], "more arguments for every server")
    env: dict[str, str] = field({}, "more environment for every server")
    tensor_parallel: PositiveInt = field(1, "GPUs that one server spreads the target over", "GPUs")
    kv_cache_dtype: Literal["auto", "fp8"] = field(
        "auto", "precision of the KV cache of the plain and the draft server; the extraction server's is never rounded"
    )
    start_timeout_s: Duration = field(600.0, "how long a server may load before it counts as failed", "s")
    port: Annotated[int, Field(ge=0, le=65535)] = field(0, "0 takes a free one", "port")
    silent_timeout_s: Duration = field(300.0, "how long no token may come while requests run before a server counts as dead", "s")
    restarts: Annotated[int, Field(ge=0, le=100)] = field(
        2, "how often in an hour of serving a server that died is started again", "times"
    )
    backoff_s: Annotated[float, Field(ge=0, le=600)] = field(5.0, "pause before the first restart; it doubles with each", "s")
    url: str = field(
        "", "address of a vLLM that is there already and answers the prompts (http://HOST:PORT); empty: the run starts its own"
    )
    extract_url: str = field("", "address of a vLLM that is there already, in extraction mode; empty: the run starts its own")
    latency_factor: Annotated[float, Field(ge=1, le=100)] = field(
        2.0, "a server that is there already: its 95th percentile may grow this far before the run holds back", "times"
    )

    @field_validator("url", "extract_url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if url and not re.fullmatch(r"https?://[^\s/?#]+", url):
            raise ValueError(f"'{url}' must be http://HOST:PORT, without a path; /v1 is added where it belongs")
        return url
