"""vLLM's ``/metrics`` as plain numbers."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from eagle3.core.courtesy import Latency

Counters = dict[str, float | dict[str, float]]
"""Metric name → value, or label value → value for a metric with a label beside the engine's and the model's."""

_COMMON = frozenset({"engine", "model_name"})


def parse_counters(text: str) -> Counters:
    """Counters and gauges whose name begins with ``vllm:``, summed over engines. Histograms are left out."""
    plain: dict[str, float] = {}
    labelled: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("vllm:") or family.type not in ("counter", "gauge"):
            continue
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            key = ",".join(value for label, value in sorted(sample.labels.items()) if label not in _COMMON)
            if key:
                by_label = labelled.setdefault(sample.name, {})
                by_label[key] = by_label.get(key, 0.0) + sample.value
            else:
                plain[sample.name] = plain.get(sample.name, 0.0) + sample.value
    return {**plain, **labelled}


Buckets = dict[float, float]
"""Upper bound in seconds → how many observations were at most that, since the server's start."""


def parse_buckets(text: str, name: str) -> Buckets:
    """The buckets of a histogram, summed over engines; empty where the server has none of that name. Raises ValueError for what
    is none of Prometheus' format."""
    found: Buckets = {}
    for family in text_string_to_metric_families(text):
        if family.name == name and family.type == "histogram":
            for sample in family.samples:
                if sample.name == f"{name}_bucket" and "le" in sample.labels:
                    bound = float(sample.labels["le"])
                    found[bound] = found.get(bound, 0.0) + sample.value
    return found


def p95(now: Buckets, before: Buckets) -> Latency | None:
    """The 95th percentile of what came between two readings, linear within a bucket as PromQL's histogram_quantile; None where
    nothing came, or where the server has started anew in between."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(now.items())}
    total = counts.get(math.inf, 0.0)
    if total <= 0 or min(counts.values()) < 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in counts.items():
        if count >= 0.95 * total:
            if math.isinf(bound):
                return Latency(low, total)
            return Latency(low + (bound - low) * (0.95 * total - below) / max(count - below, 1e-9), total)
        low, below = bound, count
    return None
