"""Many partition records decoded at once: the frames of a batch in numpy, and their values into columns."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image.chunk import (
    FLAGS,
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
)
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.metadata.image.types import MIGRATING
from metaquorum.storage.batches.batch import HEADER_BYTES, BatchHeader
from metaquorum.storage.batches.places import Bytes, Places, record_starts
from metaquorum.storage.errors import BatchError

FRAME_BYTES = 3
"""Frame version, api key and version, one byte each (numbers below 128)."""


class Frames(NamedTuple):
    """Every record of a batch: where its framed value starts, its length, its api key and version."""

    data: bytes
    octets: Bytes
    starts: Places
    lengths: Places
    keys: Bytes
    versions: Bytes


def read_frames(data: bytes, header: BatchHeader) -> Frames | None:
    """The frames of an uncompressed metadata batch `data` (header included); None if anything is odd."""
    if header.compression or header.records_count != header.last_offset_delta + 1:
        return None
    octets = np.frombuffer(data, dtype=np.uint8)
    count = header.records_count
    try:
        records = record_starts(data, octets, count, HEADER_BYTES)
        if records is None:
            return None
        return frames_at(data, octets, records[:-1], records[1:], np.arange(count, dtype=np.int64))
    except (IndexError, BatchError):
        return None


def frames_at(data: bytes, octets: Bytes, starts: Places, ends: Places, deltas: Places) -> Frames | None:
    """The frames of records that begin and end at these places and have these offset deltas; None if anything
    is odd. Raises IndexError if a record reaches past the data."""
    body = starts + varint_widths(octets, starts)
    if octets[body].any() or octets[body + 1].any() or (octets[starts] & 1).any():
        return None
    key = _after_offset_deltas(octets, body + 2, deltas)
    if key is None or (octets[key] != 1).any():
        return None
    widths = varint_widths(octets, key + 1)
    lengths = lengths_at(octets, key + 1, widths)
    values = key + 1 + widths
    after = values + lengths
    if (after + 1 != ends).any() or octets[after].any() or (lengths < FRAME_BYTES).any():
        return None
    keys, versions = octets[values + 1], octets[values + 2]
    if (octets[values] != 1).any() or ((keys | versions) & 0x80).any():
        return None
    return Frames(data, octets, values, lengths, keys, versions)


def varint_widths(octets: Bytes, positions: Places) -> Places:
    """The size in bytes of the varint at each place, for varints of up to three bytes."""
    first = octets[positions] >> 7
    if not first.any():
        return np.ones(len(positions), dtype=np.int64)
    return 1 + first.astype(np.int64) + (first & octets[positions + 1] >> 7)


def lengths_at(octets: Bytes, positions: Places, widths: Places) -> Places:
    """The zigzag lengths at `positions`; a negative one makes the caller's sums wrong, which it detects."""
    raw: Any = (octets[positions] & 0x7F).astype(np.int64)
    widest = int(widths.max(initial=1))
    if widest > 1:
        raw |= np.where(widths > 1, (octets[positions + 1] & 0x7F).astype(np.int64) << 7, 0)
    if widest > 2:
        raw |= np.where(widths > 2, (octets[positions + 2] & 0x7F).astype(np.int64) << 14, 0)
    result: Places = (raw >> 1) ^ -(raw & 1)
    return result


def _after_offset_deltas(octets: Bytes, positions: Places, deltas: Places) -> Places | None:
    """The places after these offset deltas; None if the bytes have others."""
    zigzag = deltas << 1
    after = positions + 1
    if not len(positions) or int(zigzag.max()) < 0x80:
        return None if (octets[positions] != zigzag).any() else after
    left = zigzag
    more = left >= 0x80
    wrong = octets[positions] != (left & 0x7F | more * 0x80)
    which = np.flatnonzero(more)
    while which.size:
        left = zigzag[which] >> 7 * (after[which] - positions[which])
        more = left >= 0x80
        wrong[which] |= octets[after[which]] != (left & 0x7F | more * 0x80)
        after[which] += 1
        which = which[more]
    return None if wrong.any() else after


