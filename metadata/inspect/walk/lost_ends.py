"""Whether a metadata transaction (KIP-868) that is open before lost records ends after them, or among
them."""

from __future__ import annotations

from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch, decode_item
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from metaquorum.storage.batches.batch import RecordBatch

_ENDS = (EndTransactionRecord, AbortTransactionRecord)
_MARKS = tuple(bytes((1, one.api_key)) for one in (BeginTransactionRecord, *_ENDS))
"""How their values begin: frame version, api key."""


def ends_behind(log: MetadataLog, offset: int) -> bool:
    """Whether the first transaction record from `offset` on ends a transaction."""
    for batch in log.batches(offset):
        if not isinstance(batch, RecordBatch) or batch.header.next_offset <= offset:
            continue
        is_plain = batch.header.compression == 0
        if batch.header.is_control or (is_plain and not any(mark in batch.data for mark in _MARKS)):
            continue
        for item in decode_item(batch):
            for one in item.records if isinstance(item, ReadBatch) else ():
                if isinstance(one.record, (BeginTransactionRecord, *_ENDS)):
                    return isinstance(one.record, _ENDS)
    return False
