"""What the core knows of its log: bounds, epochs, snapshots; never a record."""

from __future__ import annotations

from metaquorum.raft.config import RecoveredLog
from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.messages import NOTHING_COMMITTED
from metaquorum.storage.errors import CommittedLostError
from metaquorum.storage.files.known_committed import FILE_NAME, WHERE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition


def check_log(
    directory: str, *, committed: LogPosition, start_offset: int, end_offset: int, epochs: EpochTable
) -> None:
    """An opened log must hold what was known to be committed. `end_offset` takes snapshots into account
    too. Raises CommittedLostError."""
    if end_offset < committed.offset:
        lacks = f"the log ends at offset {end_offset}"
    else:
        epoch = epochs.epoch_at(committed.offset - 1) if committed.offset > start_offset else None
        if epoch in (None, committed.epoch):
            return
        lacks = f"offset {committed.offset - 1} is of epoch {epoch}, and was of epoch {committed.epoch}"
    raise CommittedLostError(
        f"{directory}: committed records are missing: {lacks}, and {FILE_NAME} beside it says that everything"
        f" below offset {committed.offset} was committed; the log was replaced by an older copy, cut, or lost"
        " by its disk. No byte was changed. Keep this directory, do not put an older one in its place;"
        f" {WHERE}"
    )


