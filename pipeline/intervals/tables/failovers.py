"""The table `failovers`: leaders that were replaced because they could no longer lead.

The rules of `metaquorum log why` decide whether a change of leader is a failover, and its cause. The
controller may move leaders in batches before the one that fences the broker, so the cause may follow a
little later.
"""

from __future__ import annotations

from typing import Any

import msgspec

from metaquorum.metadata.image import PartitionInfo
from metaquorum.metadata.inspect.causes.losses import unexplained
from metaquorum.metadata.inspect.causes.rule import SPLIT_MS
from metaquorum.metadata.inspect.causes.split_fences import late_rule
from metaquorum.metadata.inspect.causes.table import MAY_BE_FENCE, loss_cause
from metaquorum.metadata.inspect.changes.change_steps import BrokerStep
from metaquorum.metadata.inspect.changes.leaderships import was_unclean
from metaquorum.pipeline.intervals.moments import DAY_MS, Moment, Row
from metaquorum.pipeline.intervals.tables.availability import Availability, PartitionKey
from metaquorum.pipeline.intervals.tables.cause_feed import CauseFeed
from metaquorum.storage.uuids import uuid_to_text


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

    def __init__(self, availability: Availability, feed: CauseFeed) -> None:
        self._availability, self._feed = availability, feed
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
        rack: str | None,
    ) -> None:
        """Another broker leads, or none."""
        unclean = was_unclean(before, now)
        going_on = self._open.pop(key, None)
        if going_on is not None:
            self._end(going_on, now.leader, unclean, moment)
            return
        cause = None if before.leader < 0 else self._cause(topic, before, now)
        if cause is None:
            return
        place = (moment.offset, moment.time_ms, moment.now_ms, moment.actor)
        failover = _Failover(topic, key[0], key[1], before.leader, rack, cause, *place)
        self._availability.failover_began(before.leader, moment.now_ms // DAY_MS)
        if self._feed.is_slice and cause in MAY_BE_FENCE:
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
        """Ends all failovers at `moment`, with an unknown end: the records after it are missing, or the
        cluster was switched off. `moment` has the offset of its batch, in which a failover may have begun."""
        for failover in self._unexplained:
            failover.waits = False
            if failover.duration_ms is not None:
                self._closed.append(_row(failover))
        for failover in self._open.values():
            failover.to_offset = max(moment.offset, failover.from_offset)
            failover.to_ms = moment.time_ms
            self._closed.append(_row(failover, to_known=False))
            self._availability.failover_lost(failover.old_leader, failover.began_ms // DAY_MS)
        self._open, self._unexplained = {}, []

    def _cause(self, topic: str, before: PartitionInfo, now: PartitionInfo) -> str | None:
        """The rule that says why the old leader stopped leading; None if it could have continued: a preferred
        election, a reassignment."""
        old, known = before.leader, self._feed.brokers.get(before.leader)
        if now.leader >= 0 and (old not in now.replicas or (known and known.is_active and old in now.isr)):
            return None
        cause = loss_cause(old, before, now, topic, self._feed.scene)
        return unexplained.name if cause is None else cause.rule

    def broker_changed(self, step: BrokerStep) -> None:
        """A batch changed a broker, which may explain failovers in the batches before it: a split fence ends
        with the broker's own record."""
        cause = late_rule(step)
        if cause is None or not self._unexplained:
            return
        rest = []
        for failover in self._unexplained:
            if failover.old_leader != step.broker_id:
                rest.append(failover)
                continue
            failover.cause, failover.waits = cause, False
            if failover.duration_ms is not None:
                self._closed.append(_row(failover))
        self._unexplained = rest

    def forget_late(self, now_ms: int) -> None:
        """Gives up on causes that did not follow in time."""
        while self._unexplained and now_ms - self._unexplained[0].began_ms > SPLIT_MS:
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


def _row(failover: _Failover, *, to_known: bool = True) -> Row:
    return (
        *(
            failover.topic,
            uuid_to_text(failover.topic_id),
            failover.partition,
            failover.old_leader,
            failover.old_rack,
            failover.new_leader,
        ),
        *(
            failover.cause,
            failover.unclean,
            failover.duration_ms,
            failover.from_offset,
            failover.from_ms,
            failover.to_offset,
            failover.to_ms,
            True,
        ),
        *(to_known, failover.actor),
    )
