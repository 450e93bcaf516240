"""The table `partition_states`: one row per section in which a partition did not change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from metaquorum.metadata.image import RECOVERING, PartitionInfo
from metaquorum.metadata.image.chunk import FLAGS, RECOVERING_FLAG
from metaquorum.metadata.inspect.changes.leaderships import was_unclean
from metaquorum.pipeline.intervals.many_changes import ManyChanges
from metaquorum.pipeline.intervals.moments import Moment, Row
from metaquorum.pipeline.intervals.tables.states import (
    KNOWN,
    UNCLEAN,
    HeldStates,
    HowBegan,
    OpenState,
    StateRows,
    directory_texts,
    topic_text,
)
from metaquorum.storage.batches.places import Places
from metaquorum.storage.uuids import uuid_to_text

_CREATED = "created"


class PartitionStates:
    """Rows of `partition_states`."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, dict[int, int]] = {}
        self._held = HeldStates()
        self._closed = StateRows()

    def learn(self, infos: Iterable[PartitionInfo], moment: Moment, name: Callable[[bytes], str]) -> None:
        """Takes a snapshot's partitions. A state that a record gave continues if the snapshot agrees."""
        before = self._clear()
        for info in infos:
            was = before.get(info.topic_id, {}).get(info.index)
            if was is not None and was.info == info:
                del before[info.topic_id][info.index]
                self._put(was)
            else:
                self._put(OpenState(info, moment.offset, moment.time_ms, 0, None, None))
        self._lose(before, moment, name)

    def lose(self, moment: Moment, name: Callable[[bytes], str]) -> None:
        """Ends all states at `moment`: the records after it are missing."""
        self._lose(self._clear(), moment, name)

    def _clear(self) -> dict[bytes, dict[int, OpenState]]:
        """Forgets all states and returns them."""
        get = self._held.get
        open_states = {
            topic_id: {index: get(number) for index, number in numbers.items()}
            for topic_id, numbers in self._numbers.items()
        }
        self._numbers, self._held = {}, HeldStates()
        return open_states

    def _lose(
        self, topics: dict[bytes, dict[int, OpenState]], moment: Moment, name: Callable[[bytes], str]
    ) -> None:
        end = (moment.offset, moment.time_ms)
        for topic_id, states in topics.items():
            for at in states.values():
                self._closed.append(_row(name(topic_id), at, False, *end, to_known=False))

    def _put(self, state: OpenState) -> None:
        """Adds the first state of a partition."""
        info = state.info
        self._numbers.setdefault(info.topic_id, {})[info.index] = self._held.add(state)

    def is_there(self, topic_id: bytes, index: int) -> bool:
        """Whether the partition existed after the last batch."""
        return index in self._numbers.get(topic_id, ())

    def count_of(self, topic_id: bytes) -> int:
        """The number of a topic's partitions."""
        return len(self._numbers.get(topic_id, ()))

    def topics(self) -> list[bytes]:
        """The topics with partitions."""
        return list(self._numbers)

    def of_topic(self, topic_id: bytes) -> list[PartitionInfo]:
        """A topic's partitions after the last batch."""
        return self._held.infos(self._numbers.get(topic_id, {}).values())

    def all(self) -> list[PartitionInfo]:
        """All partitions after the last batch."""
        return [info for topic_id in self._numbers for info in self.of_topic(topic_id)]

    def replicas_in(self, directory: bytes) -> int:
        """The number of partitions with a replica in a log directory."""
        return self._held.replicas_in(directory)

    def changed(
        self, topic: str, now: PartitionInfo, offset: int, time_ms: int | None, actor: str | None
    ) -> PartitionInfo | None:
        """A batch changed a partition. Returns the state before: None for a new partition, `now`
        itself if nothing changed."""
        numbers = self._numbers.get(now.topic_id)
        number = numbers.get(now.index) if numbers is not None else None
        if number is None:
            self._put(OpenState(now, offset, time_ms, KNOWN, _CREATED, actor))
            return None
        was = self._held.get(number)
        before = was.info
        if now == before:
            return now
        self._closed.append(_row(topic, was, False, offset, time_ms))
        flags = KNOWN
        if was_unclean(before, now):
            flags |= UNCLEAN
        changed = _differences(before, now)
        state = (now, offset, time_ms, flags, changed, actor)
        self._held.put(number, tuple.__new__(OpenState, state))  # as OpenState(*state)
        return before

    def numbers_of(self, changes: ManyChanges) -> Places | None:
        """The numbers of the changed partitions; None if one of them did not exist before."""
        try:
            topics = [self._numbers[topic_id] for topic_id in changes.topics]
            pairs = zip(changes.topic_at.tolist(), changes.indexes, strict=True)
            return np.array([topics[topic][index] for topic, index in pairs], dtype=np.int64)
        except KeyError:
            return None

    def changed_together(self, numbers: Places, changes: ManyChanges, names: Sequence[str]) -> None:
        """As `changed` for each of these changes, with the numbers of their partitions and
        the names of their topics."""
        unclean = changes.may_be_unclean()
        for at in np.flatnonzero(unclean).tolist():
            unclean[at] = was_unclean(changes.infos_before[at], changes.infos[at])
        recovers = (changes.before[FLAGS] ^ changes.after[FLAGS]) & RECOVERING_FLAG != 0
        bits = changes.led + 2 * changes.moved + 4 * changes.placed + 8 * recovers
        began = HowBegan(unclean, _TEXTS, bits)
        self._closed.add(self._held.changed_together(numbers, changes, names, began))

    def topic_removed(self, topic_id: bytes, topic: str, moment: Moment) -> list[PartitionInfo]:
        """Ends the states of a topic's partitions and returns them."""
        numbers = self._numbers.pop(topic_id, {}).values()
        states = [self._held.get(number) for number in numbers]
        self._held.remove(numbers)
        for at in states:
            self._closed.append(_row(topic, at, True, moment.offset, moment.time_ms))
        return [at.info for at in states]

    def take(self) -> StateRows:
        taken, self._closed = self._closed, StateRows()
        return taken

    def open_rows(self, name: Callable[[bytes], str]) -> list[Row]:
        return [
            _row(name(topic_id), self._held.get(number), False, None, None)
            for topic_id, numbers in self._numbers.items()
            for number in numbers.values()
        ]

    def adopt(self, left: PartitionStates, below: int) -> None:
        """States that began below an offset become those of `left`. Raises KeyError if they do not match."""
        for topic_id, numbers in self._numbers.items():
            theirs = left._numbers.get(topic_id, {})
            for index, number in numbers.items():
                if self._held.began(number)[0] < below:
                    was = left._held.get(theirs[index])
                    if was.info != self._held.get(number).info:
                        raise KeyError(f"partition {index} of topic {uuid_to_text(topic_id)}")
                    self._held.put(number, was)

    def save(self) -> Any:
        began = self._held.began
        return [
            (topic_id, [(index, *began(number)) for index, number in numbers.items()])
            for topic_id, numbers in self._numbers.items()
        ]

    def load(self, saved: Any, info: Callable[[bytes, int], PartitionInfo | None]) -> None:
        """`info` finds the states in the image that was saved with this. Raises
        KeyError for a missing one."""
        self._clear()
        for topic_id, states in saved:
            for index, *rest in states:
                found = info(topic_id, index)
                if found is None:
                    raise KeyError(f"partition {index} of topic {uuid_to_text(topic_id)}")
                self._put(OpenState(found, *rest))


