"""The control batch that ends a producer's transaction in one partition: commit or abort (KIP-98).

Owns its encoding and decoding. Does not know the log or what decides the outcome.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.encode import control_key, encode_batch, parse_control_key
from metaquorum.storage.batches.format import CONTROL, TRANSACTIONAL, BatchHeader
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.errors import BatchError

_ABORT, _COMMIT = 0, 1
_VALUE = struct.Struct(">hi")
_VERSION = 0


class EndMarker(NamedTuple):
    """How a transaction ended. `coordinator_epoch` is the leader epoch of the coordinator's partition,
    which distinguishes the current coordinator from a former one."""

    committed: bool
    coordinator_epoch: int


def encode_marker(marker: EndMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int) -> bytes:
    """A batch at offset 0, as a leader accepts it."""
    return encode_batch(
        base_offset=0,
        leader_epoch=-1,
        timestamp_ms=timestamp_ms,
        keys=[control_key(_COMMIT if marker.committed else _ABORT)],
        values=[_VALUE.pack(_VERSION, marker.coordinator_epoch)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=CONTROL | TRANSACTIONAL,
    )


def read_marker(header: BatchHeader, data: bytes) -> EndMarker | None:
    """The marker in one batch (`data`: header and records); None if it ends no transaction."""
    if not (header.is_control and header.producer_id >= 0):
        return None
    try:
        record = RecordBatch(header, data).records()[0]
        _, kind = parse_control_key(record.key)
        if kind not in (_ABORT, _COMMIT) or record.value is None or len(record.value) < _VALUE.size:
            return None
    except (BatchError, IndexError):
        return None
    return EndMarker(kind == _COMMIT, _VALUE.unpack_from(record.value)[1])


def marked_headers(batches: Batches) -> Iterator[tuple[BatchHeader, EndMarker | None]]:
    """Each header with the marker in its batch."""
    position = 0
    for header in batches.headers:
        end = position + header.size_bytes
        is_marker = header.attributes & CONTROL
        yield header, read_marker(header, batches.data[position:end]) if is_marker else None
        position = end
