"""States of partitions: a row for every stretch without a change.

Owns the comparison of a partition before and after a batch, and who else must hear of it (availability,
failovers, directories). The states themselves are the image's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from metaquorum.metadata.image import RECOVERING, PartitionInfo
from metaquorum.metadata.image.chunk import FLAGS, LEADER, LEADER_EPOCH, PARTITION_EPOCH, RECOVERING_FLAG
from metaquorum.pipeline.intervals.changes import ManyChanges
from metaquorum.pipeline.intervals.moments import Moment, Row
from metaquorum.pipeline.intervals.tables.failovers import is_unclean
from metaquorum.storage.uuids import uuid_to_text

_CREATED = "created"
_UNCLEAN, _KNOWN = 1, 2


class _Open(NamedTuple):
    """A state that still holds. `flags` are _UNCLEAN and _KNOWN."""

    info: PartitionInfo
    offset: int
    time_ms: int | None
    flags: int
    changed: str | None
    actor: str | None


class PartitionStates:
    """Rows of `partition_states`."""

    def __init__(self) -> None:
        self._topics: dict[bytes, dict[int, _Open]] = {}
        self._closed: list[Row] = []

    def learn(self, infos: Iterable[PartitionInfo], moment: Moment, name: Callable[[bytes], str]) -> None:
        """A snapshot's partitions. What records told of one, and it says the same, goes on."""
        before, self._topics = self._topics, {}
        for info in infos:
            was = before.get(info.topic_id, {}).get(info.index)
            if was is not None and was.info == info:
                del before[info.topic_id][info.index]
                self._put(info, was)
            else:
                self._put(info, _Open(info, moment.offset, moment.time_ms, 0, None, None))
        self._lose(before, moment, name)

    def lose(self, moment: Moment, name: Callable[[bytes], str]) -> None:
        """No one saw what came after `moment`."""
        before, self._topics = self._topics, {}
        self._lose(before, moment, name)

    def _lose(
        self, topics: dict[bytes, dict[int, _Open]], moment: Moment, name: Callable[[bytes], str]
    ) -> None:
        end = (moment.offset, moment.time_ms)
        for topic_id, states in topics.items():
            for at in states.values():
                self._closed.append(_row(name(topic_id), at, False, *end, to_known=False))

    def _put(self, info: PartitionInfo, at: _Open) -> None:
        topic = self._topics.get(info.topic_id)
        if topic is None:
            topic = self._topics[info.topic_id] = {}
        topic[info.index] = at

    def info(self, topic_id: bytes, index: int) -> PartitionInfo | None:
        """The partition after the last batch that was given; None if it was not there."""
        found = self._topics.get(topic_id, {}).get(index)
        return None if found is None else found.info

    def of_topic(self, topic_id: bytes) -> list[PartitionInfo]:
        return [at.info for at in self._topics.get(topic_id, {}).values()]

    def all(self) -> list[PartitionInfo]:
        return [at.info for topic in self._topics.values() for at in topic.values()]

    def changed(
        self, topic: str, now: PartitionInfo, offset: int, time_ms: int | None, actor: str | None
    ) -> PartitionInfo | None:
        """What a batch left of a partition; the state before, None for a new one, `now` itself if it is the
        same."""
        states = self._topics.get(now.topic_id)
        was = states.get(now.index) if states is not None else None
        if states is None or was is None:
            self._put(now, _Open(now, offset, time_ms, _KNOWN, _CREATED, actor))
            return None
        before = was.info
        if now == before:
            return now
        self._closed.append(_row(topic, was, False, offset, time_ms))
        flags = _KNOWN
        if now.leader_epoch != before.leader_epoch and is_unclean(before, now):
            flags |= _UNCLEAN
        changed = _differences(before, now)
        states[now.index] = tuple.__new__(_Open, (now, offset, time_ms, flags, changed, actor))  # as _Open()
        return before

    def has_all(self, changes: ManyChanges) -> bool:
        """Whether every partition of these was there before."""
        topics = self._topics
        pairs = zip(changes.topic_ids, changes.indexes, strict=True)
        return all(topic_id in topics and index in topics[topic_id] for topic_id, index in pairs)

    def changed_together(self, changes: ManyChanges, names: Sequence[str]) -> None:
        """The same as `changed` for each of these, of topics with these names. Makes their objects."""
        topics, closed = self._topics, self._closed
        earlier, infos = changes.infos_before, changes.infos
        directories, doubtful = changes.directory_lists(), changes.may_be_unclean().tolist()
        columns = zip(
            *(changes.topic_ids, changes.indexes, names, changes.offsets, changes.moments),
            changes.after[[LEADER, LEADER_EPOCH, PARTITION_EPOCH, FLAGS]].T.tolist(),
            *(changes.isr_lists(), _all_differences(changes), doubtful),
            strict=True,
        )
        for topic_id, index, name, offset, at, numbers, isr, differs, doubt in columns:
            states = topics[topic_id]
            was = states[index]
            before = was.info
            now = PartitionInfo(
                topic_id=before.topic_id,
                index=index,
                replicas=before.replicas,
                isr=before.isr if isr is None else isr,
                leader=numbers[0],
                leader_epoch=numbers[1],
                partition_epoch=numbers[2],
                leader_recovery_state=numbers[3] & RECOVERING_FLAG,
                directories=directories.get(len(infos), before.directories),
                removing=before.removing,
                adding=before.adding,
                elr=before.elr,
                last_known_elr=before.last_known_elr,
            )
            closed.append(_row(name, was, False, offset, at.time_ms))
            made = _KNOWN | _UNCLEAN if doubt and is_unclean(before, now) else _KNOWN
            state = (now, offset, at.time_ms, made, differs, at.actor)
            states[index] = tuple.__new__(_Open, state)  # as _Open()
            earlier.append(before)
            infos.append(now)

    def topic_removed(self, topic_id: bytes, topic: str, moment: Moment) -> list[PartitionInfo]:
        """Ends the states of a topic's partitions; what they were."""
        states = self._topics.pop(topic_id, {})
        for at in states.values():
            self._closed.append(_row(topic, at, True, moment.offset, moment.time_ms))
        return [at.info for at in states.values()]

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self, name: Callable[[bytes], str]) -> list[Row]:
        return [
            _row(name(topic_id), at, False, None, None)
            for topic_id, states in self._topics.items()
            for at in states.values()
        ]

    def adopt(self, left: PartitionStates, below: int) -> None:
        """States that began below an offset are as `left` has them. Raises KeyError where it has others."""
        for topic_id, states in self._topics.items():
            theirs = left._topics.get(topic_id, {})
            for index, at in states.items():
                if at.offset < below:
                    was = theirs[index]
                    if was.info != at.info:
                        raise KeyError(f"partition {index} of topic {uuid_to_text(topic_id)}")
                    states[index] = was

    def save(self) -> Any:
        return [
            (topic_id, [(index, *at[1:]) for index, at in states.items()])
            for topic_id, states in self._topics.items()
        ]

    def load(self, saved: Any, info: Callable[[bytes, int], PartitionInfo | None]) -> None:
        """`info` finds the states in the image that was saved too. Raises KeyError where it has none."""
        self._topics = {}
        for topic_id, states in saved:
            for index, *rest in states:
                found = info(topic_id, index)
                if found is None:
                    raise KeyError(f"partition {index} of topic {uuid_to_text(topic_id)}")
                self._put(found, _Open(found, *rest))


