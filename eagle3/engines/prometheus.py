"""vLLM's ``/metrics`` as plain numbers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

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
