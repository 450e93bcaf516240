"""Replaces segments of an open log with the cleaned segment made of them.

Owns the steps of Kafka's LocalLog.replaceSegments; each is durable before the next begins. Does not finish
what a crash interrupted: `swap` does, when the log is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.storage.disk.interface import remove_if_present
from metaquorum.storage.log.segment import LOG_SUFFIX
from metaquorum.storage.log.timed_segment import TimedSegment
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.swap import CLEANED_SUFFIX, SUFFIXES, SWAP_SUFFIX, path_of


def swap_in(log: PartitionLog, bases: Sequence[int], end_offset: int) -> None:
    """The cleaned segment replaces those that begin at `bases` and end at `end_offset`. Durable on return.
    Raises DiskError; the log then accepts no more writes."""
    with log._lookup, log._io:
        log._shape += 1
        log._or_failed(lambda: _swap(log, list(bases), end_offset))


def _swap(log: PartitionLog, bases: list[int], end_offset: int) -> None:
    disk, base = log._disk, bases[0]
    slot = log._slot(base)
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
