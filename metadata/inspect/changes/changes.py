"""Records as changes: for every record of a batch, the state before and after it.

The single interpreter (`metadata.replay`) applies the records, without freezing an image per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import Versions, merged, store
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.features import METADATA_VERSION, MIN_METADATA_VERSION
from metaquorum.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ImageBuilder, MetadataImage
from metaquorum.metadata.image.chunk import LEADER, PADDING, IntArray
from metaquorum.metadata.image.topics import TopicsBuilder
from metaquorum.metadata.image.types import (
    NO_LEADER,
    BrokerRegistration,
    ConfigResource,
    PartitionInfo,
    TopicInfo,
)
from metaquorum.metadata.inspect.changes.change_steps import (
    NOOP_LEVEL,
    BatchChanges,
    BrokerStep,
    BrokerStory,
    PartitionKey,
    PartitionStep,
)
from metaquorum.metadata.inspect.changes.creations import read_creations
from metaquorum.metadata.inspect.changes.idle_records import NOT_JUDGED, subject
from metaquorum.metadata.inspect.log.entities import broker_of
from metaquorum.metadata.inspect.walk.batch_filter import (
    SLICE_MIN,
    BatchFilter,
    RunPart,
    is_passed,
    pass_over,
    pieces,
)
from metaquorum.metadata.meanings import with_elr
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import cause_in
from metaquorum.metadata.records.batches import decode_readable
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import BrokerRegistrationChangeRecord, NoOpRecord
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.places import Places
from metaquorum.storage.log.runs import BatchRun
from metaquorum.storage.uuids import uuid_to_text

# A part of a run handled at once: what each partition change found and left, as steps, for those that a
# caller wants. Between them, `ChangeFeed` applies the records of brokers; no other record is in a part.

WANTED, IF_ACTIVE, IF_ASKED = 1, 2, 4
"""Whether a change is wanted; IF_ACTIVE: only if a broker that leaves the ISR with it is active after its
batch; IF_ASKED: only in the first batch of a part that names its cause."""

Wanted = Callable[[Versions, IntArray], npt.NDArray[np.int8]]
"""Decides which changes are wanted, given the changes and the rows before them."""


def nothing(versions: Versions, before: IntArray) -> npt.NDArray[np.int8]:
    """Wants none of them."""
    return np.zeros(len(versions.rows), dtype=np.int8)


class TakenBatch(NamedTuple):
    """A batch of a part with something to report: its number in the run, its other records by their
    numbers, and its changes as places in the versions: the wanted ones, and those wanted IF_ACTIVE."""

    number: int
    others: dict[int, Any]
    places: list[int]
    doubtful: list[int]


class Taken:
    """A part whose partition changes were applied."""

    def __init__(self, part: RunPart, versions: Versions, before: IntArray) -> None:
        self.part = part
        self.is_slice = part.batches == 1 and len(versions.rows) >= SLICE_MIN
        """Whether it is one batch that may be part of a split fence; among others, none is as large."""
        self._versions = versions
        self._before = before

    def batches(self, wanted: Wanted) -> Iterator[TakenBatch]:
        """The batches with other records or wanted changes, in log order."""
        versions, run = self._versions, self.part.run
        others = self.part.others()
        levels = wanted(versions, self._before)
        numbers = run.batch_of(versions.records)
        of_others = run.batch_of(np.array(list(others), dtype=np.int64)).tolist()
        whole = {
            batch
            for batch, record in zip(of_others, others.values(), strict=True)
            if isinstance(record, BrokerRegistrationChangeRecord) and record.log_dirs
        }
        if whole:  # a directory that failed affects partitions that no event is about
            levels[np.isin(numbers, list(whole))] = WANTED
        self._settle_asked(levels, numbers, dict(zip(of_others, others.values(), strict=True)))
        places = np.flatnonzero(levels)
        places = places[np.argsort(versions.records[places], kind="stable")]
        taken: dict[int, TakenBatch] = {}
        for batch, (number, record) in zip(of_others, others.items(), strict=True):
            taken.setdefault(batch, TakenBatch(batch, {}, [], [])).others[number] = record
        for batch, position, level in zip(
            numbers[places].tolist(), places.tolist(), levels[places].tolist(), strict=True
        ):
            found = taken.setdefault(batch, TakenBatch(batch, {}, [], []))
            (found.places if level == WANTED else found.doubtful).append(position)
        for batch in sorted(taken):
            yield taken[batch]

    @staticmethod
    def _settle_asked(levels: npt.NDArray[np.int8], numbers: Places, others: dict[int, Any]) -> None:
        """Decides which changes with IF_ASKED are wanted. `numbers` are those of their batches, `others` are
        other records by theirs."""
        doubtful = (levels & IF_ASKED) != 0
        levels &= ~IF_ASKED
        asked = [number for number, record in others.items() if isinstance(record, NoOpRecord)]
        if doubtful.any() and asked:
            first = numbers[doubtful & np.isin(numbers, asked)][:1]
            levels[doubtful & np.isin(numbers, first)] = WANTED

    def leaders_before(self, batch: int) -> frozenset[int]:
        """The brokers that led the partitions that a batch of the run changes."""
        run, versions = self.part.run, self._versions
        first, last = (int(at) - run.base_offset for at in run.offsets[batch : batch + 2])
        here = (versions.records >= first) & (versions.records < last)
        return frozenset(self._before[LEADER, here].tolist())

    def leads_after(self, batch: int, broker_id: int, topics: TopicsBuilder) -> bool:
        """Whether a broker leads a partition right after a batch of the run. `topics` are those after all
        changes: what later batches changed counts as they found it."""
        versions = self._versions
        later: npt.NDArray[np.bool_] = (
            versions.records >= int(self.part.run.offsets[batch + 1]) - self.part.run.base_offset
        )
        begins, ends = later.copy(), later.copy()
        begins[1:] &= versions.first[1:] | ~later[:-1]
        ends[:-1] &= versions.first[1:]
        if (self._before[LEADER, begins] == broker_id).any():
            return True
        return topics.led_by(broker_id) > int((versions.after[LEADER, ends] == broker_id).sum())

    def moved_off(self) -> dict[int, int]:
        """The brokers that lost a leadership for which they stayed out of the ISR or which no one got, with
        the number of the last record that says so."""
        before, after = self._before, self._versions.after
        led = before[LEADER]
        kept = (after[self._versions.chunk(after).isr_start :] == led).any(axis=0)
        lost = np.flatnonzero((led != after[LEADER]) & (~kept | (after[LEADER] == NO_LEADER)))
        lost = lost[np.argsort(self._versions.records[lost])]
        return dict(zip(led[lost].tolist(), self._versions.records[lost].tolist(), strict=True))

    def left(self, places: list[int]) -> list[list[int]]:
        """The brokers that leave the ISR with each of these changes, and PADDING."""
        versions = self._versions
        start = versions.chunk(versions.after).isr_start
        before, after = self._before[start:, places], versions.after[start:, places]
        stays = (before[:, None] == after[None]).any(axis=1)
        gone: list[list[int]] = np.where(stays, PADDING, before).T.tolist()
        return gone

    def steps(self, builder: ImageBuilder, places: list[int]) -> Iterator[PartitionStep]:
        """Some changes, in log order."""
        if not places:
            return
        versions, topics = self._versions, builder.topics
        frames, base_offset = self.part.frames, self.part.run.base_offset
        chosen: Places = np.array(places, dtype=np.int64)
        chosen = chosen[np.argsort(versions.records[chosen], kind="stable")]
        records, rows = versions.records[chosen], versions.rows[chosen]
        starts = frames.starts[records]
        for number, start, end, before, after in zip(
            records.tolist(),
            starts.tolist(),
            (starts + frames.lengths[records]).tolist(),
            topics.seen(versions.chunk(self._before[:, chosen]), rows),
            topics.seen(versions.chunk(versions.after[:, chosen]), rows),
            strict=True,
        ):
            yield PartitionStep(
                offset=base_offset + number,
                record=decode(frames.data, start, end)[1],
                topic=topics.by_id[after.topic_id].info.name,
                index=after.index,
                before=before,
                after=after,
            )


def taken_together(builder: ImageBuilder, part: RunPart) -> Taken | None:
    """Applies a part's partition changes; None, with nothing applied, if one is unusual."""
    versions = merged(builder, part.groups())
    if versions is None:
        return None
    before = versions.before()
    store(builder, versions)
    return Taken(part, versions, before)


