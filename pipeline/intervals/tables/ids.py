"""The table `ids`: where each broker id ran (hosts, rack, log directories), while that stays the same.

Owns the comparison of two registrations of one id. Does not follow the state of a broker between
registrations; `brokers` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaquorum.metadata.image import BrokerRegistration
from metaquorum.pipeline.intervals.moments import Moment, Row, tuples
from metaquorum.pipeline.intervals.rows import Intervals, Memory
from metaquorum.storage.uuids import uuid_to_text

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

    def registered(self, now: BrokerRegistration, moment: Moment, *, known: bool = True) -> None:
        """A registration, or a broker in a snapshot."""
        home, (last, process) = _home(now), self.last.recall(now.broker_id) or (None, b"")
        self.last[now.broker_id] = (home, now.incarnation_id)
        if home == last and now.broker_id in self._rows.open:
            self._processes[now.broker_id] += process != now.incarnation_id
            return
        self._rows.end(now.broker_id, moment, self._processes.get(now.broker_id, 0))
        moved = None if last is None else _differences(last, home)
        self._rows.start(now.broker_id, (now.broker_id, *home, moved), moment, known=known)
        self._processes[now.broker_id] = 1

    def gone(self, broker_id: int, moment: Moment) -> None:
        """The broker was unregistered."""
        self._rows.end(broker_id, moment, self._processes.get(broker_id, 0))

    def learn(self, brokers: Mapping[int, BrokerRegistration], moment: Moment) -> None:
        """Takes the brokers of a snapshot, which lack directories that failed since they registered."""
        for _, registration in sorted(brokers.items()):
            self.registered(registration, moment, known=False)

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


def _home(at: BrokerRegistration) -> Home:
    hosts = tuple(sorted({endpoint.host for endpoint in at.endpoints}))
    return hosts, at.rack, tuple(sorted(uuid_to_text(directory) for directory in at.directories))


def _differences(last: Home, home: Home) -> str:
    """Names of what differs, joined by commas. Empty for a broker that is back in the same place."""
    return ",".join(part for part, was, now in zip(_PARTS, last, home, strict=True) if was != now)
