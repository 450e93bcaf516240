"""The log as rules of cause see it while tables are made: the present batch, and what the log last said of
brokers.

The rules are those of `metaquorum log why`. Steps of brokers come before those of partitions, as rules ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaquorum.metadata.image import BrokerRegistration
from metaquorum.metadata.inspect.causes.rule import Scene
from metaquorum.metadata.inspect.changes.change_steps import (
    BatchChanges,
    BrokerStep,
    BrokerStory,
    PartitionStep,
)
from metaquorum.metadata.inspect.walk.batch_filter import SLICE_MIN
from metaquorum.pipeline.intervals.moments import Moment
from metaquorum.pipeline.intervals.tables.brokers import BrokerSessions
from metaquorum.pipeline.intervals.tables.settings import Configs


def leads_nothing(broker_id: int) -> bool:
    """For batches after which no broker that stopped leads a partition."""
    return False


class CauseFeed:
    """What `causes.rule.LogSoFar` asks for, batch by batch."""

    def __init__(self, configs: Configs, sessions: BrokerSessions) -> None:
        self.stories: dict[int, BrokerStory] = {}
        self.metadata_version = 0
        self.is_known = True
        self.is_slice = False
        """Whether the batch has so many partitions that it may be part of a split fence."""
        self._configs, self._sessions = configs, sessions
        self._leads: Callable[[int], bool] = leads_nothing
        self.scene = Scene(batch=BatchChanges(base_offset=-1, epoch=-1, time_ms=-1), feed=self)

    def begins(
        self, moment: Moment, metadata_version: int, leads: Callable[[int], bool], *, partitions: int
    ) -> None:
        """The next batch is at `moment`. `leads`: whether a broker leads a partition after it."""
        batch = BatchChanges(base_offset=moment.offset, epoch=-1, time_ms=moment.now_ms, asked=moment.cause)
        self.scene = Scene(batch=batch, feed=self)
        self.metadata_version, self._leads = metadata_version, leads
        self.is_slice = partitions >= SLICE_MIN

    def broker(self, step: BrokerStep) -> None:
        """The batch changed a broker."""
        self.scene.batch.brokers.append(step)
        self.stories.setdefault(step.broker_id, BrokerStory()).take(step, self.scene.batch.time_ms)

    def partition(self, step: PartitionStep) -> None:
        """The batch, which changed brokers, changed a partition."""
        self.scene.batch.partitions.append(step)

    def moved_off(self, broker_id: int) -> None:
        """The batch took a leadership from an active broker, without a reason so far."""
        known = self.brokers.get(broker_id)
        if self.is_slice and known is not None and known.is_active:
            batch = self.scene.batch
            story = self.stories.setdefault(broker_id, BrokerStory())
            story.moved_off = (batch.base_offset, batch.time_ms)

    def lose(self) -> None:
        """The next records are missing."""
        self.stories = {}
        self.scene = Scene(batch=BatchChanges(base_offset=-1, epoch=-1, time_ms=-1), feed=self)

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registered brokers."""
        return self._sessions.registrations

    def topic_config(self, topic: str, key: str) -> str | None:
        """A topic's setting according to the log: its own, otherwise the brokers' default, otherwise None."""
        return self._configs.setting(topic, key)

    def leads(self, broker_id: int) -> bool:
        """Whether a broker leads a partition after the batch."""
        return self._leads(broker_id)

    def ask_before(self, from_ms: int | None = None) -> None:
        """Does nothing: there are no earlier records to read."""
