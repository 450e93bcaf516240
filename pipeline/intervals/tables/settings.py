"""The tables `topics`, `configs` and `audit_trail`: lives of topics, values of keys, and who changed what.

Must not keep secrets: their values are redacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from metaquorum.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
)
from metaquorum.metadata.image.types import RESOURCE_KINDS
from metaquorum.metadata.inspect.log.entities import EntityNamer
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.secrets import REDACTED, is_secret_setting
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.pipeline.intervals.moments import Intervals, Moment, Row
from metaquorum.storage.uuids import uuid_to_text

MIN_ISR = "min.insync.replicas"
DEFAULT_MIN_ISR = 1


class Topics:
    """Rows of `topics`. Remembers names, also for a while after a topic is gone."""

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}
        self._rows: Intervals[bytes] = Intervals()

    def name(self, topic_id: bytes) -> str:
        return self.names.get(topic_id) or uuid_to_text(topic_id)

    def created(self, topic_id: bytes, name: str, moment: Moment, *, from_known: bool = True) -> None:
        self.names[topic_id] = name
        self._rows.start(topic_id, (name, uuid_to_text(topic_id)), moment, from_known=from_known)

    def removed(self, topic_id: bytes, partitions: int, moment: Moment) -> None:
        self._rows.end(topic_id, moment, partitions)
        self.names.pop(topic_id, None)

    def learn(self, names: Mapping[bytes, str], moment: Moment, partitions: Callable[[bytes], int]) -> None:
        """Takes a snapshot's topics: starts those that no record gave, and ends those that are gone."""
        for topic_id in self._rows.open.keys() - names.keys():
            self._rows.end(topic_id, moment, partitions(topic_id), to_known=False)
            del self.names[topic_id]
        for topic_id, name in names.items():
            if topic_id not in self._rows.open:
                self.created(topic_id, name, moment, from_known=False)

    def lose(self, moment: Moment, partitions: Callable[[bytes], int]) -> None:
        self._rows.lose(moment, lambda topic_id: (partitions(topic_id),))
        self.names = {}

    def adopt(self, left: Topics, below: int) -> None:
        """Open rows that began below an offset get their starts from `left`."""
        self._rows.adopt(left._rows, below)

    def take(self) -> list[Row]:
        return self._rows.take()

    def open_rows(self, partitions: Callable[[bytes], int]) -> list[Row]:
        return self._rows.open_rows(lambda topic_id: (partitions(topic_id),))

    def save(self) -> Any:
        return self._rows.save()

    def load(self, saved: Any) -> None:
        self._rows.load(saved)
        self.names = {topic_id: at.value[0] for topic_id, at in self._rows.open.items()}


class Configs:
    """Rows of `configs`, and the min.insync.replicas that follow from them."""

    def __init__(self) -> None:
        self._rows: Intervals[tuple[int, str, str]] = Intervals()
        self._min_isr: dict[str, int] = {}
        self._default = DEFAULT_MIN_ISR

    def min_isr(self, topic: str) -> int:
        """The topic's own value, otherwise the one for all brokers, otherwise 1. A single broker's own value
        does not count: which one applies would depend on the leader."""
        return self._min_isr.get(topic, self._default)

    def setting(self, topic: str, name: str) -> str | None:
        """A topic's own value, otherwise the one for all brokers; None if the log has neither."""
        for kind, resource in ((TOPIC_RESOURCE, topic), (BROKER_RESOURCE, "")):
            found = self._rows.open.get((kind, resource, name))
            if found is not None:
                return str(found.value[3])
        return None

    def changed(
        self,
        resource: ConfigResource,
        names: Mapping[str, Moment],
        now: Mapping[str, str],
        *,
        from_known: bool = True,
    ) -> bool:
        """A batch changed the keys `names` of a resource. Returns whether a min ISR may have changed."""
        for name, moment in names.items():
            key = (resource.resource_type, resource.name, name)
            was = self._rows.open.get(key)
            value = now.get(name)
            is_secret = value is not None and is_secret_setting(name)
            value = REDACTED if is_secret else value
            # A redacted secret does not show whether it changed; a record about it does.
            if was is not None and was.value[3] == value and not (is_secret and from_known):
                continue
            self._rows.end(key, moment)
            if value is not None:
                kind = RESOURCE_KINDS.get(resource.resource_type, str(resource.resource_type))
                row = (kind, resource.name or "<default>", name, value)
                self._rows.start(key, row, moment, from_known=from_known)
        if MIN_ISR not in names:
            return False
        self._note_min_isr(resource.resource_type, resource.name, now.get(MIN_ISR))
        return True

    def learn(self, values: Iterable[tuple[ConfigResource, Mapping[str, str]]], moment: Moment) -> None:
        """Takes a snapshot's values: starts those that no record gave, and ends those that are gone."""
        said = dict(values)
        for kind, resource, name in list(self._rows.open):
            if name not in said.get(ConfigResource(kind, resource), {}):
                self._rows.end((kind, resource, name), moment, to_known=False)
        for resource_key, found in said.items():
            self.changed(resource_key, dict.fromkeys(found, moment), found, from_known=False)

    def lose(self, moment: Moment) -> None:
        self._rows.lose(moment)
        self._min_isr, self._default = {}, DEFAULT_MIN_ISR

    def _note_min_isr(self, kind: int, name: str, text: str | None) -> None:
        number = None if text is None else whole_number(text, MAX_INT)
        if kind == BROKER_RESOURCE and name == "":
            self._default = DEFAULT_MIN_ISR if number is None else number
        elif kind == TOPIC_RESOURCE:
            if number is None:
                self._min_isr.pop(name, None)
            else:
                self._min_isr[name] = number

    def topic_removed(self, topic: str, moment: Moment) -> None:
        """Ends the configuration of a deleted topic."""
        keys = [key for key in self._rows.open if key[:2] == (TOPIC_RESOURCE, topic)]
        for key in keys:
            self._rows.end(key, moment)
        self._min_isr.pop(topic, None)

    def context(self) -> Any:
        """What later rows depend on, except the starts of open rows."""
        return [sorted((key, at.value[3]) for key, at in self._rows.open.items()), self._default]

    def adopt(self, left: Configs, below: int) -> None:
        """Open rows that began below an offset get their starts from `left`."""
        self._rows.adopt(left._rows, below)

    def take(self) -> list[Row]:
        return self._rows.take()

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows()

    def save(self) -> Any:
        return self._rows.save()

    def load(self, saved: Any) -> None:
        self._rows.load(saved)
        for (kind, resource, name), at in self._rows.open.items():
            if name == MIN_ISR:
                self._note_min_isr(kind, resource, at.value[3])


# The audit trail: which principal changed what, when and from where, one row per batch with a cause.

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
