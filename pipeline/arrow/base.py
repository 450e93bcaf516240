"""Parts that all Arrow tables of records share: timestamps, constants, uuids and lists as columns.

Owns these conversions and the size of an Arrow batch. Knows no record types; `fields` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metaquorum.pipeline.intervals.moments import MAX_TIME_MS
from metaquorum.storage.uuids import uuid_to_text

TIME_TYPE = pa.timestamp("us", tz="UTC")
CHUNK_ROWS = 16_384
"""Approximate number of rows in an Arrow batch."""

Longs = npt.NDArray[np.int64]


def times(values_ms: Sequence[int] | Longs) -> pa.Array:
    """Unix ms as timestamps; null for values that are not a time (before 1970, after 9999)."""
    at = np.asarray(values_ms, dtype=np.int64)
    wrong = (at < 0) | (at > MAX_TIME_MS)
    return pa.array(np.where(wrong, 0, at) * 1000, mask=wrong if wrong.any() else None).cast(TIME_TYPE)


def same(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    """A column with one value in every row."""
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def uuid_column(words: npt.NDArray[np.uint64]) -> pa.Array:
    """Uuids as text, from two native words each: (rows, 2)."""
    raw = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(words), [None, pa.py_buffer(np.ascontiguousarray(words))]
    )
    found = raw.dictionary_encode()
    return pa.array(list(map(uuid_to_text, found.dictionary.to_pylist())), pa.string()).take(found.indices)


def padded_lists(values: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]) -> pa.Array:
    """Lists of different lengths from a padded array (rows, longest list): of each
    row, the first `lengths`."""
    mask = np.arange(values.shape[1]) < lengths[:, None]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[mask]))
