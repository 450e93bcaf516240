"""The tables `broker_sessions`, `log_dir_events` and `placement`: brokers, directories, and their shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from metaquorum.metadata.features import METADATA_VERSION, METADATA_VERSION_NAMES
from metaquorum.metadata.image import UNASSIGNED, BrokerRegistration, ControllerRegistration, PartitionInfo
from metaquorum.metadata.image.chunk import LEADER
from metaquorum.metadata.records.types import (
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from metaquorum.pipeline.intervals.moments import DAY_MS, Intervals, Memory, Moment, Row, tuples
from metaquorum.pipeline.intervals.touched import ManyChanges, tally
from metaquorum.storage.uuids import is_reserved_directory, uuid_to_text

FENCED, ACTIVE, SHUTDOWN = "fenced", "active", "controlled_shutdown"
_REGISTERED = "REGISTER_BROKER_RECORD"


def state_of(registration: BrokerRegistration) -> str:
    """fenced, active or controlled_shutdown."""
    if registration.fenced:
        return FENCED
    return SHUTDOWN if registration.in_controlled_shutdown else ACTIVE


def _value(broker_id: int, registration: BrokerRegistration, by: str | None) -> Row:
    directories = tuple(uuid_to_text(directory) for directory in registration.directories)
    process = uuid_to_text(registration.incarnation_id)
    return (
        broker_id,
        registration.epoch,
        process,
        registration.rack,
        state_of(registration),
        directories,
        by,
    )


class Heard(NamedTuple):
    """What records say about a broker whose registration is in no log. `directories` None: unknown."""

    epoch: int
    state: str
    directories: tuple[bytes, ...] | None

    def fits(self, registration: BrokerRegistration) -> bool:
        """Whether a snapshot says the same."""
        same = (self.epoch, self.state) == (registration.epoch, state_of(registration))
        return same and self.directories in (None, registration.directories)


def heard_of(record: object, before: Heard | None) -> Heard | None:
    """What is known of a broker after one more record; None if it is gone, or nothing is known."""
    match record:
        case FenceBrokerRecord():
            return Heard(record.epoch, FENCED, before.directories if before is not None else None)
        case UnfenceBrokerRecord():
            return Heard(record.epoch, ACTIVE, before.directories if before is not None else None)
        case BrokerRegistrationChangeRecord():
            directories = before.directories if before is not None else None
            if record.log_dirs is not None:
                directories = tuple(sorted(record.log_dirs))
            state = before.state if before is not None else None
            if record.fenced is not None:
                state = FENCED if record.fenced > 0 else ACTIVE
            if record.in_controlled_shutdown and state != FENCED:
                state = SHUTDOWN
            return None if state is None else Heard(record.broker_epoch, state, directories)
        case BrokerRecord() | UnregisterBrokerRecord():
            return None
        case _:
            return before


class BrokerSessions:
    """Rows of `broker_sessions`. `registrations`: those after the last visible batch."""

    def __init__(self) -> None:
        self.registrations: dict[int, BrokerRegistration] = {}
        self.racks: Memory[int, str | None] = Memory()
        """The last known rack of every broker, also of unregistered ones."""
        self._heard: dict[int, Heard] = {}
        """Brokers whose registration is in no log, as far as later records describe them."""
        self._rows: Intervals[int] = Intervals()

    def learn(self, brokers: Mapping[int, BrokerRegistration], moment: Moment) -> None:
        """Takes a snapshot's brokers. A state that a record gave continues if the snapshot agrees."""
        for broker_id in self._rows.open.keys() - brokers.keys():
            self._rows.end(broker_id, moment, None, to_known=False)
            self.registrations.pop(broker_id, None)
        for broker_id, registration in sorted(brokers.items()):
            heard = self._heard.get(broker_id)
            if heard is not None and heard.fits(registration):
                by = self._rows.open[broker_id].value[-1]
                self._rows.refine(broker_id, _value(broker_id, registration, by))
            elif self.registrations.get(broker_id) != registration:
                self._rows.end(broker_id, moment, None, to_known=False)
                self._put(broker_id, registration, moment, None)
            self.registrations[broker_id] = registration
            self.racks[broker_id] = registration.rack
        self._heard = {}

    def lose(self, moment: Moment) -> None:
        """Ends all rows at `moment`: the records after it are missing."""
        self._rows.lose(moment, lambda _: (None,))
        self.registrations, self._heard = {}, {}

    def _put(self, broker_id: int, now: BrokerRegistration, moment: Moment, by: str | None) -> None:
        self.registrations[broker_id] = now
        self.racks[broker_id] = now.rack
        self._rows.start(broker_id, _value(broker_id, now, by), moment, from_known=by is not None)

    def heard(self, broker_id: int, record: object, moment: Moment, by: str) -> str | None:
        """A record of a broker whose registration is in no log. Returns the state
        that the record gives it."""
        before = self._heard.get(broker_id)
        now = heard_of(record, before)
        if now is not None and now == before:
            return now.state
        self._rows.end(broker_id, moment, by)
        self._heard.pop(broker_id, None)
        if now is None:
            return None
        self._heard[broker_id] = now
        directories = None if now.directories is None else tuple(uuid_to_text(at) for at in now.directories)
        value = (broker_id, now.epoch, None, None, now.state, directories, by)
        self._rows.start(broker_id, value, moment)
        return now.state

    def changed(self, broker_id: int, now: BrokerRegistration | None, moment: Moment, by: str) -> bool:
        """A batch changed a broker. Returns whether the batch fenced it (without a new registration)."""
        before = self.registrations.get(broker_id)
        if now == before:
            return False
        self._rows.end(broker_id, moment, by)
        self._heard.pop(broker_id, None)
        if now is None:
            del self.registrations[broker_id]
            return False
        self._put(broker_id, now, moment, by)
        return now.fenced and before is not None and not before.fenced and by != _REGISTERED

    def take(self) -> list[Row]:
        return self._rows.take()

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows(lambda _: (None,))

    def context(self) -> Any:
        """What later rows depend on, except the starts of open rows."""
        return sorted((broker_id, at.value[1], at.value[4]) for broker_id, at in self._rows.open.items())

    def adopt(self, left: BrokerSessions, below: int) -> None:
        """Open rows that began below an offset get their starts from `left`."""
        self._rows.adopt(left._rows, below)
        for broker_id, rack in left.racks.items():
            self.racks.setdefault(broker_id, rack)

    def save(self) -> Any:
        return [list(self.racks.items()), self._rows.save()]  # nothing is saved while brokers are unknown

    def load(self, saved: Any, registrations: Mapping[int, BrokerRegistration]) -> None:
        self.racks.clear()
        self.racks.update(saved[0])
        self._rows.load(saved[1])
        self.registrations = dict(registrations)


