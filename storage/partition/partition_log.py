"""A partition's log: the segmented log, with producers, retention, search by time, and files that are open
only when needed.

Unlike the metadata log, it is one of thousands, so it syncs nothing when it is opened and writes no recovery
point while it runs. Its caller (`DirectoryStore`) does both for many logs at once, see `Checkpoint`.

What is durable when: records after a sync; the start offset when a trim returns (in the recovery point,
before a segment is removed); the producers at a roll and at a checkpoint, otherwise they are restored from
the headers.

CRCs are checked by the appender, and by reads as `pooled_log` describes.

Threads: one thread changes the log; `read_range` and `find_offset` may run concurrently on any other, and
`SyncTicket.run` and `Checkpoint.place` on one more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.disk.file_pool import FilePool, PooledFile
from metaquorum.storage.disk.interface import (
    STAGED_SUFFIX,
    Disk,
    FileSystem,
    join,
    name_of,
    place_staged,
    read_file,
    remove_if_present,
    write_atomically,
)
from metaquorum.storage.errors import CorruptFileError, OffsetOutOfRange
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.open import examine, repair
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.recovery import RecoveryPoint, load_recovery_point
from metaquorum.storage.log.segment import Segment, segment_bases
from metaquorum.storage.log.timed_segment import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TimedSegment,
    cut_aborted,
    index_name,
    parse_index_name,
)
from metaquorum.storage.partition.log_producers import LogProducers, parse_snapshot_name
from metaquorum.storage.partition.pooled_log import PooledLog
from metaquorum.storage.partition.producers import ProducerTable
from metaquorum.storage.partition.swap import finish_swaps
from metaquorum.storage.types import LogPosition

INDEX_INTERVAL_BYTES = 64 * 1024
MAX_OFFSETS_A_SEGMENT = 2**31 - 1
# The writers of staged files, on two threads: both may write the same name at once.
_ROLL, _CHECKPOINT = "roll", "checkpoint"


class PartitionLog(PooledLog):
    """One replica's log. Create one with `load`."""

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, pool: FilePool, file_system: FileSystem
    ) -> None:
        super().__init__(disk, directory, config, pool, file_system)
        self.needs_sync = False
        self._producers = LogProducers(disk, directory)
        self._snapshots = self._producers.snapshots
        self._indexes = LogIndexes(disk, directory)
        # Counts the changes that invalidate an earlier checkpoint: truncations, trims and resets.
        self._shape = 0
        self._future_reported: int | None = None  # the segment

    @staticmethod
    def load(
        disk: Disk,
        directory: str,
        config: LogConfig,
        pool: FilePool,
        file_system: FileSystem,
        on_warning: Callable[[str], None] = lambda text: None,
        *,
        names: list[str] | None = None,
        verify: bool = False,
    ) -> PartitionLog:
        """Opens the log in an existing directory, or an empty one, and recovers it. `names` are those in the
        directory. `verify`: another program has had it since, so its recovery point is invalid and is
        removed.

        If `needs_sync` is true on return, `segment_files` may hold bytes that are not durable yet, and the
        directory's names may not be durable either. Raises CorruptLogError, CorruptFileError, DiskError.
        """
        log = PartitionLog(disk, directory, config, pool, file_system)
        try:
            names = disk.list_directory(directory) if names is None else names
            log._load(finish_swaps(disk, directory, names), on_warning, verify)
        except BaseException:
            log.close()
            raise
        return log

    # --- opening

    def _load(self, names: list[str], on_warning: Callable[[str], None], verify: bool) -> None:
        point = self._load_point(on_warning, verify) if POINT_FILE in names else None
        self._producers.find(names)
        if point is not None and point.resetting:
            self._snapshots.drop(0)
            self._finish_reset(point)
            self.trusted_from = point.offset
            self._remove_leftovers(names)
            self._indexes.begin(point.offset)
            self._producers.begin(point.offset)
            on_warning(f"{self.directory}: an interrupted reset to offset {point.offset} was completed")
            return
        bases = segment_bases(names)
        examined = examine(self._disk, self.directory, point, bases, self._existing_segment, gaps=True)
        self._segments, point = examined.segments, examined.point
        torn = examined.torn is not None
        repair(self._disk, self.directory, examined, on_warning, sync=False)
        if not self._segments:
            self._segments.append(self._open_segment(0))
            self.needs_sync = True
        self.epochs = examined.epochs
        self.start_epoch = examined.start_epoch
        self.end_offset = self.synced_offset = examined.end_offset
        self._stored_epochs = examined.stored_epochs
        self._point = point or self._point
        self.trusted_from = point.offset if point is not None else self.start_offset
        # A killed process may have left bytes, and a new segment's name, in the page cache only.
        unpointed = self._point.offset < self.end_offset
        self.needs_sync |= unpointed or self._segments[-1].base_offset != self._point.segment or torn
        for index, segment in enumerate(self._segments[:-1]):
            cast(TimedSegment, segment).sealed_end = self._segments[index + 1].base_offset
        last_is_right = self._point == self._point_at_end()
        self._indexes.find(names, self._timed_segments(), last_is_right=last_is_right)
        self._remove_leftovers(names)
        segments, span = self._timed_segments(), (self.start_offset, self.end_offset)
        self._producers.open(segments, *span, on_warning, rebuild=point is None)

    def _load_point(self, on_warning: Callable[[str], None], verify: bool) -> RecoveryPoint | None:
        """Without a point the whole log is verified: one bad file of one replica must not stop the broker."""
        try:
            if not verify:
                return load_recovery_point(self._disk, self.directory)
        except CorruptFileError as error:
            on_warning(f"{error.file}: {error.reason}; verifying the whole log instead")
        self._disk.remove(join(self.directory, POINT_FILE))
        self.needs_sync = True
        return None

    def _remove_leftovers(self, names: list[str]) -> None:
        """Staged files, and the files beside segments that are gone or that are appended to again."""
        bases = {segment.base_offset for segment in self._segments}
        for name in names:
            if name.endswith((STAGED_SUFFIX, ".tmp")) or self._indexes.is_leftover(name, bases):
                self.needs_sync |= remove_if_present(self._disk, join(self.directory, name))
        self._snapshots.drop(self.end_offset + 1)

    # --- state

    @property
    def producers(self) -> ProducerTable:
        """What the log knows of its producers and transactions."""
        return self._producers.table

    def segment_files(self) -> list[TimedSegment]:
        """The segments that may hold bytes above the recovery point."""
        return [one for one in self._timed_segments() if one.base_offset >= self._point.segment]

    @property
    def is_pointed(self) -> bool:
        """Whether its small files are current: a checkpoint would change nothing."""
        epochs = self._stored_epochs or EpochTable()
        kept = not self._producers.aborted_files(self._segments, self.end_offset)
        return kept and self._point_at_end() == self._point and self.epochs == epochs

    def configure(self, config: LogConfig) -> None:
        """New settings, in force from the next append on."""
        self.config = config

    # --- writing

    def _problem(self, batches: Batches) -> str | None:
        """A cleaner leaves gaps; the size of a batch is checked when a producer sends it."""
        last = self.last_position
        return batches.problem_after(last.offset, last.epoch, gaps=True)

    def _append_checked(self, batches: Batches) -> None:
        headers = batches.headers
        active = self._segments[-1]
        if self._must_roll(len(batches.data), headers[0]) or (
            batches.next_offset - active.base_offset > MAX_OFFSETS_A_SEGMENT and active.size
        ):
            self._roll()
            active = self._segments[-1]
        active.append(batches)
        with self._lookup:
            cast(TimedSegment, active).note_appended(batches)
            self.end_offset = batches.next_offset
        if active.base_offset not in self._indexes.missing:
            self._indexes.drop(active.base_offset)
        if headers[-1].leader_epoch != self.epochs.last_epoch or not self.epochs.entries:
            for header in headers:
                self.epochs = self.epochs.append(header.leader_epoch, header.base_offset)
        self._producers.note(batches)
        self._last_timestamp_ms = None

    def _roll(self) -> None:
        """The full segment, its indexes and the producers are durable before the next segment has a byte;
        the aborted transactions before the producers."""
        with self._io:
            active = cast(TimedSegment, self._segments[-1])
            active.file.sync()
            self.synced_offset = max(self.synced_offset, self.end_offset)
            with self._lookup:
                files = self._indexes.seal(active, self.end_offset)
            files.append(self._producers.snapshot_file(self.end_offset))
            aborted = self._producers.aborted_files(self._segments, self.end_offset)
            staged = [self.pool.staged(path, data, _ROLL) for path, data in (*aborted, *files)]
            self._file_system.sync(staged, ())
            for number, (file, (path, _)) in enumerate(zip(staged, (*aborted, *files), strict=True), 1):
                file.close()
                place_staged(self._disk, path, _ROLL)
                if number == len(aborted):
                    self._disk.sync_directory(self.directory)
            self._producers.kept_to = self.end_offset
            following = self._open_segment(self.end_offset)
            self._disk.sync_directory(self.directory)
            with self._lookup:
                self._segments.append(following)
            self._snapshots.note(self.end_offset)
            self._forget_snapshots()

    # --- checkpoints

    @property
    def unindexed_bytes(self) -> int | None:
        """The bytes to read so that every segment can have its index files; None if all have them."""
        return self._indexes.bytes_to_read(self._timed_segments())

    def _timed_segments(self) -> list[TimedSegment]:
        return cast("list[TimedSegment]", self._segments)

    def checkpoint(self, *, indexes: bool = False) -> Checkpoint | None:
        """What to write so that nothing up to the current end has to be verified again; None if nothing
        has changed. `indexes`: the log is about to be closed, so missing index files are written too."""
        if self.closed:
            return None
        point = self._point_at_end()
        files: list[tuple[str, bytes]] = []
        if indexes:
            with self._lookup:
                files = self._indexes.complete(self._timed_segments())
        aborted = self._producers.aborted_files(self._segments, self.end_offset)
        if not (files or aborted) and point == self._point and self.epochs == self._stored_epochs:
            return None
        if self._snapshots.newest != self.end_offset and self.end_offset > self.start_offset:
            files.append(self._producers.snapshot_file(self.end_offset))
        if self.epochs != self._stored_epochs:
            files.append((join(self.directory, EPOCHS_FILE), self.epochs.encode()))
        return Checkpoint(self, self._shape, aborted, files, point)

    def stage(self, checkpoint: Checkpoint, files: list[tuple[str, bytes]]) -> list[PooledFile]:
        """For `Checkpoint`, on any thread."""
        with self._io:
            if checkpoint.shape != self._shape or self.closed:
                return []
            return [self.pool.staged(path, data, _CHECKPOINT) for path, data in files]

    def place(self, checkpoint: Checkpoint, point: RecoveryPoint | None, paths: list[str]) -> bool:
        """For `Checkpoint`, on any thread."""
        with self._io:
            if checkpoint.shape != self._shape or self.closed:
                return False
            for path in paths:
                self._place_file(path, checkpoint)
            if point is None:
                return bool(paths)
            place_staged(self._disk, join(self.directory, POINT_FILE), _CHECKPOINT)
            self._point = point
            return True

    def _place_file(self, path: str, checkpoint: Checkpoint) -> None:
        name = name_of(path)
        if name.endswith(TXN_INDEX_SUFFIX) and self._producers.kept_to > checkpoint.offset:
            return  # a roll has placed a newer one meanwhile
        place_staged(self._disk, path, _CHECKPOINT)
        offset = parse_snapshot_name(name)
        if offset is not None:
            self._snapshots.note(offset)  # a truncation must find it from now on
        elif name == EPOCHS_FILE:
            # Until the names are synced, it is unknown whether the current epochs are on disk.
            self._stored_epochs = None

    def checkpointed(self, checkpoint: Checkpoint) -> None:
        """Records that its names are durable. Call it on the thread that changes the log."""
        if checkpoint.shape != self._shape or self.closed:
            return
        self._stored_epochs = checkpoint.epochs
        self._producers.kept_to = max(self._producers.kept_to, checkpoint.offset)
        with self._io:
            self._forget_snapshots()

    def _forget_snapshots(self) -> None:
        self._snapshots.forget({segment.base_offset for segment in self._segments})

    # --- the start

    def start_at(self, offset: int) -> int:
        """Hides everything below `offset`, up to the log's end; returns where the log now starts. The
        caller stores this, durably before the call, unless a segment begins there."""
        with self._lookup:
            self._visible_from = max(self._visible_from, min(offset, self.end_offset))
        return self.log_start_offset

    def begins_at(self, offset: int) -> bool:
        """Whether a segment begins there: then a trim alone can make the log start there."""
        return any(segment.base_offset == offset for segment in self._segments)

    # --- truncating

    def truncate_to(self, end_offset: int) -> int:
        """Like `SegmentedLog.truncate_to`; restores the producers of what is left."""
        self._check_usable()
        if not self.start_offset <= end_offset <= self.end_offset:
            raise OffsetOutOfRange(end_offset, self.start_offset, self.end_offset)
        if end_offset == self.end_offset:
            return end_offset
        with self._lookup:
            keep = self._segment_for(end_offset)
            end = keep.cut_place(end_offset)[1] if keep.size else keep.base_offset
            with self._io:
                self._shape += 1
                self._snapshots.drop(end + 1)
                self._indexes.cut(keep.base_offset, end)
            super().truncate_to(end)
            self._visible_from = min(self._visible_from, end)
            self.trusted_from = min(self.trusted_from, end)
            self._producers.cut(self._timed_segments(), self.start_offset, end)
        return end

    def start_over(self, offset: int) -> None:
        """Empties the log, durably; it then begins at `offset`, and no earlier epoch is known."""
        with self._lookup:
            with self._io:
                self._shape += 1
                self._snapshots.drop(0)
                for segment in self._segments:
                    self._indexes.remove(segment.base_offset)
            self.reset_to(LogPosition(-1, offset))
            self._visible_from = 0
            self._indexes.begin(offset)
            self.trusted_from = offset
            self._producers.begin(offset)

    def delete_segments_before(self, offset: int) -> list[str]:
        """Like `SegmentedLog.delete_segments_before`, including the files beside the segments."""
        with self._lookup:
            with self._io:
                self._shape += 1
            gone = super().delete_segments_before(offset)
            self._producers.trim(self.start_offset)
            return gone

    def _remove_segment(self, segment: Segment) -> None:
        self._indexes.remove(segment.base_offset)
        if segment.base_offset < self.start_offset:
            self._snapshots.remove(segment.base_offset)
        super()._remove_segment(segment)

    def roll_if_due(self, wall_ms: int) -> None:
        """Rolls the active segment if it was written to for longer than a segment may be, and the records at
        its start or end have no timestamp, by which the next append would see that. Raises DiskError."""
        active = cast(TimedSegment, self._segments[-1])
        first_ms = active.first_timestamp_ms
        if first_ms is None:
            return
        with self._lookup:
            timeless = first_ms < 0 or (self._newest_timestamp_ms() or 0) < 0
        if timeless and active.open_for_ms(wall_ms) > self.config.segment_ms:
            self._roll()

    def enforce_retention(
        self,
        *,
        retention_bytes: int,
        retention_ms: int,
        below_offset: int,
        wall_ms: int,
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> bool:
        """Removes the oldest segments that end at or below `below_offset` and exceed the size (bytes), or
        whose every record is older than `retention_ms`; -1 means no bound. Returns True if any were removed.

        If the active segment is due too, a new one is rolled first. A segment without timestamps is as old as
        its file. `on_warning` gets a line about a segment that stays, with all behind it, because its time is
        in the future. Raises CorruptLogError (nothing was removed), DiskError.
        """
        size = self.size_bytes
        count = 0
        for segment in self._segments:
            last = segment is self._segments[-1]
            end = self.end_offset if last else self._segments[count + 1].base_offset
            if end > below_offset or (last and not segment.size):
                break
            over_size = retention_bytes >= 0 and size - retention_bytes >= segment.size
            if segment.size and not over_size:
                with self._lookup:
                    if not cast(TimedSegment, segment).is_old(retention_ms, wall_ms):
                        self._note_future(cast(TimedSegment, segment), retention_ms, wall_ms, on_warning)
                        break
            size -= segment.size
            count += 1
        if not count:
            return False
        if count == len(self._segments):
            self._roll()
        self.delete_segments_before(self._segments[count].base_offset)
        return True

    def _note_future(
        self, segment: TimedSegment, retention_ms: int, wall_ms: int, on_warning: Callable[[str], None]
    ) -> None:
        """Once for each segment. The time of its first record shows that most have none in the future."""
        first = segment.first_timestamp_ms or 0
        may_be = retention_ms >= 0 and (first > wall_ms or wall_ms - first > retention_ms)
        if not may_be or segment.base_offset == self._future_reported:
            return
        newest = segment.newest_timestamp_ms()
        if newest > wall_ms:
            self._future_reported = segment.base_offset
            on_warning(
                f"{segment.path}: its newest record's timestamp is {newest - wall_ms} ms in the future, so "
                "retention.ms deletes neither it nor what follows until then: correct the producers' clocks, "
                "and delete its records if they must go (message.timestamp.after.max.ms refuses such records)"
            )


# Which segments of a partition's log have index files on disk, and which still need them.
# Index files match their segment or do not exist: so the active segment's files are removed with its
# first append, and written again at a clean shutdown.


class LogIndexes:
    """The index files of one log. `missing` has the base offsets of segments without index files."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.missing: set[int] = set()
        self._disk = disk
        self._directory = directory

    def find(self, names: list[str], segments: Sequence[TimedSegment], *, last_is_right: bool) -> None:
        """Finds the files that exist. `last_is_right`: nothing was appended to the log after they were
        written."""
        present = set(names)
        for segment in segments:
            base = segment.base_offset
            whole = all(index_name(base, suffix) in present for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
            if not whole or (segment is segments[-1] and not last_is_right):
                segment.without_index_files()
                self.missing.add(base)

    def is_leftover(self, name: str, bases: set[int]) -> bool:
        """Whether this file belongs to a segment that is gone, or is an index file that does not match."""
        base = parse_index_name(name)
        if base is None:
            return False
        return base not in bases or (base in self.missing and not name.endswith(TXN_INDEX_SUFFIX))

    def begin(self, base_offset: int) -> None:
        """Starts a new log with one empty segment."""
        self.missing = {base_offset}

    def drop(self, base_offset: int) -> None:
        """Removes the files because they are about to become wrong."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            remove_if_present(self._disk, join(self._directory, index_name(base_offset, suffix)))
        self.missing.add(base_offset)

    def cut(self, base_offset: int, end: int) -> None:
        """The segment will end at `end`; Kafka's list of aborted transactions must not extend beyond it
        either."""
        self.drop(base_offset)
        path = join(self._directory, index_name(base_offset, TXN_INDEX_SUFFIX))
        if not self._disk.exists(path):
            return
        kept = cut_aborted(read_file(self._disk, path), end)
        if kept:
            write_atomically(self._disk, path, kept)
        else:
            self._disk.remove(path)

    def remove(self, base_offset: int) -> None:
        """The segment is being removed."""
        self.cut(base_offset, 0)
        self.missing.discard(base_offset)

    def seal(self, segment: TimedSegment, end_offset: int) -> list[tuple[str, bytes]]:
        """The files for a full segment; the next segment starts without files."""
        files = segment.seal(end_offset)
        if files:
            self.missing.discard(segment.base_offset)
        self.missing.add(end_offset)
        return files

    def bytes_to_read(self, segments: Sequence[TimedSegment]) -> int | None:
        """The bytes to hop over so that every segment can have its files; None if all have them."""
        if not self.missing:
            return None
        return sum(segment.untimed_bytes for segment in segments if segment.base_offset in self.missing)

    def complete(self, segments: Sequence[TimedSegment]) -> list[tuple[str, bytes]]:
        """The files of every segment that has none; the log is about to be closed."""
        without = [segment for segment in segments if segment.base_offset in self.missing]
        self.missing.clear()
        return [file for segment in without for file in segment.index_files(segment.untimed_bytes)]


# A checkpoint of a partition's log: the small files that avoid verifying and replaying it after a crash.


class CheckpointedLog(Protocol):
    """What a checkpoint asks of its log."""

    directory: str
    epochs: EpochTable

    def stage(self, checkpoint: Checkpoint, files: list[tuple[str, bytes]]) -> list[PooledFile]: ...
    def place(self, checkpoint: Checkpoint, point: RecoveryPoint | None, paths: list[str]) -> bool: ...
    def checkpointed(self, checkpoint: Checkpoint) -> None: ...


class Checkpoint:
    """Small files that describe a log at one moment: its producers, epochs and recovery point.

    Used in this order, for many logs at once: everything up to `offset` is synced; `stage`, and a sync of the
    files; `place` with each of STEPS, and a sync of the names when required; `PartitionLog.checkpointed`.
    Each file vouches for those placed before it.
    """

    STEPS = (0, 1, 2)

    def __init__(
        self,
        log: CheckpointedLog,
        shape: int,
        aborted: list[tuple[str, bytes]],
        files: list[tuple[str, bytes]],
        point: RecoveryPoint,
    ) -> None:
        self.log = log
        self.shape = shape
        self.offset = point.offset
        self.epochs = log.epochs
        self._steps = (aborted, files)
        self._point = point

    def stage(self) -> list[PooledFile]:
        """Writes the files under staged names, unless they are already out of date."""
        point = (join(self.log.directory, POINT_FILE), self._point.encode())
        aborted, files = self._steps
        return self.log.stage(self, [*aborted, *files, point])

    def place(self, step: int) -> bool:
        """Gives the files their final names: first the aborted transactions, then producers, epochs and
        indexes, last the recovery point; but not if the log was truncated, trimmed or removed meanwhile,
        which makes them wrong. Returns True if the names must be synced."""
        if step < len(self._steps):
            return self.log.place(self, None, [path for path, _ in self._steps[step]])
        return self.log.place(self, self._point, [])
