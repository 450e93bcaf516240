"""Finds the record values of a batch in numpy, without an object per record.

Owns what all of them have in common: offset deltas, the batch's time, null keys, no headers, frame version 1.
Anything else is "odd", and the caller uses the per-record path. Knows no record types.
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


def varint_widths(octets: Bytes, at: Places) -> Places:
    """The size in bytes of the varint at each place, for varints of up to three bytes."""
    first = octets[at] >> 7
    if not first.any():
        return np.ones(len(at), dtype=np.int64)
    return 1 + first.astype(np.int64) + (first & octets[at + 1] >> 7)


def lengths_at(octets: Bytes, at: Places, widths: Places) -> Places:
    """The zigzag lengths at `at`; a negative one makes the caller's sums wrong, which it detects."""
    raw: Any = (octets[at] & 0x7F).astype(np.int64)
    widest = int(widths.max(initial=1))
    if widest > 1:
        raw |= np.where(widths > 1, (octets[at + 1] & 0x7F).astype(np.int64) << 7, 0)
    if widest > 2:
        raw |= np.where(widths > 2, (octets[at + 2] & 0x7F).astype(np.int64) << 14, 0)
    result: Places = (raw >> 1) ^ -(raw & 1)
    return result


def _after_offset_deltas(octets: Bytes, at: Places, deltas: Places) -> Places | None:
    """The places after these offset deltas; None if the bytes have others."""
    zigzag = deltas << 1
    after = at + 1
    if not len(at) or int(zigzag.max()) < 0x80:
        return None if (octets[at] != zigzag).any() else after
    left = zigzag
    more = left >= 0x80
    wrong = octets[at] != (left & 0x7F | more * 0x80)
    which = np.flatnonzero(more)
    while which.size:
        left = zigzag[which] >> 7 * (after[which] - at[which])
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
