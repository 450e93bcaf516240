"""The entities that the records of a batch, or of a metadata transaction, are about.

The offset of a key is that of the last record about it; in a transaction, of the record that ends it
(KIP-868).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import Versions, versions_of
from metaquorum.metadata.columnar.partition_records import CHANGE_API_KEY as CHANGE_KEY
from metaquorum.metadata.columnar.partition_records import decode_changes
from metaquorum.metadata.columnar.runs import idle_frames
from metaquorum.metadata.columnar.windows import BatchWindow
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import BrokerRegistration, ConfigResource, ImageBuilder, PartitionInfo
from metaquorum.metadata.image.chunk import (
    FLAGS,
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
    RARE_FLAG,
    RECOVERING_FLAG,
    TOPIC,
    Chunk,
    IntArray,
)
from metaquorum.metadata.image.columns import RareFields
from metaquorum.metadata.image.topics import TopicsBuilder
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.inspect.log.entities import broker_of
from metaquorum.metadata.invariants import broker_violations, check_step, feature_violations
from metaquorum.metadata.meanings import apply_record
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import (
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
)
from metaquorum.pipeline.intervals.moments import DAY_MS, BatchClock, Moment, Silence, ms_of
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.places import Places

_PARTITION = (r.PartitionChangeRecord, r.PartitionRecord)


class Touched:
    """Keys with offsets. `is_open`: inside a transaction, whose keys count only at its end."""

    def __init__(self) -> None:
        self.is_open = False
        self.partitions: dict[tuple[bytes, int], int] = {}
        self.brokers: dict[int, tuple[int, Any]] = {}
        """Broker id: offset and record."""
        self.controllers: dict[int, int] = {}
        self.features: dict[str, int] = {}
        self.cleared: dict[str, int] = {}
        """Topics whose partitions lost their eligible leaders, by name; "" for all."""
        self.topics: dict[bytes, tuple[int, str]] = {}
        self.removed: dict[bytes, int] = {}
        self.configs: dict[ConfigResource, dict[str, int]] = {}
        self._inside: list[DecodedRecord] = []

    def clear(self) -> None:
        """Forgets the keys, but not the open transaction."""
        self.partitions, self.brokers, self.topics, self.removed, self.configs = {}, {}, {}, {}, {}
        self.controllers, self.features, self.cleared = {}, {}, {}

    def add(self, records: Iterable[DecodedRecord]) -> None:
        """Takes the records of one batch."""
        partitions = self.partitions
        for decoded in records:
            record = decoded.record
            if self.is_open:
                self._add_inside(decoded)
            elif isinstance(record, _PARTITION):
                partitions[record.topic_id, record.partition_id] = decoded.offset
            elif isinstance(record, r.BeginTransactionRecord):
                self.is_open = True
            else:
                self._add(record, decoded.offset)

    def add_changes(self, records: Iterable[DecodedRecord]) -> None:
        """Takes a batch of only PartitionChangeRecords, which are most records of most logs."""
        if self.is_open:
            self.add(records)
            return
        partitions = self.partitions
        for decoded in records:
            record: Any = decoded.record
            partitions[record.topic_id, record.partition_id] = decoded.offset

    def _add_inside(self, decoded: DecodedRecord) -> None:
        match decoded.record:
            case r.EndTransactionRecord():
                for inside in self._inside:
                    self._add(inside.record, decoded.offset)
            case r.AbortTransactionRecord():
                pass
            case _:
                self._inside.append(decoded)
                return
        self.is_open = False
        self._inside = []

    def _add(self, record: object, offset: int) -> None:
        match record:
            case r.PartitionRecord() | r.PartitionChangeRecord():
                self.partitions[record.topic_id, record.partition_id] = offset
            case _ if (broker_id := broker_of(record)) is not None:
                self.brokers[broker_id] = (offset, record)
            case r.ControllerRecord() | r.UnregisterControllerRecord():
                self.controllers[record.controller_id] = offset
            case r.FeatureLevelRecord():
                self.features[record.name] = offset
            case r.ClearElrRecord(topic_name=name):
                self.cleared[name] = offset
            case r.TopicRecord(name=name, topic_id=topic_id):
                self.topics[topic_id] = (offset, name)
            case r.RemoveTopicRecord(topic_id=topic_id):
                self.removed[topic_id] = offset
            case r.ConfigRecord():
                resource = ConfigResource(record.resource_type, record.resource_name)
                self.configs.setdefault(resource, {})[record.name] = offset


# Many changes of partitions at once, in columns, so that few need objects; and records about brokers between
# them.
#
# Records about brokers are foreseen before anything is applied: common ones divide a window, others end it. A
# test compares the rows with those of a replay record by record.

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
    """The turns of a window. They divide it into sections: before the first turn, each turn, and after each
    turn. `active`: the brokers before the first. `alone`: numbers of batches that are compared alone."""

    registered: frozenset[int]
    active: frozenset[int]
    turns: Collection[Turn] = ()
    alone: Collection[int] = ()

    def section_of(self, batch_of: Places) -> Places:
        """The sections of changes, from their batches."""
        cuts = [cut for at in self.turns for cut in (at.batch, at.batch + 1)]
        return np.searchsorted(np.array(cuts, dtype=np.int64), batch_of, side="right")

    def are_active(self, ids: IntArray, section_of: Places) -> Bools:
        """Which of the broker ids in changes of these sections are active."""
        if not self.turns:
            return are_in(ids, self.active)
        listed = np.zeros((1 + 2 * len(self.turns), _IDS + 1), dtype=bool)
        listed[0, list(self.active)] = True
        for at, turn in enumerate(self.turns):
            listed[2 * at + 1 : 2 * at + 3, list(turn.active)] = True
        return listed[section_of, np.minimum(ids, _IDS)]


def foresee(
    builder: ImageBuilder, active: frozenset[int], given: Iterable[tuple[int, DecodedRecord]]
) -> Turns:
    """The effects of records about brokers, each with the number of its batch, on
    the brokers of `builder`."""
    by_batch: dict[int, list[DecodedRecord]] = {}
    for batch, decoded in given:
        by_batch.setdefault(batch, []).append(decoded)
    broker_ids = frozenset(builder.brokers)
    nodes, running = builder.nodes(), active
    turns: list[Turn] = []
    for batch, records in by_batch.items():
        before = dict(nodes.brokers)
        touched = Touched()
        touched.add(records)
        if max(broker_ids, default=_IDS) >= _IDS or not _applied(nodes, records):
            return Turns(broker_ids, active, turns, [batch])
        registered = dict(nodes.brokers)
        now_active = frozenset([who for who, at in registered.items() if at.is_active])
        if not now_active or any(_is_moved(before.get(who), registered[who]) for who in touched.brokers):
            return Turns(broker_ids, active, turns, [batch])
        turns.append(Turn(batch, touched.brokers, registered, now_active, running - now_active))
        running = now_active
    return Turns(broker_ids, active, turns)


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
    chunks: Iterable[Chunk], before: Chunk, after: Chunk, section_of: Places, turns: Turns
) -> list[int]:
    """The numbers of batches after which a broker that they made inactive still leads a partition, or is in
    an ISR with others. `chunks`: the partitions. `before` and `after`: their changes in the sections."""
    if not any(at.left for at in turns.turns):
        return []
    width = max(turns.registered) + 1
    shape = (1 + 2 * len(turns.turns), width)
    moved = _names(after, section_of, shape) - _names(before, section_of, shape)
    for chunk in chunks:
        moved[0] += _names(chunk, np.zeros(chunk.data.shape[1], dtype=np.int64), (1, width))[0]
    named = np.cumsum(moved, axis=0)
    return [turn.batch for at, turn in enumerate(turns.turns) if named[2 * at + 1, list(turn.left)].any()]


def _names(chunk: Chunk, section_of: Places, shape: tuple[int, int]) -> Longs:
    """How often each broker leads, and is in an ISR with others, by section."""
    width, data = shape[1], chunk.data
    several = np.where((data[N_ISR] > 1) & (data[TOPIC] >= 0), data[chunk.isr_start :], -1)
    leader = np.where(data[TOPIC] >= 0, data[LEADER], -1)
    ids = np.concatenate([leader[None], several])
    keys = section_of * width + ids
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


MIN_TOGETHER = 12
"""Fewer records are replayed faster one by one."""

_IS_OF_BROKERS = np.zeros(128, dtype=bool)
for _one in (BrokerRecord, BrokerRegistrationChangeRecord, FenceBrokerRecord, UnfenceBrokerRecord):
    _IS_OF_BROKERS[_one.api_key] = True

NOT_THE_FIRST = -1
"""The first batch must be passed by itself."""

WORTH_IT = 4 * MIN_TOGETHER
"""If fewer are taken, it tries less often: then up to MAX_ALONE batches are replayed by themselves."""
MAX_ALONE = 16

Together = Callable[[BatchWindow], int]
"""Takes batches from the start of a window and returns how many: NOT_THE_FIRST, or 0 if it cannot
say how many it could take."""
Single = Callable[[RecordBatch], None]


class Kinds(NamedTuple):
    """The places of partition changes and of other records in a window, and which batches are idle."""

    changes: Places
    others: Places
    idle: list[bool]


def kinds_of(window: BatchWindow) -> Kinds | None:
    """The kinds of records in a window; None if it must be replayed batch by batch."""
    frames = window.frames
    is_change, is_idle = frames.keys == CHANGE_KEY, idle_frames(frames)
    others = np.flatnonzero(~is_change & ~is_idle)
    kinds = frames.keys[others]
    is_judged = len(window.batches) == 1 and (kinds == BrokerRecord.api_key).any()  # against the state before
    if is_judged or not _IS_OF_BROKERS[kinds].all():
        return None
    idle = is_idle[window.ends - 1] & (window.counts == 1)
    return Kinds(np.flatnonzero(is_change), others, idle.tolist())


def decoded(window: BatchWindow, places: Places) -> list[DecodedRecord] | None:
    """The records at these places; None if one cannot be decoded."""
    if not len(places):
        return []
    frames, offsets = window.frames, window.offsets()
    times_ms = window.each([at.header.max_timestamp_ms for at in window.batches])
    records = []
    try:
        for place in places.tolist():
            start = int(frames.starts[place])
            version, record = decode(frames.data, start, start + int(frames.lengths[place]))
            records.append(DecodedRecord(int(offsets[place]), int(times_ms[place]), version, record))
    except RecordDecodeError:
        return None
    return records


class Times(NamedTuple):
    """The moments of a window's batches, and the state of clock and silence after them."""

    moments: list[Moment]
    clock: BatchClock
    silence: Silence


