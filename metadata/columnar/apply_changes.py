"""Replays many PartitionChangeRecords at once, including several of one partition.

Owns the bulk form of a partition change: partition epochs increase by one, leader epochs if a leader is
named, lists are replaced. `merge_change` does the same for one record. Does not know the records' bytes,
which `changes` decodes. What each change found and left is kept side by side (`Versions`), for the image and
for code that looks at the steps between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.changes import API_KEY, ChangeRows, Words, decode_changes
from metaquorum.metadata.columnar.frames import Frames
from metaquorum.metadata.errors import RecordDecodeError
from metaquorum.metadata.image import ImageBuilder
from metaquorum.metadata.image.chunk import (
    CHUNK_SHIFT,
    FLAGS,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
    RECOVERING_FLAG,
    Chunk,
    IntArray,
    RowArray,
)
from metaquorum.metadata.image.columns import split_by_chunk
from metaquorum.metadata.image.compare import rows_block
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import PartitionChangeRecord
from metaquorum.storage.batches.places import Places

Bools = npt.NDArray[np.bool_]


class Versions(NamedTuple):
    """Changes by row, those of one row in log order. `records` are their numbers; `first` marks the first
    change of each row. `base` has the rows (each once) before their changes, `after` each row after each
    change, in a chunk's layout with lists of these widths."""

    records: Places
    rows: RowArray
    first: Bools
    base: IntArray
    after: IntArray
    replica_width: int
    isr_width: int

    def before(self) -> IntArray:
        """The rows as each change found them."""
        found = np.empty_like(self.after)
        found[:, 1:] = self.after[:, :-1]
        found[:, self.first] = self.base
        return found

    def chunk(self, block: IntArray) -> Chunk:
        """`before` or `after` in the form of a chunk."""
        return Chunk(block, self.replica_width, self.isr_width)


def apply_changes(
    builder: ImageBuilder, frames: Frames, records: Places, one_by_one: Callable[[Places], None]
) -> bool:
    """Applies a segment of changes; False, with nothing applied, if it is unusual."""
    is_change = frames.keys[records] == API_KEY
    groups, odd = decode_changes(frames, records[is_change])
    found = _merged(builder, groups)
    odd_rows = _odd_rows(builder, frames, odd)
    if found is None or odd_rows is None or (len(odd_rows) and np.isin(odd_rows, found.rows).any()):
        return False
    one_by_one(np.sort(np.concatenate([records[~is_change], odd])))
    store(builder, found)
    return True


def versions_of(builder: ImageBuilder, frames: Frames, records: Places) -> Versions | None:
    """What changes with these ascending numbers would do; None if one is unusual."""
    groups, odd = decode_changes(frames, records)
    return None if len(odd) else _merged(builder, groups)


def rows_of(builder: ImageBuilder, topics: Words, index: npt.NDArray[np.int32]) -> RowArray | None:
    """The row of each partition; None if one of them does not exist."""
    word = topics[:, 0]
    steps = np.count_nonzero(word[1:] != word[:-1])
    if steps * 4 > len(word) and (word[1:] < word[:-1]).any():  # mixed: look up each topic once
        order = np.argsort(word, kind="stable")
        ordered = rows_of(builder, topics[order], index[order])
        if ordered is None:
            return None
        mixed = np.empty_like(ordered)
        mixed[order] = ordered
        return mixed
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


def _odd_rows(builder: ImageBuilder, frames: Frames, odd: Places) -> RowArray | None:
    """The rows that odd changes touch; None if one is not a change, or if its partition is unknown."""
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


def _merged(builder: ImageBuilder, groups: list[ChangeRows]) -> Versions | None:
    """The versions that result from the groups; None if a partition does not exist, or if its number of
    replicas differs from that of a change's directories."""
    own = [rows_of(builder, group.topics, group.indexes) for group in groups]
    known = [rows for rows in own if rows is not None]
    if len(known) != len(own):
        return None
    columns = builder.topics.columns
    rows = np.concatenate([*known, np.empty(0, dtype=np.int64)])
    records = np.concatenate([*(group.records for group in groups), np.empty(0, dtype=np.int64)])
    place_of = None
    if (rows[1:] <= rows[:-1]).any():
        order = np.lexsort((records, rows))
        place_of = np.empty(len(rows), dtype=np.int64)
        place_of[order] = np.arange(len(rows))
        rows, records = rows[order], records[order]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = rows[1:] != rows[:-1]
    touched = rows if first.all() else rows[first]
    chunks = [columns.chunks[at] for at in np.unique(touched >> CHUNK_SHIFT).tolist()]
    width = max((chunk.replica_width for chunk in chunks), default=0)
    isr_width = max(
        *(chunk.isr_width for chunk in chunks),
        *(group.isr.shape[1] for group in groups if group.isr is not None),
        0,
        0,
    )
    base = rows_block(columns, touched, width, isr_width)
    merge = _Merge(base, first, width)
    low = 0
    for group, rows_of_group in zip(groups, known, strict=True):
        at = slice(low, low + len(rows_of_group))
        if not merge.take(builder, group, at if place_of is None else place_of[at]):
            return None
        low = at.stop
    merge.finish()
    return Versions(records, rows, first, base, merge.after, width, isr_width)


