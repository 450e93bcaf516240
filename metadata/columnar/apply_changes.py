"""Replays many PartitionChangeRecords at once, each of another partition.

Owns the bulk form of a partition change: partition epochs go up by one, leader epochs where a leader is
named, lists are replaced. `metadata.meaning.merge_change` says the same for one record.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.changes import API_KEY, ChangeRows, Words, decode_changes
from metaquorum.metadata.columnar.frames import Frames, Places
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.image import ImageBuilder
from metaquorum.metadata.image.columns import (
    FLAGS,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
    RECOVERING_FLAG,
    IntArray,
    RowArray,
    split_by_chunk,
)
from metaquorum.metadata.image.compare import rows_block
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionChangeRecord


def apply_changes(
    builder: ImageBuilder, frames: Frames, records: Places, one_by_one: Callable[[Places], None]
) -> bool:
    """Applies a segment of changes; False, with nothing applied, if it is unusual."""
    is_change = frames.keys[records] == API_KEY
    groups, odd = decode_changes(frames, records[is_change])
    placed: list[tuple[ChangeRows, RowArray]] = []
    for group in groups:
        rows = rows_of(builder, group.topics, group.indexes)
        if rows is None or not _fits(builder, group, rows):
            return False
        placed.append((group, rows))
    odd_rows = _odd_rows(builder, frames, odd)
    if odd_rows is None:
        return False
    touched = np.concatenate([rows for _, rows in placed]) if placed else odd_rows
    ordered = np.sort(touched)
    twice = (ordered[1:] == ordered[:-1]).any()
    if twice or (placed and len(odd_rows) and np.isin(odd_rows, touched).any()):
        return False
    others = np.sort(np.concatenate([records[~is_change], odd]))
    one_by_one(others)
    if placed and len(touched):
        _write(builder, placed)
    return True


def rows_of(builder: ImageBuilder, topics: Words, index: npt.NDArray[np.int32]) -> RowArray | None:
    """The row of each partition; None if one of them does not exist."""
    edges = np.flatnonzero((topics[1:, 0] != topics[:-1, 0]) | (topics[1:, 1] != topics[:-1, 1])) + 1
    places = [0, *edges.tolist(), len(index)] if len(index) else [0]
    raw = topics[places[:-1]].tobytes()
    entries = builder.topics.by_id.get_all([raw[at : at + 16] for at in range(0, len(raw), 16)])
    known = [entry.runs for entry in entries if entry is not None and entry.runs]
    if len(known) != len(entries):
        return None
    firsts, counts, starts = np.array([runs[0] for runs in known], dtype=np.int64).reshape(-1, 3).T
    scattered = [
        (places[at], places[at + 1], entry)
        for at, entry in enumerate(entries)
        if entry is not None and len(entry.runs) > 1
    ]
    ends = np.array(places, dtype=np.int64)
    sizes = ends[1:] - ends[:-1]
    within = index.astype(np.int64) - np.repeat(firsts, sizes)
    rows: RowArray = within + np.repeat(starts, sizes)
    rows[(within < 0) | (within >= np.repeat(counts, sizes))] = -1
    for low, high, entry in scattered:
        rows[low:high] = [entry.row_of(at) for at in index[low:high].tolist()]
    return None if (rows < 0).any() else rows


def _fits(builder: ImageBuilder, group: ChangeRows, rows: RowArray) -> bool:
    """Whether new directories are as many as the partitions have replicas."""
    if group.directories is None:
        return True
    count = group.directories.shape[1]
    chunks = builder.topics.columns.chunks
    return all(
        bool((chunks[at].data[N_REPLICAS, local] == count).all()) for at, _, local in split_by_chunk(rows)
    )


def _odd_rows(builder: ImageBuilder, frames: Frames, odd: Places) -> RowArray | None:
    """The rows that odd changes touch; None if one is no change, or of no known partition."""
    rows = []
    for record in odd.tolist():
        start = int(frames.starts[record])
        try:
            _, decoded = decode(frames.data, start, start + int(frames.lengths[record]))
        except RecordDecodeError:
            return None
        if not isinstance(decoded, PartitionChangeRecord):
            return None
        rows.append(builder.topics.row_of(decoded.topic_id, decoded.partition_id))
    found = np.array(rows, dtype=np.int64)
    return None if (found < 0).any() else found


def _write(builder: ImageBuilder, placed: list[tuple[ChangeRows, RowArray]]) -> None:
    """Writes all groups, each chunk once: rows are copied out, changed there, and copied back."""
    columns = builder.topics.columns
    rows = np.concatenate([rows for _, rows in placed])
    place_of = np.empty(len(rows), dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    place_of[order] = np.arange(len(rows))
    rows = rows[order]
    by_chunk = split_by_chunk(rows)
    width = max(columns.chunks[at].replica_width for at, _, _ in by_chunk)
    isr_width = max(columns.chunks[at].isr_width for at, _, _ in by_chunk)
    isr_width = max(isr_width, *(0 if group.isr is None else group.isr.shape[1] for group, _ in placed), 0)
    block = rows_block(columns, rows, width, isr_width)
    low = 0
    for group, own in placed:
        _change(builder, block, place_of[low : low + len(own)], group, width)
        low += len(own)
    longest = block[N_ISR]
    middle = LISTS + width
    isr_start = middle + width
    for at, place, local in by_chunk:
        chunk = columns.own_wide(at, 0, int(longest[place].max()))
        part = block[:, place[0] : place[-1] + 1]
        data = chunk.data
        if chunk.replica_width == width and chunk.isr_width == isr_width:
            data[:, local] = part
            continue
        data[: LISTS + chunk.replica_width, local] = part[: LISTS + chunk.replica_width]
        directories = LISTS + chunk.replica_width
        data[directories : chunk.isr_start, local] = part[middle : middle + chunk.replica_width]
        data[chunk.isr_start :, local] = part[isr_start : isr_start + chunk.isr_width]


def _change(
    builder: ImageBuilder, block: IntArray, at: npt.NDArray[np.int64], group: ChangeRows, width: int
) -> None:
    """Changes the rows of one group where they stand in `block`."""
    block[PARTITION_EPOCH, at] += 1
    if group.leader is not None:
        block[LEADER, at] = group.leader
        block[LEADER_EPOCH, at] += 1
    if group.isr is not None:
        n_isr = group.isr.shape[1]
        isr_start = LISTS + 2 * width
        block[N_ISR, at] = n_isr
        block[isr_start : isr_start + n_isr, at] = group.isr.T
        block[isr_start + n_isr :, at] = PADDING
    if group.recovery is not None:
        block[FLAGS, at] = block[FLAGS, at] & ~RECOVERING_FLAG | group.recovery
    if group.directories is not None:
        table = builder.topics.columns.directories
        codes = table.codes_of(group.directories.reshape(-1, 2)).reshape(len(at), -1)
        start = LISTS + width
        block[start : start + codes.shape[1], at] = codes.T
