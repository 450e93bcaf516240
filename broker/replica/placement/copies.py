"""Local copies of replicas: each a log in one good directory, from its creation to its removal.

Owns where each copy is, by partition and by name on the disk. Does not decide what becomes of one:
`reconcile` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from metaquorum.broker.replica.disk_work import ReplicaLog
from metaquorum.broker.replica.found import FoundDirectory
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.placement.directories import Directories
from metaquorum.metadata.requests.data import PartitionKey


class Stage(Enum):
    CREATING = auto()
    OPEN = auto()
    REMOVING = auto()


class Copy:
    """A replica's log in one good directory. `log` is what was found or made; `partition` exists once it has
    run. `was_found`: it was there when the process began. `future`: it is being copied from another directory
    of this broker (KIP-113), and is not a replica yet."""

    __slots__ = (
        "directory_id",
        "future",
        "incarnation",
        "key",
        "log",
        "partition",
        "stage",
        "topic",
        "was_found",
    )

    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        directory_id: bytes,
        incarnation: int,
        log: ReplicaLog | None,
        *,
        future: bool = False,
    ) -> None:
        self.key = key
        self.topic = topic
        self.directory_id = directory_id
        self.incarnation = incarnation
        self.log = log
        self.was_found = log is not None
        self.future = future
        self.stage = Stage.CREATING if log is None else Stage.OPEN
        self.partition: Partition | None = None

    @property
    def name(self) -> tuple[bytes, str, int]:
        """Its place on the disk: (directory id, topic, partition)."""
        return self.directory_id, self.topic, self.key[1]

    @property
    def rank(self) -> tuple[int, int]:
        """The copy with more of the newest epoch is the better one."""
        return (0, 0) if self.log is None else (self.log.epochs.last_epoch, self.log.end_offset)

    @property
    def incarnation_now(self) -> int:
        return self.incarnation if self.partition is None else self.partition.incarnation

    @property
    def size_bytes(self) -> int:
        if self.partition is not None:
            return self.partition.size_bytes
        return 0 if self.log is None else self.log.size_bytes


class Copies:
    """All copies, at most one per partition and directory. Copies being removed stay here until they are
    gone, but do not count in any directory."""

    def __init__(self, directories: Directories, found: Sequence[FoundDirectory] = ()) -> None:
        self._directories = directories
        self._by_key: dict[PartitionKey, dict[bytes, Copy]] = {}
        self._by_name: dict[tuple[bytes, str, int], Copy] = {}
        for directory in found:
            place = directory.directory_id
            if directory.problem is None and place is not None:
                for each in directory.replicas:
                    log, future = each.log, each.future
                    self.add(Copy(each.key, each.topic, place, each.incarnation, log, future=future))

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def keys(self) -> list[PartitionKey]:
        return list(self._by_key)

    def of(self, key: PartitionKey) -> dict[bytes, Copy]:
        """A partition's copies by directory; read only."""
        return self._by_key.get(key) or {}

    def at(self, directory_id: bytes, key: PartitionKey) -> Copy | None:
        copies = self._by_key.get(key)
        return None if copies is None else copies.get(directory_id)

    def named(self, directory_id: bytes, topic: str, index: int) -> Copy | None:
        """The copy whose directory on the disk has this name; a copy being removed has given up its name."""
        return self._by_name.get((directory_id, topic, index))

    def all(self) -> list[Copy]:
        """Those that are not being removed."""
        return [
            each
            for copies in self._by_key.values()
            for each in copies.values()
            if each.stage is not Stage.REMOVING
        ]

    def in_directory(self, directory_id: bytes) -> list[Copy]:
        return [copies[directory_id] for copies in self._by_key.values() if directory_id in copies]

    def replicas_of(self, key: PartitionKey) -> list[Copy]:
        """Those that can be its replica, the best first: not being removed, and not future."""
        found = [each for each in self.of(key).values() if each.stage is not Stage.REMOVING]
        return sorted((each for each in found if not each.future), key=lambda each: each.rank, reverse=True)

    def futures_of(self, key: PartitionKey) -> list[Copy]:
        """The future copies that may become its replica."""
        found = self.of(key).values()
        return [each for each in found if each.future and each.stage is not Stage.REMOVING]

    def promote(self, copy: Copy) -> None:
        """A future copy is about to take the replica's name."""
        self._by_name[copy.name] = copy

    def add(self, copy: Copy) -> None:
        self._by_key.setdefault(copy.key, {})[copy.directory_id] = copy
        if not copy.future:
            self._by_name[copy.name] = copy
        directory = self._directories.get(copy.directory_id)
        if directory is not None:
            directory.replicas += 1

    def leave(self, copy: Copy) -> None:
        """It is being removed: its name is free for the work that is requested next."""
        copy.stage = Stage.REMOVING
        if self._by_name.get(copy.name) is copy:
            del self._by_name[copy.name]
        directory = self._directories.get(copy.directory_id)
        if directory is not None:
            directory.replicas -= 1

    def drop(self, copy: Copy) -> None:
        """It is gone, or its directory is."""
        if self._by_name.get(copy.name) is copy:
            del self._by_name[copy.name]
        copies = self._by_key.get(copy.key)
        if copies is not None:
            copies.pop(copy.directory_id, None)
            if not copies:
                del self._by_key[copy.key]
