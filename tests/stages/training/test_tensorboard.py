"""Event files hold what was added, in TensorBoard's own format: read back with protocol buffers made from its definitions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from eagle3.stages import train
from eagle3.stages.context import StageContext
from eagle3.training.tensorboard import EventFile, crc32c, masked_crc


def event_class() -> Any:
    """``Event`` of tensorflow/core/util/event.proto, as far as scalars need it, with its field numbers there."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="tb", syntax="proto3")
    for name, fields in {
        "Value": [("tag", 1, field.TYPE_STRING, ""), ("simple_value", 2, field.TYPE_FLOAT, "")],
        "Summary": [("value", 1, field.TYPE_MESSAGE, ".tb.Value")],
        "Event": [
            ("wall_time", 1, field.TYPE_DOUBLE, ""),
            ("step", 2, field.TYPE_INT64, ""),
            ("file_version", 3, field.TYPE_STRING, ""),
            ("summary", 5, field.TYPE_MESSAGE, ".tb.Summary"),
        ],
    }.items():
        message = file.message_type.add(name=name)
        for label, number, kind, of in fields:
            many = field.LABEL_REPEATED if label == "value" else field.LABEL_OPTIONAL
            message.field.add(name=label, number=number, type=kind, type_name=of or None, label=many)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tb.Event"))


def records(path: Path) -> Iterator[bytes]:
    """The records of a TFRecord file, both checksums of each checked."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length, of_length) = struct.unpack_from("<QI", data, at)
        record = data[at + 12 : at + 12 + length]
        (of_record,) = struct.unpack_from("<I", data, at + 12 + length)
        assert (of_length, of_record) == (masked_crc(data[at : at + 8]), masked_crc(record))
        yield record
        at += 16 + length


def events(path: Path) -> list[Any]:
    return [event_class().FromString(record) for record in records(path)]


def scalars(path: Path) -> dict[tuple[str, int], float]:
    return {(value.tag, event.step): value.simple_value for event in events(path) for value in event.summary.value}


@pytest.mark.parametrize(
    ("data", "expected"),
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E), (b"123456789", 0xE3069283)],
)
def test_the_checksum_is_crc_32c_of_rfc_3720(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def test_what_was_added_is_read_back_by_tag_and_step(tmp_path: Path) -> None:
    file = EventFile(tmp_path, clock=lambda: 1_700_000_000.25)
    file.add("train", 300, {"loss": 1.5, "loss_pos": [1.0, 0.5], "lr": 1e-4, "tok_s": None, "grad_norm": float("nan")})
    file.add("val", 300, {"accept_len": 1.25})
    first, *rest = events(file.path)
    assert first.file_version == "brain.Event:2" and {event.wall_time for event in rest} == {1_700_000_000.25}
    found = scalars(file.path)
    assert found == {
        ("train/loss", 300): 1.5,
        ("train/loss_pos/0", 300): 1.0,
        ("train/loss_pos/1", 300): 0.5,
        ("train/lr", 300): pytest.approx(1e-4),
        ("val/accept_len", 300): 1.25,
    }


def test_a_record_is_whole_after_each_row(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    for step in range(3):
        file.add("train", step, {"loss": float(step)})
        assert scalars(file.path)[("train/loss", step)] == step


@pytest.mark.slow
def test_a_training_writes_its_rows_there_too(
    toy_run: Callable[..., StageContext], rows_of: Callable[[StageContext, str], list[dict]]
) -> None:
    ctx = toy_run(max_steps=3, tensorboard=True)
    train.run(ctx)
    (file,) = (ctx.run_dir / "train" / "tensorboard").iterdir()
    found = scalars(file)
    for row in rows_of(ctx, "metrics.jsonl"):
        for name in ("loss", "accept_len"):
            assert found[(f"{row['split']}/{name}", row["step"])] == pytest.approx(row[name], rel=1e-6)
    assert ("train/data_wait_s", 3) in found
