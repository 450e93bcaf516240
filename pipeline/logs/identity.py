"""Whether two logs are of one cluster, whatever their identity files say.

The facts that distinguish clusters: bytes at the same place, ids of topics and log directories, processes
and endpoints of brokers, the offsets of their registrations, epochs and times. A cluster id proves nothing:
people copy the one in the documentation. So a relation that nothing contradicts is not yet "one cluster":
something must support it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from metaquorum.metadata.image import MetadataImage, NodeEndpoint
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerRecord,
    TopicRecord,
)
from metaquorum.pipeline.logs.places import FACTS_FILE
from metaquorum.pipeline.logs.survey import LogSurvey
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text


class Facts(msgspec.Struct, kw_only=True):
    """What a log with its snapshots says about topics and brokers. `brokers` ((broker id, broker epoch):
    process) has all registrations at offsets from `since` to below `until`. `endpoints`: (broker id, host,
    port), without host and port for a broker without listeners. `first_ms`, `last_ms`: the earliest and the
    latest time in Unix ms; -1 if none is known."""

    topics: dict[bytes, str] = {}
    referred: set[bytes] = set()
    """Ids of topics that records change or remove, wherever these were created."""
    brokers: dict[tuple[int, int], bytes] = {}
    directories: set[bytes] = set()
    endpoints: set[tuple[int, str, int]] = set()
    since: int = 0
    until: int = 0
    first_ms: int = -1
    last_ms: int = -1
    problem: str | None = None
    """Why they could not be read."""

    @property
    def known_topics(self) -> set[bytes]:
        return self.topics.keys() | self.referred

    @property
    def has_entities(self) -> bool:
        """Whether it says anything about topics or brokers."""
        return bool(self.topics or self.brokers)


class Relation(Enum):
    """The relation of two logs."""

    SAME = "same"
    OTHER = "other"
    LIKELY = "likely"
    """Nothing contradicts that they are of one cluster; the order of epochs and times, or a path, supports
    it."""
    OPEN = "open"
    """Nothing proves that they are of one cluster, or of two."""


def read_facts(disk: Disk, log: LogSurvey) -> Facts:
    """The facts of a log and of its oldest and newest snapshot. Of a retained log,
    the facts stored beside it."""
    if log.location.is_retained:
        return msgspec.msgpack.decode(read_file(disk, join(log.location.path, FACTS_FILE)), type=Facts)
    whole = log.records >= log.end_offset - log.start_offset
    facts = Facts(since=log.start_offset if whole else log.end_offset, until=log.end_offset)
    source = MetadataLog(disk, log.location.path)
    for batch in _batches(source, log.start_offset, log.end_offset):
        _note(facts, batch)
    for offset, epoch in {*log.snapshots[:1], *log.snapshots[-1:]}:
        snapshot = source if source.is_checkpoint else source.snapshot(LogPosition(epoch, offset))
        for batch in _batches(snapshot, 0, None):
            _note(facts, batch)
    return facts


def facts_of_image(image: MetadataImage, end: int) -> Facts:
    """The facts in an image at offset `end`."""
    brokers = {(at.broker_id, at.epoch): at.incarnation_id for _, at in image.brokers.items()}
    since = max((epoch + 1 for _, epoch in brokers), default=end)
    topics = {topic.topic_id: topic.name for topic in image.topics.all()}
    now_ms = image.provenance.timestamp_ms or -1
    facts = Facts(topics=topics, brokers=brokers, since=since, until=end, first_ms=now_ms, last_ms=now_ms)
    for _, registration in image.brokers.items():
        facts.directories.update(registration.directories)
        facts.endpoints.update(_endpoints(registration.broker_id, registration.endpoints))
    return facts


def _endpoints(broker_id: int, given: Sequence[NodeEndpoint | BrokerEndpoint]) -> set[tuple[int, str, int]]:
    return {(broker_id, at.host, at.port) for at in given} or {(broker_id, "", 0)}


def _batches(log: MetadataLog, start: int, end: int | None) -> Iterator[ReadBatch]:
    if log.is_directory and not log.segments:
        return
    for item in log.items(start):
        if isinstance(item, ReadBatch):
            if end is not None and item.batch.header.base_offset >= end:
                return
            yield item


def _note(facts: Facts, batch: ReadBatch) -> None:
    time_ms = batch.batch.header.max_timestamp_ms
    if time_ms > 0:
        facts.first_ms = time_ms if facts.first_ms < 0 else min(facts.first_ms, time_ms)
        facts.last_ms = max(facts.last_ms, time_ms)
    for decoded in batch.records:
        match decoded.record:
            case TopicRecord() as record:
                facts.topics[record.topic_id] = record.name
            case BrokerRecord() as record:
                facts.brokers[record.broker_id, record.broker_epoch] = record.incarnation_id
                facts.directories.update(record.log_dirs)
                facts.endpoints.update(_endpoints(record.broker_id, record.end_points))
            case record if (topic_id := getattr(record, "topic_id", None)) is not None:
                facts.referred.add(topic_id)


def by_bytes(log: LogSurvey, other: LogSurvey) -> tuple[Relation, str]:
    """The relation by the bytes at common places, and where they differ. Equal bytes after different ones
    prove nothing: idle records of two clusters can be the same."""
    equal: list[int] = []
    differing: list[int] = []
    for offset in sorted(log.marks.keys() & other.marks.keys()):
        (epoch, crc), (other_epoch, other_crc) = log.marks[offset], other.marks[offset]
        if epoch == other_epoch:
            (equal if crc == other_crc else differing).append(offset)
    if differing and not (equal and equal[0] < differing[0]):
        return Relation.OTHER, f"other bytes at offset {differing[0]} of the same epoch"
    alike = equal or any(log.sums[at] == other.sums[at] for at in log.sums.keys() & other.sums.keys())
    return Relation.SAME if alike and not differing else Relation.OPEN, ""


def by_facts(facts: Facts, other: Facts, *, overlap: bool) -> tuple[Relation, str]:
    """The relation by facts, and the fact that differs. `overlap`: the logs have offsets in common."""
    if (
        facts.known_topics & other.known_topics
        or set(facts.brokers.values()) & set(other.brokers.values())
        or facts.directories & other.directories
    ):
        return Relation.SAME, ""
    for mine, theirs in ((facts, other), (other, facts)):
        for broker_id, epoch in sorted(theirs.brokers):
            if mine.since <= epoch < mine.until and (broker_id, epoch) not in mine.brokers:
                return Relation.OTHER, f"no registration of broker {broker_id} at offset {epoch}"
    ids = {name: topic_id for topic_id, name in facts.topics.items()}
    names = sorted(set(other.topics.values()) & ids.keys())
    if names:
        theirs_id = next(topic_id for topic_id, name in other.topics.items() if name == names[0])
        said = f"topic {names[0]} is {uuid_to_text(ids[names[0]])} here and {uuid_to_text(theirs_id)} there"
        return Relation.OTHER, said
    if overlap and facts.has_entities and other.has_entities:
        return Relation.OTHER, "no topic and no process of a broker in common"
    if (facts.topics and other.topics) or (facts.directories and other.directories):
        return Relation.OTHER, "no topic, no log directory and no process of a broker in common"
    if facts.brokers and other.brokers and not facts.endpoints & other.endpoints:
        return Relation.OTHER, "no topic, and no broker with the same id and endpoint in common"
    return Relation.OPEN, ""


CLOCK_MS = 3_600_000
"""Clocks of nodes may differ by this much."""


def by_order(low: LogSurvey, facts: Facts, other: LogSurvey, other_facts: Facts) -> tuple[Relation, str]:
    """The relation by epochs and times of two logs (or snapshots), one of which ends before the other begins:
    both must rise. A snapshot inside the other log must have the epoch of the record before its end."""
    for bare, log in ((low, other), (other, low)):
        if not bare.has_records and log.start_offset < bare.end_offset <= log.end_offset:
            same = log.epoch_at(bare.end_offset - 1) == bare.last_epoch
            return (Relation.LIKELY if same else Relation.OPEN), ""
    if low.end_offset > other.start_offset:
        low, facts, other, other_facts = other, other_facts, low, facts
    if low.end_offset > other.start_offset:
        return Relation.OPEN, ""
    epoch = other.epochs[0][0] if other.epochs else other.last_epoch
    if 0 <= epoch < low.last_epoch:
        return Relation.OTHER, (
            f"epoch {epoch} at offset {other.start_offset}, after epoch {low.last_epoch} at "
            f"{low.end_offset - 1}"
        )
    if min(epoch, low.last_epoch, facts.last_ms, other_facts.first_ms) < 0:
        return Relation.OPEN, ""
    rises = facts.last_ms <= other_facts.first_ms + CLOCK_MS
    return (Relation.LIKELY if rises else Relation.OPEN), ""