class DirectoryEvents:
    """Rows of `log_dir_events`."""

    def __init__(self) -> None:
        self._closed: list[Row] = []
        self._moves: dict[tuple[int, bytes, bytes], tuple[int, int]] = {}

    def registered(
        self,
        broker_id: int,
        before: BrokerRegistration | None,
        now: BrokerRegistration | None,
        moment: Moment,
        epoch: int,
        replicas_in: Callable[[bytes], int],
    ) -> None:
        """Directories that a broker gained or lost."""
        had = before.directories if before is not None else ()
        has = now.directories if now is not None else ()
        for event, found, other in (("offline", had, has), ("online", has, had)):
            for directory in found:
                if directory not in other:
                    place = (moment.offset, moment.time_ms, epoch, broker_id, uuid_to_text(directory))
                    self._closed.append((*place, event, None, replicas_in(directory)))

    def partition(self, before: PartitionInfo | None, now: PartitionInfo, offset: int) -> None:
        """Collects replicas whose directory changed, until `batch_ends`."""
        for broker_id, directory in zip(now.replicas, now.directories, strict=False):
            was = None if before is None else before.directory_of(broker_id)
            was = UNASSIGNED if was is None else was
            if was != directory and not is_reserved_directory(directory):
                key = (broker_id, directory, was)
                first, count = self._moves.get(key, (offset, 0))
                self._moves[key] = (min(first, offset), count + 1)

    def lose(self) -> None:
        """Drops the unfinished batch: its records are missing."""
        self._moves = {}

    def batch_ends(self, moment: Moment, epoch: int) -> None:
        if not self._moves:
            return
        for (broker_id, directory, was), (offset, count) in self._moves.items():
            row_start = (offset, moment.time_ms, epoch, broker_id, uuid_to_text(directory))
            if is_reserved_directory(was):
                self._closed.append((*row_start, "assigned", None, count))
            else:
                self._closed.append((*row_start, "moved", uuid_to_text(was), count))
        self._moves = {}

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken


Home = tuple[tuple[str, ...], str | None, tuple[str, ...]]
"""Hosts, rack, log directories."""
_PARTS = ("hosts", "rack", "directories")


class BrokerIds:
    """Rows of `ids`."""

    def __init__(self) -> None:
        self._rows: Intervals[int] = Intervals()
        self.last: Memory[int, tuple[Home, bytes]] = Memory()
        """Where each id ran last, and its process; also of unregistered brokers."""
        self._processes: dict[int, int] = {}

    def registered(self, now: BrokerRegistration, moment: Moment, *, from_known: bool = True) -> None:
        """A registration, or a broker in a snapshot."""
        home, (last, process) = _home(now), self.last.recall(now.broker_id) or (None, b"")
        self.last[now.broker_id] = (home, now.incarnation_id)
        if home == last and now.broker_id in self._rows.open:
            self._processes[now.broker_id] += process != now.incarnation_id
            return
        self._rows.end(now.broker_id, moment, self._processes.get(now.broker_id, 0))
        moved = None if last is None else _differences(last, home)
        self._rows.start(now.broker_id, (now.broker_id, *home, moved), moment, from_known=from_known)
        self._processes[now.broker_id] = 1

    def gone(self, broker_id: int, moment: Moment) -> None:
        """The broker was unregistered."""
        self._rows.end(broker_id, moment, self._processes.get(broker_id, 0))

    def learn(self, brokers: Mapping[int, BrokerRegistration], moment: Moment) -> None:
        """Takes the brokers of a snapshot, which lack directories that failed since they registered."""
        for _, registration in sorted(brokers.items()):
            self.registered(registration, moment, from_known=False)

    def lose(self, moment: Moment) -> None:
        """Ends all rows at `moment`: the records after it are missing."""
        self._rows.lose(moment, lambda broker_id: (self._processes[broker_id],))

    def take(self) -> list[Row]:
        return self._rows.take()

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows(lambda broker_id: (self._processes[broker_id],))

    def context(self) -> Any:
        """What later rows depend on, except the starts of open rows."""
        return sorted((broker_id, self.last[broker_id]) for broker_id in self._rows.open)

    def counted(self) -> dict[int, int]:
        """The number of processes so far, by broker."""
        return {broker_id: self._processes[broker_id] for broker_id in self._rows.open}

    def adopt(self, left: BrokerIds, below: int, counted: Mapping[int, int]) -> None:
        """Open rows that began below an offset get their starts from `left`. `counted`: the
        processes here until then."""
        for broker_id, at in self._rows.open.items():
            if at.offset < below:
                self._processes[broker_id] += left._processes[broker_id] - counted[broker_id]
        self._rows.adopt(left._rows, below)
        for broker_id, last in left.last.items():
            self.last.setdefault(broker_id, last)

    def save(self) -> Any:
        return [self._rows.save(), list(self.last.items()), list(self._processes.items())]

    def load(self, saved: Any) -> None:
        self._rows.load(saved[0])
        self.last = Memory((broker_id, tuples(at)) for broker_id, at in saved[1])
        self._processes = dict(saved[2])


def _home(registration: BrokerRegistration) -> Home:
    hosts = tuple(sorted({endpoint.host for endpoint in registration.endpoints}))
    return (
        hosts,
        registration.rack,
        tuple(sorted(uuid_to_text(directory) for directory in registration.directories)),
    )


def _differences(last: Home, home: Home) -> str:
    """Names of what differs, joined by commas. Empty for a broker that is back in the same place."""
    return ",".join(part for part, was, now in zip(_PARTS, last, home, strict=True) if was != now)


FEATURE, BROKER, CONTROLLER = "feature", "broker", "controller"
LevelKey = tuple[str, str]
"""The kind of what has a level, and its name."""
Node = BrokerRegistration | ControllerRegistration