_topic_text = lru_cache(maxsize=65536)(uuid_to_text)


@lru_cache(maxsize=65536)
def _directory_texts(directories: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(uuid_to_text(directory) for directory in directories)


_NAMES = ("leader", "isr", "replicas", "directories", "reassignment", "recovery", "elr")


@cache
def _named(*differs: bool) -> str:
    return ",".join(name for name, at in zip(_NAMES, differs, strict=True) if at) or "epoch"


def _differences(before: PartitionInfo, now: PartitionInfo) -> str:
    """Names of what differs, joined by commas; `epoch` when only epochs went up."""
    return _named(
        before.leader != now.leader,
        before.isr != now.isr,
        before.replicas != now.replicas,
        before.directories != now.directories,
        before.adding != now.adding or before.removing != now.removing,
        before.leader_recovery_state != now.leader_recovery_state,
        before.elr != now.elr or before.last_known_elr != now.last_known_elr,
    )


def _all_differences(changes: ManyChanges) -> list[str]:
    """The same of many changes, which name no other fields."""
    recovery = (changes.before[FLAGS] ^ changes.after[FLAGS]) & RECOVERING_FLAG != 0
    columns = [at.tolist() for at in (changes.led, changes.moved, changes.placed, recovery)]
    return [
        _named(led, moved, False, placed, False, recovers, False)
        for led, moved, placed, recovers in zip(*columns, strict=True)
    ]


def _row(
    topic: str,
    at: _Open,
    removed: bool,
    to_offset: int | None,
    to_ms: int | None,
    *,
    to_known: bool = True,
) -> Row:
    info = at.info
    return (
        topic,
        _topic_text(info.topic_id),
        info.index,
        info.leader,
        info.leader_epoch,
        info.partition_epoch,
        info.replicas,
        info.isr,
        _directory_texts(info.directories),
        info.adding,
        info.removing,
        info.leader_recovery_state == RECOVERING,
        bool(at.flags & _UNCLEAN),
        at.changed,
        removed,
        at.offset,
        at.time_ms,
        to_offset,
        to_ms,
        bool(at.flags & _KNOWN),
        to_known,
        at.actor,
    )
