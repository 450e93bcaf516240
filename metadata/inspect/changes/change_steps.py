"""What records did to partitions and brokers, as values: each one before and after, and a batch as a
whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image.types import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    BrokerRegistration,
    ConfigResource,
    PartitionInfo,
    TopicInfo,
)
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause

PartitionKey = tuple[bytes, int]
"""(topic id, partition index)."""

Place = tuple[int, int]
"""(offset, Unix ms)."""

NOOP_LEVEL = 5
"""metadata.version 3.3-IV1: from this level on an idle leader writes NoOpRecords (KIP-835)."""


class PartitionStep(msgspec.Struct, frozen=True, kw_only=True):
    """One record about one partition. `before` is None for a new partition, `after` for a deleted one."""

    offset: int
    record: object
    topic: str
    index: int
    before: PartitionInfo | None
    after: PartitionInfo | None

    @property
    def name(self) -> str:
        """`orders-7`, as Kafka's tools write it."""
        return f"{self.topic}-{self.index}"

    @property
    def key(self) -> PartitionKey:
        info = self.after or self.before
        if info is None:
            raise RuntimeError("a step without a partition before and after")
        return info.topic_id, self.index


class BrokerStep(msgspec.Struct, frozen=True, kw_only=True):
    """One record about one broker. `before` is None for an unknown one, `after` for an unregistered one."""

    offset: int
    record: object
    broker_id: int
    before: BrokerRegistration | None
    after: BrokerRegistration | None

    @property
    def was_fenced(self) -> bool:
        """True if this record fenced or unregistered an unfenced broker."""
        return (
            self.before is not None and not self.before.fenced and (self.after is None or self.after.fenced)
        )

    @property
    def was_unfenced(self) -> bool:
        return (
            self.after is not None and not self.after.fenced and (self.before is None or self.before.fenced)
        )

    @property
    def began_shutdown(self) -> bool:
        """True if with this record the broker enters controlled shutdown."""
        return (
            self.after is not None
            and self.after.in_controlled_shutdown
            and not (self.before is not None and self.before.in_controlled_shutdown)
        )

    @property
    def is_registration(self) -> bool:
        return isinstance(self.record, r.BrokerRecord)

    @property
    def lost_directories(self) -> frozenset[bytes]:
        """Log directories that this record takes offline."""
        if self.before is None or self.after is None or self.is_registration:
            return frozenset()
        return frozenset(self.before.directories) - frozenset(self.after.directories)


@dataclass(slots=True, kw_only=True)
class BrokerStory:
    """Offsets and times (Unix ms) of what the log last said about a broker; None if it said nothing.

    `alive`: of a record that its registration or heartbeat caused; `lived`: the same, of the batch before
    that one. `moved_off`: of a leadership that it lost
    in a batch of SLICE_MIN partitions without a known reason."""

    registered: Place | None = None
    unfenced: Place | None = None
    fenced: Place | None = None
    shutdown: Place | None = None
    unregistered: Place | None = None
    directory_lost: Place | None = None
    alive: Place | None = None
    lived: Place | None = None
    moved_off: Place | None = None

    def take_alone(self, record: object, seen_at: Place) -> None:
        """Notes what one record says about the broker if the state before it is unknown."""
        match record:
            case r.BrokerRecord():
                self.registered, self.shutdown, self.directory_lost = seen_at, None, None
                self._is_alive(seen_at)
            case r.UnregisterBrokerRecord():
                self.unregistered = seen_at
            case r.FenceBrokerRecord():
                self.fenced = seen_at
            case r.UnfenceBrokerRecord():
                self.unfenced = seen_at
                self._is_alive(seen_at)
            case r.BrokerRegistrationChangeRecord():
                if record.fenced == r.FENCED:
                    self.fenced = seen_at
                elif record.fenced:
                    self.unfenced = seen_at
                    self._is_alive(seen_at)
                if record.in_controlled_shutdown:
                    self.shutdown = seen_at
                    self._is_alive(seen_at)

    def alive_before(self, offset: int) -> Place | None:
        """Its last sign of life before the record at `offset` of the last batch."""
        return self.lived if self.alive is not None and self.alive[0] > offset else self.alive

    def _is_alive(self, seen_at: Place) -> None:
        if self.alive is None or self.alive[1] != seen_at[1]:  # once for each batch
            self.lived = self.alive
        self.alive = seen_at

    def take(self, step: BrokerStep, time_ms: int) -> None:
        """Notes what one record says about the broker."""
        seen_at = (step.offset, time_ms)
        if step.is_registration:
            self.registered, self.shutdown, self.directory_lost = seen_at, None, None
        if step.was_fenced:
            self.fenced = seen_at
        if step.was_unfenced:
            self.unfenced = seen_at
        if step.began_shutdown:
            self.shutdown = seen_at
        if step.lost_directories:
            self.directory_lost = seen_at
        if step.after is None:
            self.unregistered = seen_at
        elif step.is_registration or step.was_unfenced or step.began_shutdown or step.lost_directories:
            self._is_alive(seen_at)


