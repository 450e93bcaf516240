"""The audit trail: which principal changed what, when and from where, one row per batch with a cause."""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.metadata.inspect.log.entities import EntityNamer
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.pipeline.intervals.moments import Moment, Row

NAMED_MAX = 100
"""Most entities to name per batch; `records` counts all records."""


class AuditTrail:
    """Rows of `audit_trail`."""

    def __init__(self, name_of: Callable[[bytes], str]) -> None:
        """`name_of`: a topic's name before the batch, or its id."""
        self._name_of = name_of
        self._closed: list[Row] = []

    def batch(
        self, cause: BatchCause, records: tuple[DecodedRecord, ...], moment: Moment, epoch: int
    ) -> None:
        """Takes a batch before it is applied. Its first record has `cause`."""
        named: dict[str, None] = {}
        new: dict[bytes, str] = {}
        for decoded in records[1:]:
            if isinstance(decoded.record, r.TopicRecord):
                new[decoded.record.topic_id] = decoded.record.name
            if len(named) < NAMED_MAX:
                for path in self._about(decoded.record, new):
                    named[path] = None
        types = dict.fromkeys(at.record.type_name for at in records[1:])
        self._closed.append(
            (
                *(moment.offset, moment.time_ms, epoch, records[-1].offset),
                *(cause.request, cause.rule, cause.principal, cause.client_id, cause.address),
                *(cause.broker_id, tuple(named)[:NAMED_MAX], tuple(types), len(records) - 1),
            )
        )

    def _about(self, record: object, new: dict[bytes, str]) -> tuple[str, ...]:
        topic_id: bytes | None = getattr(record, "topic_id", None)
        if topic_id is not None:
            return (f"topic/{new.get(topic_id) or self._name_of(topic_id)}",)
        return EntityNamer().entities(record)

    def take(self) -> list[Row]:
        """Rows since the last call."""
        taken, self._closed = self._closed, []
        return taken
