"""The effects of records about brokers in a window, computed before anything of it is applied.

Owns which batches with such records are replayed together with others, which brokers are active when, and
whether a partition still names a broker that stops being active. These are common records, which do not end a
window; the others (a new broker, another rack, no active broker left) are settled one by one. Knows no rows
and does not change an image; partition changes are in `changes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image import BrokerRegistration, ImageBuilder
from metaquorum.metadata.image.chunk import LEADER, N_ISR, TOPIC, Chunk, IntArray
from metaquorum.metadata.invariants import broker_violations, check_step, feature_violations
from metaquorum.metadata.meaning.meanings import apply_record
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.types import BrokerRecord
from metaquorum.pipeline.intervals.touched import Touched
from metaquorum.storage.batches.places import Places

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
_IDS = 4_096
"""Ids below this are looked up in an array."""


class Turn(NamedTuple):
    """A batch with records about brokers. `touched`: each broker's last offset and record. `registered`: all
    brokers after it. `left`: those that it made inactive."""

    batch: int
    touched: dict[int, tuple[int, Any]]
    registered: dict[int, BrokerRegistration]
    active: frozenset[int]
    left: frozenset[int]


class Turns(NamedTuple):
    """The turns of a window. They divide it into stretches: before the first turn, each turn, and after each
    turn. `active`: the brokers before the first. `alone`: numbers of batches that are settled alone."""

    known: frozenset[int]
    active: frozenset[int]
    turns: Collection[Turn] = ()
    alone: Collection[int] = ()

    def stretch_of(self, batch_of: Places) -> Places:
        """The stretches of changes, from their batches."""
        cuts = [cut for at in self.turns for cut in (at.batch, at.batch + 1)]
        return np.searchsorted(np.array(cuts, dtype=np.int64), batch_of, side="right")

    def are_active(self, ids: IntArray, stretch_of: Places) -> Bools:
        """Which of the broker ids in changes of these stretches are active."""
        if not self.turns:
            return are_in(ids, self.active)
        listed = np.zeros((1 + 2 * len(self.turns), _IDS + 1), dtype=bool)
        listed[0, list(self.active)] = True
        for at, turn in enumerate(self.turns):
            listed[2 * at + 1 : 2 * at + 3, list(turn.active)] = True
        return listed[stretch_of, np.minimum(ids, _IDS)]


def foresee(
    builder: ImageBuilder, active: frozenset[int], given: Iterable[tuple[int, DecodedRecord]]
) -> Turns:
    """The effects of records about brokers, each with the number of its batch, on
    the brokers of `builder`."""
    by_batch: dict[int, list[DecodedRecord]] = {}
    for batch, at in given:
        by_batch.setdefault(batch, []).append(at)
    known = frozenset(builder.brokers)
    nodes, running = builder.nodes(), active
    turns: list[Turn] = []
    for batch, records in by_batch.items():
        before = dict(nodes.brokers)
        touched = Touched()
        touched.add(records)
        if max(known, default=_IDS) >= _IDS or not _applied(nodes, records):
            return Turns(known, active, turns, [batch])
        registered = dict(nodes.brokers)
        now_active = frozenset([who for who, at in registered.items() if at.is_active])
        if not now_active or any(_is_moved(before.get(who), registered[who]) for who in touched.brokers):
            return Turns(known, active, turns, [batch])
        turns.append(Turn(batch, touched.brokers, registered, now_active, running - now_active))
        running = now_active
    return Turns(known, active, turns)


def _applied(nodes: ImageBuilder, records: Iterable[DecodedRecord]) -> bool:
    """Applies records. False if one is refused, or the brokers then break a rule."""
    before = nodes.freeze() if any(_may_be_wrong(at.record) for at in records) else None
    try:
        for at in records:
            apply_record(nodes, at.record, at.offset)
    except ReplayError:
        return False
    if before is None:
        return True
    after = nodes.freeze()
    wrong = (*check_step(before, after), *broker_violations(after), *feature_violations(after))
    return not wrong


def _is_moved(before: BrokerRegistration | None, now: BrokerRegistration) -> bool:
    return before is None or before.rack != now.rack


def _may_be_wrong(record: object) -> bool:
    """Whether a record changes more about a broker than whether it is fenced, so
    that a rule could be broken."""
    return isinstance(record, BrokerRecord) or bool(getattr(record, "log_dirs", None))


def still_named(
    chunks: Iterable[Chunk], before: Chunk, after: Chunk, stretch_of: Places, turns: Turns
) -> list[int]:
    """The numbers of batches after which a broker that they made inactive still leads a partition, or is in
    an ISR with others. `chunks`: the partitions. `before` and `after`: their changes in the stretches."""
    if not any(at.left for at in turns.turns):
        return []
    width = max(turns.known) + 1
    shape = (1 + 2 * len(turns.turns), width)
    moved = _names(after, stretch_of, shape) - _names(before, stretch_of, shape)
    for chunk in chunks:
        moved[0] += _names(chunk, np.zeros(chunk.data.shape[1], dtype=np.int64), (1, width))[0]
    named = np.cumsum(moved, axis=0)
    return [turn.batch for at, turn in enumerate(turns.turns) if named[2 * at + 1, list(turn.left)].any()]


def _names(chunk: Chunk, stretch_of: Places, shape: tuple[int, int]) -> Longs:
    """How often each broker leads, and is in an ISR with others, by stretch."""
    width, data = shape[1], chunk.data
    several = np.where((data[N_ISR] > 1) & (data[TOPIC] >= 0), data[chunk.isr_start :], -1)
    leader = np.where(data[TOPIC] >= 0, data[LEADER], -1)
    ids = np.concatenate([leader[None], several])
    keys = stretch_of * width + ids
    found = np.bincount(keys[(ids >= 0) & (ids < width)], minlength=shape[0] * width)
    return found.reshape(shape)


def are_in(ids: IntArray, given: Collection[int]) -> Bools:
    """Which of many broker ids, or paddings, are among a few."""
    if max(given, default=0) >= _IDS:
        found: Bools = np.isin(ids, list(given))
        return found
    listed = np.zeros(_IDS + 1, dtype=bool)
    listed[list(given)] = True
    return listed[np.minimum(ids, _IDS)]  # the last entry is for larger ids and padding
