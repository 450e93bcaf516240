"""Replays many PartitionChangeRecords at once, each of another partition.

Owns the bulk form of a partition change: partition epochs go up by one, leader epochs where a leader is
named, lists are replaced. `metadata.meaning.merge_change` says the same for one record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..codec import decode
from ..errors import RecordDecodeError
from ..image import ImageBuilder
from ..image.columns import (
    FLAGS,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
    RECOVERING_FLAG,
    RowArray,
    split_by_chunk,
)
from ..records import PartitionChangeRecord
from .changes import API_KEY, ChangeRows, Words, decode_changes
from .frames import Frames, Places

_LONG_STRETCH = 8


def apply_changes(
    builder: ImageBuilder, frames: Frames, records: Places, one_by_one: Callable[[Places], None]
) -> bool:
    """Applies a segment of changes; False, with nothing applied, if it is unusual."""
    is_change = frames.keys[records] == API_KEY
    groups, odd = decode_changes(frames, records[is_change])
    placed: list[tuple[ChangeRows, RowArray]] = []
    for group in groups:
        rows = _rows_of(builder, group.topics, group.indexes)
        if rows is None or not _fits(builder, group, rows):
            return False
        placed.append((group, rows))
    odd_rows = _odd_rows(builder, frames, odd)
    if odd_rows is None:
        return False
    touched = np.concatenate([rows for _, rows in placed]) if placed else odd_rows
    if len(np.unique(touched)) != len(touched) or np.isin(odd_rows, touched).any():
        return False
    others = np.sort(np.concatenate([records[~is_change], odd]))
    one_by_one(others)
    for group, rows in placed:
        _write(builder, group, rows)
    return True


def _rows_of(builder: ImageBuilder, topics: Words, index: npt.NDArray[np.int32]) -> RowArray | None:
    """The row of each partition; None if one of them does not exist."""
    by_id = builder.topics.by_id
    edges = np.flatnonzero((topics[1:, 0] != topics[:-1, 0]) | (topics[1:, 1] != topics[:-1, 1])) + 1
    places = [0, *edges.tolist(), len(index)] if len(index) else [0]
    raw = topics.tobytes()
    rows = np.empty(len(index), dtype=np.int64)
    for low, high in itertools.pairwise(places):
        entry = by_id.get(raw[16 * low : 16 * low + 16])
        if entry is None:
            return None
        if high - low >= _LONG_STRETCH and len(entry.runs) == 1:
            first, count, row = entry.runs[0]
            within = index[low:high].astype(np.int64) - first
            if ((within < 0) | (within >= count)).any():
                return None
            rows[low:high] = within + row
        else:
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


def _write(builder: ImageBuilder, group: ChangeRows, rows: RowArray) -> None:
    columns = builder.topics.columns
    n_isr = 0 if group.isr is None else group.isr.shape[1]
    codes = None
    if group.directories is not None:
        flat = columns.directories.codes_of(group.directories.reshape(-1, 2))
        codes = flat.reshape(len(rows), -1)
    for at, place, local in split_by_chunk(rows):
        chunk = columns.own_wide(at, 0, n_isr)
        data = chunk.data
        data[PARTITION_EPOCH, local] += 1
        if group.leader is not None:
            data[LEADER, local] = group.leader[place]
            data[LEADER_EPOCH, local] += 1
        if group.isr is not None:
            data[N_ISR, local] = n_isr
            data[chunk.isr_start : chunk.isr_start + n_isr, local] = group.isr[place].T
            data[chunk.isr_start + n_isr :, local] = PADDING
        if group.recovery is not None:
            kept = data[FLAGS, local] & ~RECOVERING_FLAG
            data[FLAGS, local] = kept | group.recovery[place].astype(np.int32)
        if codes is not None:
            start = LISTS + chunk.replica_width
            data[start : start + codes.shape[1], local] = codes[place].T
