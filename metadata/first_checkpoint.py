"""The checkpoint that formatting writes for dynamic voters (KIP-853), apart from `snapshot`: to load
the image takes longer than to format a directory.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.records.codec import encode_control
from metaquorum.metadata.records.control import (
    ControlRecord,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    VotersRecord,
)
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.files.snapshots import BOOTSTRAP_SNAPSHOT


def first_checkpoint(voters: Sequence[Voter], *, timestamp_ms: int) -> bytes:
    """The bytes of a checkpoint with kraft.version 1 and the first voter set.

    It ends at BOOTSTRAP_SNAPSHOT, before the log's first record. `timestamp_ms` is the time of writing, also
    in its header. Source: KIP-853, Kafka's `Formatter` and `RecordsSnapshotWriter`.
    """
    head = (
        SnapshotHeaderRecord(timestamp_ms),
        KRaftVersionRecord(kraft_version=1),
        VotersRecord(voters=tuple(voters)),
    )
    return _batch(head, 0, timestamp_ms) + _batch((SnapshotFooterRecord(),), len(head), timestamp_ms)


def _batch(records: Sequence[ControlRecord], base_offset: int, timestamp_ms: int) -> bytes:
    keys, values = zip(*map(encode_control, records), strict=True)
    return encode_batch(
        base_offset=base_offset,
        leader_epoch=BOOTSTRAP_SNAPSHOT.epoch,
        timestamp_ms=timestamp_ms,
        values=list(values),
        keys=list(keys),
        is_control=True,
    )
