"""States of this node's log: the committed one, and those that wait for their commit.

Its callers bound its size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from metaquorum.controller.result import ControllerAnswer
from metaquorum.metadata.columnar import MIN_RECORDS as COLUMNS_MIN_RECORDS
from metaquorum.metadata.columnar.encode import RecordPieces
from metaquorum.metadata.errors import ApiError, InvariantViolation
from metaquorum.metadata.features import write_version
from metaquorum.metadata.image import METADATA_VERSION, MetadataImage
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import FeatureLevelRecord, Record
from metaquorum.metadata.replay import Replays, ReplayState, replay
from metaquorum.metadata.replica import MetadataReplica
from metaquorum.metadata.requests.common import ControllerResponse
from metaquorum.storage.batches.batch import Batches, encode_batch, plain_header, seal_batch

Reply = tuple[int, ControllerResponse | ApiError]
"""(request key, answer)."""


@dataclass(slots=True, kw_only=True)
class PendingBatch:
    """An appended batch: the state after it, its size, and the answers that are true once it is committed."""

    end_offset: int
    state: ReplayState
    size_bytes: int
    replies: list[Reply] = field(default_factory=list)


class Ledger:
    """`committed` is below or at the high watermark; `pending` follows it batch by batch, oldest first."""

    def __init__(self, replica: MetadataReplica) -> None:
        self._replica = replica
        self.pending: deque[PendingBatch] = deque()
        self.replies_waiting = 0
        self._appends: deque[int] = deque()
        """The ends of Raft's appends that are not committed yet."""

    @property
    def appends_waiting(self) -> int:
        """How many of Raft's appends are not committed yet."""
        return len(self._appends)

    @property
    def committed(self) -> ReplayState:
        """The replica's state."""
        return self._replica.state

    @property
    def committed_offset(self) -> int:
        """Everything below it is in the committed state (exclusive), the inside of a transaction included."""
        return self._replica.applied_offset

    @property
    def newest_state(self) -> ReplayState:
        """The state that the next batch follows: the last pending one, or the committed one."""
        return self.pending[-1].state if self.pending else self._replica.state

    @property
    def newest(self) -> MetadataImage:
        """The image for the next decision."""
        return (self.pending[-1].state if self.pending else self._replica.state).newest

    def append(
        self, records: Sequence[Record], *, base_offset: int, epoch: int, timestamp_ms: int
    ) -> Batches:
        """One batch, which is pending from now on: append it to the log at `base_offset`, and say `appended`.

        Raises BatchError and RecordEncodeError for what cannot be written, ReplayError for what does not
        replay, and InvariantViolation if it does not follow the newest batch; nothing is pending then.
        """
        newest = self.newest_state
        end = newest.end_offset
        if base_offset != end:
            raise InvariantViolation(
                f"a batch that begins at {base_offset} cannot follow one that ends at {end}"
            )
        batches, state = encode_and_replay(
            records,
            newest,
            self._replica.replays,
            base_offset=base_offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
        )
        self.pending.append(
            PendingBatch(end_offset=state.end_offset, state=state, size_bytes=len(batches.data))
        )
        return batches

    def appended(self, end_offset: int) -> None:
        """Raft has everything below this offset, in one more append."""
        self._appends.append(end_offset)

    def follow(self, batches: Batches) -> None:
        """Raft appended batches. Its own, which change voters, are pending from now on like those of this
        node, which are already here."""
        if batches.base_offset != self.newest_state.end_offset:
            return
        for batch in batches.split():
            state = replay(self.newest_state, batch)
            size_bytes = batch.header.size_bytes
            self.pending.append(PendingBatch(end_offset=state.end_offset, state=state, size_bytes=size_bytes))

    def _holds(self, answer: ControllerAnswer) -> bool:
        """Whether everything that the answer was read from is committed."""
        if not self.pending or not answer.depends_on_image:
            return True
        broker_id = answer.depends_on_broker
        if broker_id is None:
            return False
        newest, committed = self.newest.brokers, self.committed.image.brokers
        return newest.get(broker_id) == committed.get(broker_id) and newest.registration_offset(
            broker_id
        ) == committed.registration_offset(broker_id)

    def settle(self, answers: Iterable[ControllerAnswer]) -> list[Reply]:
        """Returns those that are true now; the others wait for everything that was appended so far."""
        now: list[Reply] = []
        for answer in answers:
            if self._holds(answer):
                now.append((answer.key, answer.response))
            else:
                self.pending[-1].replies.append((answer.key, answer.response))
                self.replies_waiting += 1
        return now

    def commit(self, high_watermark: int) -> list[Reply]:
        """Everything that ends at or below the high watermark is committed. Returns its replies, oldest
        first."""
        replies: list[Reply] = []
        while self.pending and self.pending[0].end_offset <= high_watermark:
            entry = self.pending.popleft()
            self._replica.advance(entry.state, entry.size_bytes)
            replies += entry.replies
        while self._appends and self._appends[0] <= high_watermark:
            self._appends.popleft()
        self.replies_waiting -= len(replies)
        return replies

    def drop(self) -> list[int]:
        """Leadership is lost: pending batches may or may not be committed. Returns the keys that waited for
        them."""
        keys = [key for entry in self.pending for key, _ in entry.replies]
        self.pending.clear()
        self._appends.clear()
        self.replies_waiting = 0
        return keys


# Encodes records as one batch, in the versions of the metadata.version level, and computes the state
# after it.


def encode_records_batch(
    records: Sequence[Record], *, base_offset: int, epoch: int, timestamp_ms: int, metadata_version: int
) -> bytes:
    """One batch. Raises storage.errors.BatchError if it would be larger than 8 MiB.

    A batch that finalizes metadata.version is written at the new level, including the records before that
    one: the first batch of a cluster begins a transaction before it states its level.
    """
    if isinstance(records, RecordPieces):
        body = records.body(metadata_version)
        header = plain_header(base_offset, epoch, timestamp_ms, len(records))
        return seal_batch(header, body)
    level = metadata_version
    for record in records:
        if type(record) is FeatureLevelRecord and record.name == METADATA_VERSION:
            level = record.feature_level
    values = [encode(record, write_version(record, level)) for record in records]
    return encode_batch(base_offset=base_offset, leader_epoch=epoch, timestamp_ms=timestamp_ms, values=values)


def encode_and_replay(
    records: Sequence[Record],
    state: ReplayState,
    replays: Replays,
    *,
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
) -> tuple[Batches, ReplayState]:
    """One batch that follows `state`, and the state after it, made by `replays`. Raises BatchError and
    RecordEncodeError for what cannot be written, ReplayError for what does not fit its own image."""
    data = encode_records_batch(
        records,
        base_offset=base_offset,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        metadata_version=state.newest.features.metadata_version,
    )
    batches = Batches.sealed(data)
    if len(records) >= COLUMNS_MIN_RECORDS:
        (batch,) = batches.split()
        return batches, replays.after(state, lambda engine: engine.apply_batch(batch))
    return batches, replays.after(
        state,
        lambda engine: engine.apply_records(
            base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms, records=records
        ),
    )
