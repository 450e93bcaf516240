"""Records about brokers and topics that existed before a trimmed log begins: what they say on their own.

A record shows its result but not the state before it; what earlier records of the log said is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import NO_LEADER, RECOVERING
from metaquorum.metadata.inspect.causes.brokers import FENCES, written_rule
from metaquorum.metadata.inspect.causes.table import severity_of
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges, BrokerStep, PartitionKey, Place
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, count, duration, listed
from metaquorum.metadata.inspect.timeline.spans import OpenSpan, PartitionSpans, bound_of
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.records.types import FENCED

# Events for spans of partitions that no record begins or ends: at a snapshot, and at the end of a log.

SEVERITIES = {"leaderless": "critical", "under min isr": "warning", "reassigning": "info"}
Named = Callable[[PartitionKey], tuple[str, str]]
"""A partition's name in events, and its path."""


def learned_events(spans: PartitionSpans, moment: Place) -> Iterator[Grouped]:
    """What is open or no longer open according to the snapshot at `moment`, but has no record."""
    for kind, already, ended in spans.learned:
        if ended:
            yield no_longer(kind, ended, spans.named, moment)
        if already:
            which, paths = _which(already, spans.named)
            text = f"{which}, since {moment[0]} or before"
            yield Grouped(
                moment[0],
                f"already {kind}",
                paths[0],
                text,
                SEVERITIES[kind],
                None,
                paths,
                bound=bound_of([*already.values()]),
            )


def no_longer(kind: str, ended: Mapping[PartitionKey, OpenSpan], named: Named, moment: Place) -> Grouped:
    """Spans that ended among lost records: at `moment` they are over."""
    which, paths = _which(ended, named)
    oldest = min(ended.values())
    lasted, bound = moment[1] - oldest.time_ms, bound_of([*ended.values()])
    text = f"{which}, after {bound}{duration(lasted)}, since {oldest.offset}{oldest.or_before}"
    return Grouped(
        moment[0],
        f"no longer {kind}",
        paths[0],
        text,
        "info",
        None,
        paths,
        span_ms=lasted,
        bound=bound,
    )


def still_open(
    spans: PartitionSpans, offset: int, time_ms: int, image: MetadataImage | None
) -> Iterator[Grouped]:
    """Spans open at the end of the log, which is at `offset` and `time_ms`, with this image, if it is
    known. A reassignment to brokers that are gone or fenced does not end by itself."""
    for kind, open_spans in spans.kinds().items():
        if open_spans:
            missing = "" if image is None or kind != "reassigning" else _missing_brokers(image, open_spans)
            which, paths = _which(open_spans, spans.named)
            oldest = min(open_spans.values())
            lasted = time_ms - oldest.time_ms
            since = f"{oldest.bound}{duration(lasted)}, since {oldest.offset}{oldest.or_before}"
            yield Grouped(
                offset,
                f"still {kind}",
                paths[0],
                f"{which}, the longest for {since}{missing}",
                "warning" if missing else SEVERITIES[kind],
                None,
                paths,
                span_ms=lasted,
                bound=oldest.bound,
            )


def _missing_brokers(image: MetadataImage, moving: Mapping[PartitionKey, OpenSpan]) -> str:
    """The brokers for which reassignments wait; empty if all of them are there."""
    waits: dict[int, str] = {}
    for topic_id, index in moving:
        partition = image.topics.partition(topic_id, index)
        for node in () if partition is None else partition.adding:
            broker = image.brokers.get(node)
            if broker is None or broker.fenced:
                waits[node] = f"{node} ({'not registered' if broker is None else 'fenced'})"
    if not waits:
        return ""
    names = listed([waits[node] for node in sorted(waits)])
    return f"; {'brokers' if len(waits) > 1 else 'broker'} {names} must return, or cancel it"


def _which(spans: Mapping[PartitionKey, OpenSpan], named: Named) -> tuple[str, tuple[str, ...]]:
    every = [named(key) for key in spans]
    return listed([name for name, _ in every]), tuple(path for _, path in every)


UNKNOWN = "not known"
"""A broker's state if no record of the log shows it."""


