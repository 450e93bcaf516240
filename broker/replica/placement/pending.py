"""Which of a broker's partitions have to be looked at, and which of them are new here.

Owns the queue, and what the difference between two images adds to it. Does not decide anything about a
partition: `placement` looks at it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from metaquorum.broker.replica.controller_requests.assignments import Assignments
from metaquorum.broker.replica.placement.copies import Copies, Stage
from metaquorum.broker.replica.placement.damaged_copies import DamagedCopies
from metaquorum.metadata.image import MetadataImage, partition_changes
from metaquorum.metadata.requests.data import PartitionKey


class PendingChanges:
    """`copies`, `damaged` and `offline` are the placement's: what is known here of replicas."""

    def __init__(
        self,
        broker_id: int,
        assignments: Assignments,
        copies: Copies,
        damaged: DamagedCopies,
        offline: Mapping[PartitionKey, str],
    ) -> None:
        self._me = broker_id
        self._assignments = assignments
        self._copies = copies
        self._damaged = damaged
        self._offline = offline
        self.keys: OrderedDict[PartitionKey, None] = OrderedDict()
        self._new: set[PartitionKey] = set()

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: PartitionKey) -> None:
        self.keys[key] = None

    def add_all(self, keys: Iterable[PartitionKey]) -> None:
        self.keys.update(dict.fromkeys(keys))

    def take(self) -> PartitionKey:
        """Removes and returns the first one."""
        return self.keys.popitem(last=False)[0]

    def is_new(self, key: PartitionKey) -> bool:
        """The log began to place a replica here while this process was running (S3.5)."""
        return key in self._new

    def settle(self, key: PartitionKey) -> None:
        """A new replica has its copy, or is no longer wanted."""
        self._new.discard(key)

    def publish(self, image: MetadataImage, previous: MetadataImage, *, first: bool, anew: bool) -> None:
        """The image moved on. `anew`: the registration changed, everything is looked at."""
        related = previous.topics.columns.directories is image.topics.columns.directories
        if first or anew or not related:
            self._add_all(image, previous, first=first)
        elif previous.topics is not image.topics:
            changes = partition_changes(previous.topics, image.topics)
            for key in (*changes.added, *changes.changed):
                info = image.topics.partition(*key)
                if info is not None and self._me in info.replicas:
                    self._assignments.doubt(key)
                    self._note_new(key, previous)
                    self.add(key)
                elif key in self._copies or key in self._offline:
                    self.add(key)
            for key in changes.removed:
                if key in self._copies or key in self._offline:
                    self.add(key)
        if image.features.metadata_version != previous.features.metadata_version and not first:
            self.add_all(self._copies.keys())

    def _add_all(self, image: MetadataImage, previous: MetadataImage, *, first: bool) -> None:
        mine = image.topics.keys_at(image.topics.rows_with_replica(self._me))
        for key in mine:
            self._assignments.doubt(key)
            if not first:
                self._note_new(key, previous)
        for keys in (mine, self._copies.keys(), self._damaged.keys(), self._offline):
            self.add_all(keys)

    def _note_new(self, key: PartitionKey, previous: MetadataImage) -> None:
        held = any(each.stage is not Stage.REMOVING for each in self._copies.of(key).values())
        if held or key in self._offline:
            return
        before = previous.topics.partition(*key)
        if before is None or self._me not in before.replicas:
            self._new.add(key)
