"""`.index`, `.timeindex` and `.txnindex` of a segment: Kafka's formats, written when the segment is full and
at a clean shutdown, the last one also at checkpoints.

Opens no files, and does not know when to write one: `timed_segment` and `partition.log_producers` do. The
contents can always be rebuilt by hopping over the log's headers, so a missing or invalid file is not damage:
`decode_*` returns None and the caller hops. Earlier releases wrote a batch's base offset where its last
offset belongs; a search works with both.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise

INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
INDEX_ENTRY = struct.Struct(">ii")
"""A batch's last offset minus base offset, byte position."""
TIME_ENTRY = struct.Struct(">qi")
"""Newest timestamp so far, last offset of its batch minus base offset."""
ABORTED_ENTRY = struct.Struct(">hqqqq")
"""Version, producer id, first and last offset of an aborted transaction, last stable offset."""
ABORTED_VERSION = 0


def index_name(base_offset: int, suffix: str) -> str:
    """The segment's file name with another suffix."""
    return f"{base_offset:020d}{suffix}"


def parse_index_name(name: str) -> int | None:
    """The base offset in the name of such a file; None for any other."""
    stem, _, suffix = name.partition(".")
    known = (
        suffix in ("index", "timeindex", "txnindex") and len(stem) == 20 and stem.isascii() and stem.isdigit()
    )
    return int(stem) if known else None


def encode_index(base_offset: int, offsets: Sequence[int], positions: Sequence[int]) -> bytes:
    """Entries of (a batch's last offset minus base offset, byte position), 4 bytes each, big endian."""
    flat = array("i")
    for offset, position in zip(offsets, positions, strict=True):
        flat.append(offset - base_offset)
        flat.append(position)
    flat.byteswap()
    return flat.tobytes()


def decode_index(
    data: bytes, base_offset: int, *, end_offset: int, size: int
) -> tuple[array[int], array[int]] | None:
    """(offsets, positions), both strictly rising, below the segment's ends; None for any other content."""
    if len(data) % INDEX_ENTRY.size:
        return None
    flat = array("i", data)
    flat.byteswap()
    offsets = array("q", (base_offset + each for each in flat[::2]))
    positions = array("q", flat[1::2])
    if offsets and not (offsets[0] >= base_offset and offsets[-1] < end_offset):
        return None
    if positions and not (positions[0] >= 0 and positions[-1] < size):
        return None
    return (offsets, positions) if _rises(offsets) and _rises(positions) else None


def encode_times(base_offset: int, times_ms: Sequence[int], offsets: Sequence[int]) -> bytes:
    """Entries of (newest timestamp so far, last offset of its batch minus base offset): 8 and 4 bytes.
    Batches without a timestamp (-1) have no entry."""
    pack = TIME_ENTRY.pack
    pairs = zip(times_ms, offsets, strict=True)
    return b"".join(pack(time, offset - base_offset) for time, offset in pairs if time >= 0)


def decode_times(data: bytes, base_offset: int, *, end_offset: int) -> tuple[array[int], array[int]] | None:
    """(timestamps in ms, offsets), both strictly rising; None for any other content, or if there is no
    entry."""
    if not data or len(data) % TIME_ENTRY.size:
        return None
    times, offsets = array("q"), array("q")
    for time, offset in TIME_ENTRY.iter_unpack(data):
        times.append(time)
        offsets.append(base_offset + offset)
    if offsets[0] < base_offset or offsets[-1] >= end_offset:
        return None
    return (times, offsets) if _rises(times) and _rises(offsets) else None


def encode_aborted(entries: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Kafka's `.txnindex`: (producer id, first offset, last offset, last stable offset) of each aborted
    transaction whose marker is in the segment."""
    return b"".join(ABORTED_ENTRY.pack(ABORTED_VERSION, *entry) for entry in entries)


def decode_aborted(
    data: bytes, base_offset: int, *, end_offset: int
) -> list[tuple[int, int, int, int]] | None:
    """The inverse, by rising last offset; None for any other content."""
    if len(data) % ABORTED_ENTRY.size:
        return None
    entries = list(ABORTED_ENTRY.iter_unpack(data))
    lasts = [entry[3] for entry in entries]
    within = not lasts or (lasts[0] >= base_offset and lasts[-1] < end_offset)
    if not within or not _rises(lasts) or any(entry[0] != ABORTED_VERSION for entry in entries):
        return None
    return [(entry[1], entry[2], entry[3], entry[4]) for entry in entries]


def cut_aborted(data: bytes, end_offset: int) -> bytes:
    """The same file for a segment that is truncated at `end_offset`."""
    entries = (data[at : at + ABORTED_ENTRY.size] for at in range(0, len(data), ABORTED_ENTRY.size))
    whole = (one for one in entries if len(one) == ABORTED_ENTRY.size)
    return b"".join(one for one in whole if ABORTED_ENTRY.unpack(one)[3] < end_offset)


def _rises(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(numbers))