class LogView:
    """Bounds are offsets, ends exclusive. `high_watermark` is -1 while nothing is known to be committed."""

    def __init__(self, recovered: RecoveredLog) -> None:
        self.epochs = EpochTable(recovered.epochs)
        """Where each epoch begins, of the records in [start_offset, end_offset)."""
        self.start_offset = recovered.log_start_offset
        """0, or at most the end of a snapshot. Never falls."""
        self.end_offset = recovered.log_end_offset
        """Includes records whose write was only requested. Never below the start or the high watermark."""
        self.synced_offset = recovered.log_end_offset
        """Everything below it is durable here. Never above the end; falls only with a truncation or reset."""
        self.snapshots: set[LogPosition] = set(recovered.snapshots)
        """Durable ones, of committed records only."""
        self.directory = recovered.directory
        """For messages."""
        self.noted = recovered.known_committed
        """The newest note of what is committed and synced here. Never falls."""
        check_log(
            recovered.directory,
            committed=self.noted,
            start_offset=self.start_offset,
            end_offset=max([self.end_offset, *(position.offset for position in self.snapshots)]),
            epochs=self.epochs,
        )
        # A snapshot covers committed records only, and a log starts above 0 only after a snapshot.
        within = [position.offset for position in recovered.snapshots if position.offset <= self.end_offset]
        bound = self.noted.offset if self.noted.offset <= self.end_offset else 0
        self.high_watermark = max([*within, self.start_offset, bound]) or NOTHING_COMMITTED
        """Everything below it is committed. Never falls: no truncation or snapshot goes below it."""

    @property
    def end_position(self) -> LogPosition:
        """The log's end as Raft compares logs: by the epoch of the last record, then by length."""
        return LogPosition(self.epoch_before(self.end_offset), self.end_offset)

    @property
    def latest_snapshot(self) -> LogPosition | None:
        return max(self.snapshots, key=lambda position: position.offset, default=None)

    def epoch_before(self, offset: int) -> int:
        """Epoch of the record before `offset`; 0 at the very beginning. `offset` is inside the log or
        its end."""
        epoch = self.epochs.epoch_at(offset - 1) if offset > self.start_offset else None
        if epoch is not None:
            return epoch
        for snapshot in self.snapshots:
            if snapshot.offset == offset:
                return snapshot.epoch
        return 0 if offset == 0 else (self.epochs.first_epoch or 0)

    def snapshot_needed(self, offset: int, epoch: int) -> bool:
        """True if a replica whose log ends at (offset, epoch) cannot be served from this log."""
        if offset < self.start_offset:
            return True
        if self.start_offset == 0 or LogPosition(epoch, offset) in self.snapshots:
            return False
        first = self._first_known_epoch
        return first is None or epoch < first

    @property
    def _first_known_epoch(self) -> int | None:
        """The epoch of which this log knows where it ends: that of the snapshot at its start, or the first of
        its records."""
        at_start = [snapshot.epoch for snapshot in self.snapshots if snapshot.offset == self.start_offset]
        return at_start[0] if at_start else self.epochs.first_epoch

    def divergence(self, offset: int, epoch: int) -> LogPosition | None:
        """None if this log contains the replica's log up to (offset, epoch); otherwise where the replica's
        `epoch`, or the largest one below it, ends here (KIP-595). If that is where this log starts, what the
        replica has beyond it is cut: a snapshot does not pass its log, and would end a voter of Kafka."""
        if offset == 0 or LogPosition(epoch, offset) in self.snapshots:
            return None
        end = self.epochs.end_offset_for(epoch, self.end_offset)
        if end is None:
            return LogPosition(self.epoch_before(self.start_offset), self.start_offset)
        return end if end.epoch != epoch or end.offset < offset else None

    def truncation_offset(self, diverging: LogPosition) -> int:
        """Where to truncate this log, given where the common epoch ends in the leader's log."""
        end = self.epochs.end_offset_for(diverging.epoch, self.end_offset)
        if end is None:
            return self.start_offset
        return min(end.offset, diverging.offset) if end.epoch == diverging.epoch else end.offset

    def append(self, epoch: int, base_offset: int, end_offset: int) -> None:
        self.epochs = self.epochs.append(epoch, base_offset)
        self.end_offset = end_offset

    def synced(self, end_offset: int) -> None:
        self.synced_offset = max(self.synced_offset, min(end_offset, self.end_offset))

    def has_committed(self, position: LogPosition) -> bool:
        """Whether a log that ends there can hold everything that this replica knows to be committed. Its
        epoch alone does not show that if committed records were lost (Raft paper 5.4.1 relies on them)."""
        return position.offset >= self.high_watermark

    @property
    def committed_position(self) -> LogPosition | None:
        """How far this replica knows its log to be committed; None if it knows of nothing."""
        committed = self.high_watermark
        return LogPosition(self.epoch_before(committed), committed) if committed > 0 else None

    def lacks(self, committed: LogPosition) -> bool:
        """Whether this log ends before a position, or holds another record there."""
        if self.end_offset < committed.offset:
            return True
        epoch = self.epochs.epoch_at(committed.offset - 1) if committed.offset > self.start_offset else None
        return epoch not in (None, committed.epoch)

    def truncate(self, end_offset: int) -> None:
        """Raises RaftInvariantError below the high watermark: committed records are never taken back, and
        `known.check_cut` has refused such a request before."""
        if end_offset < self.high_watermark:
            raise RaftInvariantError(
                f"a truncation to {end_offset} is below the high watermark {self.high_watermark}"
            )
        self.epochs = self.epochs.truncate_to(end_offset)
        self.end_offset = end_offset
        self.synced_offset = min(self.synced_offset, end_offset)

    def reset(self, position: LogPosition) -> None:
        """The log now starts and ends at a snapshot that was installed."""
        if position.offset < self.high_watermark:
            raise RaftInvariantError(
                f"snapshot {position} ends below the high watermark {self.high_watermark}; "
                "installing it would remove committed records"
            )
        self.epochs = EpochTable.reset(position)
        self.start_offset = self.end_offset = self.synced_offset = self.high_watermark = position.offset
        self.snapshots.add(position)

    def trim(self, start_offset: int) -> None:
        if start_offset > self.start_offset:
            self.epochs = self.epochs.truncate_start(start_offset)
            self.start_offset = start_offset
            # A durable snapshot covers everything before its end, including what was not synced here yet.
            self.synced_offset = max(self.synced_offset, start_offset)