def times_of(window: BatchWindow, idle: list[bool], clock: BatchClock, silence: Silence) -> Times | None:
    """None if a day ends, or a silence was too long. Does not change `clock` and `silence`."""
    clock, silence, moments = msgspec.structs.replace(clock), silence.copy(), list[Moment]()
    for batch, is_idle in zip(window.batches, idle, strict=True):
        moment = clock.moment(batch.header.base_offset, batch.header.max_timestamp_ms)
        if silence.ends(moment.now_ms, idle=is_idle):
            return None
        moments.append(moment)
    if moments[0].now_ms // DAY_MS != moments[-1].now_ms // DAY_MS:
        return None
    return Times(moments, clock, silence)


def feed_window(window: BatchWindow, together: Together, single: Single) -> None:
    """Passes parts of a window to `together`, and the batches that it does not take to `single`."""
    for part, may_be_taken in _parts(window):
        if may_be_taken:
            _feed(part, together, single)
        else:
            for batch in part.batches:
                single(batch)


def _feed(window: BatchWindow, together: Together, single: Single) -> None:
    """Halves what is not taken, so that a special batch is by itself in the end. After many special batches,
    it tries the following ones less often."""
    position, count, alone = 0, len(window.batches), 1
    step = count
    while position < count:
        part = window.part(position, min(position + step, count))
        taken = together(part) if part.records >= MIN_TOGETHER else NOT_THE_FIRST
        if not taken and len(part.batches) > 1:
            step = len(part.batches) // 2
            continue
        if taken > 0:
            alone = 1 if window.part(position, position + taken).records >= WORTH_IT else alone
        else:
            taken = min(alone, count - position)
            for batch in window.batches[position : position + taken]:
                single(batch)
            alone = min(2 * alone, MAX_ALONE)
        position += taken
        step = max(2 * taken, MAX_ALONE)


