"""The bytes of many partition records of one shape, without an object per record.

Owns the framing of consecutive records of equal length inside a batch, and the values of PartitionRecords and
of changes of leader and ISR. `frames`, `partitions` and `changes` read what this writes; property tests
compare it with the per-record encoder. Knows no image: the content of the rows is passed as arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar import changes
from metaquorum.metadata.columnar.encode import put_places, value_template
from metaquorum.metadata.columnar.frames import FRAME_BYTES
from metaquorum.metadata.columnar.partitions import record_dtype
from metaquorum.storage.batches.varint import encode_varint

Bytes = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

_FRAME_VERSION = 1
_ISR_TAG, _LEADER_TAG = 0, 1
ISR_MAX = 31
"""The longest ISR whose tagged field has a length of one byte."""


class ChangedRows(NamedTuple):
    """Changes of one shape: `isr` is (rows, n), `leader` (rows); a field that is None does not change."""

    topics: Words
    indexes: IntArray
    isr: IntArray | None
    leader: IntArray | None


class NewRows(NamedTuple):
    """Partitions of one topic with lists of one length: `replicas` (rows, n), all in sync, the first one
    leads; `directories` (rows, n, 2), used from PartitionRecord version 1 on."""

    topic: Words
    indexes: IntArray
    replicas: IntArray
    directories: Words | None


def change_values(rows: ChangedRows, version: int) -> Bytes:
    """The framed values of PartitionChangeRecords, (rows, bytes)."""
    body = b""
    fields: dict[str, tuple[Any, int]] = {
        "index": (np.dtype(">i4"), FRAME_BYTES),
        "topic": (np.dtype((np.uint64, (2,))), FRAME_BYTES + 4),
    }
    at = FRAME_BYTES + 4 + 16 + 1
    if rows.isr is not None:
        n_isr = rows.isr.shape[1]
        if not 0 < n_isr <= ISR_MAX:
            raise ValueError(f"an ISR of {n_isr} members is unusual: encode such records one by one")
        fields["isr"] = (np.dtype((">i4", (n_isr,))), at + 3)
        body += bytes((_ISR_TAG, 1 + 4 * n_isr, n_isr + 1)) + bytes(4 * n_isr)
    if rows.leader is not None:
        fields["leader"] = (np.dtype(">i4"), at + len(body) + 2)
        body += bytes((_LEADER_TAG, 4)) + bytes(4)
    tags = (rows.isr is not None) + (rows.leader is not None)
    template = bytes((_FRAME_VERSION, changes.API_KEY, version)) + bytes(20) + bytes((tags,)) + body
    values, raw = _filled(template, len(rows.indexes), _dtype(fields, len(template)))
    raw["index"], raw["topic"] = rows.indexes, rows.topics
    if rows.isr is not None:
        raw["isr"] = rows.isr
    if rows.leader is not None:
        raw["leader"] = rows.leader
    return values


def partition_values(rows: NewRows, version: int) -> Bytes:
    """The framed values of PartitionRecords, (rows, bytes); epochs are 0."""
    width = rows.replicas.shape[1]
    template = value_template(version, width, width)
    values, raw = _filled(template, len(rows.indexes), record_dtype(int(version > 0), width, width))
    raw["index"], raw["topic"] = rows.indexes, rows.topic
    raw["leader"] = rows.replicas[:, 0]
    raw["replicas"] = raw["isr"] = rows.replicas
    if version:
        if rows.directories is None:
            raise ValueError(f"PartitionRecord version {version} has directories: give them")
        raw["directories"] = rows.directories
    return values


def framed(values: Bytes, first_place: int) -> bytes:
    """`values` (rows, bytes) as the records of a batch at `first_place` and the places after it."""
    count, length = values.shape
    low, pieces = 0, []
    while low < count:
        place = first_place + low
        width = len(encode_varint(place))
        high = min(count, (1 << 7 * width - 1) - first_place)
        head = b"\0\0" + encode_varint(place) + b"\x01" + encode_varint(length)
        head = encode_varint(len(head) + length + 1) + head
        out = np.zeros((high - low, len(head) + length + 1), dtype=np.uint8)
        out[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
        put_places(out, np.arange(place, first_place + high, dtype=np.int64))
        out[:, len(head) : -1] = values[low:high]
        pieces.append(out.tobytes())
        low = high
    return b"".join(pieces)


def topic_words(topic_ids: list[bytes]) -> Words:
    """Ids as rows of two native 64-bit words, (ids, 2)."""
    return np.frombuffer(b"".join(topic_ids), dtype=np.uint64).reshape(-1, 2)


def _dtype(fields: dict[str, tuple[Any, int]], size: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


def _filled(template: bytes, count: int, dtype: np.dtype[Any]) -> tuple[Bytes, Any]:
    """`count` copies of `template`, as bytes and as a structure over them."""
    values = np.empty((count, len(template)), dtype=np.uint8)
    values[:] = np.frombuffer(template, dtype=np.uint8)
    return values, values.reshape(-1).view(dtype)
