"""What a walk over a log gives: states, steps between them, and stretches that went by. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.coverage import Coverage
from metaquorum.metadata.inspect.log.places import ShownAs
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.walk.concern import Stretch
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.metadata.replay import ReplayState
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage

SHOWN_PROBLEMS = 20
"""The number of problems that are kept as lines; those after them are counted."""


@dataclass(slots=True, kw_only=True)
class FoundState:
    """A replayed state.

    `problems` are lines on what was damaged or skipped (at most SHOWN_PROBLEMS and one more), `notes` about
    what the reader may like to know and is no fault; `unknown` counts records from the future, which changed
    nothing. `stopped` is the damage behind which nothing was replayed; None where the place was reached.
    `coverage` has the ranges of records that are not in it; `shown` says for a place inside something atomic
    what is shown in its stead.
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
        """What is visible there: inside a metadata transaction, the image before it."""
        return self.state.image

    @property
    def end_offset(self) -> int:
        """Offset of the next record: where the state really is."""
        return self.state.end_offset


class WalkStep(msgspec.Struct, frozen=True, kw_only=True):
    """One batch and what it did. Images are immutable and share what did not change.

    `problems` are lines about records of this batch that could not be read or applied; `unknown` of them are
    from the future.
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
        """The batch's records, decoded when they are first asked for."""
        if not self._decoded:
            self._decoded.append(decode_readable(self.batch))
        return self._decoded[0]

    @property
    def before(self) -> MetadataImage:
        """The visible image before the batch."""
        return self.state_before.image

    @property
    def after(self) -> MetadataImage:
        """The visible image after the batch; the same as before it inside a metadata transaction."""
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
    """Batches that went by between two steps because the question did not need them (see `concern`)."""

    stretch: Stretch

    @property
    def batches(self) -> int:
        return self.stretch.batches

    @property
    def next_offset(self) -> int:
        """Offset after the last batch."""
        return self.stretch.next_offset

    @property
    def epoch(self) -> int:
        """The last batch's leader epoch."""
        return self.stretch.epoch

    @property
    def time_ms(self) -> int:
        """The last batch's time, Unix ms."""
        return self.stretch.time_ms