def _parts(window: BatchWindow) -> list[tuple[BatchWindow, bool]]:
    """Runs of batches that only change partitions, are idle or about brokers, which may be taken together
    (True), and of other batches (False)."""
    frames, firsts = window.frames, window.ends - window.counts
    is_usual = (frames.keys == CHANGE_KEY) | idle_frames(frames) | _IS_OF_BROKERS[frames.keys]
    fit = np.logical_and.reduceat(is_usual, firsts)
    edges = np.flatnonzero(np.diff(fit.astype(np.int8), prepend=-1, append=-1)).tolist()
    return [(window.part(low, high), bool(fit[low])) for low, high in itertools.pairwise(edges)]


class _Infos(dict[int, PartitionInfo]):
    """Partitions before or after changes, created on request."""

    def __init__(self, topics: TopicsBuilder, versions: Versions, block: IntArray, rows: Places) -> None:
        super().__init__()
        self._topics, self._versions, self._block, self._rows = topics, versions, block, rows

    def __missing__(self, number: int) -> PartitionInfo:
        self.make([number])
        return self[number]

    def make(self, places: Sequence[int]) -> None:
        """Creates those at some places, which costs less than one by one."""
        chunk = self._versions.chunk(self._block[:, places])
        self.update(zip(places, self._topics.seen(chunk, self._rows[places]), strict=True))


