"""One pass over the files of one log: collects the keys of its dirty part, then rewrites every segment.

Reads the log's segments and writes `.cleaned` files beside them, by file name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec

from metaquorum.storage.batches.batch import HEADER_BYTES, Batches, BatchHeader, batch_problem, parse_header
from metaquorum.storage.cleaner.plan import CleaningPlan, SegmentFacts, group_segments
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
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.errors import BatchError, CorruptLogError
from metaquorum.storage.log.segment_index import encode_aborted
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.partition.producers import AbortedTransaction
from metaquorum.storage.partition.swap import begin_cleaned, finish_cleaned, forget_cleaned

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
        self._read_bytes = 0
        self._after_bytes = 0

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
        self.result = CleaningResult(
            cleaned_to=cleaned_to,
            bytes_read=self._read_bytes,
            bytes_before=sum(one.size_bytes for one in facts),
            bytes_after=self._after_bytes,
            records_before=records.records_read,
            records_after=records.records_kept,
            utilization=self._keys.utilization,
        )

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
        self._after_bytes += cleaned.size
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
            self._read_bytes += batch_start
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
# What passes between processes: the values name files and must not hold open ones. `cleaning_pass` does
# the work.


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
    bytes_read: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    utilization: float
