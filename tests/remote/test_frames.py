"""Whatever else comes down the channel, and in whatever pieces, the answers are read; a broken stream is told, not guessed."""

from __future__ import annotations

import io
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3.runner.serve import Server
from remote.channel import MAX_REPLY_BYTES, Frames, Unreadable

MARKER = "@eagle3-0123456789abcdef@"

NOISE = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"Welcome!\n", f"+ exec python3 serve --marker {MARKER}\nand more".encode(), MARKER.encode()[:9], b"\xff" * 80]
    ),
).filter(lambda noise: not noise.endswith(b"@"))


def sent(answers: list[Any]) -> list[bytes]:
    """As the helper frames them."""
    frames = []
    output = io.BytesIO()
    server = Server(output, MARKER, packed=True)
    for answer in answers:
        server.answer({"id": 1, "result": answer})
        frames.append(output.getvalue())
        output.seek(0)
        output.truncate()
    return frames


@given(st.lists(st.tuples(NOISE, st.text(max_size=300)), max_size=6), st.integers(1, 200))
def test_answers_are_found_in_any_noise_and_in_any_pieces(parts: list[tuple[bytes, str]], size: int) -> None:
    answers = [text for _, text in parts]
    stream = b"".join(noise + frame for (noise, _), frame in zip(parts, sent(answers), strict=True))
    frames = Frames(MARKER.encode())
    read = [message for at in range(0, len(stream), size) for message in frames.feed(stream[at : at + size])]
    assert [message["result"] for message in read] == answers


def test_endless_noise_is_not_kept() -> None:
    frames = Frames(MARKER.encode())
    for _ in range(1000):
        assert list(frames.feed(b"x" * 10_000)) == []
    assert len(frames._pending) < 100


@pytest.mark.parametrize(
    "broken", [b"=5:hello", b"=%d:" % (MAX_REPLY_BYTES + 1), b"=2:\x78\x9c" + MARKER.encode() + b"=3:abc"], ids=str
)
def test_a_broken_stream_ends_it_with_a_reason(broken: bytes) -> None:
    with pytest.raises(Unreadable):
        list(Frames(MARKER.encode()).feed(MARKER.encode() + broken))


def test_a_frame_that_unpacks_to_too_much_is_refused() -> None:
    packer = zlib.compressobj()
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range((MAX_REPLY_BYTES >> 20) + 1)) + packer.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(Unreadable, match="more than 64 MiB"):
        list(Frames(MARKER.encode()).feed(MARKER.encode() + b"=%d:" % len(bomb) + bomb))