class Upgrades:
    """Rows of `upgrades`."""

    def __init__(self) -> None:
        self._rows: Intervals[tuple[str, str]] = Intervals()
        self.before: Memory[tuple[str, str], int] = Memory()
        """The last level of each, also of nodes that are gone."""

    def feature(self, name: str, level: int | None, moment: Moment, *, from_known: bool = True) -> None:
        """A batch changed a feature. `level` None: it is no longer finalized."""
        if level is None:
            self._rows.end((FEATURE, name), moment)
        else:
            self._level((FEATURE, name), level, name == METADATA_VERSION, moment, from_known=from_known)

    def node(self, node_id: int, now: Node | None, moment: Moment, *, from_known: bool = True) -> None:
        """A batch changed a broker or controller. `now` None: the broker is unregistered."""
        kind = CONTROLLER if isinstance(now, ControllerRegistration) else BROKER
        self._node((kind, f"{kind}/{node_id}"), now, moment, from_known=from_known)

    def controller(self, node_id: int, now: ControllerRegistration | None, moment: Moment) -> None:
        """The same for a controller, which may be gone."""
        self._node((CONTROLLER, f"{CONTROLLER}/{node_id}"), now, moment, from_known=True)

    def _node(self, key: LevelKey, now: Node | None, moment: Moment, *, from_known: bool) -> None:
        supported = {at.name: at.max_supported_version for at in now.features} if now is not None else {}
        level = supported.get(METADATA_VERSION)
        if level is None:
            self._rows.end(key, moment)
        else:
            self._level(key, level, True, moment, from_known=from_known)

    def _level(
        self, key: tuple[str, str], level: int, is_release: bool, moment: Moment, *, from_known: bool
    ) -> None:
        was = self._rows.open.get(key)
        if was is not None and was.value[2] == level:
            return
        self._rows.end(key, moment)
        name = METADATA_VERSION_NAMES.get(level) if is_release else None
        self._rows.start(key, (*key, level, name, self.before.recall(key)), moment, from_known=from_known)
        self.before[key] = level

    def learn(self, finalized: Mapping[str, int], nodes: Iterable[tuple[int, Node]], moment: Moment) -> None:
        """Takes the levels in a snapshot."""
        for name, level in finalized.items():
            self.feature(name, level, moment, from_known=False)
        for node_id, node in nodes:
            self.node(node_id, node, moment, from_known=False)

    def lose(self, moment: Moment) -> None:
        """Ends all rows at `moment`: the records after it are missing."""
        self._rows.lose(moment)

    def take(self) -> list[Row]:
        return self._rows.take()

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows()

    def context(self) -> Any:
        """What later rows depend on, except the starts of open rows."""
        return sorted((key, at.value[2]) for key, at in self._rows.open.items())

    def adopt(self, left: Upgrades, below: int) -> None:
        """Open rows that began below an offset get their starts from `left`."""
        self._rows.adopt(left._rows, below)
        for key, level in left.before.items():
            self.before.setdefault(key, level)

    def save(self) -> Any:
        return [self._rows.save(), list(self.before.items())]

    def load(self, saved: Any) -> None:
        self._rows.load(saved[0])
        self.before = Memory(((kind, name), level) for (kind, name), level in saved[1])


# The table `placement`: leaders and replicas of each broker at the end of each day.