@dataclass(slots=True, kw_only=True)
class BatchChanges:
    """What one batch did.

    `records` is everything in it, in order; `refused` are records that do not fit the state. `before` maps
    offsets of settings to their previous values; `idle` are offsets of records that changed nothing.
    `unplaced` are records about something from before a trimmed log began, while its state is unknown (see
    `unknown_state`). `made` are (offset of the first, topic, count) of new partitions that are not in
    `partitions`: each has a leader and its minimum ISR. `asked` is what caused the batch, according to the
    batch."""

    base_offset: int
    epoch: int
    time_ms: int
    records: list[tuple[int, object]] = field(default_factory=list)
    partitions: list[PartitionStep] = field(default_factory=list)
    brokers: list[BrokerStep] = field(default_factory=list)
    created: list[tuple[int, TopicInfo]] = field(default_factory=list)
    removed: list[tuple[int, TopicInfo]] = field(default_factory=list)
    made: list[tuple[int, str, int]] = field(default_factory=list)
    configs: list[tuple[int, ConfigResource, str, str | None, str | None]] = field(default_factory=list)
    refused: list[ReplayError] = field(default_factory=list)
    unplaced: list[tuple[int, object]] = field(default_factory=list)
    before: dict[int, object] = field(default_factory=dict)
    idle: set[int] = field(default_factory=set)
    asked: BatchCause | None = None
    is_slice: bool = False
    """Whether it changes so many partitions that it may be part of a split fence."""
    leaders_before: frozenset[int] | None = None
    """The leaders before the batch of the partitions that it changes, if not all of them are in
    `partitions`."""
    leads_after: Callable[[int], bool] | None = None
    """Whether a broker leads a partition right after the batch, if the state is already that after later
    batches."""

    def changes_led_by(self, broker_id: int) -> bool:
        """Whether the batch changes a partition that the broker led before."""
        if self.leaders_before is not None:
            return broker_id in self.leaders_before
        return any(step.before is not None and step.before.leader == broker_id for step in self.partitions)

    def steps_of(self, broker_id: int) -> list[BrokerStep]:
        return [step for step in self.brokers if step.broker_id == broker_id]


# What a change of one partition was, by Kafka's own rules: an unclean election, a step of a reassignment.
#
# The one place that decides it, for the terminal's tools and for the pipeline's tables.


def was_unclean(before: PartitionInfo, after: PartitionInfo) -> bool:
    """Whether the new leader was not a candidate: neither in the ISR before the change nor eligible (KIP-106,
    KIP-704, KIP-966). An election of the last known leader is one.

    An unclean election leaves the leader alone in the ISR. From metadata.version 3.2-IV0 on it also marks the
    partition as recovering, even if the leader was in the ISR (with a directory that is gone). A record that
    completes a reassignment may elect a replica that joins the ISR with it: that one has caught up.
    """
    if after.leader in (NO_LEADER, before.leader):
        return False
    if (before.leader_recovery_state, after.leader_recovery_state) == (RECOVERED, RECOVERING):
        return True
    if after.leader in before.isr or after.leader in before.elr:
        return False
    caught_up = after.leader in before.adding and reassignment(before, after) == "reassignment-completed"
    return after.isr == (after.leader,) and not (caught_up and after.leader_recovery_state == RECOVERED)


def is_last_known(before: PartitionInfo, leader: int) -> bool:
    """Whether a controller with eligible leaders elects this one regardless of the setting."""
    return not before.isr and not before.elr and before.last_known_elr == (leader,)


def reassignment(before: PartitionInfo, after: PartitionInfo) -> str | None:
    """The rule of a reassignment (KIP-455) that a change matches; None if there is none."""
    moving, was_moving = bool(after.adding or after.removing), bool(before.adding or before.removing)
    same = (before.adding, before.removing) == (after.adding, after.removing)
    match was_moving, moving:
        case False, True:
            return "reassignment-started"
        case True, True:
            return None if same else "reassignment-changed"
        case True, False:
            if set(after.replicas) == set(before.replicas) - set(before.removing):
                return "reassignment-completed"
            back = set(after.replicas) == set(before.replicas) - set(before.adding)
            return "reassignment-cancelled" if back else "reassignment-changed"
    return None if before.replicas == after.replicas else "replicas-changed"