class ManyChanges:
    """Changes in log order. `before` and `after` have a chunk's layout; `infos_before` and `infos` are the
    same as objects. `topic_at`: places in `topics`, a list of ids. `batch_of`: places in `batch_moments`."""

    def __init__(
        self, builder: ImageBuilder, versions: Versions, window: BatchWindow, moments: Sequence[Moment]
    ) -> None:
        order = np.argsort(versions.records)
        records, width = versions.records[order], versions.replica_width
        self.versions = versions
        self.before, self.after = versions.before()[:, order], versions.after[:, order]
        repeated = np.flatnonzero(~versions.first)
        self.batch_of = np.searchsorted(window.ends, records, side="right")
        place_of = np.empty_like(order)
        place_of[order] = np.arange(len(order))
        self.again, self.earlier = place_of[repeated], place_of[repeated - 1]
        """Changes of a partition that changed before, and those earlier changes."""
        self.twice: Places = self.batch_of[self.again][
            self.batch_of[self.again] == self.batch_of[self.earlier]
        ]
        """The numbers of batches that change a partition twice: the first of these changes is not a state."""
        self.last: Places | slice = np.delete(place_of[order], self.earlier) if len(repeated) else slice(None)
        """The last change of every partition."""
        self.offsets = window.offsets()[records]
        self.batch_moments = moments
        self.infos_before = _Infos(builder.topics, versions, self.before, versions.rows[order])
        self.infos = _Infos(builder.topics, versions, self.after, versions.rows[order])

        lists, end = LISTS + width, LISTS + 2 * width
        self.directory_table = builder.topics.columns.directories
        self.directories = self.after[lists:end]
        self.placed: Bools = (self.before[lists:end] != self.directories).any(axis=0)
        """Whether the directories changed."""
        self.replicas = self.after[LISTS:lists]
        self.isr_before, self.isr = self.before[end:], self.after[end:]
        self.led: Bools = self.before[LEADER] != self.after[LEADER]
        """Whether the leader changed."""
        self.moved: Bools = (self.isr_before != self.isr).any(axis=0)
        """Whether the ISR changed."""
        self.left: Bools = (self.isr_before >= 0) & ~among(self.isr_before, self.isr)
        """Which members of the ISR before left it."""
        self.held: Bools = (self.isr_before >= 0) & among(self.isr_before, self.replicas)
        """Which members of the ISR before have a replica."""
        self.rare: dict[int, RareFields] = {
            at: builder.topics.columns.rare[int(versions.rows[order[at]])]
            for at in np.flatnonzero(self.after[FLAGS] & RARE_FLAG).tolist()
        }
        """Fields that no change names, for partitions that have them."""

        slots, self.topic_at = np.unique(self.after[TOPIC], return_inverse=True)
        self.topics: list[bytes] = [builder.topics.by_slot[slot] for slot in slots.tolist()]
        self.indexes: list[int] = self.after[INDEX].tolist()

    def __len__(self) -> int:
        return len(self.offsets)

    def key(self, number: int) -> tuple[bytes, int]:
        return self.topics[self.topic_at[number]], self.indexes[number]

    def moment(self, number: int) -> Moment:
        """The moment of a change's batch."""
        return self.batch_moments[int(self.batch_of[number])]

    def number_at(self, batch: int) -> int:
        """The number of changes before a batch."""
        return int(np.searchsorted(self.batch_of, batch))

    @property
    def times_ms(self) -> Places:
        """The times of the changes; -1 for none."""
        return np.array([ms_of(at.time_ms) for at in self.batch_moments], dtype=np.int64)[self.batch_of]

    def make_infos(self, which: Bools) -> None:
        """Creates the objects of some changes, which are otherwise created one by one."""
        places = np.flatnonzero(which).tolist()
        self.infos_before.make(places)
        self.infos.make(places)

    def replicas_added_to(self, directory: bytes, low: int) -> int:
        """How many more partitions have a replica in a log directory after all changes than
        before change number `low`."""
        code, width = self.directory_table.find(directory), self.versions.replica_width
        if code is None:
            return 0
        had = (self.before[LISTS + width : LISTS + 2 * width, low:] == code).any(axis=0)
        return int((self.directories[:, low:] == code).any(axis=0).sum()) - int(had.sum())

    def directories_of(self, places: Places, brokers: IntArray) -> list[bytes | None]:
        """The directories of brokers' replicas before the changes at these places; None without a replica."""
        width = self.versions.replica_width
        held = self.before[LISTS : LISTS + width, places] == brokers
        codes = self.before[LISTS + width : LISTS + 2 * width, places]
        ids = self.directory_table.ids(codes[held.argmax(axis=0), np.arange(len(places))].tolist())
        return [at if holds else None for at, holds in zip(ids, held.any(axis=0).tolist(), strict=True)]

    def may_be_unclean(self) -> Any:
        """Where `was_unclean` may hold: the new leader was not in sync, or it begins to recover."""
        elected = (self.before[LEADER] != self.after[LEADER]) & (self.after[LEADER] >= 0)
        return elected & ~((self.isr_before == self.after[LEADER]).any(axis=0) & ~self._recovers())

    def _recovers(self) -> Any:
        return ~self.before[FLAGS] & self.after[FLAGS] & RECOVERING_FLAG != 0

    def preferred(self, turns: Turns) -> Any:
        """Whether an election chose a member of the ISR while the leader before could have continued."""
        before, now = self.before[LEADER], self.after[LEADER]
        both = (before >= 0) & (now >= 0) & turns.are_active(before, turns.section_of(self.batch_of))
        in_sync = (self.isr == before).any(axis=0) & (self.isr_before == now).any(axis=0)
        return both & in_sync & ~self._recovers()

    def may_be_unsound(self, turns: Turns) -> Bools:
        """Changes that are not clearly sound (`is_plainly_sound`), or that cannot be decided here."""
        after, isr, replicas = self.after, self.isr, self.replicas
        leader, n_isr = after[LEADER], after[N_ISR]
        is_active = turns.are_active(isr, turns.section_of(self.batch_of))
        has_leader = leader != NO_LEADER
        fine = ~has_leader | ((isr == leader) & is_active).any(axis=0)
        fine &= (is_active | (isr < 0)).all(axis=0) | (n_isr < 2)
        fine &= (are_in(replicas, turns.registered) | (replicas < 0)).all(axis=0)
        fine &= (n_isr > 0) & ((isr >= 0).sum(axis=0) == n_isr)
        fine &= (replicas >= 0).sum(axis=0) == after[N_REPLICAS]
        fine &= (after[LEADER_EPOCH] >= 0) & (after[PARTITION_EPOCH] >= 0) & (after[FLAGS] & RARE_FLAG == 0)
        fine &= (among(isr, replicas) | (isr < 0)).all(axis=0)
        unsound: Bools = ~fine | _has_twice(isr) | _has_twice(replicas)
        return unsound