class UnknownState:
    """Feed it every batch that precedes the known state."""

    def __init__(
        self, name: Callable[[bytes], str], leaderless: Mapping[PartitionKey, OpenSpan] | None = None
    ) -> None:
        """`name` returns a topic's name, or its id as text if the name is unknown; `leaderless` are
        partitions that had no leader before records were lost."""
        self._name = name
        self._words: dict[int, str] = {}
        self._leaders: dict[PartitionKey, int] = {}
        self.leaderless: dict[PartitionKey, OpenSpan] = dict(leaderless or {})

    def word(self, broker_id: int) -> str:
        """The broker's state according to an earlier record: fenced, unfenced, ..., or UNKNOWN."""
        return self._words.get(broker_id, UNKNOWN)

    def known_again(self, step: BrokerStep, events: Iterator[Grouped]) -> Iterator[Grouped]:
        """The events of a broker that is known from here on: a registration says so if an earlier record
        was about the broker."""
        word = self.word(step.broker_id)
        for event in events:
            if step.before is not None or not step.is_registration or word == UNKNOWN or step.after is None:
                yield event
                continue
            text = f"broker {step.broker_id} again, broker epoch {step.after.epoch}"
            if word != "fenced":
                yield event._replace(text=f"{text} (was unfenced)", severity="warning", rule=None)
            else:
                yield event._replace(text=text, rule=None)

    def events(self, batch: BatchChanges) -> Iterator[Grouped]:
        """The events of a batch's records about strangers."""
        for offset, record in batch.unplaced:
            match record:
                case r.FenceBrokerRecord(id=broker_id):
                    yield from self._broker(offset, broker_id, "broker fenced", "fenced", batch.asked)
                case r.UnfenceBrokerRecord(id=broker_id):
                    yield from self._broker(offset, broker_id, "broker unfenced", "unfenced")
                case r.UnregisterBrokerRecord(broker_id=broker_id):
                    yield _of_broker(offset, broker_id, "broker unregistered", f"broker {broker_id}")
                    self._words.pop(broker_id, None)
                case r.BrokerRegistrationChangeRecord():
                    yield from self._registration(offset, record, batch.asked)
                case r.RemoveTopicRecord(topic_id=topic_id):
                    name = self._name(topic_id)
                    path = f"topic/{name}"
                    yield Grouped(offset, "topic deleted", path, name, "info", None, (path,))
                    for key in [key for key in self.leaderless if key[0] == topic_id]:
                        del self.leaderless[key]
        yield from self._partitions(batch)

    def _broker(
        self, offset: int, broker_id: int, kind: str, word: str, asked: BatchCause | None = None
    ) -> Iterator[Grouped]:
        was = self.word(broker_id)
        if was == word:
            return
        text = f"broker {broker_id} (was {was})"
        self._words[broker_id] = word
        in_order = word != "fenced" or was == "in controlled shutdown"
        severity = "info" if in_order else "warning"
        rule = "caught-up" if word == "unfenced" else None
        if word == "fenced" and (written := written_rule(asked, is_stopping=in_order)) is not None:
            rule, severity = written, severity_of(FENCES, written, "warning")
        yield _of_broker(offset, broker_id, kind, text, severity, rule)

    def _registration(
        self, offset: int, record: r.BrokerRegistrationChangeRecord, asked: BatchCause | None
    ) -> Iterator[Grouped]:
        node = record.broker_id
        if record.fenced:
            fenced = record.fenced == FENCED
            kind, word = ("broker fenced", "fenced") if fenced else ("broker unfenced", "unfenced")
            yield from self._broker(offset, node, kind, word, asked)
        if record.in_controlled_shutdown:
            yield from self._broker(offset, node, "broker in controlled shutdown", "in controlled shutdown")
        if record.log_dirs:
            online = count(len(record.log_dirs), "log directory")
            yield _of_broker(offset, node, "directories changed", f"broker {node} has {online} online")

    def _partitions(self, batch: BatchChanges) -> Iterator[Grouped]:
        added: dict[bytes, list[int]] = {}
        moved: dict[tuple[_Said, int | None], list[tuple[int, str, int]]] = {}
        for offset, record in batch.unplaced:
            if isinstance(record, r.PartitionRecord):
                added.setdefault(record.topic_id, []).append(offset)
                self._leaders[record.topic_id, record.partition_id] = record.leader
            elif isinstance(record, r.PartitionChangeRecord):
                yield from self._led_between(offset, record, batch.time_ms)
                said = self._said(offset, record, batch.time_ms)
                if said is not None:
                    place = (offset, self._name(record.topic_id), record.partition_id)
                    moved.setdefault((said, record.leader), []).append(place)
        for topic_id, offsets in added.items():
            name = self._name(topic_id)
            path, text = f"topic/{name}", f"{name}, {len(offsets)} more"
            yield Grouped(offsets[0], "partitions added", path, text, "info", None, (path,))
        for (said, leader), places in moved.items():
            paths = tuple(f"topic/{name}/{index}" for _, name, index in places)
            which = listed([f"{name}-{index}" for _, name, index in places])
            entity = paths[0] if leader is None or leader == NO_LEADER else f"broker/{leader}"
            yield Grouped(
                places[0][0],
                said.kind,
                entity,
                f"{which}: {said.text}",
                said.severity,
                None,
                paths,
                span_ms=said.span_ms,
                bound=said.bound,
            )

    def _led_between(self, offset: int, record: r.PartitionChangeRecord, time_ms: int) -> Iterator[Grouped]:
        """A partition that had no leader before the lost records loses one here: it had one in between."""
        key = (record.topic_id, record.partition_id)
        if record.leader == NO_LEADER != self._leaders.get(key) and key in self.leaderless:
            name = self._name(key[0])
            named = f"{name}-{key[1]}", f"topic/{name}/{key[1]}"
            ended = {key: self.leaderless.pop(key)}
            yield no_longer("leaderless", ended, lambda _: named, (offset, time_ms))

    def _said(self, offset: int, record: r.PartitionChangeRecord, time_ms: int) -> _Said | None:
        """What a change says; None if that was already known."""
        key, leader = (record.topic_id, record.partition_id), record.leader
        if leader is None:
            listed = _lists(record)
            severity = "info" if record.replicas is not None else "detail"
            return _Said("partition changed", severity, listed) if listed else None
        before = self._leaders.get(key)
        self._leaders[key] = leader
        if leader == before:
            return None
        was = "?" if before is None else _leader(before)
        if leader == NO_LEADER:
            self.leaderless.setdefault(key, OpenSpan(offset, time_ms))
            return _Said("leaderless", "critical", f"{was} -> none")
        begun = self.leaderless.pop(key, None)
        text, lasted, bound = f"{was} -> {leader}", None, ""
        if begun is not None:
            lasted, bound = time_ms - begun.time_ms, begun.bound
            text += f", {bound}{duration(lasted)} without a leader"
        if record.leader_recovery_state == RECOVERING:
            text += f"; broker {leader} was not in the ISR"
            return _Said("unclean election", "critical", text, lasted, bound)
        # If no record named a leader before it, it is unknown whether this is another one.
        kind = "partition changed" if before is None else "leader changed"
        return _Said(kind, "info", text, lasted, bound)


