"""Finds the record values of a batch in numpy, without an object per record.

Owns what is the same in all of them: offset deltas, null keys, no headers, frame version 1. Anything else
is "odd": the caller then takes the per-record path. Knows no record types.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    try:
        records = record_starts(data, octets, header.records_count, HEADER_BYTES)
        return None if records is None else _frames(data, octets, records)
    except (IndexError, BatchError):
        return None


def _frames(data: bytes, octets: Bytes, records: Places) -> Frames | None:
    starts = records[:-1]
    body = starts + varint_widths(octets, starts)
    if octets[body].any() or (octets[body + 1] & 0x80).any():
        return None
    key = _after_offset_deltas(octets, body + 2)
    if key is None or (octets[key] != 1).any():
        return None
    widths = varint_widths(octets, key + 1)
    lengths = lengths_at(octets, key + 1, widths)
    values = key + 1 + widths
    ends = values + lengths
    if (ends + 1 != records[1:]).any() or octets[ends].any() or (lengths < FRAME_BYTES).any():
        return None
    keys, versions = octets[values + 1], octets[values + 2]
    if (octets[values] != 1).any() or ((keys | versions) & 0x80).any():
        return None
    return Frames(data, octets, values, lengths, keys, versions)


def varint_widths(octets: Bytes, at: Places) -> Places:
    """Bytes of the varint at each place, for varints of up to three bytes."""
    first = octets[at] >> 7
    if not first.any():
        return np.ones(len(at), dtype=np.int64)
    return 1 + first.astype(np.int64) + (first & octets[at + 1] >> 7)


def lengths_at(octets: Bytes, at: Places, widths: Places) -> Places:
    """The zigzag lengths at `at`; with a negative one the caller's sums do not work out."""
    raw: Any = (octets[at] & 0x7F).astype(np.int64)
    widest = int(widths.max(initial=1))
    if widest > 1:
        raw |= np.where(widths > 1, (octets[at + 1] & 0x7F).astype(np.int64) << 7, 0)
    if widest > 2:
        raw |= np.where(widths > 2, (octets[at + 2] & 0x7F).astype(np.int64) << 14, 0)
    result: Places = (raw >> 1) ^ -(raw & 1)
    return result


def _after_offset_deltas(octets: Bytes, at: Places) -> Places | None:
    """The places after the offset deltas, which must be 0, 1, 2 ...; None if they are not."""
    count = len(at)
    after = at.copy()
    low, width = 0, 1
    while low < count:
        high = min(count, 1 << (7 * width - 1))
        deltas = np.arange(low, high, dtype=np.int64) << 1
        places = at[low:high]
        for byte in range(width):
            more = 0x80 if byte < width - 1 else 0
            if (octets[places + byte] != (deltas >> 7 * byte & 0x7F | more)).any():
                return None
        after[low:high] += width
        low, width = high, width + 1
    return after


def gather(frames: Frames, starts: Places, length: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The `length` bytes at each of `starts`, copied out and seen as `dtype` (of that size)."""
    raw: npt.NDArray[Any] = np.ndarray(
        shape=(len(frames.data) - length + 1,), dtype=f"V{length}", buffer=frames.data, strides=(1,)
    )
    return raw[starts].view(dtype)