def changes_of(
    builder: ImageBuilder, window: BatchWindow, places: Places, moments: Sequence[Moment]
) -> ManyChanges | None:
    """The changes at `places` of a window whose batches are at `moments`. Applies
    nothing. None if one is unusual."""
    versions = versions_of(builder, window.frames, places)
    if versions is None:
        return None
    return ManyChanges(builder, versions, window, moments)


def first_unusual(window: BatchWindow, places: Places) -> int | None:
    """The number of the first batch that has, at one of `places`, a change that
    cannot be decoded in columns."""
    _, odd = decode_changes(window.frames, places)
    return int(np.searchsorted(window.ends, odd[0], side="right")) if len(odd) else None


def tally(ids: IntArray) -> list[tuple[int, int]]:
    """The number of occurrences of each id, without padding."""
    values, counts = np.unique(ids[ids >= 0], return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


def among(members: IntArray, lists: IntArray) -> Any:
    """Which members are in the list of the same change."""
    found: Any = np.zeros(members.shape, dtype=bool)
    for row in lists:
        found |= members == row
    return found


def _has_twice(lists: IntArray) -> Any:
    """Which lists have an id twice."""
    found: Any = np.zeros(lists.shape[1], dtype=bool)
    for at in range(1, len(lists)):
        found |= ((lists[:at] == lists[at]) & (lists[at] >= 0)).any(axis=0)
    return found