def gather(frames: Frames, starts: Places, length: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The `length` bytes at each of `starts`, copied and viewed as `dtype` (of that size)."""
    raw: npt.NDArray[Any] = np.ndarray(
        shape=(len(frames.data) - length + 1,), dtype=f"V{length}", buffer=frames.data, strides=(1,)
    )
    return raw[starts].view(dtype)


# Decodes many PartitionChangeRecords at once, grouped by shape.
# Changes of other fields are returned to the caller, which decodes them one by one.

CHANGE_API_KEY = 5
MAX_SHAPES = 24
"""How many distinct shapes of one batch are decoded in numpy; the rest is decoded record by record."""

_TAG_COUNT = FRAME_BYTES + 4 + 16
_UNCHANGED_LEADER = -2
_LAST_CHANGE_VERSION = 2

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

    def between(self, first: int, last: int) -> ChangeRows | None:
        """Those of the records from number `first` up to but not including `last`; None if there are none."""
        low, high = np.searchsorted(self.records, (first, last)).tolist()
        if low == high:
            return None
        if high - low == len(self.records):
            return self
        columns: list[Any] = [None if column is None else column[low:high] for column in self]
        return ChangeRows(*columns)


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
    usual = value[2] <= _LAST_CHANGE_VERSION and length > _TAG_COUNT
    position, last_tag = _TAG_COUNT + 1, -1
    for _ in range(value[_TAG_COUNT] if usual else 0):
        field = _tagged(value, position)
        if field is None:
            usual = False
            break
        name, kind, places_in, after = field
        places += places_in
        if value[position] <= last_tag:
            usual = False  # not ascending: left to the record decoder
        last_tag = value[position]
        if kind is not None:
            fields[name] = kind
        position = after
    places = [place for place in places if place < length]
    dtype = None
    if usual and position == length:
        dtype = np.dtype(
            {
                "names": list(fields),
                "formats": [kind for kind, _ in fields.values()],
                "offsets": [offset for _, offset in fields.values()],
                "itemsize": length,
            }
        )
    return _Shape(dtype, tuple(places), tuple(value[place] for place in places))


def _tagged(value: bytes, position: int) -> tuple[str, tuple[Any, int] | None, list[int], int] | None:
    """(name, position, structural bytes, next place) of the tagged field at `position`; None if odd."""
    if position + 2 >= len(value):
        return None
    tag, size = value[position], value[position + 1]
    body, after = position + 2, position + 2 + size
    structure = [position, position + 1]
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


# Decodes many PartitionRecords at once into the columns of an image.
# Rows of any other shape are returned to the caller, which decodes them one by one.

IntArray = npt.NDArray[np.int32]

PARTITION_API_KEY = 3
_FIRST_LIST = FRAME_BYTES + 4 + 16
_LAST_VERSION = 2


class PartitionRows(NamedTuple):
    """Decoded rows: record numbers, topic ids as two words each, and a block in a chunk's layout (columns,
    rows), with TOPIC not filled in."""

    records: Places
    topics: Words
    block: IntArray
    replica_width: int
    isr_width: int


def decode_partitions(
    frames: Frames, records: Places, table: DirectoryTable
) -> tuple[PartitionRows, npt.NDArray[np.bool_]]:
    """The rows of PartitionRecords `records` that have the usual shape, and which of `records` do not."""
    shapes, usual = record_shapes(frames, records)
    fast = records[usual]
    shapes = shapes[usual]
    kinds = np.unique(shapes).tolist() if len(shapes) and (shapes != shapes[0]).any() else shapes[:1].tolist()
    width = max(((kind >> 8) & 0xFF for kind in kinds), default=0)
    isr_width = max((kind & 0xFF for kind in kinds), default=0)
    block = np.full((LISTS + 2 * width + isr_width, len(fast)), PADDING, dtype=np.int32)
    topics = np.empty((len(fast), 2), dtype=np.uint64)
    block[FLAGS] = 0
    for kind in kinds:
        where: Any = slice(None) if len(kinds) == 1 else np.flatnonzero(shapes == kind)
        _fill(frames, fast[where], kind, _Target(block, topics, width, where), table)
    return PartitionRows(fast, topics, block, width, isr_width), ~usual


def record_shapes(frames: Frames, records: Places) -> tuple[Places, npt.NDArray[np.bool_]]:
    """A number for each record's shape (has directories, replicas, ISR), and whether it is usual."""
    octets, last = frames.octets, len(frames.octets) - 1
    starts, lengths = frames.starts[records], frames.lengths[records]
    versions = frames.versions[records]
    has_directories = (versions > 0).astype(np.int64)
    replicas = octets[np.minimum(starts + _FIRST_LIST, last)].astype(np.int64) - 1
    at_isr = starts + _FIRST_LIST + 1 + 4 * replicas
    isr = octets[np.minimum(at_isr, last)].astype(np.int64) - 1
    after = np.minimum(at_isr + 1 + 4 * isr, last - 16)
    expected = _FIRST_LIST + 17 + 4 * (replicas + isr) + has_directories * (1 + 16 * replicas)
    usual = (lengths == expected) & (versions <= _LAST_VERSION)
    usual &= (replicas >= 0) & (replicas < 0x7F) & (isr >= 0) & (isr < 0x7F)
    usual &= (octets[after] == 1) & (octets[after + 1] == 1) & (octets[starts + lengths - 1] == 0)
    usual &= (has_directories == 0) | (octets[after + 14] == replicas + 1)
    return has_directories << 16 | replicas << 8 | isr, usual


