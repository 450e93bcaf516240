"""The entities that the records of a batch, or of a metadata transaction, are about.

The offset of a key is that of the last record about it; in a transaction, of the record that ends it
(KIP-868).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metaquorum.metadata.image import ConfigResource
from metaquorum.metadata.inspect.log.entities import broker_of
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import DecodedRecord

_PARTITION = (r.PartitionChangeRecord, r.PartitionRecord)


class Touched:
    """Keys with offsets. `is_open`: inside a transaction, whose keys count only at its end."""

    def __init__(self) -> None:
        self.is_open = False
        self.partitions: dict[tuple[bytes, int], int] = {}
        self.brokers: dict[int, tuple[int, Any]] = {}
        """Broker id: offset and record."""
        self.controllers: dict[int, int] = {}
        self.features: dict[str, int] = {}
        self.cleared: dict[str, int] = {}
        """Topics whose partitions lost their eligible leaders, by name; "" for all."""
        self.topics: dict[bytes, tuple[int, str]] = {}
        self.removed: dict[bytes, int] = {}
        self.configs: dict[ConfigResource, dict[str, int]] = {}
        self._inside: list[DecodedRecord] = []

    def clear(self) -> None:
        """Forgets the keys, but not the open transaction."""
        self.partitions, self.brokers, self.topics, self.removed, self.configs = {}, {}, {}, {}, {}
        self.controllers, self.features, self.cleared = {}, {}, {}

    def add(self, records: Iterable[DecodedRecord]) -> None:
        """Takes the records of one batch."""
        partitions = self.partitions
        for decoded in records:
            record = decoded.record
            if self.is_open:
                self._add_inside(decoded)
            elif isinstance(record, _PARTITION):
                partitions[record.topic_id, record.partition_id] = decoded.offset
            elif isinstance(record, r.BeginTransactionRecord):
                self.is_open = True
            else:
                self._add(record, decoded.offset)

    def add_changes(self, records: Iterable[DecodedRecord]) -> None:
        """Takes a batch of only PartitionChangeRecords, which are most records of most logs."""
        if self.is_open:
            self.add(records)
            return
        partitions = self.partitions
        for decoded in records:
            record: Any = decoded.record
            partitions[record.topic_id, record.partition_id] = decoded.offset

    def _add_inside(self, decoded: DecodedRecord) -> None:
        match decoded.record:
            case r.EndTransactionRecord():
                for inside in self._inside:
                    self._add(inside.record, decoded.offset)
            case r.AbortTransactionRecord():
                pass
            case _:
                self._inside.append(decoded)
                return
        self.is_open = False
        self._inside = []

    def _add(self, record: object, offset: int) -> None:
        match record:
            case r.PartitionRecord() | r.PartitionChangeRecord():
                self.partitions[record.topic_id, record.partition_id] = offset
            case _ if (broker_id := broker_of(record)) is not None:
                self.brokers[broker_id] = (offset, record)
            case r.ControllerRecord() | r.UnregisterControllerRecord():
                self.controllers[record.controller_id] = offset
            case r.FeatureLevelRecord():
                self.features[record.name] = offset
            case r.ClearElrRecord(topic_name=name):
                self.cleared[name] = offset
            case r.TopicRecord(name=name, topic_id=topic_id):
                self.topics[topic_id] = (offset, name)
            case r.RemoveTopicRecord(topic_id=topic_id):
                self.removed[topic_id] = offset
            case r.ConfigRecord():
                resource = ConfigResource(record.resource_type, record.resource_name)
                self.configs.setdefault(resource, {})[record.name] = offset
