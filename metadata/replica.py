"""A node's replica of the metadata log: reads, replays and snapshots the records that Raft commits.

The path from Raft's effects to the committed state and back: the effect gate, which slice of the log is read
next, what a fetched snapshot replaces, when a snapshot is written and the log before it trimmed. Controllers
and brokers share this code and have one replica each. The only module in this folder that builds on Raft (ADR
12).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from metaquorum.metadata.errors import InvariantViolation
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import MetadataReplicaConfig
from metaquorum.metadata.replay import Replayer, Replays, ReplayState
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import EffectGate, RaftEffect, ResetLog, Warn
from metaquorum.raft.events import (
    LogRead,
    LogSynced,
    LogTrimmed,
    QuorumStatePersisted,
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
    ReadLog,
    SnapshotLoaded,
    SnapshotRejected,
    SnapshotWritten,
    TrimLog,
    WriteSnapshot,
)
from metaquorum.storage.errors import CommittedLostError
from metaquorum.storage.types import LogPosition

RaftEvent = (
    RaftRequestArrived
    | RaftRequestAbandoned
    | RaftResponseArrived
    | RaftRequestFailed
    | QuorumStatePersisted
    | LogSynced
    | LogTrimmed
    | SnapshotWritten
    | SnapshotLoaded[MetadataImage]
    | SnapshotRejected
)
"""Events that a node passes on to its replica, with or without looking at them itself."""


class MetadataReplica:
    """The owner calls Raft through `raft` and passes the resulting effects to `release`. It calls `next_read`
    and `snapshot_due` after everything that may affect them, and executes the results in order.

    `state` holds everything below `applied_offset`: at first the newest snapshot on disk, or an empty image.
    """

    def __init__(
        self, raft: RaftCore, image: MetadataImage, config: MetadataReplicaConfig, *, now_ms: int
    ) -> None:
        self.raft = raft
        self.state = ReplayState(image)
        self.replays = Replays()
        """For everything that follows `state`, including what is not committed yet."""
        self.snapshots = SnapshotPolicy(
            max_bytes=config.metadata_log_max_record_bytes_between_snapshots,
            interval_ms=config.metadata_log_max_snapshot_interval_ms,
            last_offset=image.provenance.offset,
            now_ms=now_ms,
        )
        self._config = config
        self._gate = EffectGate()
        self._reading_from: int | None = None

    @property
    def applied_offset(self) -> int:
        """Everything below it is in `state`, the inside of an open transaction included."""
        return self.state.end_offset

    @property
    def is_reading(self) -> bool:
        """A `ReadLog` is under way."""
        return self._reading_from is not None

    def next_deadline_ms(self) -> int | None:
        """When Raft has something to do, or a snapshot becomes due by age."""
        own_ms, raft_ms = self.snapshots.next_deadline_ms(self.state), self.raft.next_deadline_ms()
        return raft_ms if own_ms is None or (raft_ms is not None and raft_ms < own_ms) else own_ms

    # ---- Raft and the disk

    def release(self, effects: list[RaftEffect]) -> Sequence[RaftEffect]:
        """The effects requested by Raft that may be executed now, in order."""
        return self._gate.push(effects)

    def handle(self, event: RaftEvent, now_ms: int) -> Sequence[RaftEffect | TrimLog]:  # noqa: PLR0911
        """Handles one input, in order of arrival. Returns the effects that may be executed now, in order."""
        raft, push = self.raft, self._gate.push
        match event:
            case RaftRequestArrived(key=key, request=request):
                return push(raft.on_request(key, request, now_ms=now_ms))
            case LogSynced(end_offset=end_offset):
                return push(raft.on_log_synced(end_offset, now_ms=now_ms))
            case RaftResponseArrived(source=source, correlation_id=at, response=response):
                return push(raft.on_response(source, at, response, now_ms=now_ms))
            case RaftRequestFailed(target=target, correlation_id=at, reason=reason):
                return push(raft.on_request_failed(target, at, reason, now_ms=now_ms))
            case QuorumStatePersisted(token=token):
                return [
                    *self._gate.persisted(token),
                    *push(raft.on_quorum_state_persisted(token, now_ms=now_ms)),
                ]
            case RaftRequestAbandoned(key=key):
                return push(raft.on_request_abandoned(key, now_ms=now_ms))
            case LogTrimmed(log_start_offset=log_start_offset):
                return push(raft.on_log_trimmed(log_start_offset, now_ms=now_ms))
            case SnapshotWritten(position=position):
                return self._on_snapshot_written(position, now_ms)
            case SnapshotLoaded(position=position, image=image, voters=voters):
                _check_end(image, position)
                effects = raft.on_snapshot_loaded(position, voters, now_ms=now_ms)
                if any(isinstance(one, ResetLog) for one in effects):
                    self._load(position, image, now_ms)
                return push(effects)
            case SnapshotRejected(position=position, reason=reason):
                warning = Warn(message=f"the fetched snapshot {position} is damaged: {reason}")
                return [warning, *push(raft.on_snapshot_rejected(position, now_ms=now_ms))]
            case _:
                assert_never(event)

    def _on_snapshot_written(self, position: LogPosition, now_ms: int) -> Sequence[RaftEffect | TrimLog]:
        """The snapshot is durable: the log before it may be trimmed, as far as retention allows."""
        if not self.snapshots.written(position):
            return []
        effects = self._gate.push(self.raft.on_snapshot_written(position, now_ms=now_ms))
        return [*effects, TrimLog(before_offset=position.offset)]

    def _load(self, position: LogPosition, image: MetadataImage, now_ms: int) -> None:
        """A fetched snapshot that Raft has taken replaces everything, as one change."""
        self.state = ReplayState(image)
        self._reading_from = None
        self.snapshots.loaded(position, now_ms)

    # ---- what is committed

    def next_read(self) -> ReadLog | None:
        """The next slice of committed batches to read; None if there is none or a read is in progress."""
        start, end = self.applied_offset, self.raft.high_watermark
        if self._reading_from is not None or start >= end:
            return None
        self._reading_from = start
        config = self._config
        far_behind = end - start > config.catch_up_records
        slice_bytes = config.catch_up_slice_bytes if far_behind else config.apply_slice_bytes
        return ReadLog(from_offset=start, to_offset=end, max_bytes=slice_bytes)

    def apply(self, event: LogRead) -> int:
        """Replays a slice. Returns its size in bytes, or 0 if a snapshot has overtaken it.

        Raises CommittedLostError if the log has nothing at its offset, and ReplayError for a record that does
        not fit; the state is then unchanged.
        """
        if event.from_offset != self._reading_from:
            return 0
        self._reading_from = None
        batches = event.batches
        if not batches.headers:
            raise CommittedLostError(
                f"the log holds nothing at offset {event.from_offset}, which is committed:"
                " see 'Damaged or lost' in docs/operations.md"
            )

        def apply(engine: Replayer) -> None:
            for batch in batches.split():
                engine.apply_batch(batch)

        state = self.replays.after(self.state, apply)
        self.advance(state, len(batches.data))
        return len(batches.data)

    def advance(self, state: ReplayState, size_bytes: int) -> None:
        """Batches of `size_bytes` are committed, and `state` is the result. The active controller, which
        replays before it appends, also commits this way."""
        self.state = state
        self.snapshots.replayed(size_bytes)

    def snapshot_due(self, now_ms: int) -> WriteSnapshot[MetadataImage] | None:
        """The snapshot to write, if one is due."""
        position = self.snapshots.cut(self.state, now_ms)
        if position is None:
            return None
        image = self.state.image
        return WriteSnapshot(
            image=image,
            position=position,
            timestamp_ms=image.provenance.timestamp_ms,
            voters=self.raft.voters_at(position.offset),
        )


def _check_end(image: MetadataImage, position: LogPosition) -> None:
    provenance = image.provenance
    if (provenance.epoch, provenance.offset) != (position.epoch, position.offset):
        raise InvariantViolation(
            f"the snapshot {position} gave an image of epoch {provenance.epoch} that ends at offset"
            f" {provenance.offset}: remove its file, and it is fetched again"
        )


# When a node writes a snapshot, and where it ends: after some number of bytes or some time (KIP-630).


class SnapshotPolicy:
    """`last_offset`: the end of the newest snapshot on this node, 0 if none. `interval_ms`: 0 disables
    snapshots by age. `in_progress`: the snapshot being written."""

    def __init__(self, *, max_bytes: int, interval_ms: int, last_offset: int, now_ms: int) -> None:
        self.last_offset = last_offset
        self.in_progress: LogPosition | None = None
        self._max_bytes = max_bytes
        self._interval_ms = interval_ms
        self._last_ms = now_ms
        self._bytes = 0

    def replayed(self, size_bytes: int) -> None:
        """Adds batches of `size_bytes` to the committed state."""
        self._bytes += size_bytes

    def cut(self, state: ReplayState, now_ms: int) -> LogPosition | None:
        """The end of the snapshot to write now, if one is due; it is then in progress.

        The committed `state` ends at a batch boundary at or below the high watermark, and its epoch is that
        of the record before its end. Inside a metadata transaction there is no such place, so the snapshot
        waits for the transaction's end.
        """
        if not self._may_cut(state):
            return None
        old = self._interval_ms > 0 and now_ms >= self._last_ms + self._interval_ms
        if not old and self._bytes < self._max_bytes:
            return None
        place = state.image.provenance
        self.in_progress = LogPosition(place.epoch, place.offset)
        self._restart(now_ms)
        return self.in_progress

    def written(self, position: LogPosition) -> bool:
        """A snapshot is durable. Returns False if a newer one was fetched in the meantime."""
        if self.in_progress == position:
            self.in_progress = None
        if position.offset <= self.last_offset:
            return False
        self.last_offset = position.offset
        return True

    def loaded(self, position: LogPosition, now_ms: int) -> None:
        """A fetched snapshot replaced the log before it."""
        self.last_offset = max(self.last_offset, position.offset)
        self._restart(now_ms)

    def next_deadline_ms(self, state: ReplayState) -> int | None:
        """The time by which `cut` must be called if `state` does not change."""
        if self._interval_ms <= 0 or not self._may_cut(state):
            return None
        return self._last_ms + self._interval_ms

    def _may_cut(self, state: ReplayState) -> bool:
        new = state.image.provenance.offset > self.last_offset
        return new and self.in_progress is None and state.transaction is None

    def _restart(self, now_ms: int) -> None:
        self._last_ms = now_ms
        self._bytes = 0
