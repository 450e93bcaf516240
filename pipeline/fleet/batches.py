"""Builds the record batches of one synthetic log, in order.

Rows of partitions come as arrays and are encoded in columns, single records by the codec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.encode import Bytes, framed, framed_value
from metaquorum.metadata.features import write_version
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import LeaderChangeMessage, LeaderVoter
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.batches.encode import encode_batch, plain_header, seal_batch

LEVEL = 19
"""metadata.version of every generated log: 3.7-IV4, with directories."""

MAX_BATCH_RECORDS = 10_000
"""Most records in one batch, as Kafka's controller writes them."""

_NO_OP = framed_value(0, encode(NoOpRecord(), write_version(NoOpRecord(), LEVEL)))


class BatchLog:
    """Appends batches. `take` returns the bytes of those since its last call."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms
        self.last_ms = start_ms
        self.offset = 0
        self.epoch = 0
        self.batches = 0
        self.counts: Counter[str] = Counter()
        self._out: list[bytes] = []

    def take(self) -> list[bytes]:
        """The batches appended since the last call."""
        out, self._out = self._out, []
        return out

    def _append(self, data: bytes, count: int) -> int:
        """Appends one sealed batch. Returns its base offset."""
        base = self.offset
        self._out.append(data)
        self.batches += 1
        self.offset += count
        self.last_ms = self.now_ms
        return base

    def leader_change(self, leader: int, voters: tuple[int, ...], epoch: int) -> int:
        """Starts an epoch. Returns the offset of its LeaderChangeMessage."""
        self.epoch = epoch
        everyone = tuple(LeaderVoter(voter) for voter in voters)
        majority = sorted({leader, *[one for one in voters if one != leader][: len(voters) // 2]})
        granting = tuple(LeaderVoter(voter) for voter in majority)
        key, value = encode_control(LeaderChangeMessage(leader, everyone, granting))
        data = encode_batch(
            base_offset=self.offset,
            leader_epoch=epoch,
            timestamp_ms=self.now_ms,
            values=[value],
            keys=[key],
            is_control=True,
        )
        self.counts["LEADER_CHANGE"] += 1
        return self._append(data, 1)

    def no_op(self) -> None:
        """Appends one idle batch."""
        header = plain_header(self.offset, self.epoch, self.now_ms, 1)
        self.counts[NoOpRecord.type_name] += 1
        self._append(seal_batch(header, _NO_OP), 1)

    def records(self, records: Iterable[Any]) -> int:
        """Appends one batch of single records. Returns its base offset."""
        return self.mixed(records, ())

    def mixed(
        self, before: Iterable[Any], rows: Iterable[tuple[str, Bytes]], after: Iterable[Any] = ()
    ) -> int:
        """Appends one batch: records, then encoded rows (type name, values), then
        records. Returns its base offset.

        Raises ValueError for an empty batch.
        """
        pieces: list[bytes] = []
        count = 0
        count = self._singles(before, pieces, count)
        for name, values in rows:
            if len(values):
                pieces.append(framed(values, count))
                count += len(values)
                self.counts[name] += len(values)
        count = self._singles(after, pieces, count)
        if not count:
            raise ValueError("a batch needs at least one record")
        header = plain_header(self.offset, self.epoch, self.now_ms, count)
        return self._append(seal_batch(header, b"".join(pieces)), count)

    def _singles(self, records: Iterable[Any], pieces: list[bytes], offset_delta: int) -> int:
        for record in records:
            pieces.append(framed_value(offset_delta, encode(record, write_version(record, LEVEL))))
            self.counts[record.type_name] += 1
            offset_delta += 1
        return offset_delta


def chunks(rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Row numbers in pieces that fit in one batch; for no rows, one empty piece."""
    return [rows[low : low + MAX_BATCH_RECORDS] for low in range(0, max(1, len(rows)), MAX_BATCH_RECORDS)]
