"""Groups the logs of a fleet into clusters, and separates clusters that share one id.

Which logs are read as one history, and the names of clusters that share an id: the id itself, then `ID~2` and
so on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from metaquorum.metadata.image import MetadataImage, NodeEndpoint
from metaquorum.metadata.inspect.log.log import MetadataLog, ReadBatch
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerRecord,
    TopicRecord,
)
from metaquorum.pipeline.logs.merged import SHARED_ID, Conflict, MergedHistory, merge_logs
from metaquorum.pipeline.logs.places import FACTS_FILE
from metaquorum.pipeline.logs.survey import LogSurvey, nothing_of
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text

# Whether two logs are of one cluster, whatever their identity files say.
#
# The facts that distinguish clusters: bytes at the same place, ids of topics and log directories, processes
# and endpoints of brokers, the offsets of their registrations, epochs and times. A cluster id proves nothing:
# people copy the one in the documentation. So a relation that nothing contradicts is not yet "one cluster":
# something must support it.


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


FactsOf = Callable[[list[LogSurvey]], list[Facts]]
"""Reads the facts of logs. Called only if the bytes do not decide."""
_Said = tuple[Relation, str]
_NOTHING = "nothing shows that they are one cluster: no bytes, topic, broker or log directory in common"


class _Known(NamedTuple):
    log: LogSurvey
    facts: Facts


class _Cluster:
    """Logs of one cluster, and why they are of no other."""

    def __init__(self, logs: list[_Known]) -> None:
        self.members = logs
        self.why = ""

    @property
    def logs(self) -> list[LogSurvey]:
        return [at.log for at in self.members]

    @property
    def name_in_tables(self) -> str:
        """Its name in the tables; of several, the shortest; "" without one."""
        names = {at.log.location.name_in_tables for at in self.members if at.log.location.name_in_tables}
        return min(names, key=lambda name: (len(name), name), default="")

    @property
    def has_entities(self) -> bool:
        """Whether it has topics or brokers of its own."""
        return any(at.facts.has_entities for at in self.members)

    @property
    def place(self) -> tuple[bool, str]:
        """Where it stands among those that share an id: its order does not change when logs grow."""
        return min((at.log.location.is_retained, at.log.location.path) for at in self.members)


def merge_histories(surveys: Iterable[LogSurvey], facts_of: FactsOf) -> list[MergedHistory]:
    """One history per cluster, sorted by name."""
    by_id: dict[str, list[LogSurvey]] = {}
    for one in surveys:
        by_id.setdefault(one.location.cluster, []).append(one)
    return [merged for name, logs in sorted(by_id.items()) for merged in _of_one_id(name, logs, facts_of)]


def _of_one_id(name: str, logs: list[LogSurvey], facts_of: FactsOf) -> list[MergedHistory]:
    empty = [log for log in logs if not log.has_records and not log.snapshots]
    parts = _same_bytes([log for log in logs if log not in empty])
    if len(parts) < 2:
        clusters = [_Cluster([_Known(log, Facts()) for log in logs])]
    else:
        facts = iter(facts_of([log for part in parts for log in part]))
        known = [[_Known(log, next(facts)) for log in part] for part in parts]
        unread = [part for part in known if all(at.facts.problem is not None for at in part)]
        clusters = _distinguished([_Cluster(part) for part in known if part not in unread])
        empty += [nothing_of(at.log.location, at.facts.problem or "") for part in unread for at in part]
        # What cannot be compared counts as the first's.
        clusters = clusters or [_Cluster([])]
        clusters[0].members += [_Known(log, Facts()) for log in empty]
    names = _names(name, clusters)
    first = clusters[names.index(name) if name in names else 0]
    for one in clusters:
        one.why = _relation(one, first)[1] or _NOTHING
    return [_merged(name, own_name, one, first) for own_name, one in zip(names, clusters, strict=True)]


def _same_bytes(logs: list[LogSurvey]) -> list[list[LogSurvey]]:
    """Groups of logs that share bytes or a directory, those with most records first."""
    parts: list[list[LogSurvey]] = []
    for log in logs:
        joined = [part for part in parts if any(_together(log, other) for other in part)]
        merged = [log, *(one for part in joined for one in part)]
        parts = [part for part in parts if part not in joined] + [merged]
    return sorted(
        parts,
        key=lambda part: (-len(part), -sum(at.records for at in part), min(at.location.path for at in part)),
    )


def _together(log: LogSurvey, other: LogSurvey) -> bool:
    of_one_run = (
        bool(log.location.name_in_tables) and log.location.name_in_tables == other.location.name_in_tables
    )
    return of_one_run or log.location.path == other.location.path or by_bytes(log, other)[0] is Relation.SAME


def _distinguished(parts: list[_Cluster]) -> list[_Cluster]:
    """Clusters, in an order that does not depend on how long the logs are. What is proven to be one cluster
    is one. What is only likely so joins if it fits one cluster: logs with topics or brokers first."""
    proven: list[_Cluster] = []
    for part in parts:
        same = [one for one in proven if _relation(part, one)[0] is Relation.SAME]
        proven = [one for one in proven if one not in same]
        proven.append(_Cluster([*(at for one in same for at in one.members), *part.members]))
    clusters: list[_Cluster] = []
    for part in sorted(proven, key=lambda group: (not group.has_entities, group.place)):
        fitting = [one for one in clusters if _may_join(part, one)]
        if len(fitting) == 1:
            fitting[0].members += part.members
        else:
            clusters.append(part)
    return sorted(clusters, key=lambda group: group.place)


def _may_join(part: _Cluster, cluster: _Cluster) -> bool:
    """Whether a group is likely of a cluster. Two with tables of their own stay apart without a proof."""
    own, known = part.name_in_tables, cluster.name_in_tables
    return not (own and known and own != known) and _relation(part, cluster)[0] is Relation.LIKELY


def _relation(cluster: _Cluster, other: _Cluster) -> _Said:
    """The relation of two groups from those of their pairs: one proof that they are one
    cluster outweighs the rest."""
    said = [found for mine in cluster.members for theirs in other.members for found in _between(mine, theirs)]
    for wanted in (Relation.SAME, Relation.OTHER, Relation.LIKELY):
        for at in said:
            if at[0] is wanted:
                return at
    return Relation.OPEN, ""


def _between(mine: _Known, theirs: _Known) -> Iterator[_Said]:
    log, other = mine.log, theirs.log
    overlap = log.start_offset < other.end_offset and other.start_offset < log.end_offset
    yield by_bytes(log, other)
    yield by_facts(mine.facts, theirs.facts, overlap=overlap)
    yield by_order(log, mine.facts, other, theirs.facts)
    if log.location.path in other.location.read or other.location.path in log.location.read:
        yield Relation.LIKELY, ""


def _names(name: str, clusters: list[_Cluster]) -> list[str]:
    """The name of each cluster: the one in its tables if it has one, otherwise the first that is free."""
    earlier = [one.name_in_tables or None for one in clusters]
    taken = {at for at in earlier if at} | {
        log.location.name_in_tables for one in clusters for log in one.logs
    }
    names: list[str] = []
    for known in earlier:
        free = (name if number == 1 else f"{name}~{number}" for number in itertools.count(1))
        chosen = known if known is not None and known not in names else None
        names.append(chosen or next(at for at in free if at not in taken and at not in names))
    return names


def _merged(name: str, own_name: str, cluster: _Cluster, first: _Cluster) -> MergedHistory:
    logs = []
    for log in cluster.logs:
        location = msgspec.structs.replace(log.location, cluster=own_name)
        logs.append(msgspec.structs.replace(log, location=location))
    merged = merge_logs(own_name, logs)
    if cluster is first:
        return merged
    paths = sorted({log.location.path for log in first.logs})
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    reason = (
        f"another cluster has the id {name}, too ({cluster.why}); this one is named {own_name}, the other "
        f"one is {paths[0]}{more}"
    )
    present = min(merged.logs, key=lambda log: log.location.is_retained)
    shared = Conflict(present, merged.start_offset, SHARED_ID, reason)
    return msgspec.structs.replace(merged, conflicts=[shared, *merged.conflicts])
