"""What a walk over a log yields: states, steps between them, and parts of a run passed over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import numpy as np

from metaquorum.metadata.columnar.partition_records import (
    CHANGE_API_KEY,
    PARTITION_API_KEY,
    read_frames,
)
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.coverage import Coverage
from metaquorum.metadata.inspect.log.places import ShownAs
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord
from metaquorum.metadata.replay import ReplayState
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage

SHOWN_PROBLEMS = 20
"""How many problems are kept as lines; further ones are only counted."""

_PARTITION_KEYS = (PARTITION_API_KEY, CHANGE_API_KEY)
_OF_PARTITIONS = (PartitionRecord, PartitionChangeRecord)


@dataclass(slots=True, kw_only=True)
class FoundState:
    """A replayed state.

    `problems` are lines on what was damaged or skipped (at most SHOWN_PROBLEMS plus one). `notes` are remarks
    for the reader that are not faults. `unknown` counts records from a newer version, which changed nothing.
    `stopped` is the damage that ended replay; None if the place was reached. `coverage` has the ranges of
    records that the state lacks. For a place inside something atomic, `shown` says what is shown instead.
    """

    state: ReplayState
    snapshot: str | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: int = 0
    stopped: Damage | None = None
    quorum: QuorumView = field(default_factory=QuorumView)
    coverage: Coverage = field(default_factory=Coverage)
    shown: ShownAs | None = None

    @property
    def image(self) -> MetadataImage:
        """The visible image: inside a metadata transaction, the image before it."""
        return self.state.image

    @property
    def end_offset(self) -> int:
        """Offset of the next record: where the state actually is."""
        return self.state.end_offset


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a log: from where the state is `begun`, outside a transaction, up to `end_offset`."""

    begun: FoundState
    end_offset: int


class WalkStep(msgspec.Struct, frozen=True, kw_only=True):
    """One batch and its effect. Images are immutable and share unchanged parts.

    `problems` are lines about records of this batch that could not be read or applied; `unknown` of them are
    from a newer version.
    """

    batch: RecordBatch
    state_before: ReplayState
    state_after: ReplayState
    quorum_before: QuorumView
    quorum_after: QuorumView
    problems: tuple[str, ...] = ()
    unknown: int = 0
    _decoded: list[tuple[DecodedRecord, ...]] = msgspec.field(default_factory=list)

    @property
    def records(self) -> tuple[DecodedRecord, ...]:
        """The batch's records, decoded on first access."""
        if not self._decoded:
            self._decoded.append(decode_readable(self.batch))
        return self._decoded[0]

    def records_without_partitions(self) -> Iterator[DecodedRecord]:
        """The batch's records but those of partitions."""
        batch, header = self.batch, self.batch.header
        frames = None
        if header.base_timestamp_ms == header.max_timestamp_ms and not header.is_control:
            frames = read_frames(batch.data, header)
        if frames is None:
            yield from (one for one in self.records if not isinstance(one.record, _OF_PARTITIONS))
            return
        others = np.flatnonzero(~np.isin(frames.keys, _PARTITION_KEYS))
        starts, lengths = frames.starts[others], frames.lengths[others]
        for number, start, end in zip(
            others.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True
        ):
            with suppress(RecordDecodeError):
                version, record = decode(batch.data, start, end)
                yield DecodedRecord(header.base_offset + number, header.max_timestamp_ms, version, record)

    @property
    def before(self) -> MetadataImage:
        """The visible image before the batch."""
        return self.state_before.image

    @property
    def after(self) -> MetadataImage:
        """The visible image after the batch; equal to `before` inside a metadata transaction."""
        return self.state_after.image

    @property
    def offset(self) -> int:
        """Offset of the batch's first record."""
        return self.batch.header.base_offset

    @property
    def next_offset(self) -> int:
        """Offset after the batch's last record."""
        return self.batch.header.next_offset

    @property
    def epoch(self) -> int:
        """The batch's leader epoch."""
        return self.batch.header.leader_epoch

    @property
    def time_ms(self) -> int:
        """The time of the batch's newest record, Unix ms."""
        return self.batch.header.max_timestamp_ms


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Batches between two steps that the question did not need (see `batch_filter`)."""

    part: RunPart

    @property
    def batches(self) -> int:
        return self.part.batches

    @property
    def records(self) -> int:
        return self.part.next_offset - self.part.base_offset

    @property
    def next_offset(self) -> int:
        """Offset after the last batch."""
        return self.part.next_offset

    @property
    def epoch(self) -> int:
        """The last batch's leader epoch."""
        return self.part.epoch

    @property
    def time_ms(self) -> int:
        """The last batch's time, Unix ms."""
        return self.part.time_ms