class _Said(NamedTuple):
    """What a change says on its own, in the fields of `Grouped`."""

    kind: str
    severity: str
    text: str
    span_ms: int | None = None
    bound: str = ""


def said_fields(record: object) -> dict[str, Any]:
    """What a record says about its broker or partition, under the names of `log state`: everything for a
    record that creates, only the changes for others."""
    match record:
        case r.FenceBrokerRecord():
            return {"fenced": True}
        case r.UnfenceBrokerRecord():
            return {"fenced": False}
        case r.BrokerRegistrationChangeRecord():
            said: dict[str, Any] = {"fenced": record.fenced == FENCED} if record.fenced else {}
            return said | ({"inControlledShutdown": True} if record.in_controlled_shutdown else {})
        case r.PartitionRecord() | r.PartitionChangeRecord():
            named: dict[str, Any] = {
                "leader": record.leader,
                "replicas": record.replicas,
                "isr": record.isr,
                "removingReplicas": record.removing_replicas,
                "addingReplicas": record.adding_replicas,
            }
            return {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in named.items()
                if value is not None
            }
    return {}


def _of_broker(
    offset: int, broker_id: int, kind: str, text: str, severity: str = "info", rule: str | None = None
) -> Grouped:
    path = f"broker/{broker_id}"
    return Grouped(offset, kind, path, text, severity, rule, (path,))


def _leader(node: int) -> str:
    return "none" if node == NO_LEADER else str(node)


def _lists(record: r.PartitionChangeRecord) -> str:
    named = (
        ("replicas", record.replicas),
        ("adding", record.adding_replicas),
        ("removing", record.removing_replicas),
        ("ISR", record.isr),
    )
    return ", ".join(f"{name} [{','.join(map(str, ids))}]" for name, ids in named if ids is not None)
