"""The table `failovers`: leaders that were replaced because they could no longer lead.

Owns whether a change of leader is a failover, and its cause. The controller may move leaders in batches
before the one that fences the broker, so the cause may follow a little later than the change. Does not sum
durations (`availability`) or group partitions by cause (`incidents`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from metaquorum.metadata.image import LOST, RECOVERING, BrokerRegistration, PartitionInfo
from metaquorum.pipeline.intervals.moments import DAY_MS, Moment, Row
from metaquorum.pipeline.intervals.tables.availability import Availability, PartitionKey
from metaquorum.storage.uuids import is_reserved_directory, uuid_to_text

CAUSE_WINDOW_MS = 10_000
"""How long after a leader's end its broker's fencing still counts as the cause."""
UNKNOWN = "unknown"


class _Failover(msgspec.Struct, array_like=True):
    topic: str
    topic_id: bytes
    partition: int
    old_leader: int
    old_rack: str | None
    cause: str
    from_offset: int
    from_ms: int | None
    began_ms: int
    actor: str | None
    new_leader: int | None = None
    unclean: bool = False
    duration_ms: int | None = None
    to_offset: int | None = None
    to_ms: int | None = None
    waits: bool = False
    """Whether its cause may still follow."""


class Failovers:
    """Rows of `failovers`."""

    def __init__(self, availability: Availability) -> None:
        self._availability = availability
        self._open: dict[PartitionKey, _Failover] = {}
        self._unexplained: list[_Failover] = []
        """Failovers without a cause so far, ended or not, oldest first."""
        self._closed: list[Row] = []

    def leader_changed(
        self,
        key: PartitionKey,
        topic: str,
        before: PartitionInfo,
        now: PartitionInfo,
        moment: Moment,
        registrations: Mapping[int, BrokerRegistration],
        rack: str | None,
        *,
        all_known: bool = True,
    ) -> None:
        """Another broker leads, or none. `registrations`: the brokers after the batch. `all_known`:
        False if there may be others."""
        unclean = is_unclean(before, now)
        going_on = self._open.pop(key, None)
        if going_on is not None:
            self._end(going_on, now.leader, unclean, moment)
            return
        broker = registrations.get(before.leader)
        cause = UNKNOWN if broker is None and not all_known else _cause(before, now, broker)
        if before.leader < 0 or cause is None:
            return
        place = (moment.offset, moment.time_ms, moment.now_ms, moment.actor)
        failover = _Failover(topic, key[0], key[1], before.leader, rack, cause, *place)
        self._availability.failover_began(before.leader, moment.now_ms // DAY_MS)
        if cause == UNKNOWN:
            failover.waits = True
            self._unexplained.append(failover)
        if now.leader < 0:
            self._open[key] = failover
        else:
            self._end(failover, now.leader, unclean, moment)

    def _end(self, failover: _Failover, leader: int | None, unclean: bool, moment: Moment) -> None:
        failover.new_leader, failover.unclean = leader, unclean
        failover.to_offset, failover.to_ms = moment.offset, moment.time_ms
        failover.duration_ms = moment.now_ms - failover.began_ms
        day = failover.began_ms // DAY_MS
        self._availability.failover_ended(failover.old_leader, day, failover.duration_ms)
        if not failover.waits:
            self._closed.append(_row(failover))

    def removed(self, key: PartitionKey, moment: Moment) -> None:
        """The partition's topic was deleted."""
        going_on = self._open.pop(key, None)
        if going_on is not None:
            self._end(going_on, None, False, moment)

    def lose(self, moment: Moment) -> None:
        """Ends all failovers at `moment`, with an unknown end: the records after it are missing."""
        for failover in self._unexplained:
            failover.waits = False
            if failover.duration_ms is not None:
                self._closed.append(_row(failover))
        for failover in self._open.values():
            failover.to_offset, failover.to_ms = moment.offset, moment.time_ms
            self._closed.append(_row(failover, to_known=False))
            self._availability.failover_lost(failover.old_leader, failover.began_ms // DAY_MS)
        self._open, self._unexplained = {}, []

    def broker_went(self, broker_id: int, cause: str) -> None:
        """The broker is fenced, shutting down, unregistered or lost a directory: the cause of
        its unexplained failovers."""
        rest = []
        for failover in self._unexplained:
            if failover.old_leader != broker_id:
                rest.append(failover)
                continue
            failover.cause, failover.waits = cause, False
            if failover.duration_ms is not None:
                self._closed.append(_row(failover))
        self._unexplained = rest

    def forget_late(self, now_ms: int) -> None:
        """Gives up on causes that did not follow in time."""
        while self._unexplained and now_ms - self._unexplained[0].began_ms > CAUSE_WINDOW_MS:
            failover = self._unexplained.pop(0)
            failover.waits = False
            if failover.duration_ms is not None:
                self._closed.append(_row(failover))

    def failing(self) -> list[tuple[int, int]]:
        """(old leader, day of the start) of open failovers."""
        return [(at.old_leader, at.began_ms // DAY_MS) for at in self._open.values()]

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self) -> list[Row]:
        ended = [at for at in self._unexplained if at.duration_ms is not None]
        return [_row(at) for at in [*self._open.values(), *ended]]

    def save(self) -> Any:
        unexplained = [[at, at.duration_ms is None] for at in self._unexplained]
        return [list(self._open.values()), unexplained]

    def load(self, saved: Any) -> None:
        opened = [msgspec.convert(at, _Failover, strict=False) for at in saved[0]]
        self._open = {(at.topic_id, at.partition): at for at in opened}
        self._unexplained = []
        for at, is_open in saved[1]:
            failover = msgspec.convert(at, _Failover, strict=False)
            if is_open:  # the same object in both, so that both see its end
                failover = self._open[failover.topic_id, failover.partition]
            self._unexplained.append(failover)


def is_unclean(before: PartitionInfo, now: PartitionInfo) -> bool:
    """Whether `now` has a newly elected leader that may lack records (KIP-106, KIP-966).

    A new replica may join the ISR and lead in the record that completes a reassignment: that is clean.
    """
    if now.leader < 0 or now.leader_epoch == before.leader_epoch:
        return False
    if now.leader in before.isr or now.leader in before.elr:
        return False
    if now.leader_recovery_state == RECOVERING:
        return True
    return now.isr == (now.leader,) and now.leader in before.replicas and now.leader not in before.adding


def _cause(before: PartitionInfo, now: PartitionInfo, broker: BrokerRegistration | None) -> str | None:
    """Why the old leader stopped leading; None if it could have continued: a preferred
    election, a reassignment."""
    if broker is None:
        return "unregistered"
    if broker.fenced:
        return "fenced"
    if broker.in_controlled_shutdown:
        return "controlled_shutdown"
    if now.leader >= 0 and (broker.broker_id in now.isr or broker.broker_id not in now.replicas):
        return None
    directory = now.directory_of(broker.broker_id) or before.directory_of(broker.broker_id)
    if directory is not None and broker.directories:
        offline = not is_reserved_directory(directory) and directory not in broker.directories
        if offline or directory == LOST:
            return "directory_lost"
    return UNKNOWN


def _row(at: _Failover, *, to_known: bool = True) -> Row:
    return (
        *(at.topic, uuid_to_text(at.topic_id), at.partition, at.old_leader, at.old_rack, at.new_leader),
        *(at.cause, at.unclean, at.duration_ms, at.from_offset, at.from_ms, at.to_offset, at.to_ms, True),
        *(to_known, at.actor),
    )