class _Merge:
    """Writes what each change sets into its own version, then what it leaves unchanged."""

    def __init__(self, base: IntArray, first: Bools, width: int) -> None:
        self._first = first
        self._width = width
        self._is_named = np.zeros((4, len(first)), dtype=bool)
        self._each_once = bool(first.all())
        self.after: IntArray = base.copy() if self._each_once else base[:, np.cumsum(first) - 1]

    def take(self, builder: ImageBuilder, group: ChangeRows, at: Places | slice) -> bool:
        """Takes one group, whose versions are at `at`. False if the directories do not match the replicas."""
        after, width, named = self.after, self._width, self._is_named
        if group.leader is not None:
            named[0, at] = True
            after[LEADER, at] = group.leader
        if group.isr is not None:
            named[1, at] = True
            n_isr, start = group.isr.shape[1], LISTS + 2 * width
            after[N_ISR, at] = n_isr
            after[start : start + n_isr, at] = group.isr.T
            after[start + n_isr :, at] = PADDING
        if group.recovery is not None:
            named[2, at] = True
            after[FLAGS, at] = after[FLAGS, at] & ~RECOVERING_FLAG | group.recovery
        if group.directories is not None:
            if (after[N_REPLICAS, at] != group.directories.shape[1]).any():
                return False
            named[3, at] = True
            table = builder.topics.columns.directories
            codes = table.codes_of(group.directories.reshape(-1, 2)).reshape(len(group.indexes), -1)
            after[LISTS + width : LISTS + width + codes.shape[1], at] = codes.T
        return True

    def finish(self) -> None:
        """Sets epochs, and copies what a change did not set from the version before it."""
        after, first, named = self.after, self._first, self._is_named
        if self._each_once:
            after[PARTITION_EPOCH] += 1
            after[LEADER_EPOCH] += named[0]
            return
        places = np.arange(len(first))
        starts = np.maximum.accumulate(np.where(first, places, 0))
        after[PARTITION_EPOCH] += (places - starts + 1).astype(np.int32)
        led = np.cumsum(named[0])
        after[LEADER_EPOCH] += (led - (led - named[0])[starts]).astype(np.int32)
        directories, isr = LISTS + self._width, LISTS + 2 * self._width
        fields: tuple[tuple[Any, ...], ...] = (
            (LEADER,),
            (N_ISR, slice(isr, None)),
            (FLAGS,),
            (slice(directories, isr),),
        )
        for is_named, columns in zip(named, fields, strict=True):
            if not is_named.any():
                continue
            source = np.maximum.accumulate(np.where(is_named, places, 0))
            taken = np.flatnonzero((source >= starts) & (source != places) & is_named[source])
            for column in columns:
                after[column, taken] = after[column, source[taken]]


def store(builder: ImageBuilder, found: Versions) -> None:
    """Writes the newest version of every row, each chunk once."""
    if not len(found.rows):
        return
    columns = builder.topics.columns
    rows, block = found.rows, found.after
    if not found.first.all():
        last = np.ones(len(rows), dtype=bool)
        last[:-1] = found.first[1:]
        rows, block = rows[last], block[:, last]
    width, isr_width = found.replica_width, found.isr_width
    longest = block[N_ISR]
    middle = LISTS + width
    isr_start = middle + width
    for at, place, local in split_by_chunk(rows):
        chunk = columns.own_wide(at, 0, int(longest[place].max()))
        part = block[:, place[0] : place[-1] + 1]
        data = chunk.data
        if chunk.replica_width == width and chunk.isr_width == isr_width:
            data[:, local] = part
            continue
        # A chunk's lists may be shorter or longer: records replayed one by one in between may have widened
        # it.
        _put(data, local, part, (0, LISTS + chunk.replica_width), (0, middle))
        _put(data, local, part, (LISTS + chunk.replica_width, chunk.isr_start), (middle, isr_start))
        _put(data, local, part, (chunk.isr_start, len(data)), (isr_start, len(part)))


def _put(data: IntArray, local: Places, part: IntArray, to: tuple[int, int], source: tuple[int, int]) -> None:
    """Copies the columns of one list; further columns of `data` are padding."""
    both = min(to[1] - to[0], source[1] - source[0])
    data[to[0] : to[0] + both, local] = part[source[0] : source[0] + both]
    data[to[0] + both : to[1], local] = PADDING
