"""A replica's answers to readers: from where to where, what is out of range, the offset of a time.

Owns the bounds of reads and the comparison of epochs (KIP-595). Must not change the replica: `leader` notes
which replica fetched what.
"""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.values import FindPlan, Reader, ReadPlan
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    BEFORE_ALL,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    NEWEST_TIMESTAMP,
    FetchedPartition,
    FetchPartition,
    ListedOffset,
    ListOffsetsPartition,
)
from metaquorum.metadata.requests.log_ends import EpochEnd
from metaquorum.storage.types import LogPosition


def visible_end(log: LocalLog) -> int:
    """How far clients read: the high watermark may cover records that a follower accepted and has not
    written."""
    return min(log.high_watermark, log.written)


@dataclass(slots=True, kw_only=True)
class Reading:
    """The log of a leader, whose epoch began at `epoch_start`, or of a follower, for one reader."""

    log: LocalLog
    leader: int
    epoch: int
    epoch_start: int
    reader: Reader

    @property
    def end(self) -> int:
        """Followers read what is written, clients what every replica in sync holds, and those of committed
        records only what is decided."""
        if self.reader.is_follower:
            return self.log.written
        end = visible_end(self.log)
        return min(end, self.log.last_stable_offset) if self.reader.read_committed else end

    def fetch(self, request: FetchPartition) -> FetchedPartition | ReadPlan:
        log, offset = self.log, request.fetch_offset
        if offset < log.start:
            return self._out_of_range(request)
        epoch, entries = request.last_fetched_epoch, log.epochs.entries
        follows = entries and epoch == entries[-1][0] and offset <= log.end
        if epoch >= 0 and not follows:
            # Before the end is checked: a fetcher that is ahead keeps what both logs have.
            shared = log.epochs.end_offset_for(epoch, log.end)
            if shared is None:
                return self._out_of_range(request)
            if shared.epoch < epoch or shared.offset < offset:
                return self._diverging(shared)
        if offset > log.end:
            return self._out_of_range(request)
        return ReadPlan(
            key=log.key,
            from_offset=offset,
            to_offset=self.end,
            max_bytes=request.max_bytes,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.start,
            leader_epoch=self.epoch,
        )

    def elsewhere(self, replica_id: int) -> FetchedPartition:
        """Nothing is read here: the reader is sent to this replica."""
        return FetchedPartition(
            key=self.log.key,
            high_watermark=self.log.high_watermark,
            last_stable_offset=self.log.last_stable_offset,
            log_start_offset=self.log.start,
            preferred_read_replica=replica_id,
            leader_epoch=self.epoch,
        )

    def _diverging(self, position: LogPosition) -> FetchedPartition:
        return FetchedPartition(
            key=self.log.key,
            high_watermark=self.log.high_watermark,
            last_stable_offset=self.log.last_stable_offset,
            log_start_offset=self.log.start,
            diverging=position,
            leader=self.leader,
            leader_epoch=self.epoch,
        )

    def _out_of_range(self, request: FetchPartition) -> FetchedPartition:
        log = self.log
        epoch = request.last_fetched_epoch
        whose = "" if epoch < 0 else f" after epoch {epoch}"
        text = (
            f"{log}: offset {request.fetch_offset}{whose} is not in this log, which holds {log.start} up "
            f"to {log.end}: read from its start or its end"
        )
        return FetchedPartition(
            key=log.key,
            error=ErrorCode.OFFSET_OUT_OF_RANGE,
            message=text,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.start,
            leader=self.leader,
            leader_epoch=self.epoch,
        )

    # ---- list offsets ------------------------------------------------------------------------

    def list_offset(self, request: ListOffsetsPartition) -> ListedOffset | FindPlan:
        log, wanted = self.log, request.timestamp_ms
        if wanted in {EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP}:
            return self._listed(log.start, -1, log.epochs.epoch_at(log.start))
        if wanted == LATEST_TIMESTAMP:
            if self._is_behind():
                return self._not_available()
            return self._listed(self.end, -1, log.epochs.epoch_at(max(log.start, self.end - 1)))
        if wanted == LATEST_TIERED_TIMESTAMP:
            return self._listed(-1, -1, None)  # there is no remote storage
        if wanted < 0 and wanted not in {NEWEST_TIMESTAMP, BEFORE_ALL}:
            text = f"{log}: {wanted} is not a timestamp: send ms since 1970, or -1 (latest) to -5"
            return ListedOffset(key=log.key, error=ErrorCode.INVALID_REQUEST, message=text)
        return FindPlan(key=log.key, timestamp_ms=wanted, below_offset=self.end, leader_epoch=self.epoch)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Where an epoch ends in this log. An epoch younger than the log has no end; one older than all known
        epochs ends where those begin (KIP-279)."""
        log = self.log
        first = log.epochs.entries[0] if log.epochs.entries else None
        if epoch < 0 or first is None or epoch > log.epochs.last_epoch:
            return EpochEnd(key=log.key)
        found = log.epochs.end_offset_for(epoch, log.end)
        if found is None:
            return EpochEnd(key=log.key, leader_epoch=epoch, end_offset=first[1])
        return EpochEnd(key=log.key, leader_epoch=found.epoch, end_offset=found.offset)

    def found_offset(self, offset: int | None, timestamp_ms: int, leader_epoch: int) -> ListedOffset:
        """The answer to a look-up by time; `offset` None: the log holds no record that late."""
        if offset is not None:
            return self._listed(offset, timestamp_ms, leader_epoch)
        return self._not_available() if self._is_behind() else self._listed(-1, -1, None)

    def _is_behind(self) -> bool:
        """The high watermark of a new leader may be below what clients have read from the previous one; it is
        right as soon as it reaches the epoch's start (KIP-207)."""
        return not self.reader.is_follower and visible_end(self.log) < self.epoch_start

    def _listed(self, offset: int, timestamp_ms: int, epoch: int | None) -> ListedOffset:
        return ListedOffset(
            key=self.log.key,
            offset=offset,
            timestamp_ms=timestamp_ms,
            leader_epoch=-1 if epoch is None else epoch,
            leader=self.leader,
        )

    def _not_available(self) -> ListedOffset:
        text = f"{self.log}: this leader is new and does not know the high watermark yet: try again"
        return ListedOffset(key=self.log.key, error=ErrorCode.OFFSET_NOT_AVAILABLE, message=text)
