"""Leaders and ISRs of many partitions at once.

The column form of what `partition_change` decides for one partition, for rows of the plain shape: no ongoing
reassignment, no recovery, no eligible replica outside the ISR, a clean election or none, all in online
directories. A property test shows that both ways agree.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.controller.partitions.partition_change import LEVEL_WITHOUT_EPOCH_BUMP_ON_SHRINK, Rules
from metaquorum.metadata.columnar.encode import ISR_MAX, ChangedPartitions, ChangedRows, topic_words
from metaquorum.metadata.image import MIGRATING, UNASSIGNED, MetadataImage
from metaquorum.metadata.image.chunk import (
    CHUNK_SHIFT,
    FLAGS,
    INDEX,
    LEADER,
    LISTS,
    N_ISR,
    PADDING,
    TOPIC,
    RowArray,
)
from metaquorum.metadata.image.compare import rows_block
from metaquorum.metadata.image.types import NO_LEADER

IntArray = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


class Decided(msgspec.Struct, frozen=True):
    """`changes` of the decided rows by shape; `odd` rows are left to the caller; every other row stays
    unchanged. `changed`: which of the given rows have a change in `changes`."""

    changes: list[ChangedPartitions]
    odd: Flags
    changed: Flags


class _Rows(msgspec.Struct, frozen=True):
    """Copies of rows: lists are (width, rows), padded. `topics` are the distinct topic ids; `topic` is a
    row's index into them."""

    topics: list[bytes]
    topic: npt.NDArray[np.int64]
    index: IntArray
    leader: IntArray
    n_isr: IntArray
    flags: IntArray
    replicas: IntArray
    directories: IntArray
    isr: IntArray


def without_broker(image: MetadataImage, rows: RowArray, broker_id: int, rules: Rules) -> Decided:
    """Takes `broker_id` out of leadership and ISR of `rows`; `rules` do not let it lead."""
    old = _read(image, rows)
    mine = old.isr == broker_id
    named = mine.any(axis=0)
    shrinks = named & (old.n_isr > 1)
    isr = old.isr.copy()
    # The members after the broker move up by one place.
    moved = np.logical_or.accumulate(mine, axis=0) & shrinks
    isr[:-1] = np.where(moved[:-1], old.isr[1:], old.isr[:-1])
    isr[-1, moved[-1]] = PADDING
    # With eligible leader replicas the last member also leaves, which changes more than the ISR.
    closer = named & ~shrinks & rules.elr
    return _changes(old, isr, shrinks, rules, _elect(old, isr, Electorate(image, rules)), closer=closer)


def with_leader(image: MetadataImage, rows: RowArray, rules: Rules, *, preferred: bool = False) -> Decided:
    """Gives each of `rows` a leader from its ISR; `preferred`: the first replica if it may lead."""
    old = _read(image, rows)
    unchanged = np.zeros(len(rows), dtype=bool)
    elected = _elect(old, old.isr, Electorate(image, rules), preferred=preferred)
    return _changes(old, old.isr, unchanged, rules, elected, closer=unchanged)


def electable(image: MetadataImage, rows: RowArray, rules: Rules, *, unclean: bool) -> Flags:
    """Which of `rows` an election may change; it does nothing for the others. `unclean`: an election that
    also takes live replicas that are not in sync, for rows without a leader."""
    if not unclean:
        decided = with_leader(image, rows, rules, preferred=True)
        return decided.changed | decided.odd
    old = _read(image, rows)
    live = Electorate(image, rules).acceptable(old.replicas) | (old.replicas >= DENSE_IDS_MAX)
    # A reassignment may complete, with or without a leader.
    found: Flags = np.logical_or.reduce(live, axis=0) | (old.flags != 0)
    return found


def _read(image: MetadataImage, rows: RowArray) -> _Rows:
    columns = image.topics.columns
    chunks = [columns.chunks[at] for at in np.unique(rows >> CHUNK_SHIFT).tolist()]
    width = max((chunk.replica_width for chunk in chunks), default=1) or 1
    isr_width = max((chunk.isr_width for chunk in chunks), default=1) or 1
    block = rows_block(columns, rows, width, isr_width)
    slots, topic = np.unique(block[TOPIC], return_inverse=True)
    by_slot = image.topics.by_slot
    return _Rows(
        topics=[by_slot[slot] for slot in slots.tolist()],
        topic=topic,
        index=block[INDEX],
        leader=block[LEADER],
        n_isr=block[N_ISR],
        flags=block[FLAGS],
        replicas=block[LISTS : LISTS + width],
        directories=block[LISTS + width : LISTS + 2 * width],
        isr=block[LISTS + 2 * width :],
    )


