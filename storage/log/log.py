"""The segmented log: append, read, sync, truncate, reset, trim.

Threads: one thread (the loop) makes every call, except `SyncTicket.run` on one disk thread. Only one sync is
in progress at a time, on that thread or in the background.

Order of durable steps, so that a crash at any point leaves a log that opens:
- the recovery point is raised only after a sync of what is below it, with the epoch table written before;
- it is lowered before anything above it is truncated;
- a roll syncs the full segment before the next one gets its first byte, so a torn tail is in the last file;
- a reset first writes its intent into the recovery point; opening finishes it;
- segments are removed oldest first by a trim and newest first by a truncation, each made durable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from metaquorum.storage.batches.batch import HEADER_BYTES, NO_BATCHES, Batches, parse_header
from metaquorum.storage.batches.format import NO_TIMESTAMP, BatchHeader
from metaquorum.storage.disk.interface import (
    BackgroundSync,
    Disk,
    DiskFile,
    Lock,
    join,
    make_durable_directory,
    write_atomically,
)
from metaquorum.storage.errors import BatchError, LogFailedError, OffsetOutOfRange
from metaquorum.storage.log.config import PARTITION_METADATA_FILE, LogConfig
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.open import Examined, examine, repair
from metaquorum.storage.log.recovery import RecoveryPoint, load_recovery_point, store_recovery_point
from metaquorum.storage.log.segment import Segment, list_segments, segment_name
from metaquorum.storage.types import LogPosition


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One segment as listed by `segments()`. `last_timestamp_ms` is the first timestamp of the next
    segment, an upper bound in a log whose timestamps never fall; for the last segment it is that of its
    newest batch. Both are None for an empty segment."""

    file: str
    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None


# A log whose segments are open: its offsets and sizes, and reads of it.


