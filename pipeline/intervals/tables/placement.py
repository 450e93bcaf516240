"""The table `placement`: leaders and replicas of each broker at the end of each day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from metaquorum.metadata.image import BrokerRegistration, PartitionInfo
from metaquorum.metadata.image.chunk import LEADER
from metaquorum.pipeline.intervals.many_changes import ManyChanges, tally
from metaquorum.pipeline.intervals.moments import DAY_MS, Moment, Row
from metaquorum.pipeline.intervals.tables.brokers import state_of
from metaquorum.storage.uuids import is_reserved_directory, uuid_to_text


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