def _changes(
    old: _Rows,
    isr: IntArray,
    shrinks: Flags,
    rules: Rules,
    elected: tuple[IntArray, Flags],
    *,
    closer: Flags,
) -> Decided:
    n_isr = old.n_isr - shrinks
    leader, odd = elected
    odd |= closer | (old.flags != 0) | (n_isr > ISR_MAX) | (n_isr < 1)
    lost = np.flatnonzero((leader == NO_LEADER) & ~odd)
    if lost.size:
        odd[lost] = _of_topics(old, lost, rules.unclean_allowed)
    if rules.elr:
        odd |= n_isr < _of_topics(old, np.arange(len(odd)), rules.min_isr)
    names_leader = leader != old.leader
    if rules.metadata_version < LEVEL_WITHOUT_EPOCH_BUMP_ON_SHRINK:
        names_leader |= shrinks
    changed = (shrinks | names_leader) & ~odd
    shapes = np.where(shrinks, n_isr, 0) << 1 | names_leader
    words = topic_words(old.topics)
    changes = []
    for shape in np.unique(shapes[changed]).tolist():
        rows = np.flatnonzero(changed & (shapes == shape))
        changes.append(
            ChangedPartitions(
                ChangedRows(
                    topics=words[old.topic[rows]],
                    indexes=old.index[rows],
                    isr=np.ascontiguousarray(isr[: shape >> 1, rows].T) if shape >> 1 else None,
                    leader=leader[rows] if shape & 1 else None,
                )
            )
        )
    return Decided(changes, odd, changed)


def _elect(
    old: _Rows, isr: IntArray, electorate: Electorate, *, preferred: bool = False
) -> tuple[IntArray, Flags]:
    """(leader, rows that need a closer look). A present leader that may continue does so."""
    in_sync = np.zeros(old.replicas.shape, dtype=bool)
    for member in isr:
        in_sync |= (old.replicas == member) & (member != PADDING)
    candidates = in_sync & electorate.acceptable(old.replicas)
    elsewhere = candidates & ~electorate.in_place(old.replicas, old.directories)
    odd: Flags = np.logical_or.reduce(elsewhere | (old.replicas >= DENSE_IDS_MAX), axis=0)
    present = old.replicas == old.leader
    stays = (candidates & present).any(axis=0)
    if preferred:
        stays &= ~candidates[0]
    first = old.replicas[np.argmax(candidates, axis=0), np.arange(len(odd))]
    elected = np.where(candidates.any(axis=0), first, NO_LEADER)
    leader: IntArray = np.where(stays, old.leader, elected).astype(np.int32)
    return leader, odd


def _of_topics(old: _Rows, rows: npt.NDArray[np.int64], ask: Callable[[bytes], int]) -> npt.NDArray[np.int64]:
    """The result of `ask` for the topics of the `rows`, called once per topic."""
    topics, place = np.unique(old.topic[rows], return_inverse=True)
    answers = np.array([ask(old.topics[topic]) for topic in topics.tolist()], dtype=np.int64)
    found: npt.NDArray[np.int64] = answers[place]
    return found


# Which replicas may lead, as tables over broker ids and directory codes.

DENSE_IDS_MAX = 1 << 20
"""Broker ids up to here have a place in the table; rows with higher ones are not decided in columns."""

_EVERYONE = -2
"""Owner of the directory ids that do not name a particular directory."""


class Electorate:
    """`acceptable` is about brokers; `in_place` is stricter than the rule for one partition: what it rejects
    needs a closer look."""

    __slots__ = ("_may_lead", "_owner")

    def __init__(self, image: MetadataImage, rules: Rules) -> None:
        brokers = [broker_id for broker_id in image.brokers if broker_id < DENSE_IDS_MAX]
        self._may_lead = np.zeros(max(brokers, default=0) + 2, dtype=bool)
        for broker_id in brokers:
            self._may_lead[broker_id] = rules.may_lead(broker_id)
        table = image.topics.columns.directories
        owner = np.full(len(table) + 1, PADDING, dtype=np.int64)
        for reserved in (MIGRATING, UNASSIGNED):
            owner[table.code(reserved)] = _EVERYONE
        for broker_id in brokers:
            for directory in image.brokers[broker_id].directories:
                code = table.find(directory)
                if code is not None and code < len(owner) and directory not in rules.failing:
                    owner[code] = broker_id
        self._owner = owner

    def acceptable(self, ids: IntArray) -> Flags:
        """By broker id; padding and unknown ids are not acceptable."""
        table = self._may_lead
        found: Flags = table[np.where((ids >= 0) & (ids < len(table)), ids, len(table) - 1)]
        return found

    def in_place(self, replicas: IntArray, directories: IntArray) -> Flags:
        """Whether each replica is in an online directory of its broker, or in no particular one."""
        owner = self._owner[np.where(directories < len(self._owner), directories, -1)]
        found: Flags = (owner == replicas) | (owner == _EVERYONE)
        return found
