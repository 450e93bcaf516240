"""A pass of the cleaner as the log's owner sees it: based on the log at its start, swapped in if the log is
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metaquorum.storage.cleaner.cleaning_pass import (
    CleaningEndedError,
    CleaningPass,
    CleaningResult,
    CleaningTask,
    Staged,
)
from metaquorum.storage.cleaner.plan import CleanerSettings, CleaningPlan, SegmentFacts
from metaquorum.storage.cleaner.retained import LastOfProducer
from metaquorum.storage.disk.interface import remove_if_present
from metaquorum.storage.errors import CorruptLogError, FileMissingError
from metaquorum.storage.log.segment import LOG_SUFFIX
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.swap import CLEANED_SUFFIX, SUFFIXES, SWAP_SUFFIX, forget_cleaned, path_of


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
