"""Compares what a batch touched with its earlier state, and passes the changes on to the tables.

The order counts: brokers come before partitions, because rules of cause ask for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from metaquorum.metadata.features import METADATA_VERSION, MIN_METADATA_VERSION
from metaquorum.metadata.image import TOPIC_RESOURCE, BrokerRegistration, ImageBuilder
from metaquorum.metadata.image.chunk import LEADER_EPOCH, IntArray
from metaquorum.metadata.inspect.changes.change_steps import BrokerStep
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.replay import Replayer
from metaquorum.pipeline.intervals.moments import Moment
from metaquorum.pipeline.intervals.tables.incidents import ManyLosses, leads_nothing
from metaquorum.pipeline.intervals.tables.violations import (
    ActiveBrokers,
    Question,
    is_plainly_sound,
    topic_is_plainly_sound,
)
from metaquorum.pipeline.intervals.touched import ManyChanges, Touched, Turns, foresee, still_named
from metaquorum.pipeline.intervals.trackers import Trackers
from metaquorum.storage.batches.places import Places


class _ManyDifferences(NamedTuple):
    """Changes of topics with these names. `elected`: places of those that elected a leader for
    another reason than preference."""

    changes: ManyChanges
    names: list[str]
    losses: ManyLosses
    elected: Places


class BatchDifferences:
    """Compares the batches that `engine` replays, one after another."""

    def __init__(self, trackers: Trackers, engine: Replayer, level: int) -> None:
        """`level`: the metadata.version before the next record."""
        self._trackers, self._engine = trackers, engine
        self._coverage = trackers.coverage
        self._brokers, self._directories = trackers.brokers, trackers.directories
        self._topics, self._configs, self._partitions = trackers.topics, trackers.configs, trackers.partitions
        self._availability = trackers.availability
        self._violations = trackers.violations
        self.touched = Touched()
        """Entities that the batch, or the open transaction, is about."""
        self._question = Question()
        self._level = level
        self._active = ActiveBrokers()
        self._active.set(trackers.brokers.registrations)

    @property
    def _builder(self) -> ImageBuilder:
        return self._engine.builder

    def turns(self, given: Iterable[tuple[int, DecodedRecord]]) -> Turns:
        """The effects of records about brokers, each with the number of its batch."""
        return foresee(self._builder, self._active.active, given)

    def alone(self, changes: ManyChanges, turns: Turns) -> list[int]:
        """The numbers of batches that may break a rule, or change more than can be compared together:
        each is judged at its end."""
        batches = [*changes.twice.tolist(), *changes.batch_of[self._doubtful(changes, turns)].tolist()]
        if not turns.turns:
            return batches
        if self._violations.broken or self._availability.is_off:
            return [*batches, *(at.batch for at in turns.turns)]
        versions, section_of = changes.versions, turns.section_of(changes.batch_of)
        before, after = versions.chunk(changes.before), versions.chunk(changes.after)
        return [*batches, *still_named(self._builder.topics.columns.chunks, before, after, section_of, turns)]

    def _doubtful(self, changes: ManyChanges, turns: Turns) -> Places:
        """Changes that may break a rule, or of partitions with a violation."""
        doubtful = changes.may_be_unsound(turns)
        broken = self._violations.broken
        if broken:
            names = self._names(changes)
            pairs = zip(changes.topic_at.tolist(), changes.indexes, strict=True)
            doubtful |= np.array([f"topic/{names[at]}/{index}" in broken for at, index in pairs], dtype=bool)
        return np.flatnonzero(doubtful)

    def _names(self, changes: ManyChanges) -> list[str]:
        return [self._topics.name(topic_id) for topic_id in changes.topics]

    def compare(
        self, moment: Moment, epoch: int, changes: ManyChanges | None = None, numbers: Places | None = None
    ) -> None:
        """Compares what the batch of `epoch` at `moment` touched with what was known before. `changes`: those
        of the batch. `numbers`: those of their partitions."""
        touched = self.touched
        self._begin(moment, len(touched.partitions) if changes is None else len(changes))
        ran = frozenset[int]()
        if touched.brokers:
            ran = frozenset([at.broker_id for at in self._brokers.registrations.values() if at.is_active])
            replicas_in = self._partitions.replicas_in
            self._compare_brokers(touched.brokers, self._builder.brokers, moment, epoch, replicas_in)
            self._active.set(self._brokers.registrations)
        for topic_id, (offset, name) in touched.topics.items():
            if topic_id in self._builder.topics.by_id and topic_id not in self._topics.names:
                self._topics.created(topic_id, name, moment.at(offset))
            self._ask_about_topic(topic_id, name)
        if touched.configs:
            self._compare_configs(moment)
        if changes is not None and numbers is not None:
            turns = Turns(self._active.registered, self._active.active)
            many = self._compare_changes(changes, numbers, epoch, turns)
            self._ask_about_changes(changes, turns)
            self._pass_on(many, 0, len(changes))
        for name, offset in touched.cleared.items():
            self._touch_cleared(name, offset)
        if touched.partitions:
            self._compare_partitions(moment)
            self._directories.batch_ends(moment, epoch)
        for topic_id, offset in touched.removed.items():
            if topic_id in self._topics.names and topic_id not in self._builder.topics.by_id:
                self._remove_topic(topic_id, moment.at(offset))
        if self._coverage.is_known:
            self._trackers.nodes_changed(self._builder, touched, ran, moment)
        touched.clear()
        self._judge(moment)

    def _begin(self, moment: Moment, partitions: int, leads: Callable[[int], bool] | None = None) -> None:
        """The next batch for rules of cause: with the state after it, if `leads` is not given."""
        self._trackers.causes.is_known = self._coverage.is_known
        level = self._builder.finalized.get(METADATA_VERSION, MIN_METADATA_VERSION)
        leads = leads or self._builder.topics.is_led_by
        self._trackers.causes.begins(moment, level, leads, partitions=partitions)

    def _judge(self, moment: Moment) -> None:
        level = self._builder.finalized.get(METADATA_VERSION, 0)
        if level != self._level:
            self._level = level
            self._question.brokers = True
        if self._question:
            if self._coverage.is_known:
                self._violations.judge(self._question, self._engine.state().image, moment)
            self._question = Question()

    def compare_together(
        self, moments: Sequence[Moment], epoch: int, changes: ManyChanges, numbers: Places, turns: Turns
    ) -> None:
        """Compares batches at these moments that change partitions or are `turns`, none of which must be
        compared `alone`. Parts that count get all changes at once. The others get the changes before a turn,
        the turn, and the changes after it."""
        many, trackers, written_to = self._compare_changes(changes, numbers, epoch, turns), self._trackers, 0
        for turn in turns.turns:
            moment = moments[turn.batch]
            low, high = changes.number_at(turn.batch), changes.number_at(turn.batch + 1)
            self._write_plain(many, written_to, low)
            trackers.time_advances(moment)
            self._begin(moment, high - low, leads_nothing)
            ran = frozenset(who for who, one in self._brokers.registrations.items() if one.is_active)
            replicas_in = partial(self._replicas_before, changes, low)
            self._compare_brokers(turn.touched, turn.registered, moment, epoch, replicas_in)
            self._question = Question()  # common records need no checks
            self._pass_on(many, low, high)
            trackers.brokers_compared(self._builder, ran, moment)
            written_to = high
        self._write_plain(many, written_to, len(changes))
        if turns.turns:
            self._active.set(self._brokers.registrations)

    def _compare_brokers(
        self,
        touched: Mapping[int, tuple[int, Any]],
        registered: Mapping[int, BrokerRegistration],
        moment: Moment,
        epoch: int,
        replicas_in: Callable[[bytes], int],
    ) -> None:
        """`registered`: the brokers after the batch. `replicas_in`: counts partitions before it."""
        for broker_id, (offset, record) in touched.items():
            before = self._brokers.registrations.get(broker_id)
            now = registered.get(broker_id)
            there, by = moment.at(offset), record.type_name
            if before is None and now is None and not self._coverage.is_known:
                self._trackers.stranger(broker_id, record, there)
                continue
            self._question.broker(broker_id, before, now)
            step = BrokerStep(offset=offset, record=record, broker_id=broker_id, before=before, after=now)
            self._trackers.broker_changed(step, there)
            if now is not None and now.rack != self._brokers.racks.get(broker_id):
                self._availability.racks_changed(broker_id)
            if before is not None or self._coverage.is_known:
                self._directories.registered(broker_id, before, now, there, epoch, replicas_in)
            if self._brokers.changed(broker_id, now, there, by):
                in_order = before is not None and before.in_controlled_shutdown
                self._availability.fenced(broker_id, in_order=in_order)

    def _replicas_before(self, changes: ManyChanges, low: int, directory: bytes) -> int:
        """The number of partitions with a replica in a log directory, before change number `low`
        of those that were compared."""
        return self._partitions.replicas_in(directory) - changes.replicas_added_to(directory, low)

    def _compare_configs(self, moment: Moment) -> None:
        configs = self._builder.configs
        for resource, names in self.touched.configs.items():
            if resource.resource_type == TOPIC_RESOURCE:
                self._question.topic_settings(resource.name)
            places = {name: moment.at(offset) for name, offset in names.items()}
            if self._configs.changed(resource, places, configs.get(resource) or {}):
                is_topic = resource.resource_type == TOPIC_RESOURCE
                self._trackers.min_isr_changed(resource.name if is_topic else None)

    def _touch_cleared(self, name: str, offset: int) -> None:
        topic_id = self._builder.topics.by_name.get(name)
        known = self._partitions.of_topic(topic_id) if topic_id else [] if name else self._partitions.all()
        for info in known:
            if info.elr or info.last_known_elr:
                at = self.touched.partitions.get((info.topic_id, info.index), offset)
                self.touched.partitions[info.topic_id, info.index] = max(at, offset)

    def _compare_partitions(self, moment: Moment) -> None:
        broken, is_known = self._violations.broken, self._coverage.is_known
        changed, time_ms, actor = self._partitions.changed, moment.time_ms, moment.actor
        name, last_id, min_isr = "", b"", 0
        touched = self.touched.partitions
        after = self._builder.topics.partitions(touched)
        for (key, offset), now in zip(touched.items(), after, strict=True):
            if now is None:
                continue
            if key[0] != last_id:
                last_id, name = key[0], self._topics.name(key[0])
                min_isr = self._configs.min_isr(name)
            before = changed(name, now, offset, time_ms, actor)
            if before is now:
                continue
            if is_known:
                self._trackers.partition_changed(key, before, now, moment)
                sound = is_plainly_sound(now) and self._active.carry(now)
                if not sound or (broken and f"topic/{name}/{key[1]}" in broken):
                    self._question.partitions.add(key)
                self._availability.partition(key, before, now, min_isr)
            elif before is not None:
                self._availability.churn(before, now)
            if before is None:
                self._ask_about_topic(key[0], name)
                self._directories.partition(before, now, offset)
                continue
            if before.directories != now.directories:
                self._directories.partition(before, now, offset)
            if before.leader_epoch != now.leader_epoch and before.leader != now.leader:
                self._trackers.leader_changed(key, name, before, now, moment.at(offset))

    def _compare_directories(self, changes: ManyChanges, epoch: int) -> None:
        last: Moment | None = None
        for number in np.flatnonzero(changes.placed).tolist():
            moment = changes.moment(number)
            if last is not None and moment.offset != last.offset:
                self._directories.batch_ends(last, epoch)
            place = int(changes.offsets[number])
            self._directories.partition(changes.infos_before[number], changes.infos[number], place)
            last = moment
        if last is not None:
            self._directories.batch_ends(last, epoch)

    def _compare_changes(
        self, changes: ManyChanges, numbers: Places, epoch: int, turns: Turns
    ) -> _ManyDifferences:
        """As `_compare_partitions`, for a known state. `_pass_on` passes on the rest."""
        names, trackers = self._names(changes), self._trackers
        elected = changes.led & (changes.before[LEADER_EPOCH] != changes.after[LEADER_EPOCH])
        elected &= ~changes.preferred(turns)
        changes.make_infos(elected | changes.placed)
        self._partitions.changed_together(numbers, changes, names)
        trackers.placement.changed_together(changes)
        min_isr: IntArray = np.array([self._configs.min_isr(name) for name in names], dtype=np.int32)
        self._availability.changed_together(changes, min_isr[changes.topic_at])
        self._compare_directories(changes, epoch)
        return _ManyDifferences(changes, names, ManyLosses(changes), np.flatnonzero(elected))

    def _ask_about_changes(self, changes: ManyChanges, turns: Turns) -> None:
        names = self._names(changes)
        for number in self._doubtful(changes, turns).tolist():
            now, path = (
                changes.infos[number],
                f"topic/{names[changes.topic_at[number]]}/{changes.indexes[number]}",
            )
            sound = is_plainly_sound(now) and self._active.carry(now)
            if not sound or path in self._violations.broken:
                self._question.partitions.add(changes.key(number))

    def _write_plain(self, many: _ManyDifferences, low: int, high: int) -> None:
        """Does the same for batches without records about brokers, one after another."""
        if low == high:
            return
        changes = many.changes
        firsts = low + np.flatnonzero(np.diff(changes.batch_of[low:high], prepend=-1))
        for at, end in itertools.pairwise([*firsts.tolist(), high]):
            self._begin(changes.moment(at), end - at, leads_nothing)
            self._pass_on(many, at, end)

    def _pass_on(self, many: _ManyDifferences, low: int, high: int) -> None:
        """Passes on what the changes from `low` to below `high` mean for brokers,
        with the brokers after them."""
        if low == high:
            return
        changes, trackers = many.changes, self._trackers
        trackers.incidents.changed_together(many.losses, low, high)
        start, end = np.searchsorted(many.elected, (low, high)).tolist()
        for at in many.elected[start:end].tolist():
            place, name = changes.moment(at).at(int(changes.offsets[at])), many.names[changes.topic_at[at]]
            trackers.leader_changed(changes.key(at), name, changes.infos_before[at], changes.infos[at], place)

    def _ask_about_topic(self, topic_id: bytes, name: str) -> None:
        is_sound = topic_is_plainly_sound(self._builder.topics, topic_id)
        if not is_sound or f"topic/{name}" in self._violations.broken:
            self._question.topics.add(topic_id)
        if f"config/topic/{name}" in self._violations.broken:
            self._question.topic_settings(name)

    def _remove_topic(self, topic_id: bytes, moment: Moment) -> None:
        name = self._topics.name(topic_id)
        gone = self._partitions.topic_removed(topic_id, name, moment)
        for info in gone:
            self._trackers.partition_removed(info, moment)
        self._topics.removed(topic_id, len(gone), moment)
        if self._violations.broken:
            self._question.gone |= {f"topic/{name}", *(f"topic/{name}/{info.index}" for info in gone)}
        self._question.topic_settings(name)
        if name not in self._builder.topics.by_name:
            self._configs.topic_removed(name, moment)