@lru_cache(maxsize=256)
def record_dtype(has_directories: int, replicas: int, isr: int) -> np.dtype[Any]:
    """The layout of a framed PartitionRecord with lists of the given lengths."""
    at_isr = _FIRST_LIST + 1 + 4 * replicas
    after = at_isr + 1 + 4 * isr + 2
    fields: dict[str, tuple[Any, int]] = {
        "index": (np.dtype(">i4"), FRAME_BYTES),
        "topic": (np.dtype((np.uint64, (2,))), FRAME_BYTES + 4),
        "leader": (np.dtype(">i4"), after),
        "leader_epoch": (np.dtype(">i4"), after + 4),
        "partition_epoch": (np.dtype(">i4"), after + 8),
    }
    if replicas:
        fields["replicas"] = (np.dtype((">i4", (replicas,))), _FIRST_LIST + 1)
        if has_directories:
            fields["directories"] = (np.dtype((np.uint64, (replicas, 2))), after + 13)
    if isr:
        fields["isr"] = (np.dtype((">i4", (isr,))), at_isr + 1)
    size = after + 12 + has_directories * (1 + 16 * replicas) + 1
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


class _Target(NamedTuple):
    """The destination of rows of one shape: the block, its replica width, and which of its columns."""

    block: IntArray
    topics: Words
    width: int
    where: Any


def _fill(frames: Frames, records: Places, kind: int, target: _Target, table: DirectoryTable) -> None:
    has_directories, replicas, isr = kind >> 16, kind >> 8 & 0xFF, kind & 0xFF
    dtype = record_dtype(has_directories, replicas, isr)
    rows = gather(frames, frames.starts[records], dtype.itemsize, dtype)
    block, topics, width, where = target
    topics[where] = rows["topic"]
    block[INDEX, where] = rows["index"]
    block[LEADER, where] = rows["leader"]
    block[LEADER_EPOCH, where] = rows["leader_epoch"]
    block[PARTITION_EPOCH, where] = rows["partition_epoch"]
    block[N_REPLICAS, where] = replicas
    block[N_ISR, where] = isr
    if replicas:
        block[LISTS : LISTS + replicas, where] = rows["replicas"].T
        start = LISTS + width
        if has_directories:
            codes = table.codes_of(rows["directories"].reshape(-1, 2))
            block[start : start + replicas, where] = codes.reshape(-1, replicas).T
        else:
            block[start : start + replicas, where] = table.code(MIGRATING)
    if isr:
        start = LISTS + 2 * width
        block[start : start + isr, where] = rows["isr"].T