class OpenLog:
    """`end_offset` is exclusive. There is at least one segment; only the last one grows."""

    def __init__(self, directory: str, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        self.end_offset = 0
        self.start_epoch = 0
        self.epochs = EpochTable()
        self._segments: list[Segment] = []
        self._point = RecoveryPoint(offset=0, segment=0, position=0, start_offset=0, start_epoch=0)
        self._last_timestamp_ms: int | None = None
        self._failed = False

    @property
    def start_offset(self) -> int:
        """Offset of the first record that still exists (the end offset, for an empty log)."""
        return self._segments[0].base_offset

    @property
    def last_position(self) -> LogPosition:
        """(epoch of the last record, end offset); for an empty log after a snapshot, the snapshot's."""
        epoch = self.epochs.last_epoch if self.end_offset > self.start_offset else self.start_epoch
        return LogPosition(epoch, self.end_offset)

    @property
    def size_bytes(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self._segments)

    @property
    def recovery_point(self) -> RecoveryPoint:
        """The last recovery point that is durable."""
        return self._point

    def segments(self) -> list[SegmentInfo]:
        """Every segment, oldest first."""
        infos: list[SegmentInfo] = []
        for index, segment in enumerate(self._segments):
            following = self._segments[index + 1] if index + 1 < len(self._segments) else None
            first = segment.first_timestamp_ms
            last = following.first_timestamp_ms if following else self._newest_timestamp_ms()
            infos.append(
                SegmentInfo(
                    file=segment.path,
                    base_offset=segment.base_offset,
                    end_offset=following.base_offset if following else self.end_offset,
                    size_bytes=segment.size,
                    first_timestamp_ms=first,
                    last_timestamp_ms=last if last is not None else first,
                )
            )
        return infos

    def _newest_timestamp_ms(self) -> int | None:
        active = self._segments[-1]
        if self._last_timestamp_ms is None and active.size:
            position, _ = active.locate(self.end_offset - 1)
            self._last_timestamp_ms = parse_header(
                active.file.read_at(position, HEADER_BYTES)
            ).max_timestamp_ms
        return self._last_timestamp_ms

    def read(self, offset: int, max_bytes: int) -> Batches:
        """Whole batches, checked by CRC, from the batch that contains `offset` on; empty at the end offset.

        At least one batch, and at most `max_bytes` if there is more than one; never past a segment's end.
        Raises OffsetOutOfRange, CorruptLogError, DiskError.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        segment = self._segment_for(offset)
        if offset == self.end_offset:
            return NO_BATCHES
        position, base = segment.locate(offset)
        return segment.read(position, base, max_bytes)

    def _segment_for(self, offset: int) -> Segment:
        for segment in reversed(self._segments):
            if segment.base_offset <= offset:
                return segment
        raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)

    def _point_at_end(self) -> RecoveryPoint:
        active = self._segments[-1]
        return RecoveryPoint(
            offset=self.end_offset,
            segment=active.base_offset,
            position=active.size,
            start_offset=self.start_offset,
            start_epoch=self.start_epoch,
            epoch=self._epoch_before(self.end_offset),
        )

    def _epoch_before(self, offset: int) -> int:
        """The epoch of the last record below `offset`."""
        if offset <= self.start_offset:
            return self.start_epoch
        return self.epochs.epoch_at(offset - 1) or 0

    def _check_usable(self) -> None:
        if self._failed:
            raise LogFailedError(self.directory)


T = TypeVar("T")

__all__ = ["SegmentInfo", "SegmentedLog", "SyncTicket"]


class SegmentedLog(OpenLog):
    """A log open for writing. Create one with `open`."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig, lock: Lock | None) -> None:
        super().__init__(directory, config)
        self.generation = 0
        self.synced_offset = 0
        self._disk = disk
        self._lock = lock
        self._stored_epochs: EpochTable | None = None
        self._unpointed_bytes = 0
        # Held during a sync, so that no truncation runs at the same time.
        self._io = SyncGate(disk.mutex())

    @staticmethod
    def open(
        disk: Disk,
        directory: str,
        config: LogConfig | None = None,
        on_warning: Callable[[str], None] = lambda text: None,
        *,
        lock: Lock | None = None,
        check: Callable[[Examined], None] = lambda found: None,
    ) -> SegmentedLog:
        """Opens or creates the log in `directory` and recovers it. Everything it holds is durable on return.

        Truncates a torn tail and passes its file and position to `on_warning`. Raises CorruptLogError,
        CorruptFileError (nothing was changed then), DiskError, or LogDirectoryLockedError. With `lock`, the
        caller has locked the directory (or its parent) and releases it; otherwise the log takes and releases
        its own lock. `check` gets what was found and may raise before a byte is changed.
        """
        if not disk.exists(directory):
            make_durable_directory(disk, directory)
        own = disk.lock(directory) if lock is None else None
        log = SegmentedLog(disk, directory, config or LogConfig(), own)
        try:
            log._recover(on_warning, check)
        except BaseException:
            log.close()
            raise
        return log

    # --- writing

    def append(self, batches: Batches) -> int:
        """Adds whole batches at the end and returns the new end offset. Not durable before a sync.

        Raises BatchError, with nothing written, if they do not follow the end or one exceeds the size limit,
        and DiskError if the disk fails; the log then accepts no more writes.
        """
        self._check_usable()
        problem = self._problem(batches)
        if problem is not None:
            raise BatchError(
                f"{self.directory} ends at offset {self.end_offset} and refuses these batches: {problem}"
            )
        try:
            self._append_checked(batches)
        except BaseException:
            self._failed = True
            raise
        return self.end_offset

    def _problem(self, batches: Batches) -> str | None:
        last = self.last_position
        problem = batches.problem_after(last.offset, last.epoch)
        limit = self.config.max_batch_bytes
        for header in batches.headers:
            if problem is None and header.size_bytes > limit:
                problem = (
                    f"the batch at offset {header.base_offset} has {header.size_bytes} bytes, the limit is "
                    f"{limit}; split the request"
                )
        return problem

    def _append_checked(self, batches: Batches) -> None:
        headers, size = batches.headers, len(batches.data)
        if self._must_roll(size, headers[0]):
            self._roll()
        self._segments[-1].append(batches)
        for header in headers:
            self.epochs = self.epochs.append(header.leader_epoch, header.base_offset)
        self.end_offset = batches.next_offset
        self._unpointed_bytes += size
        self._last_timestamp_ms = headers[-1].max_timestamp_ms

    def _must_roll(self, incoming: int, first: BatchHeader) -> bool:
        active = self._segments[-1]
        if not active.size:
            return False
        oldest = active.first_timestamp_ms
        # Without a time at its start, a segment has no age by its records: see PartitionLog.roll_if_due.
        has_age = oldest is not None and oldest != NO_TIMESTAMP
        aged = has_age and first.max_timestamp_ms - (oldest or 0) > self.config.segment_ms
        return aged or active.size + incoming > self.config.segment_bytes

    def _roll(self) -> None:
        with self._io:
            self._segments[-1].file.sync()
            self.synced_offset = max(self.synced_offset, self.end_offset)
            self._segments.append(self._open_segment(self.end_offset))
            self._disk.sync_directory(self.directory)
            self._store_point(self._point_at_end(), self.epochs)

    # --- durability

    def prepare_sync(self) -> SyncTicket:
        """A ticket for everything up to the current end offset."""
        if not self._segments:  # a reset failed; otherwise `run` raises
            self._check_usable()
        due = self._unpointed_bytes >= self.config.recovery_point_interval_bytes
        point = self._point_at_end() if due else None
        if due:
            self._unpointed_bytes = 0
        return SyncTicket(
            log=self,
            generation=self.generation,
            end_offset=self.end_offset,
            segment=self._segments[-1],
            epochs=self.epochs,
            point=point,
        )

    def sync_completed(self, ticket: SyncTicket) -> int:
        """Call after `ticket.run()`; returns the synced offset, unchanged if the log was truncated since."""
        if ticket.generation == self.generation:
            self.synced_offset = max(self.synced_offset, ticket.end_offset)
        return self.synced_offset

    def sync(self) -> int:
        """Prepare, run and complete in one call on this thread; returns the synced offset."""
        ticket = self.prepare_sync()
        ticket.run()
        return self.sync_completed(ticket)

    def _run_sync(self, ticket: SyncTicket) -> None:
        with self._io:
            # A stale ticket's bytes are gone, and perhaps its file too; the truncation itself was durable.
            if ticket.generation != self.generation or ticket.segment.closed:
                return
            self._check_usable()
            try:
                ticket.segment.file.sync()
                if ticket.point is not None and ticket.point.offset > self._point.offset:
                    # The log may have been trimmed since the ticket: the current start is the right one.
                    start = self._point.start_offset
                    point = replace(ticket.point, start_offset=start, start_epoch=self._point.start_epoch)
                    self._store_point(point, ticket.epochs.truncate_start(start))
            except BaseException:
                self._failed = True
                raise

    def _or_failed(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns; if it raises, the log accepts no more writes."""
        try:
            return work()
        except BaseException:
            self._failed = True
            raise

    def clean_close(self) -> None:
        """Syncs, raises the recovery point to the end, and closes: the next open has nothing to verify."""
        self.sync()
        with self._io:
            point = self._point_at_end()
            if point != self._point or self.epochs != self._stored_epochs:
                self._store_point(point, self.epochs)
        self.close()

    def close(self) -> None:
        """Closes the files and releases the lock, without a sync."""
        with self._io:
            for segment in self._segments:
                segment.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _store_point(self, point: RecoveryPoint, epochs: EpochTable) -> None:
        self._store_epochs(epochs)
        store_recovery_point(self._disk, self.directory, point)
        self._point = point

    def _store_epochs(self, epochs: EpochTable) -> None:
        if epochs != self._stored_epochs:
            write_atomically(self._disk, join(self.directory, EPOCHS_FILE), epochs.encode())
            self._stored_epochs = epochs

    # --- truncating

    def truncate_to(self, end_offset: int) -> int:
        """Truncates the log to end at `end_offset`, durably before it returns; returns the new end offset.

        A batch that contains `end_offset` is removed whole, so the end may be lower. Does nothing at the end.
        Raises OffsetOutOfRange, DiskError (the log then accepts no more writes), CorruptLogError.
        """
        self._check_usable()
        if not self.start_offset <= end_offset <= self.end_offset:
            raise OffsetOutOfRange(end_offset, self.start_offset, self.end_offset)
        if end_offset == self.end_offset:
            return end_offset
        keep = self._segment_for(end_offset)
        position, end = keep.cut_place(end_offset) if keep.size else (0, keep.base_offset)
        with self._io:
            self.generation += 1
            try:
                self._cut(keep, position, end)
            except BaseException:
                self._failed = True
                raise
        return end

    def _cut(self, keep: Segment, position: int, end: int) -> None:
        epochs = self.epochs.truncate_to(end)
        if end == self.start_offset and end > 0 and self.start_epoch >= 0:
            epochs = EpochTable.reset(LogPosition(self.start_epoch, end))
        point = RecoveryPoint(
            offset=end,
            segment=keep.base_offset,
            position=position,
            start_offset=self.start_offset,
            start_epoch=self.start_epoch,
            epoch=self._epoch_before(end),
        )
        if self._point.offset > end:
            # Before the truncation: a point above the end would look like lost data. All below is durable.
            # The epochs follow: with the point above them, the epochs of remaining records would be lost.
            store_recovery_point(self._disk, self.directory, point)
            self._point = point
        while self._segments[-1] is not keep:
            self._remove_segment(self._segments.pop())
        keep.cut(position)
        keep.file.sync()
        self.epochs = epochs
        self.end_offset = end
        self.synced_offset = end
        self._store_point(point, epochs)
        self._unpointed_bytes = 0
        self._last_timestamp_ms = None

    def reset_to(self, position: LogPosition) -> None:
        """Empties the log, which then starts and ends at `position.offset`, durably before it returns.

        For use after a snapshot with that identity was installed. Raises DiskError.
        """
        self._check_usable()
        with self._io:
            self.generation += 1
            try:
                point = RecoveryPoint(
                    offset=position.offset,
                    segment=position.offset,
                    position=0,
                    start_offset=position.offset,
                    start_epoch=position.epoch,
                    resetting=True,
                    epoch=position.epoch,
                )
                store_recovery_point(self._disk, self.directory, point)
                self._finish_reset(point)
            except BaseException:
                self._failed = True
                raise

    def _finish_reset(self, point: RecoveryPoint) -> None:
        for segment in self._segments:
            segment.close()
        self._segments = []
        for base in reversed(list_segments(self._disk, self.directory)):
            self._disk.remove(join(self.directory, segment_name(base)))
        self._disk.sync_directory(self.directory)
        self._segments = [self._open_segment(point.offset)]
        self._disk.sync_directory(self.directory)
        self.start_epoch = point.start_epoch
        self.end_offset = self.synced_offset = point.offset
        position = LogPosition(point.start_epoch, point.offset)
        known = point.offset and point.start_epoch >= 0
        self.epochs = EpochTable.reset(position) if known else EpochTable()
        self._unpointed_bytes = 0
        self._last_timestamp_ms = None
        self._stored_epochs = None
        self._store_point(self._point_at_end(), self.epochs)

    def delete_segments_before(self, offset: int) -> list[str]:
        """Removes the segments entirely below `offset`, never the last; returns the names of those removed.

        The caller keeps a snapshot at or above `offset`. Durable before it returns. Raises DiskError.
        """
        self._check_usable()
        count = 0
        while count + 1 < len(self._segments) and self._segments[count + 1].base_offset <= offset:
            count += 1
        if not count:
            return []
        with self._io:
            doomed, self._segments = self._segments[:count], self._segments[count:]
            start = self._segments[0].base_offset
            self.start_epoch = self.epochs.epoch_at(start - 1) or 0
            self.epochs = self.epochs.truncate_start(start)
            try:
                # The new start is durable first: opening completes a removal that a crash interrupted, and
                # removes the epochs before the start.
                point = self._trimmed_point(start)
                store_recovery_point(self._disk, self.directory, point)
                self._point = point
                self._store_epochs(self.epochs)
                for segment in doomed:
                    self._remove_segment(segment)
            except BaseException:
                self._failed = True
                raise
        return [segment.path for segment in doomed]

    def _trimmed_point(self, start: int) -> RecoveryPoint:
        old = self._point
        if old.segment < start:
            return RecoveryPoint(
                offset=start,
                segment=start,
                position=0,
                start_offset=start,
                start_epoch=self.start_epoch,
                epoch=self.start_epoch,
            )
        return replace(old, start_offset=start, start_epoch=self.start_epoch)

    def _remove_segment(self, segment: Segment) -> None:
        segment.close()
        self._disk.remove(segment.path)
        self._disk.sync_directory(self.directory)

    def _open_segment(self, base_offset: int) -> Segment:
        return Segment(
            self._disk, self.directory, base_offset, index_interval_bytes=self.config.index_interval_bytes
        )

    # --- opening

    def _recover(self, on_warning: Callable[[str], None], check: Callable[[Examined], None]) -> None:
        point = load_recovery_point(self._disk, self.directory)
        if point is not None and point.resetting:
            self._finish_reset(point)
            on_warning(f"{self.directory}: an interrupted reset to offset {point.offset} was completed")
            return
        bases = list_segments(self._disk, self.directory)
        examined = examine(self._disk, self.directory, point, bases, self._open_segment)
        self._segments, point = examined.segments, examined.point
        check(examined)
        repair(self._disk, self.directory, examined, on_warning)
        if not self._segments:
            self._segments.append(self._open_segment(0))
            self._disk.sync_directory(self.directory)
        self.epochs = examined.epochs
        self.start_epoch = examined.start_epoch
        self.end_offset = self.synced_offset = examined.end_offset
        self._stored_epochs = examined.stored_epochs
        self._write_partition_metadata()
        current = self._point_at_end()
        if point != current or self.epochs != self._stored_epochs:
            self._store_point(current, self.epochs)
        self._point = current

    def _write_partition_metadata(self) -> None:
        path = join(self.directory, PARTITION_METADATA_FILE)
        if not self._disk.exists(path):
            write_atomically(self._disk, path, f"version: 0\ntopic_id: {self.config.topic_id}".encode())


# One sync of a log, from the moment that fixes what it covers until that is durable.
# The two ways to run it: `run` on a thread that blocks, or `begin` and `end` around a sync that the disk
# runs by itself; and the gate that keeps truncations and rolls out meanwhile.


class SyncGate:
    """Inside `with`, no sync of the log is in progress and none begins. Entering waits for a background
    sync and raises its DiskError: continuing would treat as durable what that sync reported as lost, since
    the kernel reports an error once."""

    def __init__(self, mutex: AbstractContextManager[object]) -> None:
        self._mutex = mutex
        self._background: BackgroundSync | None = None

    def begin(self, background: BackgroundSync, file: DiskFile) -> bool:
        """Begins a sync of the log's last file, like `BackgroundSync.begin`."""
        if not background.begin(file):
            return False
        self._background = background
        return True

    def end(self) -> None:
        """Waits for the sync in the background, if there is one. Raises its DiskError."""
        background, self._background = self._background, None
        if background is not None:
            background.wait()

    def __enter__(self) -> None:
        if self._background is not None:
            self._background.wait()
        self._mutex.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mutex.__exit__(kind, error, trace)


class SyncedLog(Protocol):
    """What a ticket asks of its log, and no one else may."""

    _io: SyncGate

    def _check_usable(self) -> None: ...
    def _or_failed(self, work: Callable[[], T]) -> T: ...
    def _run_sync(self, ticket: SyncTicket) -> None: ...


class SyncTicket(msgspec.Struct, frozen=True, kw_only=True):
    """What one sync must make durable, taken on the loop thread at one moment. Either `run` it on the disk
    thread or, if `begin` returns True, `end` it. Call `sync_completed` after either."""

    log: SyncedLog
    generation: int
    end_offset: int
    segment: Segment
    epochs: EpochTable
    point: RecoveryPoint | None

    def run(self) -> None:
        """The sync itself, on the disk thread. Raises DiskError; the log then accepts no more writes."""
        self.log._run_sync(self)

    def begin(self, background: BackgroundSync) -> bool:
        """Begins the sync and returns at once, on the loop thread. If it returns False, nothing happened:
        use `run`, because there is more to write than the sync, or the disk cannot take it now. Raises
        DiskError."""
        log = self.log
        if self.point is not None:
            return False
        log._check_usable()
        return log._or_failed(lambda: log._io.begin(background, self.segment.file))

    def end(self) -> None:
        """Waits until the sync that `begin` began has ended. Raises DiskError; the log then accepts no
        more writes."""
        self.log._or_failed(self.log._io.end)
