"""Which log of a directory is cleaned next, the pass over it, and how far each log is clean.

`cleaner-offset-checkpoint` (Kafka's text): it never claims more than is clean, because it is lowered before a
log is cut, and raised after the last swap of a pass is durable. One pass at a time; the caller decides what
carries out its pieces. Source: Kafka 3.7's LogCleanerManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from metaquorum.broker.replica.disk_work import CompactPartition
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.parts import MissingIsBad, Opened, StoredReplica
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.cleaner.cleaning import Cleaning, CleaningEndedError, segment_facts
from metaquorum.storage.cleaner.plan import CleaningPlan, first_dirty_offset, plan_cleaning
from metaquorum.storage.errors import CorruptFileError, CorruptLogError
from metaquorum.storage.partition.replica_directory import load_cleaned_offsets, store_cleaned_offsets

Name = tuple[str, int]
"""Topic and partition."""

_log = logging.getLogger(__name__)


class DirectoryCleaner:
    """The cleaner of one directory. Only for the thread that owns its store."""

    def __init__(self, opened: Opened, resized: Callable[[StoredReplica], DataEvent]) -> None:
        """`resized`: takes note of a log's new size, and returns the report."""
        self.wants_checkpoint = False
        """Full segments are above a recovery point: a log cannot be cleaned there."""
        self._opened = opened
        self._resized = resized
        self._asked: dict[PartitionKey, CompactPartition] = {}
        self._postponed: set[PartitionKey] = set()
        """Of the requested logs, those that wait for a checkpoint, once."""
        self._uncleanable: set[tuple[PartitionKey, int]] = set()
        self._current: tuple[StoredReplica, Cleaning] | None = None
        self._cleaned_to: dict[Name, int] = {}
        try:
            self._cleaned_to = load_cleaned_offsets(opened.disk, opened.path)
        except CorruptFileError as error:
            opened.on_warning(str(error))

    @property
    def is_idle(self) -> bool:
        """Whether no pass is under way or requested."""
        return self._current is None and not self._asked

    def ask(self, work: CompactPartition) -> None:
        """This log may be cleaned now."""
        self._asked[work.key] = work

    def next(self) -> Cleaning | None:
        """A pass over the dirtiest log that may be cleaned, unless one is in progress. Any thread may carry
        out its `pieces`; call `take_up` after each. Raises DiskError."""
        if self._current is not None:
            return None
        with MissingIsBad(self._opened.path):
            return self._next()

    def _next(self) -> Cleaning | None:
        best: tuple[float, StoredReplica, CleaningPlan, int] | None = None
        asked, self._asked = self._asked, {}
        for key, work in asked.items():
            replica = self._opened.replica(key, work.incarnation)
            plan = None if replica is None else self._plan(replica, work)
            if replica is None or plan is None:
                self._postpone(replica, work)
                continue
            self._postponed.discard(key)
            self._asked[key] = work
            if best is None or plan.dirty_ratio > best[0]:
                best = (plan.dirty_ratio, replica, plan, work.wall_ms)
        if best is None:
            return None
        _, replica, plan, now_ms = best
        del self._asked[replica.key]
        cleaning = Cleaning(
            replica.log,
            plan,
            replica.settings.cleaner,
            now_ms=now_ms,
            key_bytes=self._opened.options.cleaner_key_bytes,
        )
        self._current = replica, cleaning
        return cleaning

    def _postpone(self, replica: StoredReplica | None, work: CompactPartition) -> None:
        """A log that may wait only for a checkpoint is looked at once more after it, without another
        request."""
        key = work.key
        if replica is not None and self.wants_checkpoint and key not in self._postponed:
            self._postponed.add(key)
            self._asked[key] = work
        else:
            self._postponed.discard(key)

    def _plan(self, replica: StoredReplica, work: CompactPartition) -> CleaningPlan | None:
        log = replica.log
        if not replica.settings.compacts or (replica.key, replica.incarnation) in self._uncleanable:
            return None
        self.wants_checkpoint |= log.recovery_point.segment < log.last_segment
        cleaned_to = self._cleaned_to.get(_name(replica))
        open_from = log.producers.open_from
        try:
            return plan_cleaning(
                segment_facts(log, timed=replica.settings.cleaner.min_lag_ms > 0),
                first_dirty=first_dirty_offset(cleaned_to, log.start_offset, log.end_offset),
                stable_to=work.below_offset if open_from is None else min(work.below_offset, open_from),
                settings=replica.settings.cleaner,
                now_ms=work.wall_ms,
            )
        except CorruptLogError as error:
            self._give_up(replica, error)
            return None

    def take_up(self, cleaning: Cleaning, error: Exception | None = None) -> list[DataEvent]:
        """Swaps in what the pass has staged, or notes its end. `error`: what the pieces raised; it is raised
        again if it makes the directory bad. Raises DiskError."""
        if self._current is None or self._current[1] is not cleaning:
            return []
        replica = self._current[0]
        try:
            if error is not None:
                raise cleaning.explained(error)
            with MissingIsBad(self._opened.path):
                return self._advance(replica, cleaning)
        except CleaningEndedError:
            self._current = None
        except CorruptLogError as damage:
            self._current = None
            self._give_up(replica, damage)
        return []

    def _advance(self, replica: StoredReplica, cleaning: Cleaning) -> list[DataEvent]:
        if cleaning.staged is not None:
            cleaning.swap()
        elif cleaning.result is not None:
            self._current = None
            if self._opened.replicas.get(replica.key) is not replica:
                return []
            self._store({**self._cleaned_to, _name(replica): cleaning.result.cleaned_to})
            _log.debug("%s: %s", replica.log.directory, cleaning.result)
        return [self._resized(replica)]

    def is_under_way(self, cleaning: Cleaning) -> bool:
        """Whether the pass has more to do."""
        return self._current is not None and self._current[1] is cleaning

    def _give_up(self, replica: StoredReplica, error: CorruptLogError) -> None:
        self._uncleanable.add((replica.key, replica.incarnation))
        self._opened.on_warning(f"{error}; this log is not compacted until the broker restarts")

    def lower(self, replica: StoredReplica, end_offset: int) -> None:
        """The log is about to be cut, or started over, at `end_offset`. Durable on return."""
        if self._cleaned_to.get(_name(replica), 0) > end_offset:
            self._store({**self._cleaned_to, _name(replica): end_offset})

    def forget(self, names: Iterable[Name]) -> None:
        """These names no longer belong to the same logs. Durable on return."""
        gone = set(names)
        self._store({name: at for name, at in self._cleaned_to.items() if name not in gone})

    def _store(self, offsets: dict[Name, int]) -> None:
        if offsets != self._cleaned_to:
            store_cleaned_offsets(self._opened.disk, self._opened.path, offsets)
            self._cleaned_to = offsets


def _name(replica: StoredReplica) -> Name:
    return replica.topic, replica.key[1]
