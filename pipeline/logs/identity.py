"""Whether two logs are of one cluster, whatever their identity files say.

The facts that distinguish clusters: bytes at the same place, topic ids, processes of brokers, and the offsets
of their registrations. A cluster id proves nothing: people copy the one in the documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch
from metaquorum.metadata.records.types import BrokerRecord, TopicRecord
from metaquorum.pipeline.logs.places import FACTS_FILE
from metaquorum.pipeline.logs.survey import LogSurvey
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text


class Facts(msgspec.Struct, kw_only=True):
    """What a log with its snapshots says about topics and brokers. `brokers` ((broker id, broker epoch):
    process) has all registrations at offsets from `since` to below `until`."""

    topics: dict[bytes, str] = {}
    brokers: dict[tuple[int, int], bytes] = {}
    since: int = 0
    until: int = 0


class Relation(Enum):
    """The relation of two logs."""

    SAME = "same"
    OTHER = "other"
    OPEN = "open"
    """Nothing proves that they are of one cluster, or of two."""


def read_facts(disk: Disk, log: LogSurvey) -> Facts:
    """The facts of a log and of its oldest and newest snapshot. Of a retained log,
    the facts stored beside it."""
    if log.place.is_retained:
        return msgspec.msgpack.decode(read_file(disk, join(log.place.path, FACTS_FILE)), type=Facts)
    whole = log.records >= log.end_offset - log.start_offset
    facts = Facts(since=log.start_offset if whole else log.end_offset, until=log.end_offset)
    source = MetadataLog(disk, log.place.path)
    for record in _records(source, log.start_offset, log.end_offset):
        _note(facts, record)
    for offset, epoch in {*log.snapshots[:1], *log.snapshots[-1:]}:
        snapshot = source if source.is_checkpoint else source.snapshot(LogPosition(epoch, offset))
        for record in _records(snapshot, 0, None):
            _note(facts, record)
    return facts


def facts_of_image(image: MetadataImage, end: int) -> Facts:
    """The facts in an image at offset `end`."""
    brokers = {(at.broker_id, at.epoch): at.incarnation_id for _, at in image.brokers.items()}
    since = max((epoch + 1 for _, epoch in brokers), default=end)
    topics = {topic.topic_id: topic.name for topic in image.topics.all()}
    return Facts(topics=topics, brokers=brokers, since=since, until=end)


def _records(log: MetadataLog, start: int, end: int | None) -> Iterator[object]:
    if log.is_directory and not log.segments:
        return
    for item in log.items(start):
        if isinstance(item, ReadBatch):
            if end is not None and item.batch.header.base_offset >= end:
                return
            yield from (decoded.record for decoded in item.records)


def _note(facts: Facts, record: object) -> None:
    match record:
        case TopicRecord():
            facts.topics[record.topic_id] = record.name
        case BrokerRecord():
            facts.brokers[record.broker_id, record.broker_epoch] = record.incarnation_id
        case _:
            pass


def by_bytes(one: LogSurvey, other: LogSurvey) -> tuple[Relation, str]:
    """The relation by the bytes at common places, and where they differ. Equal bytes after different ones
    prove nothing: idle records of two clusters can be the same."""
    equal: list[int] = []
    differing: list[int] = []
    for offset in sorted(one.marks.keys() & other.marks.keys()):
        (epoch, crc), (other_epoch, other_crc) = one.marks[offset], other.marks[offset]
        if epoch == other_epoch:
            (equal if crc == other_crc else differing).append(offset)
    if differing and not (equal and equal[0] < differing[0]):
        return Relation.OTHER, f"other bytes at offset {differing[0]} of the same epoch"
    alike = equal or any(one.sums[at] == other.sums[at] for at in one.sums.keys() & other.sums.keys())
    return Relation.SAME if alike and not differing else Relation.OPEN, ""


def by_facts(one: Facts, other: Facts, *, overlap: bool) -> tuple[Relation, str]:
    """The relation by facts, and the fact that differs. `overlap`: the logs have offsets in common."""
    if one.topics.keys() & other.topics.keys() or set(one.brokers.values()) & set(other.brokers.values()):
        return Relation.SAME, ""
    for mine, theirs in ((one, other), (other, one)):
        for broker_id, epoch in sorted(theirs.brokers):
            if mine.since <= epoch < mine.until and (broker_id, epoch) not in mine.brokers:
                return Relation.OTHER, f"no registration of broker {broker_id} at offset {epoch}"
    ids = {name: topic_id for topic_id, name in one.topics.items()}
    names = sorted(set(other.topics.values()) & ids.keys())
    if names:
        theirs_id = next(topic_id for topic_id, name in other.topics.items() if name == names[0])
        said = f"topic {names[0]} is {uuid_to_text(ids[names[0]])} here and {uuid_to_text(theirs_id)} there"
        return Relation.OTHER, said
    if overlap and (one.topics or one.brokers) and (other.topics or other.brokers):
        return Relation.OTHER, "no topic and no process of a broker in common"
    return Relation.OPEN, ""
