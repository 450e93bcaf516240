"""A pass of the cleaner as the log's owner sees it: based on the log at its start, swapped in if the log is
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec

from metaquorum.storage.batches.batch import HEADER_BYTES, Batches, BatchHeader, batch_problem, parse_header
from metaquorum.storage.cleaner.plan import CleanerSettings, CleaningPlan, SegmentFacts, group_segments
from metaquorum.storage.cleaner.retained import (
    BatchToClean,
    CleanedTransactions,
    KeyOffsets,
    LastOfProducer,
    RecordFilter,
    key_names,
    open_batches,
)
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk, remove_if_present
from metaquorum.storage.errors import BatchError, CorruptLogError, FileMissingError
from metaquorum.storage.log.segment import LOG_SUFFIX
from metaquorum.storage.log.timed_segment import TimedSegment, encode_aborted
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.producers import AbortedTransaction
from metaquorum.storage.partition.swap import (
    CLEANED_SUFFIX,
    SUFFIXES,
    SWAP_SUFFIX,
    begin_cleaned,
    finish_cleaned,
    forget_cleaned,
    path_of,
)

# One pass over the files of one log: collects the keys of its dirty part, then rewrites every segment.
#
# Reads the log's segments and writes `.cleaned` files beside them, by file name alone.

PIECE_BYTES = 128 * 1024
"""Bytes per read; a larger batch is one piece."""

_ADVICE = "the log is no longer cleaned: restore this replica from the others"


class CleaningPass:
    """`check` is called before files are read or created, and raises what ends the pass.

    `pieces` yields the bytes read and written after each piece of the work, with `staged` set after a piece
    that completed a cleaned segment, and `result` after the last one.
    """

    def __init__(self, task: CleaningTask, disk: Disk, pool: FilePool, check: Callable[[], None]) -> None:
        self.staged: Staged | None = None
        self.result: CleaningResult | None = None
        self._task = task
        self._disk = disk
        self._pool = pool
        self._check = check
        self._keys = KeyOffsets(task.key_bytes)

    def pieces(self) -> Generator[int, None, None]:
        """The whole pass; closing it removes what is not staged yet. Raises CorruptLogError (the log
        cannot be cleaned), FileMissingError, DiskError, and what `check` raises."""
        yield from self._find_keys()
        task = self._task
        cleaned_to = self._keys.latest + 1
        facts = [one for one in task.segments if one.base_offset < cleaned_to]
        records = RecordFilter(
            keys=self._keys,
            transactions=CleanedTransactions(task.aborted),
            producers=task.producers,
            now_ms=task.now_ms,
            delete_retention_ms=task.delete_retention_ms,
        )
        for group in group_segments(facts, task.segment_bytes):
            yield from self._rewrite(group, records)
        self.result = CleaningResult(cleaned_to)

    # ---- the keys

    def _find_keys(self) -> Iterator[int]:
        """The batches of a transaction count only if it was not aborted."""
        keys, first_dirty = self._keys, self._task.plan.first_dirty
        transactions = CleanedTransactions(self._task.aborted)
        for facts in self._task.segments:
            if facts.end_offset <= first_dirty:
                continue
            with closing(self._open(facts)) as segment:
                position = segment.locate(max(first_dirty, facts.base_offset))[0]
                for batches, used in self._batches(segment, position):
                    for opened in open_batches(batches):
                        header = opened.header
                        dropped = transactions.is_dropped(header, opened.data)
                        if not dropped and not header.is_control and not self._note_keys(segment, opened):
                            return
                        if header.last_offset >= first_dirty:
                            keys.latest = max(keys.latest, header.last_offset)
                    yield used
            keys.latest = max(keys.latest, facts.end_offset - 1)

    def _note_keys(self, segment: TimedSegment, opened: BatchToClean) -> bool:
        """False if there is no room for them."""
        header = opened.header
        if not header.records_count:
            return True
        try:
            plain, places = opened.records()
        except BatchError as error:
            raise _damaged(segment, header, str(error)) from None
        base, first_dirty = header.base_offset, self._task.plan.first_dirty
        starts, lengths = places.keys, places.key_lengths
        offsets = [base + delta for delta in places.offset_deltas]
        if base < first_dirty or min(lengths) < 0:
            rows = zip(starts, lengths, offsets, strict=True)
            chosen = [row for row in rows if row[1] >= 0 and row[2] >= first_dirty]
            starts, lengths, offsets = ([row[column] for row in chosen] for column in range(3))
        names = key_names(plain, starts, lengths)
        if not self._keys.has_room(names):
            return False
        self._keys.put_all(names, offsets)
        return True

    # ---- the segments

    def _rewrite(self, group: Sequence[SegmentFacts], records: RecordFilter) -> Iterator[int]:
        task, base = self._task, group[0].base_offset
        self._check()
        cleaned = begin_cleaned(
            self._disk, task.directory, self._pool, base, index_interval_bytes=task.index_interval_bytes
        )
        whole = False
        try:
            for facts in group:
                with closing(self._open(facts)) as segment:
                    for batches, used in self._batches(segment, 0):
                        written = self._write(cleaned, segment, batches, records)
                        yield used + written
            self._check()
            finish_cleaned(self._disk, self._pool, cleaned, _txn_index(records))
            whole = True
        finally:
            if not whole:
                cleaned.close()
                forget_cleaned(self._disk, task.directory, base)
        self.staged = Staged([one.base_offset for one in group], group[-1].end_offset)
        yield 0

    def _write(
        self,
        cleaned: TimedSegment,
        segment: TimedSegment,
        batches: Sequence[tuple[BatchHeader, bytes]],
        records: RecordFilter,
    ) -> int:
        parts = []
        for opened in open_batches(batches):
            try:
                left = records.batch(opened)
            except BatchError as error:
                raise _damaged(segment, opened.header, str(error)) from None
            if left is not None:
                parts.append(left)
        if not parts:
            return 0
        kept = Batches.sealed(b"".join(parts))
        cleaned.append(kept)
        cleaned.note_appended(kept)
        return len(kept.data)

    # ---- reading

    def _open(self, facts: SegmentFacts) -> TimedSegment:
        self._check()
        task = self._task
        segment = TimedSegment(
            self._disk,
            task.directory,
            facts.base_offset,
            self._pool,
            index_interval_bytes=task.index_interval_bytes,
            writable=False,
        )
        segment.sealed_end = facts.end_offset
        return segment

    def _batches(
        self, segment: TimedSegment, position: int
    ) -> Iterator[tuple[list[tuple[BatchHeader, bytes]], int]]:
        """Whole batches in pieces, checked by CRC, and the bytes of each piece."""
        while position < segment.size:
            buf = self._read(segment, position, PIECE_BYTES)
            if len(buf) >= HEADER_BYTES and parse_header(buf).size_bytes > len(buf):
                buf = self._read(segment, position, parse_header(buf).size_bytes)
            batches: list[tuple[BatchHeader, bytes]] = []
            batch_start = 0
            while len(buf) - batch_start >= HEADER_BYTES:
                header = parse_header(buf, batch_start)
                end = batch_start + header.size_bytes
                if end > len(buf) and batches:
                    break
                problem = batch_problem(buf, batch_start, gaps=True)
                if problem is not None:
                    raise _damaged(segment, header, problem)
                batches.append((header, buf[batch_start:end]))
                batch_start = end
            if not batches:
                text = f"expected a batch at byte {position}, found {len(buf)} bytes"
                raise CorruptLogError(segment.path, position, segment.base_offset, text, _ADVICE)
            position += batch_start
            yield batches, batch_start

    def _read(self, segment: TimedSegment, position: int, size: int) -> bytes:
        self._check()
        return segment.file.read_at(position, min(size, segment.size - position))


def _damaged(segment: TimedSegment, header: BatchHeader, problem: str) -> CorruptLogError:
    return CorruptLogError(segment.path, 0, header.base_offset, problem, _ADVICE)


def _txn_index(records: RecordFilter) -> bytes:
    """The content of `.txnindex`: the aborted transactions whose markers the rewritten segment keeps."""
    return encode_aborted(records.transactions.take_retained())


# A pass of the cleaner over one log, as values: its input, what it has staged, and its result.
# What passes between processes: the values name files and must not hold open ones.


class CleaningEndedError(Exception):
    """The log has changed during the pass: the pass is over, and nothing is lost."""


class CleaningTask(msgspec.Struct, frozen=True, kw_only=True):
    """`segments` are those below the plan's end. `aborted` and `producers` are what the log knew of
    transactions and active producers when the pass began, at `now_ms` (wall clock). `key_bytes` is the
    memory for keys."""

    directory: str
    plan: CleaningPlan
    segments: tuple[SegmentFacts, ...]
    segment_bytes: int
    index_interval_bytes: int
    aborted: tuple[AbortedTransaction, ...]
    producers: dict[int, LastOfProducer]
    now_ms: int
    delete_retention_ms: int
    key_bytes: int


class Staged(NamedTuple):
    """One cleaned segment is durable beside those that it replaces: they begin at `bases`, and end at
    `end_offset`."""

    bases: list[int]
    end_offset: int


class CleaningResult(NamedTuple):
    """The result of a whole pass. `cleaned_to` is where the dirty part now begins."""

    cleaned_to: int


def segment_facts(log: PartitionLog, *, timed: bool = True) -> list[SegmentFacts]:
    """The segments of a log that a cleaner may touch: full, and entirely below the recovery point, which
    names a segment by its position. Without `timed`, newest timestamps are left out: finding one may mean
    hopping over a whole segment."""
    facts = []
    with log._lookup:
        for segment in log._timed_segments():
            if segment.sealed_end is None or segment.base_offset >= log.recovery_point.segment:
                break
            first_ms = segment.first_batch_ms()
            facts.append(
                SegmentFacts(
                    segment.base_offset,
                    segment.sealed_end,
                    segment.size,
                    segment.modified_ms() if first_ms < 0 and segment.size else first_ms,
                    segment.time_ms() if timed else -1,
                )
            )
    return facts


class Cleaning:
    """A pass in progress. Run `pieces` until something is `staged` or the pass ends, `swap` in what is
    staged, and repeat until there is a `result`. If another process works on `task`, call `take` with what
    it returned instead of `pieces`. `is_begun`: that process, and no other, knows the next step."""

    def __init__(
        self,
        log: PartitionLog,
        plan: CleaningPlan,
        settings: CleanerSettings,
        *,
        now_ms: int,
        key_bytes: int,
    ) -> None:
        self.log = log
        self.result: CleaningResult | None = None
        self.staged: Staged | None = None
        self.is_begun = False
        self.task = CleaningTask(
            directory=log.directory,
            plan=plan,
            segments=tuple(one for one in segment_facts(log, timed=False) if one.end_offset <= plan.end),
            segment_bytes=log.config.segment_bytes,
            index_interval_bytes=log.config.index_interval_bytes,
            aborted=tuple(log.producers.aborted.overlapping(log.start_offset, plan.end)),
            producers={
                one.producer_id: LastOfProducer(
                    data_offset=one.batches[-1].last_offset if one.batches else -1, epoch=one.epoch
                )
                for one in log.producers.all()
            },
            now_ms=now_ms,
            delete_retention_ms=settings.delete_retention_ms,
            key_bytes=key_bytes,
        )
        self._shape = log._shape
        self._pass = CleaningPass(self.task, log._disk, log.pool, self._check_current)
        self._pieces = self._pass.pieces()

    # --- on the thread that changes the log

    def take(self, given: Staged | CleaningResult) -> None:
        """The next step of the pass, which another process carried out."""
        if isinstance(given, Staged):
            self.staged = given
        else:
            self.result = given

    def swap(self) -> None:
        """Replaces the original segments with what is staged. Raises CleaningEndedError, DiskError."""
        staged, self.staged = self.staged, None
        if staged is None:
            raise CleaningEndedError
        try:
            self._check_current()
        except CleaningEndedError:
            forget_cleaned(self.log._disk, self.log.directory, staged.bases[0])
            raise
        swap_in(self.log, staged.bases, staged.end_offset)
        self._shape = self.log._shape

    def explained(self, error: Exception) -> Exception:
        """The error to report: the change of the log if it ended the pass, because reads may then fail or
        miss data."""
        changed = self.log._shape != self._shape or self.log.closed
        return CleaningEndedError() if changed and isinstance(error, _OF_A_CHANGE) else error

    # --- on any thread

    def pieces(self) -> Iterator[int]:
        """Works until something is staged or all is done; yields the bytes read and written after each
        piece. Raises CleaningEndedError, CorruptLogError (the log cannot be cleaned), DiskError."""
        try:
            for used in self._pieces:
                yield used
                self.staged, self._pass.staged = self._pass.staged, None
                if self.staged is not None:
                    return
        except _OF_A_CHANGE as error:
            raise self.explained(error) from None
        self.result = self._pass.result

    def close(self) -> None:
        """Discards what is not staged."""
        self._pieces.close()

    def _check_current(self) -> None:
        if self.log._shape != self._shape or self.log.closed:
            raise CleaningEndedError


_OF_A_CHANGE = (FileMissingError, CorruptLogError)


# Replaces segments of an open log with the cleaned segment made of them.


def swap_in(log: PartitionLog, bases: Sequence[int], end_offset: int) -> None:
    """The cleaned segment replaces those that begin at `bases` and end at `end_offset`. Durable on return.
    Raises DiskError; the log then accepts no more writes."""
    with log._lookup, log._io:
        log._shape += 1
        log._or_failed(lambda: _swap(log, list(bases), end_offset))


def _swap(log: PartitionLog, bases: list[int], end_offset: int) -> None:
    disk, base = log._disk, bases[0]
    slot = log._slot(base)
    replaced = log._timed_segments()[slot : slot + len(bases)]
    # As in Kafka: records without timestamps do not get younger because they were cleaned.
    written_ms = max(segment.modified_ms() for segment in replaced)
    disk.set_modified_ms(path_of(log.directory, base, LOG_SUFFIX + CLEANED_SUFFIX), written_ms)
    _rename(log, base, CLEANED_SUFFIX, SWAP_SUFFIX)
    disk.sync_directory(log.directory)
    for segment in log._segments[slot : slot + len(bases)]:
        segment.close()
        disk.remove(segment.path)
        for suffix in SUFFIXES[1:]:
            remove_if_present(disk, path_of(log.directory, segment.base_offset, suffix))
        log._indexes.missing.discard(segment.base_offset)
    disk.sync_directory(log.directory)
    _rename(log, base, SWAP_SUFFIX, "")
    disk.sync_directory(log.directory)
    cleaned = log._existing_segment(base)
    assert isinstance(cleaned, TimedSegment)
    cleaned.sealed_end = end_offset
    log._segments[slot : slot + len(bases)] = [cleaned]
    log._forget_snapshots()


def _rename(log: PartitionLog, base: int, before: str, after: str) -> None:
    for suffix in SUFFIXES:
        source = path_of(log.directory, base, suffix + before)
        if suffix == LOG_SUFFIX or log._disk.exists(source):
            log._disk.rename(source, path_of(log.directory, base, suffix + after))
