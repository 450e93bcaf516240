"""All parts that follow one cluster's log and make rows, and the events that concern several of them.

The parts, and the common events: a snapshot gives the state, records break off, rows are requested,
everything is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from metaquorum.metadata.image import ImageBuilder, MetadataImage, PartitionInfo
from metaquorum.metadata.inspect.changes.change_steps import BrokerStep, was_unclean
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.pipeline.intervals.moments import BatchClock, Moment, Row, Silence
from metaquorum.pipeline.intervals.state import StateError
from metaquorum.pipeline.intervals.tables.availability import Availability, Failovers
from metaquorum.pipeline.intervals.tables.brokers import (
    FENCED,
    BrokerIds,
    BrokerSessions,
    BrokerShares,
    DirectoryEvents,
    Upgrades,
)
from metaquorum.pipeline.intervals.tables.incidents import CauseFeed, Incidents
from metaquorum.pipeline.intervals.tables.partitions import PartitionStates
from metaquorum.pipeline.intervals.tables.quorum import CoverageRows, QuorumEpochs, VoterPeriods
from metaquorum.pipeline.intervals.tables.settings import AuditTrail, Configs, Topics
from metaquorum.pipeline.intervals.tables.violations import Violations
from metaquorum.pipeline.intervals.touched import Touched
from metaquorum.storage.uuids import uuid_to_text

RowsByTable = dict[str, list[Row]]
Taken = dict[str, Sequence[Row]]
"""Rows by table; those of a table may be another sequence than a list: `StateRows`."""


class Trackers:
    """The parts."""

    def __init__(self) -> None:
        self.clock = BatchClock()
        self.coverage = CoverageRows()
        self.quorum = QuorumEpochs()
        self.voters = VoterPeriods()
        self.brokers = BrokerSessions()
        self.directories = DirectoryEvents()
        self.topics = Topics()
        self.audit_trail = AuditTrail(self.topics.name)
        self.configs = Configs()
        self.partitions = PartitionStates()
        self.availability = Availability(self.brokers.racks)
        self.causes = CauseFeed(self.configs, self.brokers)
        self.failovers = Failovers(self.availability, self.causes)
        self.violations = Violations()
        self.incidents = Incidents(self.causes)
        self.upgrades = Upgrades()
        self.placement = BrokerShares()
        self.ids = BrokerIds()
        self.silence = Silence()

    def time_passes(self, last: Moment, moment: Moment, *, idle: bool) -> None:
        """The next batch is at `moment`, one NoOpRecord if `idle`. `last`: the batch before."""
        silent = self.silence.ends(moment.now_ms, idle=idle)
        if silent:
            self.failovers.lose(moment._replace(time_ms=self.coverage.last_ms))
            self.coverage.unobserved(moment)
            self.incidents.silent(last, moment)
            self.incidents.unobserved(moment.now_ms - last.now_ms)
        self.failovers.forget_late(moment.now_ms)
        if self.coverage.is_known:
            self.placement.passes(moment, self.brokers.registrations)
        if not self.coverage.is_known:
            self.availability.pass_over(moment.now_ms)
        elif silent:
            self.availability.unobserved(moment.now_ms)
        else:
            self.availability.advance(moment.now_ms)

    def broker_changed(self, step: BrokerStep, moment: Moment) -> None:
        """A batch changed a broker. Its session is still that before the batch."""
        self.causes.broker(step)
        self.failovers.broker_changed(step)
        if not self.coverage.is_known:
            return
        self.incidents.broker(step, moment)
        broker_id, before, now = step.broker_id, step.before, step.after
        self.upgrades.node(broker_id, now, moment)
        if now is None:
            self.ids.gone(broker_id, moment)
        elif before is None or before.epoch != now.epoch:
            self.ids.registered(now, moment)

    def partition_changed(
        self, key: tuple[bytes, int], before: PartitionInfo | None, now: PartitionInfo, moment: Moment
    ) -> None:
        """A partition appeared or changed, while the state is known."""
        self.placement.partition(before, now)
        if before is not None:
            self.incidents.partition(key, before, now, moment)

    def time_advances(self, moment: Moment) -> None:
        """Time advances to `moment` without a silence before it, while the state is known."""
        self.failovers.forget_late(moment.now_ms)
        self.placement.passes(moment, self.brokers.registrations)
        self.availability.advance(moment.now_ms)

    def partition_removed(self, info: PartitionInfo, moment: Moment) -> None:
        """A partition's topic was deleted."""
        key = (info.topic_id, info.index)
        self.failovers.removed(key, moment)
        self.availability.removed(key)
        self.incidents.removed(key, moment.now_ms)
        if self.coverage.is_known:
            self.placement.partition(info, None)

    def nodes_changed(
        self, builder: ImageBuilder, touched: Touched, ran: frozenset[int], moment: Moment
    ) -> None:
        """A batch changed brokers as a whole or levels, while the state is known. `ran`: the
        brokers that were active before."""
        if touched.brokers:
            self.brokers_compared(builder, ran, moment)
        for node_id, offset in touched.controllers.items():
            self.upgrades.controller(node_id, builder.controllers.get(node_id), moment.at(offset))
        for name, offset in touched.features.items():
            self.upgrades.feature(name, builder.finalized.get(name), moment.at(offset))

    def brokers_compared(self, builder: ImageBuilder, ran: frozenset[int], moment: Moment) -> None:
        """All changes of a batch to brokers and partitions were passed on."""
        self._brokers_changed(ran, moment)
        self.incidents.batch_ends()

    def elected(
        self, record: LeaderChangeMessage, epoch: int, last: Moment, moment: Moment, metadata_version: int
    ) -> None:
        """The quorum elected a leader. `last`: the batch before."""
        if self.coverage.is_known:
            self.incidents.elected(record, epoch, moment, last, metadata_version)

    def _brokers_changed(self, ran: frozenset[int], moment: Moment) -> None:
        """Updates whether any broker runs, and whether the last one shut down cleanly."""
        registered = self.brokers.registrations
        if any(at.is_active for at in registered.values()):
            self.availability.switched_on()
            self.incidents.returns(moment.now_ms)
            self.coverage.returns(moment)
        elif ran and any(at.in_controlled_shutdown for at in registered.values() if at.broker_id in ran):
            self._go_off(moment)
            self.failovers.lose(moment)

    def _go_off(self, moment: Moment) -> None:
        self.availability.switched_off()
        self.incidents.goes_off(moment.now_ms)
        self.coverage.goes_off(moment)

    def stranger(self, broker_id: int, record: Any, moment: Moment) -> None:
        """A record is about a broker whose registration is in no log."""
        state = self.brokers.heard(broker_id, record, moment, record.type_name)
        if state == FENCED:
            self.availability.fenced(broker_id)

    def min_isr_changed(self, topic: str | None) -> None:
        """min.insync.replicas changed, for a topic or for all topics without their own value."""
        if not self.coverage.is_known:
            return
        for topic_id in self.partitions.topics():
            name = self.topics.name(topic_id)
            for info in self.partitions.of_topic(topic_id) if topic in (None, name) else ():
                self.availability.judge((topic_id, info.index), info, self.configs.min_isr(name))

    def leader_changed(
        self, key: tuple[bytes, int], name: str, before: PartitionInfo, now: PartitionInfo, moment: Moment
    ) -> None:
        """Another broker leads the partition, or none."""
        rack = self.brokers.racks.get(before.leader)
        self.failovers.leader_changed(key, name, before, now, moment, rack)
        if was_unclean(before, now):
            self.availability.unclean_election(now.leader)

    def learn(self, image: MetadataImage, quorum: QuorumView, moment: Moment) -> None:
        """Sets the state at `moment`, which was unknown, from a snapshot."""
        self.coverage.learn(moment)
        self.quorum.learn(image.provenance.epoch, quorum, moment)
        self.voters.learn(quorum, moment)
        brokers = dict(image.brokers.items())
        self.brokers.learn(brokers, moment)
        self.incidents.learn(brokers, moment)
        self.ids.learn(brokers, moment)
        self.upgrades.learn(image.features.finalized, [*brokers.items(), *image.controllers.items()], moment)
        infos = [info for topic in image.topics.all() for info in image.topics.partitions_of(topic.topic_id)]
        names = {topic.topic_id: topic.name for topic in image.topics.all()}
        self.configs.learn(image.configs.items_sorted(), moment)
        name = self._names()
        self.topics.learn(names, moment, self._partitions_of)
        self.partitions.learn(infos, moment, name)
        self.placement.learn(infos, moment)
        self.availability.pass_over(moment.now_ms)
        for info in infos:
            min_isr = self.configs.min_isr(names[info.topic_id])
            self.availability.partition((info.topic_id, info.index), None, info, min_isr)
        left = [at for _, at in image.brokers.items() if at.in_controlled_shutdown]
        if left and not any(at.is_active for _, at in image.brokers.items()):
            self._go_off(moment)
        self.violations.learn(image, moment)

    def lose(self, moment: Moment) -> None:
        """The records break off at `moment`: the ends of open states are unknown."""
        self.coverage.breaks_off(moment)
        self.quorum.lose(moment)
        self.voters.lose(moment)
        self.placement.lose(self.brokers.registrations)
        self.brokers.lose(moment)
        self.incidents.lose(moment)
        self.causes.lose()
        self.upgrades.lose(moment)
        self.ids.lose(moment)
        self.directories.lose()
        self.configs.lose(moment)
        self.failovers.lose(moment)
        name = self._names()
        self.topics.lose(moment, self._partitions_of)
        self.partitions.lose(moment, name)
        self.availability.pass_over(moment.now_ms)
        self.violations.lose(moment)
        self.silence.lose()

    def _names(self) -> Callable[[bytes], str]:
        """The current names of topics."""
        known = dict(self.topics.names)
        return lambda topic_id: known.get(topic_id) or uuid_to_text(topic_id)

    def _partitions_of(self, topic_id: bytes) -> int:
        return self.partitions.count_of(topic_id)

    def take(self) -> Taken:
        """Rows that ended since the last call."""
        return {
            "coverage": self.coverage.take(),
            "quorum_epochs": self.quorum.take(),
            "voter_sets": self.voters.take(),
            "broker_sessions": self.brokers.take(),
            "partition_states": self.partitions.take(),
            "topics": self.topics.take(),
            "configs": self.configs.take(),
            "log_dir_events": self.directories.take(),
            "failovers": self.failovers.take(),
            "violations": self.violations.take(),
            "incidents": self.incidents.take(),
            "upgrades": self.upgrades.take(),
            "placement": self.placement.take(),
            "ids": self.ids.take(),
            "audit_trail": self.audit_trail.take(),
        }

    def open_rows(self, end_offset: int) -> RowsByTable:
        """Rows of what is open at the log's end."""
        return {
            "coverage": self.coverage.open_rows(end_offset),
            "quorum_epochs": self.quorum.open_rows(),
            "voter_sets": self.voters.open_rows(),
            "broker_sessions": self.brokers.open_rows(),
            "partition_states": self.partitions.open_rows(self.topics.name),
            "topics": self.topics.open_rows(self._partitions_of),
            "configs": self.configs.open_rows(),
            "failovers": self.failovers.open_rows(),
            "violations": self.violations.open_rows(),
            "incidents": self.incidents.open_rows(self.clock.now_ms),
            "upgrades": self.upgrades.open_rows(),
            "placement": self.placement.open_rows(self.brokers.registrations),
            "ids": self.ids.open_rows(),
        }

    def save(self, timestamp_ms: int) -> dict[str, Any]:
        return {
            "clock": self.clock,
            "timestamp_ms": timestamp_ms,
            "coverage": self.coverage.save(),
            "quorum": self.quorum.save(),
            "voters": self.voters.save(),
            "brokers": self.brokers.save(),
            "topics": self.topics.save(),
            "configs": self.configs.save(),
            "partitions": self.partitions.save(),
            "availability": self.availability.save(),
            "failovers": self.failovers.save(),
            "violations": self.violations.save(),
            "incidents": self.incidents.save(),
            "upgrades": self.upgrades.save(),
            "placement": self.placement.save(),
            "ids": self.ids.save(),
            "silence": self.silence.save(),
        }

    def load(self, saved: dict[str, Any], image: MetadataImage) -> int:
        """Loads what was saved beside `image`. Returns the timestamp of the record
        before. Raises StateError."""
        try:
            self.clock = msgspec.convert(saved["clock"], BatchClock)
            self.coverage.load(saved["coverage"])
            self.quorum.load(saved["quorum"])
            self.voters.load(saved["voters"])
            self.brokers.load(saved["brokers"], dict(image.brokers.items()))
            self.topics.load(saved["topics"])
            self.configs.load(saved["configs"])
            self.partitions.load(saved["partitions"], image.topics.partition)
            self.availability.load(saved["availability"])
            self.failovers.load(saved["failovers"])
            self.violations.load(saved["violations"])
            self.incidents.load(saved["incidents"])
            self.upgrades.load(saved["upgrades"])
            self.placement.load(saved["placement"], self.partitions.all())
            self.ids.load(saved["ids"])
            self.silence.load(saved["silence"])
            return int(saved["timestamp_ms"])
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise StateError(f"the saved state is incomplete: {error!r}") from error
