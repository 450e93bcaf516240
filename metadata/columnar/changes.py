"""Decodes many PartitionChangeRecords at once, grouped by shape.

Owns the byte layout of PartitionChangeRecord versions 0 to 2 for changes of leader, ISR, recovery state and
directories. Changes of other fields are returned to the caller, which decodes them one by one. Knows no
image: `apply_changes` applies them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.frames import FRAME_BYTES, Frames, gather
from metaquorum.storage.batches.places import Places

API_KEY = 5
MAX_SHAPES = 24
"""How many distinct shapes of one batch are decoded in numpy; the rest is decoded record by record."""

_TAG_COUNT = FRAME_BYTES + 4 + 16
_UNCHANGED_LEADER = -2
_LAST_VERSION = 2

Words = npt.NDArray[np.uint64]


class ChangeRows(NamedTuple):
    """Changes of one shape; a field is None if this shape does not have it.

    `isr` is (rows, n) broker ids, `directories` (rows, n, 2) words.
    """

    records: Places
    topics: Words
    indexes: npt.NDArray[np.int32]
    leader: npt.NDArray[np.int32] | None
    isr: npt.NDArray[np.int32] | None
    recovery: npt.NDArray[np.int8] | None
    directories: Words | None


class _Shape(NamedTuple):
    """The positions of the fields of one shape, and the bytes that all records of the shape share."""

    dtype: np.dtype[Any] | None
    places: tuple[int, ...]
    values: tuple[int, ...]


def decode_changes(frames: Frames, records: Places) -> tuple[list[ChangeRows], Places]:
    """Changes grouped by shape, and the records among `records` that must be decoded one by one."""
    groups: list[ChangeRows] = []
    odd: list[Places] = []
    left = records
    for _ in range(MAX_SHAPES):
        if not len(left):
            break
        shape = _shape_of(frames, int(left[0]))
        alike = _alike(frames, left, shape)
        mine = left[alike]
        if shape.dtype is None:
            odd.append(mine)
        else:
            group = _rows(frames, mine, shape.dtype)
            usual = _usual(group)
            if usual.all():
                groups.append(group)
            else:
                odd.append(mine[~usual])
                groups.append(_rows(frames, mine[usual], shape.dtype))
        left = left[~alike]
    odd.append(left)
    return groups, np.sort(np.concatenate(odd))


def _usual(rows: ChangeRows) -> npt.NDArray[np.bool_]:
    """False if a field is present but means "unchanged", or has a value that is refused."""
    usual = np.ones(len(rows.records), dtype=bool)
    if rows.leader is not None:
        usual &= rows.leader != _UNCHANGED_LEADER
    if rows.recovery is not None:
        usual &= (rows.recovery == 0) | (rows.recovery == 1)
    return usual


def _alike(frames: Frames, records: Places, shape: _Shape) -> npt.NDArray[np.bool_]:
    """Which of `records` have the shape of the first."""
    lengths = frames.lengths[records]
    alike: npt.NDArray[np.bool_] = lengths == lengths[0]
    starts = frames.starts[records]
    last = len(frames.octets) - 1
    for place, value in zip(shape.places, shape.values, strict=True):
        alike &= frames.octets[np.minimum(starts + place, last)] == value
    return alike


def _shape_of(frames: Frames, record: int) -> _Shape:
    start, length = int(frames.starts[record]), int(frames.lengths[record])
    value = frames.data[start : start + length]
    places = [2, _TAG_COUNT]
    fields: dict[str, tuple[Any, int]] = {
        "index": (np.dtype(">i4"), FRAME_BYTES),
        "topic": (np.dtype((np.uint64, (2,))), FRAME_BYTES + 4),
    }
    usual = value[2] <= _LAST_VERSION and length > _TAG_COUNT
    at, last_tag = _TAG_COUNT + 1, -1
    for _ in range(value[_TAG_COUNT] if usual else 0):
        field = _tagged(value, at)
        if field is None:
            usual = False
            break
        name, kind, places_in, after = field
        places += places_in
        if value[at] <= last_tag:
            usual = False  # not ascending: left to the record decoder
        last_tag = value[at]
        if kind is not None:
            fields[name] = kind
        at = after
    places = [place for place in places if place < length]
    dtype = None
    if usual and at == length:
        dtype = np.dtype(
            {
                "names": list(fields),
                "formats": [kind for kind, _ in fields.values()],
                "offsets": [offset for _, offset in fields.values()],
                "itemsize": length,
            }
        )
    return _Shape(dtype, tuple(places), tuple(value[place] for place in places))


def _tagged(value: bytes, at: int) -> tuple[str, tuple[Any, int] | None, list[int], int] | None:
    """(name, position, structural bytes, next place) of the tagged field at `at`; None if odd."""
    if at + 2 >= len(value):
        return None
    tag, size = value[at], value[at + 1]
    body, after = at + 2, at + 2 + size
    structure = [at, at + 1]
    if size & 0x80 or after > len(value):
        return None
    count = value[body] - 1  # bounded by the size, which is one byte
    match tag:
        case 0 if count > 0 and size == 1 + 4 * count:
            return "isr", (np.dtype((">i4", (count,))), body + 1), [*structure, body], after
        case 1 if size == 4:
            return "leader", (np.dtype(">i4"), body), structure, after
        case 5 if size == 1:
            return "recovery", (np.dtype("i1"), body), structure, after
        case 8 if value[2] >= 1 and count > 0 and size == 1 + 16 * count:
            return "directories", (np.dtype((np.uint64, (count, 2))), body + 1), [*structure, body], after
        case _:
            return None


def _rows(frames: Frames, records: Places, dtype: np.dtype[Any]) -> ChangeRows:
    rows = gather(frames, frames.starts[records], dtype.itemsize, dtype)
    names = dtype.names or ()
    return ChangeRows(
        records=records,
        topics=np.ascontiguousarray(rows["topic"]),
        indexes=rows["index"].astype(np.int32),
        leader=rows["leader"].astype(np.int32) if "leader" in names else None,
        isr=rows["isr"].astype(np.int32) if "isr" in names else None,
        recovery=rows["recovery"] if "recovery" in names else None,
        directories=np.ascontiguousarray(rows["directories"]) if "directories" in names else None,
    )
