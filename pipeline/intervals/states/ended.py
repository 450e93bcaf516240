"""Rows of `partition_states` that ended, in columns as changes that were replayed together leave them.

Owns their layout, and their form as tuples. Knows no Arrow (`pipeline.arrow.states` makes its
columns); open states are in `held`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image import RECOVERING
from metaquorum.metadata.image.chunk import (
    FLAGS,
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
    RECOVERING_FLAG,
    IntArray,
)
from metaquorum.metadata.image.columns import NO_RARE_FIELDS, RareFields
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.pipeline.intervals.moments import Row
from metaquorum.storage.uuids import uuid_to_text

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
        self._known: dict[K, int] = {}

    def of(self, value: K) -> int:
        number = self._known.get(value)
        if number is None:
            number = self._known[value] = len(self.values)
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
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        return list(self)[at]

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
