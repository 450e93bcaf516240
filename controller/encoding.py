"""Encodes records as one batch, in the versions of the metadata.version level, and computes the state after
it.

Owns the choice between records one by one and in columns. Does not append the batch: the node does, through
Raft.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.metadata.columnar import MIN_RECORDS as COLUMNS_MIN_RECORDS
from metaquorum.metadata.columnar.bulk import RecordPieces
from metaquorum.metadata.features import write_version
from metaquorum.metadata.image import METADATA_VERSION
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import FeatureLevelRecord, Record
from metaquorum.metadata.replay import Replays, ReplayState
from metaquorum.storage.batches.batch import encode_batch, plain_header, seal_batch
from metaquorum.storage.batches.parsed import Batches


def encode_records_batch(
    records: Sequence[Record], *, base_offset: int, epoch: int, timestamp_ms: int, metadata_version: int
) -> bytes:
    """One batch. Raises storage.errors.BatchError if it would be larger than 8 MiB.

    A batch that finalizes metadata.version is written at the new level, including the records before that
    one: the first batch of a cluster begins a transaction before it states its level.
    """
    if isinstance(records, RecordPieces):
        body = records.body(metadata_version)
        header = plain_header(base_offset, epoch, timestamp_ms, len(records))
        return seal_batch(header, body)
    level = metadata_version
    for record in records:
        if type(record) is FeatureLevelRecord and record.name == METADATA_VERSION:
            level = record.feature_level
    values = [encode(record, write_version(record, level)) for record in records]
    return encode_batch(base_offset=base_offset, leader_epoch=epoch, timestamp_ms=timestamp_ms, values=values)


def encode_and_replay(
    records: Sequence[Record],
    state: ReplayState,
    replays: Replays,
    *,
    base_offset: int,
    epoch: int,
    timestamp_ms: int,
) -> tuple[Batches, ReplayState]:
    """One batch that follows `state`, and the state after it, made by `replays`. Raises BatchError and
    RecordEncodeError for what cannot be written, ReplayError for what does not fit its own image."""
    data = encode_records_batch(
        records,
        base_offset=base_offset,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        metadata_version=state.newest.features.metadata_version,
    )
    batches = Batches.sealed(data)
    if len(records) >= COLUMNS_MIN_RECORDS:
        (batch,) = batches.split()
        return batches, replays.after(state, lambda engine: engine.apply_batch(batch))
    return batches, replays.after(
        state,
        lambda engine: engine.apply_records(
            base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms, records=records
        ),
    )