class BrokerShares:
    """Rows of `placement`: one per broker and day, made when the day is over."""

    def __init__(self) -> None:
        self._leaders: Counter[int] = Counter()
        self._preferred: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()
        self._in_sync: Counter[int] = Counter()
        self._stored: Counter[tuple[int, bytes]] = Counter()
        self._last: Moment | None = None
        self._closed: list[Row] = []

    def partition(self, before: PartitionInfo | None, now: PartitionInfo | None) -> None:
        """A partition appeared, changed or was deleted."""
        if before is not None and now is not None:
            if before.leader != now.leader:
                self._leaders[before.leader] -= 1
                self._leaders[now.leader] += 1
            if before.isr != now.isr:
                in_sync = self._in_sync  # plain additions: Counter's own cost more than all else here
                for broker_id in before.isr:
                    in_sync[broker_id] -= 1
                for broker_id in now.isr:
                    in_sync[broker_id] += 1
            if before.replicas != now.replicas or before.directories != now.directories:
                self._held(before, -1)
                self._held(now, 1)
            return
        for info, sign in ((before, -1), (now, 1)):
            if info is not None:
                self._leaders[info.leader] += sign
                for broker_id in info.isr:
                    self._in_sync[broker_id] += sign
                self._held(info, sign)

    def changed_together(self, changes: ManyChanges) -> None:
        """As `partition` for each of these changes."""
        for sign, block, isr in ((-1, changes.before, changes.isr_before), (1, changes.after, changes.isr)):
            for broker_id, count in tally(block[LEADER, changes.led]):
                self._leaders[broker_id] += sign * count
            for broker_id, count in tally(isr[:, changes.moved]):
                self._in_sync[broker_id] += sign * count
        for at in np.flatnonzero(changes.placed).tolist():
            self._held(changes.infos_before[at], -1)
            self._held(changes.infos[at], 1)

    def _held(self, info: PartitionInfo, sign: int) -> None:
        if info.replicas:
            self._preferred[info.replicas[0]] += sign
        for broker_id in info.replicas:
            self._replicas[broker_id] += sign
        for broker_id, directory in zip(info.replicas, info.directories, strict=False):
            if not is_reserved_directory(directory):
                self._stored[broker_id, directory] += sign

    def passes(self, moment: Moment, brokers: Mapping[int, BrokerRegistration]) -> None:
        """The next batch is at `moment`. `brokers`: those before it. If it is on a later day, makes
        the rows of the last one."""
        last = self._last
        if last is not None and moment.now_ms // DAY_MS > last.now_ms // DAY_MS:
            self._closed += self._rows(last, brokers)
        self._last = moment

    def lose(self, brokers: Mapping[int, BrokerRegistration]) -> None:
        """Makes the rows of the present day: the records after it are missing."""
        if self._last is not None:
            self._closed += self._rows(self._last, brokers)
        self._last = None
        for counted in (self._leaders, self._preferred, self._replicas, self._in_sync, self._stored):
            counted.clear()

    def learn(self, infos: Iterable[PartitionInfo], moment: Moment) -> None:
        """Takes the partitions of a snapshot."""
        for info in infos:
            self.partition(None, info)
        self._last = moment

    def _rows(self, moment: Moment, brokers: Mapping[int, BrokerRegistration]) -> list[Row]:
        holding = {broker_id for broker_id, count in self._replicas.items() if count}
        listed = sorted({*brokers, *holding})
        leaders = sum(self._leaders[broker_id] for broker_id in listed) / max(len(listed), 1)
        replicas = sum(self._replicas[broker_id] for broker_id in listed) / max(len(listed), 1)
        stored: dict[int, dict[str, int]] = {broker_id: {} for broker_id in listed}
        for (broker_id, directory), count in self._stored.items():
            if count:
                stored[broker_id][uuid_to_text(directory)] = count
        rows: list[Row] = []
        for broker_id in listed:
            now = brokers.get(broker_id)
            if now is not None:
                for directory in now.directories:
                    stored[broker_id].setdefault(uuid_to_text(directory), 0)
            names = sorted(stored[broker_id])
            rows.append(
                (
                    *(moment.offset, moment.now_ms, broker_id),
                    *((None, None) if now is None else (now.rack, state_of(now))),
                    *(self._leaders[broker_id], self._preferred[broker_id], self._replicas[broker_id]),
                    *(self._in_sync[broker_id], names, [stored[broker_id][name] for name in names]),
                    self._leaders[broker_id] / leaders if leaders else None,
                    self._replicas[broker_id] / replicas if replicas else None,
                )
            )
        return rows

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self, brokers: Mapping[int, BrokerRegistration]) -> list[Row]:
        """The rows of the last day so far."""
        return [] if self._last is None else self._rows(self._last, brokers)

    def save(self) -> Any:
        return self._last

    def load(self, saved: Any, infos: Iterable[PartitionInfo]) -> None:
        """`infos`: the partitions of the image that was saved with this."""
        for info in infos:
            self.partition(None, info)
        self._last = None if saved is None else Moment(*saved)