_NAMES = ("leader", "isr", "replicas", "directories", "reassignment", "recovery", "elr")


@cache
def _named(*differs: bool) -> str:
    return ",".join(name for name, at in zip(_NAMES, differs, strict=True) if at) or "epoch"


def _differences(before: PartitionInfo, now: PartitionInfo) -> str:
    """Names of what differs, joined by commas; `epoch` if only epochs rose."""
    return _named(
        before.leader != now.leader,
        before.isr != now.isr,
        before.replicas != now.replicas,
        before.directories != now.directories,
        before.adding != now.adding or before.removing != now.removing,
        before.leader_recovery_state != now.leader_recovery_state,
        before.elr != now.elr or before.last_known_elr != now.last_known_elr,
    )


_TEXTS = [
    _named(led, moved, False, placed, False, recovers, False)
    for recovers, placed, moved, led in itertools.product((False, True), repeat=4)
]
"""What changes that are replayed together can change, as bits: leader, ISR, directories, recovery."""


def _row(
    topic: str,
    state: OpenState,
    removed: bool,
    to_offset: int | None,
    to_ms: int | None,
    *,
    to_known: bool = True,
) -> Row:
    info = state.info
    return (
        topic,
        topic_text(info.topic_id),
        info.index,
        info.leader,
        info.leader_epoch,
        info.partition_epoch,
        info.replicas,
        info.isr,
        directory_texts(info.directories),
        info.adding,
        info.removing,
        info.leader_recovery_state == RECOVERING,
        bool(state.flags & UNCLEAN),
        state.changed,
        removed,
        state.offset,
        state.time_ms,
        to_offset,
        to_ms,
        bool(state.flags & KNOWN),
        to_known,
        state.actor,
    )
