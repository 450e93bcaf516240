"""One pass of the cleaner over one log: the keys of its dirty part, then every segment rewritten.

Owns the order of the work and its pieces. Begun and swapped in by the thread that changes the log; the pieces
in between may run on another one. A log that is cut, trimmed or closed meanwhile ends the pass; what was
swapped in before stays, for every segment is right by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from metaquorum.storage.batches.batch import (
    HEADER_BYTES,
    BatchHeader,
    batch_problem,
    parse_header,
)
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.cleaner.keys import KeyOffsets, key_names
from metaquorum.storage.cleaner.opened import BatchToClean, open_batches
from metaquorum.storage.cleaner.plan import CleanerSettings, CleaningPlan, SegmentFacts, group_segments
from metaquorum.storage.cleaner.retained import LastOfProducer, RecordFilter
from metaquorum.storage.cleaner.transactions import CleanedTransactions
from metaquorum.storage.errors import BatchError, CorruptLogError, FileMissingError
from metaquorum.storage.log.segment_index import encode_aborted
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.partition.aborted import AbortedTransaction
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.swap import begin_cleaned, finish_cleaned, forget_cleaned, swap_in

PIECE_BYTES = 128 * 1024
"""Read at once; a batch that is larger is one piece."""

_ADVICE = "the log is not cleaned any further: restore this replica from the others"


class CleaningEndedError(Exception):
    """The log has changed under the pass: it is over, and nothing is lost."""


class CleaningResult(NamedTuple):
    """Of a whole pass. `cleaned_to`: where the dirty part begins now."""

    cleaned_to: int
    bytes_read: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    utilization: float


def segment_facts(log: PartitionLog, *, timed: bool = True) -> list[SegmentFacts]:
    """The segments of a log that a cleaner may touch: full, and with nothing above the recovery point, which
    names a segment by its place. Without `timed` no newest timestamps: to find one, a whole segment may have
    to be hopped over."""
    facts = []
    with log._lookup:
        for segment in log._timed_segments():
            if segment.sealed_end is None or segment.base_offset >= log.recovery_point.segment:
                break
            facts.append(
                SegmentFacts(
                    segment.base_offset,
                    segment.sealed_end,
                    segment.size,
                    segment.first_batch_ms(),
                    segment.newest_timestamp_ms() if timed else -1,
                )
            )
    return facts


class Cleaning:
    """A pass under way. `pieces` to work until `staged` or the end, `swap` what is staged, and so on until
    `result` is there."""

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
        self.plan = plan
        self.result: CleaningResult | None = None
        self.staged: list[int] | None = None
        self._staged_end = 0
        self._shape = log._shape
        self._settings = settings
        self._now_ms = now_ms
        self._keys = KeyOffsets(key_bytes)
        self._facts = [one for one in segment_facts(log, timed=False) if one.end_offset <= plan.end]
        self._segments = {one.base_offset: one for one in log._timed_segments()}
        self._aborted = log.producers.aborted.overlapping(log.start_offset, plan.end)
        self._producers = {
            one.producer_id: LastOfProducer(
                data_offset=one.batches[-1].last_offset if one.batches else -1, epoch=one.epoch
            )
            for one in log.producers.all()
        }
        self._read_bytes = 0
        self._after_bytes = 0
        self._steps = self._run()

    # --- on the thread that changes the log

    def swap(self) -> None:
        """What is staged takes the place of what it was made of. Raises CleaningEndedError, DiskError."""
        staged, self.staged = self.staged, None
        if staged is None:
            raise CleaningEndedError
        try:
            self._check_current()
        except CleaningEndedError:
            forget_cleaned(self.log, staged[0])
            raise
        swap_in(self.log, staged, self._staged_end)
        self._shape = self.log._shape

    # --- on any thread

    def pieces(self) -> Iterator[int]:
        """Works until something is staged or all is done; gives the bytes read and written after each piece.
        Raises CleaningEndedError, CorruptLogError (the log cannot be cleaned), DiskError."""
        try:
            for used in self._steps:
                yield used
                if self.staged is not None:
                    return
        except FileMissingError:
            self._check_current()
            raise

    def _check_current(self) -> None:
        if self.log._shape != self._shape or self.log.closed:
            raise CleaningEndedError

    def _run(self) -> Iterator[int]:
        yield from self._find_keys()
        cleaned_to = self._keys.latest + 1
        facts = [one for one in self._facts if one.base_offset < cleaned_to]
        records = RecordFilter(
            keys=self._keys,
            transactions=CleanedTransactions(self._aborted),
            producers=self._producers,
            now_ms=self._now_ms,
            delete_retention_ms=self._settings.delete_retention_ms,
        )
        for group in group_segments(facts, self.log.config.segment_bytes):
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

    def _find_keys(self) -> Iterator[int]:
        """A transaction's batches count only where it was not aborted."""
        keys, first_dirty = self._keys, self.plan.first_dirty
        transactions = CleanedTransactions(self._aborted)
        for facts in self._facts:
            if facts.end_offset <= first_dirty:
                continue
            segment = self._segments[facts.base_offset]
            with self.log._lookup:
                self._check_current()
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
        """False: there is no room for them."""
        header = opened.header
        if not header.records_count:
            return True
        try:
            plain, places = opened.records()
        except BatchError as error:
            raise self._damaged(segment, header, str(error)) from None
        base, first_dirty = header.base_offset, self.plan.first_dirty
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

    def _rewrite(self, group: Sequence[SegmentFacts], records: RecordFilter) -> Iterator[int]:
        base = group[0].base_offset
        cleaned = begin_cleaned(self.log, base)
        whole = False
        try:
            for facts in group:
                segment = self._segments[facts.base_offset]
                for batches, used in self._batches(segment, 0):
                    written = self._write(cleaned, segment, batches, records)
                    yield used + written
            finish_cleaned(self.log, cleaned, _txn_index(records.transactions.take_retained()))
            whole = True
        finally:
            if not whole:
                cleaned.close()
                forget_cleaned(self.log, base)
        self._after_bytes += cleaned.size
        self.staged = [one.base_offset for one in group]
        self._staged_end = group[-1].end_offset
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
                raise self._damaged(segment, opened.header, str(error)) from None
            if left is not None:
                parts.append(left)
        if not parts:
            return 0
        kept = Batches.sealed(b"".join(parts))
        cleaned.append(kept.data, kept.hops())
        cleaned.note_appended(kept.data, kept.hops())
        return len(kept.data)

    def _batches(
        self, segment: TimedSegment, position: int
    ) -> Iterator[tuple[list[tuple[BatchHeader, bytes]], int]]:
        """Whole batches in pieces, checked by CRC, and the bytes of each piece."""
        while position < segment.size:
            buf = self._read(segment, position, PIECE_BYTES)
            if len(buf) >= HEADER_BYTES and parse_header(buf).size_bytes > len(buf):
                buf = self._read(segment, position, parse_header(buf).size_bytes)
            found: list[tuple[BatchHeader, bytes]] = []
            at = 0
            while len(buf) - at >= HEADER_BYTES:
                header = parse_header(buf, at)
                end = at + header.size_bytes
                if end > len(buf) and found:
                    break
                problem = batch_problem(buf, at, gaps=True)
                if problem is not None:
                    raise self._damaged(segment, header, problem)
                found.append((header, buf[at:end]))
                at = end
            if not found:
                text = f"expected a batch at byte {position}, found {len(buf)} bytes"
                raise CorruptLogError(segment.path, position, segment.base_offset, text, _ADVICE)
            position += at
            self._read_bytes += at
            yield found, at

    def _read(self, segment: TimedSegment, position: int, size: int) -> bytes:
        with self.log._lookup:
            self._check_current()
            segment.pooled.hold()
        try:
            return segment.pooled.read_held(position, min(size, segment.size - position))
        finally:
            segment.pooled.release()

    @staticmethod
    def _damaged(segment: TimedSegment, header: BatchHeader, problem: str) -> CorruptLogError:
        return CorruptLogError(segment.path, 0, header.base_offset, problem, _ADVICE)


def _txn_index(aborted: Sequence[AbortedTransaction]) -> bytes:
    return encode_aborted(aborted)
