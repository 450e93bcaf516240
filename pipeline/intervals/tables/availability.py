"""The tables `availability`, with partition-seconds without a leader or below min ISR, churn, fences and
failovers per day, and `failovers`.

All times are whole ms until shown, so that sums do not depend on their order, and two runs over a log give
the same as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from metaquorum.metadata.image import PartitionInfo
from metaquorum.metadata.image.chunk import LEADER, N_ISR, N_REPLICAS, IntArray
from metaquorum.metadata.inspect.causes.losses import unexplained
from metaquorum.metadata.inspect.causes.rule import SPLIT_MS
from metaquorum.metadata.inspect.causes.split_fences import late_rule
from metaquorum.metadata.inspect.causes.table import MAY_BE_FENCE, loss_cause
from metaquorum.metadata.inspect.changes.change_steps import BrokerStep, was_unclean
from metaquorum.pipeline.intervals.moments import DAY_MS, Memory, Moment, Row, days, tuples
from metaquorum.pipeline.intervals.tables.incidents import CauseFeed
from metaquorum.pipeline.intervals.touched import ManyChanges, among, tally
from metaquorum.pipeline.tables import FAILOVER_BOUNDS_MS, FENCE_STORM_BROKERS, FENCE_STORM_WINDOW_MS
from metaquorum.storage.uuids import uuid_to_text

CLUSTER, BROKER, RACK = "cluster", "broker", "rack"
_WHOLE = (CLUSTER, "")
_KEPT_SCOPES = 4_096
_KEPT_MOVES = 65_536

Scope = tuple[str, str]
PartitionKey = tuple[bytes, int]
Cell = tuple[int, Scope]
"""The day and scope of a sum."""
_IsrMove = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""A day, an ISR before and after, and the replicas."""


class _Leading(NamedTuple):
    """The leader of a partition (-1: none), since when, and the last leader."""

    leader: int
    since_ms: int
    last: int


class _Short(NamedTuple):
    """Since when a partition is below min ISR, and the brokers of the missing replicas."""

    since_ms: int
    missing: tuple[int, ...]


