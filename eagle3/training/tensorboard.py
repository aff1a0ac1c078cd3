"""The training's figures as TensorBoard reads them, written with nothing but the standard library.

An event file is a row of TFRecords: length (8 bytes), masked CRC-32C of it, the record, masked CRC-32C of that. A record is a
protocol buffer ``Event`` (tensorflow/core/util/event.proto: 1 wall_time, 2 step, 3 file_version, 5 summary) whose ``Summary``
holds values (summary.proto: 1 tag, 2 simple_value). Each attempt writes a file of its own and names it after the moment
of its start; where attempts repeat steps TensorBoard shows the later one.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eagle3.stages.context import StageContext
from eagle3.training.group import Group

_CASTAGNOLI = 0x82F63B78


class Board:
    """Writes nothing."""

    def add(self, split: str, step: int, figures: Mapping[str, Any]) -> None:
        """Add a row of metrics of ``split`` ("train", "val"); figures that are lists count as one by position."""


class EventFile(Board):
    """An event file in ``folder``. ``clock`` gives Unix seconds."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        now = clock()
        self.path = folder / f"events.out.tfevents.{int(now)}.eagle3.{int(now * 1e6) % 1_000_000}"
        self._write(_field(3, b"brain.Event:2"))

    def add(self, split: str, step: int, figures: Mapping[str, Any]) -> None:
        """Append one event; figures that are no finite numbers are left out."""
        values = b"".join(
            _field(1, _field(1, f"{split}/{tag}".encode()) + _float(2, value)) for tag, value in _scalars(figures)
        )  # fmt: skip
        self._write(_varint(2 << 3) + _varint(step) + _field(5, values))

    def _write(self, event: bytes) -> None:
        record = struct.pack("<Bd", 1 << 3 | 1, self._clock()) + event
        length = struct.pack("<Q", len(record))
        framed = length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))
        with self.path.open("ab") as file:
            file.write(framed)


def board_of(ctx: StageContext, group: Group) -> Board:
    """Where the rank of a training adds its rows."""
    return EventFile(ctx.run_dir / "train" / "tensorboard") if group.leads and ctx.spec.train.tensorboard else Board()


def masked_crc(data: bytes) -> int:
    """The checksum of a TFRecord: CRC-32C, rotated and shifted."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
    return value


_TABLE = [_table_entry(value) for value in range(256)]


def _scalars(figures: Mapping[str, Any]) -> list[tuple[str, float]]:
    flat: list[tuple[str, Any]] = []
    for name, value in figures.items():
        flat += [(f"{name}/{k}", part) for k, part in enumerate(value)] if isinstance(value, list) else [(name, value)]
    return [(name, float(value)) for name, value in flat if isinstance(value, (int, float)) and math.isfinite(value)]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _float(number: int, value: float) -> bytes:
    return struct.pack("<Bf", number << 3 | 5, value)
