"""A batch taken apart and put together again."""

from __future__ import annotations

from metaquorum.storage.batches.batch import HEADER_BYTES, RecordBatch, batch_of_records, seal_batch


def reencode_batch(batch: RecordBatch) -> bytes:
    """The same bytes, if the batch was well formed; a compressed payload is passed through unopened."""
    if batch.header.compression:
        return seal_batch(batch.header, batch.data[HEADER_BYTES:])
    return batch_of_records(batch.header, batch.records())
