"""The files of a cleaned segment that is to replace others, so that a crash leaves either them or it.

The file names of Kafka's LocalLog.replaceSegments and the steps of LogLoader: `X.log.cleaned` is being
written; `X.log.swap` is complete, and the segments that it replaces may be removed; then it becomes `X.log`.
Indexes and `.txnindex` follow the log through the same steps.
"""

from __future__ import annotations

import re

from metaquorum.storage.batches.batch import LENGTH_OVERHEAD_BYTES, hop_headers
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk, join, name_of, parent_of, remove_if_present
from metaquorum.storage.log.segment import HOP_WINDOW_BYTES, LOG_SUFFIX
from metaquorum.storage.log.timed_segment import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TimedSegment,
    index_name,
)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
# The log first: without it the others are ignored.
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex)(\.cleaned|\.swap|\.deleted)?")


def begin_cleaned(
    disk: Disk, directory: str, pool: FilePool, base_offset: int, *, index_interval_bytes: int
) -> TimedSegment:
    """An empty segment `.cleaned`; removes what an earlier cleaning left of it."""
    forget_cleaned(disk, directory, base_offset)
    return TimedSegment(
        disk,
        directory,
        base_offset,
        pool,
        index_interval_bytes=index_interval_bytes,
        new=True,
        suffix=CLEANED_SUFFIX,
    )


def forget_cleaned(disk: Disk, directory: str, base_offset: int) -> None:
    """Removes the files of a segment that will not be swapped in."""
    for suffix in SUFFIXES:
        remove_if_present(disk, path_of(directory, base_offset, suffix + CLEANED_SUFFIX))


def finish_cleaned(disk: Disk, pool: FilePool, cleaned: TimedSegment, aborted: bytes) -> None:
    """All of it is durable on return: records, indexes, and `aborted`, the content of `.txnindex`."""
    directory = parent_of(cleaned.path)
    files = [(f"{path}{CLEANED_SUFFIX}", data) for path, data in cleaned.index_files()]
    if aborted:
        files.append((path_of(directory, cleaned.base_offset, TXN_INDEX_SUFFIX + CLEANED_SUFFIX), aborted))
    made = [cleaned.pooled]
    try:
        for path, data in files:
            made.append(pool.file(path, size=0))
            made[-1].append(data)
        for staged in made:
            staged.sync()
    finally:
        for staged in made:
            staged.close()
    disk.sync_directory(directory)


def path_of(directory: str, base: int, suffix: str) -> str:
    return join(directory, index_name(base, suffix))


def finish_swaps(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """Completes or undoes what a crash interrupted, in metaquorum or in Kafka; returns the names that
    exist now. Durable on return. Raises DiskError."""
    matches = [(match, name) for name in names if (match := _FILE.fullmatch(name)) is not None]
    cleaned = [int(match[1]) for match, _ in matches if match[3] == CLEANED_SUFFIX]
    swapped = {int(match[1]) for match, _ in matches if (match[2], match[3]) == (LOG_SUFFIX, SWAP_SUFFIX)}
    # Drops swaps that were not durable as a whole, as Kafka leaves for a segment that it began to split.
    swapped = {base for base in swapped if not cleaned or base < min(cleaned)}
    ends = {base: _end_of(disk, join(directory, f"{base:020d}{LOG_SUFFIX}{SWAP_SUFFIX}")) for base in swapped}
    doomed, renamed = [], []
    for match, name in matches:
        base = int(match[1])
        if match[3] is None:
            if any(first <= base < max(end, first + 1) for first, end in ends.items()):
                doomed.append(name)
        elif match[3] == SWAP_SUFFIX and base in swapped:
            renamed.append(name)
        else:
            doomed.append(name)
    if not doomed and not renamed:
        return names
    for name in doomed:
        disk.remove(join(directory, name))
    disk.sync_directory(directory)
    # An index that a crash separates from its log goes at the next start, and is built again.
    for name in renamed:
        disk.rename(join(directory, name), join(directory, name_of(name).removesuffix(SWAP_SUFFIX)))
    disk.sync_directory(directory)
    return disk.list_directory(directory)


def _end_of(disk: Disk, path: str) -> int:
    """The offset after the last batch of a segment; 0 if it has none."""
    file = disk.open_read(path)
    try:
        end, position, size = 0, 0, file.size()
        while position < size:
            buf = file.read_at(position, min(HOP_WINDOW_BYTES, size - position))
            hops = hop_headers(buf)
            if not hops:
                break
            last, _, end, _ = hops[-1]
            position += last + int.from_bytes(buf[last + 8 : last + 12], "big") + LENGTH_OVERHEAD_BYTES
        return end
    finally:
        file.close()
