"""What a user of `metaquorum consume` asked for, and the progress so far.

Owns these values, which `consume`, `reading` and `printing` share. Knows no client and no click.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec


class ReadFromKind(Enum):
    """Where to start in a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


class RangePolicy(Enum):
    """What to do with a position that is not in the log."""

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


class ReadFrom(msgspec.Struct, frozen=True):
    """Where to start. `value`: the offset, or Unix ms."""

    kind: ReadFromKind
    value: int = 0


@dataclass(slots=True)
class ConsumeOptions:
    """What the user asked for."""

    topic: str
    partitions: tuple[int, ...]
    start: ReadFrom
    group: str | None
    out_of_range: RangePolicy
    max_messages: int | None
    until_end: bool
    idle_timeout_s: float | None
    with_key: bool
    with_offsets: bool
    skip_cut: bool
    as_json: bool


@dataclass(slots=True)
class ConsumeTotals:
    """`ends`: the end offsets when the command started, where it stops. `positions`: the next offset of
    each partition that is read."""

    messages: int = 0
    size_bytes: int = 0
    began: float = 0.0
    ends: dict[int, int] | None = None
    positions: dict[int, int] = field(default_factory=dict)

    def reached(self, partition: int, offset: int) -> None:
        """Notes the offset up to which a partition was read. Negative: unknown."""
        if offset >= 0:
            self.positions[partition] = max(offset, self.positions.get(partition, 0))