__all__ = [
    "MIN_INSYNC_REPLICAS",
    "UNCLEAN_ELECTION",
    "BatchChanges",
    "BrokerStep",
    "BrokerStory",
    "ChangeFeed",
    "PartitionKey",
    "PartitionStep",
]

MIN_INSYNC_REPLICAS = "min.insync.replicas"
_ENDS = (r.EndTransactionRecord, r.AbortTransactionRecord)
UNCLEAN_ELECTION = "unclean.leader.election.enable"


class ChangeFeed:
    """Feed it every batch in log order, starting with the state at the log's start."""

    def __init__(
        self,
        image: MetadataImage | None = None,
        *,
        is_known: bool = True,
        names: Mapping[bytes, str] | None = None,
        is_middle: bool = False,
    ) -> None:
        """With `is_known` False the state before the first batch is unknown until `learn`. `names` are topic
        names by id from a later snapshot; a topic's id never changes. With `is_middle` the log has records
        before the image (see `ask_before`)."""
        self._refused: list[ReplayError] = []
        self._start(MetadataImage() if image is None else image)
        self.is_known = is_known
        self._later_names = names or {}
        self._begins_ms = None if image is None or not is_middle else image.provenance.timestamp_ms
        self.asked_before = self.begins_inside = False
        self._idle_records = False
        self.stories: dict[int, BrokerStory] = {}
        self._names: dict[bytes, str] = {}

    def _start(self, image: MetadataImage) -> None:
        self._engine = Replayer(ReplayState(image), on_error=self._refused.append)

    def learn(self, image: MetadataImage) -> None:
        """Takes the state from a snapshot."""
        self._start(image)
        self.is_known = True

    def forget(self) -> None:
        """Records are lost: the state is unknown until `learn`."""
        topics = self._engine.builder.topics.freeze()
        self._later_names = {**self._later_names, **{one.topic_id: one.name for one in topics.all()}}
        self._start(MetadataImage())
        self.is_known = False

    def note_alone(self, records: Iterable[tuple[int, object]], time_ms: int) -> None:
        """Notes what records say of brokers whose state before them is unknown, or is that of the image."""
        for offset, record in records:
            broker_id = broker_of(record)
            if broker_id is not None:
                story = self.stories.setdefault(broker_id, BrokerStory())
                story.take_alone(record, (offset, time_ms))

    def ask_before(self, from_ms: int | None = None) -> None:
        """A reader of a broker's story lacks something from before the first batch; it matters
        only from `from_ms` on."""
        begins_ms = self._begins_ms
        self.asked_before |= begins_ms is not None and (from_ms is None or from_ms <= begins_ms)

    @property
    def state(self) -> ImageBuilder:
        """The state after the batches so far. Read-only, and valid only until the next batch."""
        return self._engine.builder

    def replayed(self) -> ReplayState:
        """The state as immutable images, with the open transaction if there is one."""
        return self._engine.state()

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        return self._engine.builder.brokers

    @property
    def metadata_version(self) -> int:
        """The metadata.version in force: it decides what a controller records."""
        least = NOOP_LEVEL if self._idle_records and not self.is_known else MIN_METADATA_VERSION
        return self.state.finalized.get(METADATA_VERSION, least)

    def topic_config(self, topic: str, key: str) -> str | None:
        """A topic's setting according to the log: its own, else the brokers' default, else None."""
        configs = self._engine.builder.configs
        for resource in (ConfigResource(TOPIC_RESOURCE, topic), ConfigResource(BROKER_RESOURCE, "")):
            value = (configs.get(resource) or {}).get(key)
            if value is not None:
                return value
        return None

    def topic_name(self, topic_id: bytes) -> str | None:
        """A topic's name, even if the last batch deleted it."""
        entry = self._engine.builder.topics.by_id.get(topic_id)
        if entry is not None:
            return entry.info.name
        return self._names.get(topic_id) or self._later_names.get(topic_id)

    def leads(self, broker_id: int) -> bool:
        """Whether a broker leads a partition."""
        return self._engine.builder.topics.is_led_by(broker_id)

    def partition(self, key: PartitionKey) -> PartitionInfo | None:
        topics = self._engine.builder.topics
        row = topics.row_of(*key)
        return None if row < 0 else topics.at(row)

    def partitions_of(self, topic_id: bytes) -> list[PartitionInfo]:
        topics = self._engine.builder.topics
        entry = topics.by_id.get(topic_id)
        return [] if entry is None else [topics.at(row) for row in entry.rows().tolist()]

    def pieces(self, run: BatchRun, batch_filter: BatchFilter) -> Iterator[RecordBatch | RunPart]:
        """The next run, in batches for `batch` and parts for `pass_over`."""
        return pieces(run, batch_filter, self._engine.builder.topics.by_name.get)

    def is_passed(self, batch: RecordBatch, batch_filter: BatchFilter) -> bool:
        """Whether the next batch is one for `pass_over`."""
        return is_passed(batch, batch_filter, self._engine.builder.topics.by_name.get)

    def pass_over(self, part: RunPart | RecordBatch) -> list[ReplayError]:
        """Applies batches whose changes are not needed. Returns the records that cannot be decoded; those
        that do not fit the state are not the caller's concern."""
        self._refused.clear()
        builder = self._engine.builder
        # Batches are taken as they are, also after damage.
        if isinstance(part, RunPart):
            builder.offset = part.base_offset
            self._idle_records = self._idle_records or part.is_idle
            pass_over(self._engine, part)
        else:
            builder.offset = part.header.base_offset
            self._engine.apply_batch(part)
        return [error for error in self._refused if isinstance(error.__cause__, RecordDecodeError)]

    def changed(
        self, part: RunPart, wanted: Wanted, time_of: Callable[[int, int], int] | None = None
    ) -> Iterator[BatchChanges]:
        """Applies a part. Yields, in order, the batches with records of brokers and those with a `wanted`
        change of a partition, with these changes. The state of partitions is already the one after all of
        them. `time_of` returns the time of a batch by its base offset and timestamp."""
        taken = taken_together(self._engine.builder, part)
        if taken is None:
            yield from self._halved(part, wanted, time_of)
            return
        self._names.clear()
        builder, run = self._engine.builder, part.run
        moved_off = taken.moved_off() if taken.is_slice else {}
        for batch in taken.batches(wanted):
            single = run.part(batch.number, batch.number + 1)
            base_offset, time_ms = single.base_offset, int(single.timestamps_ms()[0])
            if time_of is not None:
                time_ms = time_of(base_offset, time_ms)
            changes = BatchChanges(base_offset=base_offset, epoch=single.epoch, time_ms=time_ms)
            changes.is_slice = taken.is_slice
            self.asked_before = False
            self._refused.clear()
            for number, record in batch.others.items():
                offset = run.base_offset + number
                if offset == changes.base_offset:
                    changes.asked = cause_in(record)
                changes.records.append((offset, record))
                self._record(changes, offset, record)
            places = batch.places
            if batch.doubtful:
                active = {at for at, known in self.brokers.items() if known.is_active}
                left = zip(batch.doubtful, taken.left(batch.doubtful), strict=True)
                places = places + [at for at, brokers in left if not active.isdisjoint(brokers)]
            changes.partitions += taken.steps(builder, places)
            changes.records += [(step.offset, step.record) for step in changes.partitions]
            if changes.brokers:
                changes.leaders_before = taken.leaders_before(batch.number)
                changes.leads_after = partial(taken.leads_after, batch.number, topics=builder.topics)
                for step in changes.brokers:
                    self.stories.setdefault(step.broker_id, BrokerStory()).take(step, changes.time_ms)
            changes.refused = list(self._refused)
            self._note_moves(moved_off, run.base_offset, changes.time_ms)
            if changes.brokers or changes.partitions or changes.refused:
                yield changes
            moved_off = {}
        if moved_off:
            time_ms = part.time_ms
            self._note_moves(
                moved_off,
                run.base_offset,
                time_ms if time_of is None else time_of(part.base_offset, time_ms),
            )
        builder.offset, builder.epoch = part.next_offset, part.epoch
        builder.timestamp_ms = part.time_ms

    def _halved(
        self, part: RunPart, wanted: Wanted, time_of: Callable[[int, int], int] | None
    ) -> Iterator[BatchChanges]:
        """The same for a part with something unusual in it: halves it until that batch is alone."""
        if part.batches > 1:
            for half in part.split(part.batches // 2):
                yield from self.changed(half, wanted, time_of)
            return
        for batch in part.as_run().batches():
            header = batch.header
            time_ms = header.max_timestamp_ms
            if time_of is not None:
                time_ms = time_of(header.base_offset, time_ms)
            records = [(one.offset, one.record) for one in decode_readable(batch)]
            found = self.batch(header.leader_epoch, time_ms, records)
            if found.brokers or found.partitions or found.refused:
                yield found

    def created(
        self, batch: RecordBatch, is_fine: Callable[[ImageBuilder, list[bytes]], bool]
    ) -> BatchChanges | None:
        """Applies the next batch if it only creates topics and partitions and `is_fine` accepts these topics
        afterwards. Otherwise applies nothing and returns None."""
        builder = self._engine.builder
        creations = read_creations(batch, builder)
        if creations is None:
            return None
        before, position = builder.freeze(), (builder.offset, builder.epoch, builder.timestamp_ms)
        builder.offset = batch.header.base_offset
        self._refused.clear()
        self._engine.apply_batch(batch)
        if self._refused or not is_fine(self._engine.builder, list(creations.made)):
            builder = self._engine.builder = ImageBuilder(before)
            builder.offset, builder.epoch, builder.timestamp_ms = position
            return None
        self._names.clear()
        header = batch.header
        changes = BatchChanges(
            base_offset=header.base_offset,
            epoch=header.leader_epoch,
            time_ms=header.max_timestamp_ms,
            asked=creations.asked,
        )
        for offset, record in creations.others:
            changes.records.append((offset, record))
            if isinstance(record, r.TopicRecord):
                changes.created.append((offset, TopicInfo(record.topic_id, record.name)))
            else:
                resource = ConfigResource(record.resource_type, record.resource_name)
                changes.configs.append((offset, resource, record.name, None, record.value))
        for topic_id, (number, offset) in creations.made.items():
            changes.made.append((offset, self.topic_name(topic_id) or uuid_to_text(topic_id), number))
        return changes

    def batch(self, epoch: int, time_ms: int, records: Iterable[tuple[int, object]]) -> BatchChanges:
        """Applies one batch: `records` are (offset, decoded record). Never raises for a record."""
        changes = BatchChanges(base_offset=-1, epoch=epoch, time_ms=time_ms)
        self._refused.clear()
        self._names.clear()
        for offset, record in records:
            if changes.base_offset < 0:
                changes.base_offset, changes.asked = offset, cause_in(record)
            changes.records.append((offset, record))
            self._record(changes, offset, record)
        changes.refused = list(self._refused)
        self.asked_before = False
        self.begins_inside |= any(isinstance(error.record, _ENDS) for error in changes.refused)
        if not self.is_known:
            self._set_apart(changes)
        for step in changes.brokers:
            self.stories.setdefault(step.broker_id, BrokerStory()).take(step, time_ms)
        changes.is_slice = len(changes.partitions) >= SLICE_MIN
        if changes.is_slice:
            self._note_moves(_moved_off(changes), 0, changes.time_ms)
        return changes

    def _set_apart(self, changes: BatchChanges) -> None:
        """While the state before the log is unknown, records that do not fit are not faults, and what was not
        found may have existed."""
        self._idle_records = self._idle_records or any(
            isinstance(record, r.NoOpRecord) for _, record in changes.records
        )
        strange = [error for error in changes.refused if self._is_stranger(error.record)]
        changes.refused = [error for error in changes.refused if error not in strange]
        changes.unplaced = [(error.offset, error.record) for error in strange]
        self.note_alone(changes.unplaced, changes.time_ms)
        changes.idle.clear()
        changes.before = {offset: before for offset, before in changes.before.items() if before is not None}

    def _is_stranger(self, record: object) -> bool:
        builder = self._engine.builder
        match record:
            case (
                r.PartitionRecord(topic_id=topic_id)
                | r.PartitionChangeRecord(topic_id=topic_id)
                | r.RemoveTopicRecord(topic_id=topic_id)
            ):
                return topic_id not in builder.topics.by_id
            case r.ClearElrRecord(topic_name=name):
                return name not in builder.topics.by_name
            case (
                r.RemoveAccessControlEntryRecord()
                | r.RemoveUserScramCredentialRecord()
                | r.EndTransactionRecord()
                | r.AbortTransactionRecord()
                | r.UnregisterControllerRecord()
            ):
                return True
        broker_id = broker_of(record)
        return broker_id is not None and broker_id not in builder.brokers

    def _record(self, changes: BatchChanges, offset: int, record: object) -> None:
        match record:
            case (
                r.PartitionChangeRecord(topic_id=topic_id, partition_id=index)
                | r.PartitionRecord(topic_id=topic_id, partition_id=index)
            ):
                before = self.partition((topic_id, index))
                if self._apply(changes, record, offset):
                    changes.partitions.append(self._step(offset, record, topic_id, index, before))
            case r.RemoveTopicRecord() | r.ClearElrRecord():
                self._of_topic(changes, offset, record)
            case r.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value):
                resource = ConfigResource(kind, name)
                old = (self.state.configs.get(resource) or {}).get(key)
                if self._compare(changes, record, offset):
                    changes.configs.append((offset, resource, key, old, value))
            case r.TopicRecord(name=name, topic_id=topic_id):
                if self._apply(changes, record, offset):
                    changes.created.append((offset, TopicInfo(topic_id, name)))
            case r.UnknownRecord() | control.UnknownControlRecord():
                return
            case _ if (broker_id := broker_of(record)) is not None:
                registered = self.brokers.get(broker_id)
                if self._compare(changes, record, offset):
                    after = self.brokers.get(broker_id)
                    changes.brokers.append(
                        BrokerStep(
                            offset=offset, record=record, broker_id=broker_id, before=registered, after=after
                        )
                    )
            case _ if not _is_control(record):
                self._compare(changes, record, offset)

    def _step(
        self, offset: int, record: object, topic_id: bytes, index: int, before: PartitionInfo | None
    ) -> PartitionStep:
        return PartitionStep(
            offset=offset,
            record=record,
            topic=self.topic_name(topic_id) or uuid_to_text(topic_id),
            index=index,
            before=before,
            after=self.partition((topic_id, index)),
        )

    def _apply(self, changes: BatchChanges, record: object, offset: int) -> bool:
        refused = len(self._refused)
        self._engine.apply(record, offset, changes.epoch, changes.time_ms)
        return len(self._refused) == refused

    def _compare(self, changes: BatchChanges, record: object, offset: int) -> bool:
        """Applies a record and notes what it found. Returns whether it changed that."""
        before = subject(record, self.state)
        applied = self._apply(changes, record, offset)
        if before is not NOT_JUDGED:
            changes.before[offset] = before
            is_registration = isinstance(record, r.ControllerRecord)  # always counts as a change
            if applied and not is_registration and subject(record, self.state) == before:
                changes.idle.add(offset)
        return applied

    def _of_topic(
        self, changes: BatchChanges, offset: int, record: r.RemoveTopicRecord | r.ClearElrRecord
    ) -> None:
        """A record about all partitions of a topic."""
        if isinstance(record, r.ClearElrRecord):
            had = with_elr(self._engine.builder.topics.freeze(), record.topic_name)
            if self._apply(changes, record, offset):
                changes.partitions += [self._step(offset, record, at.topic_id, at.index, at) for at in had]
            return
        topic_id = record.topic_id
        name = self.topic_name(topic_id)
        gone = self.partitions_of(topic_id)
        if not self._apply(changes, record, offset) or name is None:
            return
        self._names[topic_id] = name
        changes.removed.append((offset, TopicInfo(topic_id, name)))
        changes.partitions += [
            PartitionStep(offset=offset, record=record, topic=name, index=at.index, before=at, after=None)
            for at in gone
        ]

    def _is_active(self, broker_id: int) -> bool:
        known = self.brokers.get(broker_id)
        return known is not None and not known.fenced and not known.in_controlled_shutdown

    def _note_moves(self, moved_off: Mapping[int, int], first: int, time_ms: int) -> None:
        """Remembers which active brokers lost a leadership in a large batch, at which offset after `first`: a
        split fence begins like this."""
        for broker_id, number in moved_off.items():
            if self._is_active(broker_id):
                story = self.stories.setdefault(broker_id, BrokerStory())
                story.moved_off = (first + number, time_ms)


def _moved_off(changes: BatchChanges) -> dict[int, int]:
    """The brokers that lost a leadership for which they stayed out of the ISR or which no one got, with the
    offset of the last record that says so."""
    moved: dict[int, int] = {}
    for step in changes.partitions:
        before, after = step.before, step.after
        if before is None or after is None or before.leader == after.leader:
            continue
        if before.leader not in after.isr or after.leader == NO_LEADER:
            moved[before.leader] = step.offset
    return moved


def _is_control(record: object) -> bool:
    return isinstance(
        record,
        control.LeaderChangeMessage
        | control.SnapshotHeaderRecord
        | control.SnapshotFooterRecord
        | control.KRaftVersionRecord
        | control.VotersRecord,
    )
