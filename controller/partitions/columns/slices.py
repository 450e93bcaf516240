"""Bounded batches of partition changes: columns decide what they can, the rest is decided one by one.

Owns how rows become a slice. Does not know the change: the caller passes it in both forms, which must agree.
Each slice is computed from the current image and is valid alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metaquorum.controller.partitions.columns.elections import Decided
from metaquorum.controller.partitions.columns.scan import Scan
from metaquorum.controller.result import Slice
from metaquorum.metadata.columnar.bulk import Bulk, in_pieces
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.chunk import CHUNK_SHIFT, RowArray
from metaquorum.metadata.records.types import PartitionChangeRecord, Record

MIN_ROWS = 24
"""Fewer rows are faster one by one."""

OneByOne = Callable[[int], PartitionChangeRecord | None]
InColumns = Callable[[RowArray], Decided]


def change_slice(
    image: MetadataImage,
    scan: Scan,
    at_most: int,
    one_by_one: OneByOne,
    in_columns: InColumns | None,
    *,
    head: Sequence[Record] = (),
    tail: Sequence[Record] = (),
) -> Slice:
    """The next batch of changes of the rows that `scan` finds: `head` first, and `tail` after the last ones.

    At most `at_most` changes. `scan` may be kept for the next slice of the same work, but need not be.
    `in_columns` None: everything is decided one by one.
    """
    while True:
        rows, whole = scan.rows(image, at_most)
        unchanged: list[RowArray] = []
        for low in range(0, max(1, len(rows)), at_most):
            part = rows[low : low + at_most]
            pieces, stays = _decide(part, one_by_one, in_columns)
            unchanged.append(stays)
            done = whole and low + at_most >= len(rows)
            if pieces or done:
                _settle(scan, image, rows, np.concatenate(unchanged))
                return Slice(records=in_pieces([*head, *pieces, *(tail if done else ())]), done=done)
        # Nothing is due for any of them, so their chunks are skipped from now on.
        _settle(scan, image, rows, np.concatenate(unchanged))


def _decide(
    rows: RowArray, one_by_one: OneByOne, in_columns: InColumns | None
) -> tuple[list[Record | Bulk], RowArray]:
    """The changes of `rows`, and the rows that stay unchanged."""
    pieces: list[Record | Bulk] = []
    left, stays = rows, rows[:0]
    if in_columns is not None and len(rows) >= MIN_ROWS:
        decided = in_columns(rows)
        pieces += decided.changes
        left, stays = rows[decided.odd], rows[~decided.odd & ~decided.changed]
    unchanged = []
    for row in left.tolist():
        change = one_by_one(row)
        if change is None:
            unchanged.append(row)
        else:
            pieces.append(change)
    return pieces, np.concatenate([stays, np.array(unchanged, dtype=np.int64)])


def _settle(scan: Scan, image: MetadataImage, rows: RowArray, unchanged: RowArray) -> None:
    """Chunks in which every row that was found stays unchanged need no further look."""
    if not len(unchanged):
        return
    busy = np.setdiff1d(rows, unchanged, assume_unique=True) >> CHUNK_SHIFT
    scan.settle(image, unchanged[~np.isin(unchanged >> CHUNK_SHIFT, busy)])
