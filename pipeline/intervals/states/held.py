"""Open states of partitions, by number: in columns if changes that were replayed together made them.

Owns both forms of a state, and the step from one to the other. A state in columns becomes an object only on
request, since that costs as much as the replay of a change. Does not map partitions to numbers
(`tables.partitions` does); ended states are in `ended`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image import PartitionInfo
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
from metaquorum.pipeline.intervals.moments import ms_of
from metaquorum.pipeline.intervals.states.ended import (
    ACTOR,
    CHANGED,
    KNOWN,
    OFFSET,
    STATE_FLAGS,
    TIME_MS,
    UNCLEAN,
    Longs,
    StateColumns,
    Words,
)
from metaquorum.pipeline.intervals.together.changes import ManyChanges
from metaquorum.storage.batches.places import Places

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
        found = sum(directory in state.info.directories for state in self._objects if state is not None)
        code = self._directories.find(directory) if self._directories is not None else None
        if code is None:
            return found
        codes = self._states[LISTS + self._width : LISTS + 2 * self._width, ~self._is_object]
        return found + int((codes == code).any(axis=0).sum())

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
