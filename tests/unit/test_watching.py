"""The looks at a server go on whatever it says of itself: a watch that ended by a surprise would see no death any more."""

from __future__ import annotations

import httpx
from hypothesis import given
from hypothesis import strategies as st

from eagle3.engines.prometheus import p95, parse_buckets
from eagle3.engines.watching import look

FIRST_TOKEN = "vllm:time_to_first_token_seconds"
PIECES = st.sampled_from(
    [
        f"# TYPE {FIRST_TOKEN} histogram\n", f"{FIRST_TOKEN}_bucket", '{le="0.1"}', '{engie="0"}', '{engine="0",le="+Inf"}',
        " 3\n", " NaN\n", "\n", "<html>", "vllm:num_requests_running", "{", "}", '"', "x", "=",
    ]
)  # fmt: skip


def health(text: str) -> str:
    """What a look finds at a server whose metrics are ``text``."""

    def answers(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=text if request.url.path == "/metrics" else "")

    with httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(answers)) as http:
        return look(http, lambda: 0.0, lambda said: print(p95(parse_buckets(said, FIRST_TOKEN), {}))).health


@given(st.lists(PIECES, max_size=14).map("".join))
def test_whatever_the_metrics_say_there_is_a_look(text: str) -> None:
    assert health(text) in ("ok", "ill")


def test_a_bucket_without_a_bound_is_no_bucket() -> None:
    assert health(f'# TYPE {FIRST_TOKEN} histogram\n{FIRST_TOKEN}_bucket{{engine="0"}} 3\n') == "ok"