class Availability:
    """The sums of one cluster. `racks` belongs to the caller and is read for every count."""

    def __init__(self, racks: Memory[int, str | None]) -> None:
        self._racks = racks
        self._cells: dict[tuple[int, Scope], DailySums] = {}
        self._leading: dict[PartitionKey, _Leading] = {}
        self._short: dict[PartitionKey, _Short] = {}
        self._now_ms = -1
        self.is_off = False
        """Whether the last broker shut down cleanly."""
        self._fenced: list[tuple[int, int]] = []
        self._in_storm = False
        self._cells_by_brokers: dict[tuple[int, tuple[int, ...]], tuple[DailySums, ...]] = {}
        self._moved: dict[_IsrMove, tuple[tuple[DailySums, ...], tuple[DailySums, ...]]] = {}
        self.was_moved = False
        """Whether a broker that was counted has a new rack."""

    def racks_changed(self, broker_id: int) -> None:
        """A broker has a new rack."""
        self._forget_cells()
        self.was_moved = self.was_moved or broker_id in self._racks or broker_id in self._racks.missed

    def _cells_of(self, day: int, brokers: tuple[int, ...]) -> tuple[DailySums, ...]:
        """The cells of the cluster, the brokers and their racks. Called for nearly every record."""
        key = (day, brokers)
        cells = self._cells_by_brokers.get(key)
        if cells is None:
            if len(self._cells_by_brokers) >= _KEPT_SCOPES:
                self._cells_by_brokers = {}
            cells = self._cells_by_brokers[key] = tuple(
                [self._cell(day, scope) for scope in self._scopes(brokers)]
            )
        return cells

    def _isr_cells(self, key: _IsrMove) -> tuple[tuple[DailySums, ...], tuple[DailySums, ...]]:
        """The cells of brokers that left an ISR and still have a replica, and of those that joined it.
        Called for every second record."""
        day, before, now, replicas = key
        out = tuple([at for at in before if at not in now and at in replicas])
        back = tuple([at for at in now if at not in before])
        cells = (self._cells_of(day, out) if out else (), self._cells_of(day, back) if back else ())
        if len(self._moved) >= _KEPT_MOVES:
            self._moved.clear()
        self._moved[key] = cells
        return cells

    def _forget_cells(self) -> None:
        """Forgets cells that were found: they, or the racks of brokers, changed."""
        self._cells_by_brokers, self._moved = {}, {}

    def _cell(self, day: int, scope: Scope) -> DailySums:
        found = self._cells.get((day, scope))
        if found is None:
            found = self._cells[day, scope] = DailySums()
        return found

    def _scopes(self, brokers: Iterable[int]) -> list[Scope]:
        """The cluster, the brokers and their racks, each once."""
        members = tuple(brokers)
        scopes = [_WHOLE, *((BROKER, str(broker_id)) for broker_id in members)]
        racks = {rack for broker_id in members if (rack := self._racks.recall(broker_id)) is not None}
        return [*scopes, *((RACK, rack) for rack in racks)]

    def advance(self, now_ms: int) -> None:
        """Advances the time to `now_ms`, with unchanged partitions."""
        if self._now_ms < 0:
            self._now_ms = now_ms
        if now_ms > self._now_ms:
            count = len(self._leading)
            for day, span_ms in days(self._now_ms, now_ms):
                cell = self._cell(day, _WHOLE)
                if self.is_off:
                    cell.off_ms += span_ms
                else:
                    cell.observed_ms += span_ms
                    cell.partition_ms += span_ms * count
            self._now_ms = now_ms

    def unobserved(self, now_ms: int) -> None:
        """The time until `now_ms` was unobserved: it is neither available nor without leaders."""
        self._count_all()
        for day, span_ms in days(self._now_ms, now_ms):
            self._cell(day, _WHOLE).unobserved_ms += span_ms
        self._now_ms = max(self._now_ms, now_ms)
        self._recount()

    def switched_off(self) -> None:
        """The last broker shut down cleanly: no leaders are expected until one is back."""
        if not self.is_off:
            self._count_all()
            self.is_off = True

    def switched_on(self) -> None:
        """A broker runs again."""
        if self.is_off:
            self.is_off = False
            self._recount()

    def _count_all(self) -> None:
        for leading in self._leading.values():
            self._count_leading(leading, self._now_ms)
        for short in self._short.values():
            self._count_short(short, self._now_ms)

    def _recount(self) -> None:
        """Counts the present states from now on."""
        now_ms = self._now_ms
        self._leading = {key: at._replace(since_ms=now_ms) for key, at in self._leading.items()}
        self._short = {key: at._replace(since_ms=now_ms) for key, at in self._short.items()}

    def pass_over(self, now_ms: int) -> None:
        """Advances the time to `now_ms` with partitions in unknown states: counts nothing for it, nor for
        later times, until `partition` is called for each."""
        for key in list(self._leading):
            self.removed(key)
        self.is_off = False
        self._now_ms = max(self._now_ms, now_ms)
        self._forget_cells()  # a snapshot may have racks that were unknown

    def partition(
        self, key: PartitionKey, before: PartitionInfo | None, now: PartitionInfo, min_isr: int
    ) -> None:
        """A partition appeared or changed, at the time of the last `advance`."""
        self._leads(key, now.leader)
        if before is not None:
            self.churn(before, now)
        self.judge(key, now, min_isr)

    def _leads(self, key: PartitionKey, leader: int) -> None:
        leading = self._leading.get(key)
        if leading is None or leading.leader != leader:
            last = leader if leader >= 0 else (leading.last if leading is not None else -1)
            if leading is not None:
                self._count_leading(leading, self._now_ms)
            self._leading[key] = tuple.__new__(_Leading, (leader, self._now_ms, last))

    def changed_together(self, changes: ManyChanges, min_isr: IntArray) -> None:
        """As `partition` for each of these changes, all of one day, with these min ISRs."""
        day, now_ms = changes.batch_moments[0].now_ms // DAY_MS, self._now_ms
        places = np.flatnonzero(changes.led)
        leaders = changes.before[LEADER, places].tolist(), changes.after[LEADER, places].tolist()
        for number, before, now in zip(places.tolist(), *leaders, strict=True):
            self._now_ms = changes.moment(number).now_ms
            self._leads(changes.key(number), now)
            for cell in self._cells_of(day, () if before < 0 else (before,)):
                cell.leader_changes += 1
        self._isrs_moved(changes, day)
        before, now = changes.before[N_ISR], changes.after[N_ISR]
        short = np.minimum(before, now) < np.minimum(min_isr, changes.after[N_REPLICAS])
        for number in np.flatnonzero(changes.moved & short).tolist():
            self._now_ms = changes.moment(number).now_ms
            self.judge(changes.key(number), changes.infos[number], int(min_isr[number]))
        self._now_ms = now_ms

    def _isrs_moved(self, changes: ManyChanges, day: int) -> None:
        """Counts brokers that left and joined ISRs; nearly always one at a time."""
        shrunk = changes.left & changes.held
        grown = (changes.isr >= 0) & ~among(changes.isr, changes.isr_before)
        left, joined = shrunk.sum(axis=0), grown.sum(axis=0)
        one_left, one_joined = (left == 1) & (joined == 0), (left == 0) & (joined == 1)
        for broker_id, count in tally(changes.isr_before[shrunk & one_left]):
            for cell in self._cells_of(day, (broker_id,)):
                cell.isr_shrinks += count
        for broker_id, count in tally(changes.isr[grown & one_joined]):
            for cell in self._cells_of(day, (broker_id,)):
                cell.isr_expands += count
        for at in np.flatnonzero(changes.moved & ~one_left & ~one_joined).tolist():
            self._isr_moved(day, changes.infos_before[at], changes.infos[at])

    def churn(self, before: PartitionInfo, now: PartitionInfo) -> None:
        """Counts what changed, without durations."""
        day = self._now_ms // DAY_MS
        if before.leader != now.leader:
            lost = () if before.leader < 0 else (before.leader,)
            for cell in self._cells_of(day, lost):
                cell.leader_changes += 1
        if before.isr != now.isr:
            self._isr_moved(day, before, now)

    def _isr_moved(self, day: int, before: PartitionInfo, now: PartitionInfo) -> None:
        key = (day, before.isr, now.isr, now.replicas)
        shrunk, grown = self._moved.get(key) or self._isr_cells(key)
        for cell in shrunk:
            cell.isr_shrinks += 1
        for cell in grown:
            cell.isr_expands += 1

    def judge(self, key: PartitionKey, now: PartitionInfo, min_isr: int) -> None:
        """Checks whether the partition is below min ISR, after it or its min ISR changed."""
        in_sync = len(now.isr)
        if in_sync >= min_isr or in_sync >= len(now.replicas):
            if self._short and key in self._short:
                self._count_short(self._short.pop(key), self._now_ms)
            return
        short = self._short.get(key)
        missing = tuple([at for at in now.replicas if at not in now.isr])
        if short is None or short.missing != missing:
            if short is not None:
                self._count_short(short, self._now_ms)
            self._short[key] = _Short(self._now_ms, missing)

    def removed(self, key: PartitionKey) -> None:
        """The partition was deleted."""
        leading = self._leading.pop(key, None)
        if leading is not None:
            self._count_leading(leading, self._now_ms)
        short = self._short.pop(key, None)
        if short is not None:
            self._count_short(short, self._now_ms)

    def unclean_election(self, leader: int) -> None:
        for cell in self._cells_of(self._now_ms // DAY_MS, (leader,)):
            cell.unclean_elections += 1

    def fenced(self, broker_id: int, *, in_order: bool = False) -> None:
        """A broker was fenced now. Three within a minute are a storm, until a minute has fewer. Brokers that
        stop `in_order` do not count."""
        for cell in self._cells_of(self._now_ms // DAY_MS, (broker_id,)):
            cell.fences += 1
        if in_order:
            return
        start = self._now_ms - FENCE_STORM_WINDOW_MS
        before = [at for at in self._fenced if at[0] >= start]
        if len({at for _, at in before}) < FENCE_STORM_BROKERS:
            self._in_storm = False
        self._fenced = [*before, (self._now_ms, broker_id)]
        if not self._in_storm and len({at for _, at in self._fenced}) >= FENCE_STORM_BROKERS:
            self._in_storm = True
            self._cell(self._now_ms // DAY_MS, _WHOLE).fence_storms += 1

    def failover_began(self, leader: int, day: int) -> None:
        for cell in self._cells_of(day, (leader,)):
            cell.failovers += 1

    def failover_lost(self, leader: int, day: int) -> None:
        """The end of a failover was not observed."""
        for cell in self._cells_of(day, (leader,)):
            cell.failovers_open += 1

    def failover_ended(self, leader: int, day: int, duration_ms: int) -> None:
        for cell in self._cells_of(day, (leader,)):
            durations = cell.durations
            durations[duration_ms] = durations.get(duration_ms, 0) + 1

    def _count_leading(self, leading: _Leading, now_ms: int) -> None:
        if now_ms <= leading.since_ms or self.is_off:
            return
        broker_id = leading.leader if leading.leader >= 0 else leading.last
        brokers = (broker_id,) if broker_id >= 0 else ()
        for day, span_ms in days(leading.since_ms, now_ms):
            cells = self._cells_of(day, brokers)
            if leading.leader < 0:
                for cell in cells:
                    cell.leaderless_ms += span_ms
            else:
                for cell in cells[1:]:  # the first is the cluster's, which counts all partitions at once
                    cell.partition_ms += span_ms

    def _count_short(self, short: _Short, now_ms: int) -> None:
        for day, span_ms in () if self.is_off else days(short.since_ms, now_ms):
            for cell in self._cells_of(day, short.missing):
                cell.under_min_isr_ms += span_ms

    def rows(self, cluster: str, failing: Iterable[tuple[int, int]]) -> list[tuple[int, Row]]:
        """(day, row) of every day and scope up to now. `failing`: (leader, day of its start) of open
        failovers. Open states count up to now, and are counted again next time."""
        kept = self._cells
        self._forget_cells()
        self._cells = {key: msgspec.structs.replace(cell) for key, cell in kept.items()}
        self._count_all()
        for leader, day in failing:
            for cell in self._cells_of(day, (leader,)):
                cell.failovers_open += 1
        cells, self._cells = self._cells, kept
        self._forget_cells()
        whole = {day: cell for (day, scope), cell in cells.items() if scope == _WHOLE}
        return [
            (
                day,
                sums_row(
                    scope[0], scope[1] if scope != _WHOLE else cluster, cell, whole.get(day, DailySums())
                ),
            )
            for (day, scope), cell in sorted(cells.items())
        ]

    def context(self) -> Any:
        """What later sums depend on, except the starts of open states; None while nothing is counted."""
        if self.is_off:
            return None
        start = self._now_ms - FENCE_STORM_WINDOW_MS
        fenced = [at for at in self._fenced if at[0] >= start]
        in_storm = self._in_storm and len({at for _, at in fenced}) >= FENCE_STORM_BROKERS
        leaderless = sorted((key, at.last) for key, at in self._leading.items() if at.leader < 0)
        short = sorted((key, at.missing) for key, at in self._short.items())
        return [self._now_ms, len(self._leading), leaderless, short, fenced, in_storm]

    def counted(self) -> list[tuple[Cell, DailySums]]:
        """A copy of the sums so far."""
        return [
            (key, msgspec.structs.replace(cell, durations=dict(cell.durations)))
            for key, cell in self._cells.items()
        ]

    def adopt(self, left: Availability, counted: Mapping[Cell, DailySums], began_ms: int) -> None:
        """Takes the sums of `left`, plus what was counted here beyond `counted`. Open states since
        `began_ms`, the start of this replay, get their starts from `left`."""
        mine = self._cells
        self._forget_cells()
        self._cells = dict(left.counted())
        for place, cell in mine.items():
            more = difference_of(cell, counted.get(place, DailySums()))
            if more is not None:
                add_sums(self._cell(*place), more)
        for key, leading in left._leading.items():
            if leading.since_ms < began_ms:
                if self._leading.get(key) == leading._replace(since_ms=began_ms):
                    self._leading[key] = leading
                else:
                    self._count_leading(leading, began_ms)
        for key, short in left._short.items():
            if short.since_ms < began_ms:
                if self._short.get(key) == short._replace(since_ms=began_ms):
                    self._short[key] = short
                else:
                    self._count_short(short, began_ms)
        self._forget_cells()

    def save(self) -> Any:
        return {
            "cells": list(self._cells.items()),
            "leading": list(self._leading.items()),
            "short": list(self._short.items()),
            "now_ms": self._now_ms,
            "fenced": self._fenced,
            "in_storm": self._in_storm,
            "is_off": self.is_off,
        }

    def load(self, saved: Any) -> None:
        self._forget_cells()
        self._cells = {
            (key[0], tuples(key[1])): msgspec.convert(cell, DailySums, strict=False)
            for key, cell in saved["cells"]
        }
        self._leading = {tuples(key): _Leading(*value) for key, value in saved["leading"]}
        self._short = {tuples(key): _Short(*tuples(value)) for key, value in saved["short"]}
        self._now_ms, self._in_storm = saved["now_ms"], saved["in_storm"]
        self.is_off = saved["is_off"]
        self._fenced = [tuples(at) for at in saved["fenced"]]


class DailySums(msgspec.Struct):
    """The sums of one day and scope."""

    observed_ms: int = 0
    unobserved_ms: int = 0
    off_ms: int = 0
    partition_ms: int = 0
    leaderless_ms: int = 0
    under_min_isr_ms: int = 0
    leader_changes: int = 0
    unclean_elections: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    fences: int = 0
    fence_storms: int = 0
    failovers: int = 0
    failovers_open: int = 0
    durations: dict[int, int] = {}
    """Milliseconds: number of failovers that began on this day and took this long."""


_COUNTS = tuple(name for name in DailySums.__struct_fields__ if name != "durations")


def difference_of(now: DailySums, before: DailySums) -> DailySums | None:
    """What was counted between `before` and `now`; None if nothing."""
    more = DailySums(**{name: getattr(now, name) - getattr(before, name) for name in _COUNTS})
    counts = {at: n - before.durations.get(at, 0) for at, n in now.durations.items()}
    more.durations = {at: n for at, n in counts.items() if n}
    return more if more != DailySums() else None


def add_sums(cell: DailySums, more: DailySums) -> None:
    """Adds `more` to `cell`."""
    for name in _COUNTS:
        setattr(cell, name, getattr(cell, name) + getattr(more, name))
    for at, n in more.durations.items():
        cell.durations[at] = cell.durations.get(at, 0) + n


def sums_row(scope: str, name: str, cell: DailySums, whole: DailySums) -> Row:
    """A row of the table. `whole`: the cluster's sums of that day."""
    return (
        *(scope, name, whole.observed_ms / 1000, whole.unobserved_ms / 1000, whole.off_ms / 1000),
        cell.partition_ms / 1000,
        *(cell.leaderless_ms / 1000, cell.under_min_isr_ms / 1000, cell.leader_changes),
        *(cell.unclean_elections, cell.isr_shrinks, cell.isr_expands, cell.fences, cell.fence_storms),
        *(cell.failovers, cell.failovers_open),
        *(quantile(cell.durations, 0.5), quantile(cell.durations, 0.95)),
        *(float(max(cell.durations)) if cell.durations else None, _histogram(cell.durations)),
    )


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The quantile of values with counts, linear between neighbors; None without values."""
    total = sum(counts.values())
    if not total:
        return None
    place = share * (total - 1)
    low, part = int(place), place - int(place)
    neighbours: list[int] = []
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        while len(neighbours) < 2 and seen > low + len(neighbours):
            neighbours.append(value)
        if len(neighbours) == 2:
            break
    upper = neighbours[-1]
    return neighbours[0] + (upper - neighbours[0]) * part


def _histogram(counts: Mapping[int, int]) -> list[int]:
    buckets: Counter[int] = Counter()
    for value, count in counts.items():
        bucket = next(
            (n for n, bound in enumerate(FAILOVER_BOUNDS_MS) if value <= bound), len(FAILOVER_BOUNDS_MS)
        )
        buckets[bucket] += count
    return [buckets[at] for at in range(len(FAILOVER_BOUNDS_MS) + 1)]


# The table `failovers`: leaders that were replaced because they could no longer lead.
#
# The rules of `metaquorum log why` decide whether a change of leader is a failover, and its cause. The
# controller may move leaders in batches before the one that fences the broker, so the cause may follow a
# little later.


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
