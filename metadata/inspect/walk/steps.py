"""What a walk over a log yields: states, steps between them, and parts of a run passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import Versions, merged
from metaquorum.metadata.columnar.partition_records import (
    CHANGE_API_KEY,
    PARTITION_API_KEY,
    read_frames,
)
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.image.chunk import FLAGS, LEADER_EPOCH, N_ISR, PARTITION_EPOCH, RARE_FLAG, RowArray
from metaquorum.metadata.image.columns import NO_RARE_FIELDS
from metaquorum.metadata.inspect.log.coverage import Coverage, ShownAs
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.walk.batch_filter import RunPart
from metaquorum.metadata.invariants import (
    COLUMN_RULES,
    ChunkView,
    Violation,
    partition_path,
    rare_row_violations,
)
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord
from metaquorum.metadata.replay import ReplayState
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.format import parse_header
from metaquorum.storage.batches.places import Places
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
    """A part of a log: from where the state is `begun()`, outside a transaction, up to `end_offset`."""

    begun: Callable[[], FoundState]
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


# Many partition changes as a single step: their effects, and the rules they broke.
#
# A part may be checked as a whole if it changes only partitions, all of them known, each at most once in a
# batch and in the form that a correct controller writes. The versions of the rows are then the states after
# the batches, and a broken rule belongs to the batch that broke it. Anything unusual is left to the caller,
# batch by batch.

_RULES = tuple(COLUMN_RULES.items())
RULES = len(_RULES) + 1
"""Rules of `Broken`: those about columns, plus the one about an ISR without members."""


class BatchPlace(NamedTuple):
    """The place of a batch."""

    offset: int
    epoch: int
    time_ms: int


class Broken(NamedTuple):
    """Which batches broke which rules: the numbers of batch (in the run) and rule, and the row."""

    batches: Places
    rules: npt.NDArray[np.int64]
    rows: RowArray


class FastForward(Passed, frozen=True, kw_only=True):
    """A part with the image after it and the effect of its changes."""

    after: MetadataImage
    versions: Versions

    @property
    def offset(self) -> int:
        """Base offset of the last batch with a change."""
        run = self.part.run
        return int(run.offsets[int(run.batch_of(self.versions.records.max(keepdims=True))[0])])

    def broken(self) -> Broken:
        """Broken rules of the partitions, in log order."""
        image, versions = self.after, self.versions
        known, active = image.brokers.ids()
        view = ChunkView(versions.chunk(versions.after), known, active)
        rules = [np.flatnonzero(broken(view)) for _, _, broken in COLUMN_RULES.values()]
        rules.append(np.flatnonzero(versions.after[N_ISR] == 0))
        places = np.concatenate(rules)
        numbers = np.repeat(np.arange(len(rules)), [len(one) for one in rules])
        batches = self.part.run.batch_of(versions.records[places])
        order = np.argsort(batches, kind="stable")
        return Broken(batches[order], numbers[order], versions.rows[places][order])

    def violations(self, batch: int, rule: int, row: int) -> tuple[BatchPlace, Iterable[Violation]]:
        """One item of `broken` in words, with the place of its batch."""
        image, run = self.after, self.part.run
        header = parse_header(run.data, int(run.places[batch]))
        batch_place = BatchPlace(header.base_offset, header.leader_epoch, header.max_timestamp_ms)
        if rule == len(COLUMN_RULES):
            return batch_place, rare_row_violations(image, row, NO_RARE_FIELDS, True)
        name, (severity, text, _) = _RULES[rule]
        return batch_place, (Violation(name, severity, partition_path(image.topics, row), text),)


def versions_in(builder: ImageBuilder, part: RunPart) -> Versions | None:
    """What a part's changes do to the partitions, in the state before it; None if one is unusual or
    concerns an unknown partition."""
    return merged(builder, part.groups())


def first_unfit(part: RunPart, versions: Versions, epoch: int) -> int:
    """The number (in the part) of the first batch that must be looked at alone; the number of batches if
    there is none. Reasons: a leader epoch or partition epoch that does not grow, a change without effect, a
    partition that the batch changes twice, rare fields, an epoch of the log that decreases (`epoch` is the
    one before the part)."""
    before, after = versions.before(), versions.after
    unfit = after[PARTITION_EPOCH] <= before[PARTITION_EPOCH]
    unfit |= after[LEADER_EPOCH] < before[LEADER_EPOCH]
    unfit |= (after[FLAGS] & RARE_FLAG) != 0
    differs = after != before
    differs[PARTITION_EPOCH] = False
    unfit |= ~differs.any(axis=0)
    batches = part.run.batch_of(versions.records) - part.low
    unfit[1:] |= (batches[1:] == batches[:-1]) & ~versions.first[1:]
    epochs = part.as_run().epochs()
    falls = np.flatnonzero(np.diff(epochs, prepend=epoch) < 0)
    return int(min([*batches[unfit], *falls[:1], part.batches]))
