"""Broker sessions, and what became of brokers' log directories.

Owns the comparison of registrations before and after a batch. Knows no records but their type names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from metadata.image import UNASSIGNED, BrokerRegistration, PartitionInfo
from storage.uuids import is_reserved_directory, uuid_text

from .moments import Moment, Row
from .rows import Intervals

FENCED, ACTIVE, SHUTDOWN = "fenced", "active", "controlled_shutdown"
_REGISTERED = "REGISTER_BROKER_RECORD"


def state_of(registration: BrokerRegistration) -> str:
    """fenced, active or controlled_shutdown."""
    if registration.fenced:
        return FENCED
    return SHUTDOWN if registration.in_controlled_shutdown else ACTIVE


class BrokerSessions:
    """Rows of `broker_sessions`; `registrations` are those of the last batch that was visible."""

    def __init__(self) -> None:
        self.registrations: dict[int, BrokerRegistration] = {}
        self.racks: dict[int, str | None] = {}
        """The last known rack of every broker, also of those that are gone."""
        self._rows: Intervals[int] = Intervals()

    def start_from_snapshot(self, brokers: Mapping[int, BrokerRegistration], moment: Moment) -> None:
        for broker_id, registration in sorted(brokers.items()):
            self._put(broker_id, registration, moment, None)

    def _put(self, broker_id: int, now: BrokerRegistration, moment: Moment, by: str | None) -> None:
        self.registrations[broker_id] = now
        self.racks[broker_id] = now.rack
        value = (broker_id, now.epoch, uuid_text(now.incarnation_id), now.rack, state_of(now))
        directories = tuple(uuid_text(directory) for directory in now.directories)
        self._rows.start(broker_id, (*value, directories, by), moment, known=by is not None)

    def changed(self, broker_id: int, now: BrokerRegistration | None, moment: Moment, by: str) -> bool:
        """What a batch left of a broker; true if it was fenced (not: registered again) by it."""
        before = self.registrations.get(broker_id)
        if now == before:
            return False
        self._rows.end(broker_id, moment, by)
        if now is None:
            del self.registrations[broker_id]
            return False
        self._put(broker_id, now, moment, by)
        return now.fenced and before is not None and not before.fenced and by != _REGISTERED

    def take(self) -> list[Row]:
        return self._rows.take()

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows(lambda _: (None,))

    def save(self) -> Any:
        return [list(self.racks.items()), self._rows.save()]

    def load(self, saved: Any, registrations: Mapping[int, BrokerRegistration]) -> None:
        self.racks = dict(saved[0])
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
        """Directories that a broker has and had not, or the other way round."""
        had = before.directories if before is not None else ()
        has = now.directories if now is not None else ()
        if had == has:
            return
        for event, found, other in (("offline", had, has), ("online", has, had)):
            for directory in found:
                if directory not in other:
                    place = (moment.offset, moment.time_ms, epoch, broker_id, uuid_text(directory))
                    self._closed.append((*place, event, None, replicas_in(directory)))

    def partition(self, before: PartitionInfo | None, now: PartitionInfo, offset: int) -> None:
        """Replicas whose directory differs: gathered until `batch_ends`."""
        for broker_id, directory in zip(now.replicas, now.directories, strict=False):
            was = None if before is None else before.directory_of(broker_id)
            was = UNASSIGNED if was is None else was
            if was != directory and not is_reserved_directory(directory):
                key = (broker_id, directory, was)
                first, count = self._moves.get(key, (offset, 0))
                self._moves[key] = (min(first, offset), count + 1)

    def batch_ends(self, moment: Moment, epoch: int) -> None:
        if not self._moves:
            return
        for (broker_id, directory, was), (offset, count) in self._moves.items():
            place = (offset, moment.time_ms, epoch, broker_id, uuid_text(directory))
            if is_reserved_directory(was):
                self._closed.append((*place, "assigned", None, count))
            else:
                self._closed.append((*place, "moved", uuid_text(was), count))
        self._moves = {}

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken
