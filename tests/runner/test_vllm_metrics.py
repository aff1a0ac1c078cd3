"""A server's /metrics in the words of a person: load, cache, speculation; over all its engines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner import vllm_metrics

TEXT = """# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="t"} 3.0
vllm:num_requests_running{engine="1",model_name="t"} 1.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:generation_tokens_total{engine="0"} 1.5e+03
vllm:generation_tokens_created{engine="0"} 1.7e+09
vllm:spec_decode_num_drafts_total{engine="0"} 40
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 20
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 14
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 1
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 2
vllm:num_preemptions_total NaN
other:thing 5
"""


def test_what_is_known_is_summed_and_the_fullest_cache_counts() -> None:
    assert vllm_metrics.load(TEXT) == {
        "running": 4.0, "waiting": 2.0, "kv_cache_usage": 0.5, "generation_tokens": 1500.0, "drafts": 40.0,
        "accepted_tokens": 20.0, "accepted_per_pos": [15.0, 0.0, 2.0],
    }  # fmt: skip


def test_an_older_server_has_an_older_name_for_its_cache() -> None:
    assert vllm_metrics.load("vllm:gpu_cache_usage_perc 0.75\n") == {"kv_cache_usage": 0.75}


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert isinstance(vllm_metrics.load(text + "\nvllm:" + text), dict)
