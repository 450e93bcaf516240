"""The table `partition_states`: one row per section in which a partition did not change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image import RECOVERING, PartitionInfo
from metaquorum.metadata.image.chunk import (
    FLAGS,
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    PARTITION_EPOCH,
    RECOVERING_FLAG,
    IntArray,
)
from metaquorum.metadata.image.columns import NO_RARE_FIELDS, RareFields
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.metadata.inspect.changes.change_steps import was_unclean
from metaquorum.pipeline.intervals.moments import Moment, Row, ms_of
from metaquorum.pipeline.intervals.touched import ManyChanges
from metaquorum.storage.batches.places import Places
from metaquorum.storage.uuids import uuid_to_text

# Rows of `partition_states` in columns, open and ended, as changes that were replayed together leave them.

Longs = npt.NDArray[np.int64]
UNCLEAN, KNOWN = 1, 2
"""Flags: an unclean election began the state; a record began it, not a snapshot."""
OFFSET, TIME_MS, STATE_FLAGS, CHANGED, ACTOR = range(5)
"""How a state began, one row of numbers each. -1: no time. What changed and the
actor are numbers of words."""
FROM_OFFSET = 15
"""The position of `from_offset` in a row."""

K = TypeVar("K")
topic_text = lru_cache(maxsize=65536)(uuid_to_text)


@lru_cache(maxsize=65536)
def directory_texts(directories: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(uuid_to_text(directory) for directory in directories)


class Numbers(Generic[K]):
    """Numbers for values, in the order of the first request."""

    def __init__(self) -> None:
        self.values: list[K] = []
        self._numbers: dict[K, int] = {}

    def of(self, value: K) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class Words:
    """Values that rows share, by number. Only grows, so that the numbers stay valid."""

    def __init__(self) -> None:
        self.topics: Numbers[tuple[str, bytes]] = Numbers()
        """Name and id."""
        self.changed: Numbers[str | None] = Numbers()
        self.actors: Numbers[str | None] = Numbers()


class StateColumns(NamedTuple):
    """Rows that ended for another reason than a deleted topic. `states` has a chunk's layout with lists of
    `replica_width`. `began`: the rows OFFSET to ACTOR. `topics`: numbers of words. `to_ms`: -1 is no time.
    `rare`: fields that few rows have, by place."""

    words: Words
    directories: DirectoryTable
    replica_width: int
    states: IntArray
    rare: dict[int, RareFields]
    topics: Longs
    began: Longs
    to_offsets: Longs
    to_ms: Longs

    @property
    def size(self) -> int:
        return len(self.topics)

    def where(self, which: Any) -> StateColumns:
        """The selected rows, in their order. `which`: a boolean per row."""
        places = np.flatnonzero(which).tolist()
        rare = {at: self.rare[place] for at, place in enumerate(places) if place in self.rare}
        return self._replace(
            states=self.states[:, places],
            rare=rare,
            topics=self.topics[places],
            began=self.began[:, places],
            to_offsets=self.to_offsets[places],
            to_ms=self.to_ms[places],
        )

    def rows(self) -> list[Row]:
        """The rows as tuples."""
        words = self.words
        topics, changed, actors = words.topics.values, words.changed.values, words.actors.values
        middle = LISTS + self.replica_width
        start = middle + self.replica_width
        numbers = zip(
            *(self.states.T.tolist(), self.topics.tolist(), self.began.T.tolist()),
            *(self.to_offsets.tolist(), self.to_ms.tolist()),
            strict=True,
        )
        rows: list[Row] = []
        for at, (state, topic, began, to_offset, to_ms) in enumerate(numbers):
            (name, topic_id), rare = topics[topic], self.rare.get(at, NO_RARE_FIELDS)
            n_replicas, n_isr = state[N_REPLICAS], state[N_ISR]
            directories = self.directories.ids(state[middle : middle + n_replicas])
            rows.append(
                (
                    *(name, topic_text(topic_id), state[INDEX]),
                    *(state[LEADER], state[LEADER_EPOCH], state[PARTITION_EPOCH]),
                    *(tuple(state[LISTS : LISTS + n_replicas]), tuple(state[start : start + n_isr])),
                    *(directory_texts(directories), rare.adding, rare.removing),
                    state[FLAGS] & RECOVERING_FLAG == RECOVERING,
                    *(bool(began[STATE_FLAGS] & UNCLEAN), changed[began[CHANGED]], False),
                    *(began[OFFSET], _time(began[TIME_MS]), to_offset, _time(to_ms)),
                    *(bool(began[STATE_FLAGS] & KNOWN), True, actors[began[ACTOR]]),
                )
            )
        return rows


def _time(ms: int) -> int | None:
    return None if ms < 0 else ms


class StateRows(Sequence[Row]):
    """Rows of `partition_states` in the order in which they ended, tuples and columns."""

    def __init__(self) -> None:
        self.parts: list[list[Row] | StateColumns] = []

    def append(self, row: Row) -> None:
        if not self.parts or isinstance(self.parts[-1], StateColumns):
            self.parts.append([])
        last = self.parts[-1]
        if isinstance(last, list):
            last.append(row)

    def add(self, columns: StateColumns) -> None:
        self.parts.append(columns)

    def __iter__(self) -> Iterator[Row]:
        for part in self.parts:
            yield from part.rows() if isinstance(part, StateColumns) else part

    def __len__(self) -> int:
        return sum(part.size if isinstance(part, StateColumns) else len(part) for part in self.parts)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return list(self)[index]

    def split(self, below: int) -> tuple[list[Row], StateRows]:
        """Rows of states that began below an offset, and the others."""
        early, late = StateRows(), StateRows()
        for part in self.parts:
            if isinstance(part, list):
                for row in part:
                    (early if row[FROM_OFFSET] < below else late).append(row)
                continue
            is_early = part.began[OFFSET] < below
            for rows, which in ((early, is_early), (late, ~is_early)):
                if which.any():
                    rows.add(part if which.all() else part.where(which))
        return list(early), late


_FIRST_ROOM = 256


class OpenState(NamedTuple):
    """A state that still holds. `flags`: UNCLEAN and KNOWN."""

    info: PartitionInfo
    offset: int
    time_ms: int | None
    flags: int
    changed: str | None
    actor: str | None


class HowBegan(NamedTuple):
    """For many states: which began with an unclean election, and what changed, as numbers of words."""

    unclean: npt.NDArray[np.bool_]
    texts: Sequence[str]
    text_at: Places


class HeldStates:
    """The states, by number."""

    def __init__(self) -> None:
        self._objects: list[OpenState | None] = []
        self._topic_ids: list[bytes] = []
        self._is_object = np.zeros(0, dtype=bool)
        self._free: list[int] = []
        self._words = Words()
        self._directories: DirectoryTable | None = None
        self._width = self._isr_width = 0
        self._states: IntArray = np.empty((LISTS, 0), dtype=np.int32)
        self._began: Longs = np.empty((5, 0), dtype=np.int64)
        self._rare: dict[int, RareFields] = {}

    def add(self, state: OpenState) -> int:
        """Adds the state of a new partition. Returns its number."""
        if self._free:
            number = self._free.pop()
            self._topic_ids[number] = state.info.topic_id
        else:
            number = len(self._objects)
            self._objects.append(None)
            self._topic_ids.append(state.info.topic_id)
            if number >= len(self._is_object):
                self._grow(max(_FIRST_ROOM, 2 * number))
        self.put(number, state)
        return number

    def _grow(self, room: int) -> None:
        more = room - len(self._is_object)
        self._is_object = np.concatenate([self._is_object, np.zeros(more, dtype=bool)])
        self._states = np.pad(self._states, ((0, 0), (0, more)), constant_values=PADDING)
        self._began = np.pad(self._began, ((0, 0), (0, more)))

    def put(self, number: int, state: OpenState) -> None:
        """Replaces the state of the partition with a number."""
        self._objects[number] = state
        self._is_object[number] = True

    def remove(self, numbers: Iterable[int]) -> None:
        """Removes partitions."""
        for number in numbers:
            self._objects[number] = None
            self._is_object[number] = False
            self._states[:, number] = PADDING
            self._rare.pop(number, None)
            self._free.append(number)

    def get(self, number: int) -> OpenState:
        state = self._objects[number]
        return state if state is not None else self._made(number)

    def _made(self, number: int) -> OpenState:
        values = self._states[:, number].tolist()
        middle = LISTS + self._width
        start, n_replicas = middle + self._width, values[N_REPLICAS]
        rare = self._rare.get(number, NO_RARE_FIELDS)
        info = PartitionInfo(
            topic_id=self._topic_ids[number],
            index=values[INDEX],
            replicas=tuple(values[LISTS : LISTS + n_replicas]),
            isr=tuple(values[start : start + values[N_ISR]]),
            leader=values[LEADER],
            leader_epoch=values[LEADER_EPOCH],
            partition_epoch=values[PARTITION_EPOCH],
            leader_recovery_state=values[FLAGS] & RECOVERING_FLAG,
            directories=self._table().ids(values[middle : middle + n_replicas]),
            removing=rare.removing,
            adding=rare.adding,
            elr=rare.elr,
            last_known_elr=rare.last_known_elr,
        )
        return OpenState(info, *self.began(number))

    def began(self, number: int) -> tuple[int, int | None, int, str | None, str | None]:
        """How the state began: an OpenState without its first field."""
        state, words = self._objects[number], self._words
        if state is not None:
            return state[1:]
        offset, ms, flags, changed, actor = self._began[:, number].tolist()
        time_ms = None if ms < 0 else ms
        return offset, time_ms, flags, words.changed.values[changed], words.actors.values[actor]

    def _table(self) -> DirectoryTable:
        if self._directories is None:
            raise ValueError("no state is in columns yet")
        return self._directories

    def infos(self, numbers: Iterable[int]) -> list[PartitionInfo]:
        return [self.get(number).info for number in numbers]

    def replicas_in(self, directory: bytes) -> int:
        """The number of states with a replica in a log directory."""
        count = sum(directory in state.info.directories for state in self._objects if state is not None)
        code = self._directories.find(directory) if self._directories is not None else None
        if code is None:
            return count
        codes = self._states[LISTS + self._width : LISTS + 2 * self._width, ~self._is_object]
        return count + int((codes == code).any(axis=0).sum())

    def changed_together(
        self, numbers: Places, changes: ManyChanges, names: Sequence[str], began: HowBegan
    ) -> StateColumns:
        """Changes the partitions with these numbers; their topics have these names (by `changes.topic_at`).
        Returns the rows of the states before."""
        words = self._words
        for number in set(numbers[self._is_object[numbers]].tolist()):
            self._take_apart(number)
        now = np.empty((5, len(numbers)), dtype=np.int64)
        now[OFFSET], now[TIME_MS] = changes.offsets, changes.times_ms
        now[STATE_FLAGS] = np.where(began.unclean, KNOWN | UNCLEAN, KNOWN)
        now[CHANGED] = np.array([words.changed.of(text) for text in began.texts])[began.text_at]
        now[ACTOR] = np.array([words.actors.of(at.actor) for at in changes.batch_moments])[changes.batch_of]
        before = self._began[:, numbers]
        before[:, changes.again] = now[:, changes.earlier]
        topics = [words.topics.of(at) for at in zip(names, changes.topics, strict=True)]
        self._began[:, numbers[changes.last]] = now[:, changes.last]
        self._store(numbers, changes)
        return StateColumns(
            words=words,
            directories=changes.directory_table,
            replica_width=changes.versions.replica_width,
            states=changes.before,
            rare=changes.rare,
            topics=np.array(topics, dtype=np.int64)[changes.topic_at],
            began=before,
            to_offsets=now[OFFSET],
            to_ms=now[TIME_MS],
        )

    def _take_apart(self, number: int) -> None:
        """Moves the start of a state into the columns, before the state is replaced."""
        offset, time_ms, flags, changed, actor = self.began(number)
        numbers = (self._words.changed.of(changed), self._words.actors.of(actor))
        self._began[:, number] = (offset, ms_of(time_ms), flags, *numbers)
        self._objects[number] = None
        self._is_object[number] = False

    def _store(self, numbers: Places, changes: ManyChanges) -> None:
        width, isr_width = changes.versions.replica_width, changes.versions.isr_width
        if self._directories is None:
            self._directories = changes.directory_table
        elif self._directories is not changes.directory_table:
            raise ValueError("the states in columns are of another image")
        if width > self._width or isr_width > self._isr_width:
            self._widen(max(width, self._width), max(isr_width, self._isr_width))
        middle, start = LISTS + self._width, LISTS + 2 * self._width
        after, states, places = changes.after[:, changes.last], self._states, numbers[changes.last]
        if width == self._width and isr_width == self._isr_width:
            states[:, places] = after
        else:
            states[:, places] = PADDING
            states[: LISTS + width, places] = after[: LISTS + width]
            states[middle : middle + width, places] = after[LISTS + width : LISTS + 2 * width]
            states[start : start + isr_width, places] = after[LISTS + 2 * width :]
        if self._rare:
            for number in numbers.tolist():
                self._rare.pop(number, None)
        for at, rare in changes.rare.items():
            self._rare[int(numbers[at])] = rare

    def _widen(self, width: int, isr_width: int) -> None:
        old, before, isr_before = self._states, self._width, self._isr_width
        made = np.full((LISTS + 2 * width + isr_width, old.shape[1]), PADDING, dtype=np.int32)
        made[: LISTS + before] = old[: LISTS + before]
        made[LISTS + width : LISTS + width + before] = old[LISTS + before : LISTS + 2 * before]
        made[LISTS + 2 * width : LISTS + 2 * width + isr_before] = old[LISTS + 2 * before :]
        self._states, self._width, self._isr_width = made, width, isr_width


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
