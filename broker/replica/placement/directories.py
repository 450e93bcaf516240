"""A broker's log directories: which are good, how many replicas each holds, and where a new one goes.

The set of configured directories and its only direction: a directory fails and stays bad until the process
ends (KIP-112).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from metaquorum.broker.replica.disk_work import FoundDirectory, ReplicaLog
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.metadata.image.directories import damaged_in, given_up_in
from metaquorum.metadata.requests.data import PartitionKey

FREE_SPACE_PERCENT = 90
"""The share of the free space that recreated replicas may take: the rest is for what is written meanwhile."""


@dataclass(slots=True)
class Directory:
    """A configured directory. `problem` None: good. `replicas` counts those that are or are being made there;
    `promised_bytes`: the space that recreated replicas are expected to take and do not take yet.
    `ignores_case`: see `FoundDirectory`."""

    path: str
    directory_id: bytes | None
    problem: str | None
    total_bytes: int
    usable_bytes: int
    replicas: int = 0
    promised_bytes: int = 0
    ignores_case: bool = False

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more can be promised; unknown free space counts as enough."""
        if self.usable_bytes < 0 or size_bytes <= 0:
            return True
        return (self.promised_bytes + size_bytes) * 100 <= self.usable_bytes * FREE_SPACE_PERCENT


class Directories:
    """The configured directories in their order."""

    def __init__(self, opened: Sequence[FoundDirectory]) -> None:
        self.all = [
            Directory(
                directory.path,
                directory.directory_id,
                directory.problem
                if directory.directory_id is not None
                else directory.problem or "it has no directory id",
                directory.total_bytes,
                directory.usable_bytes,
                ignores_case=directory.ignores_case,
            )
            for directory in opened
        ]
        self._by_id = {
            directory.directory_id: directory for directory in self.all if directory.directory_id is not None
        }
        self._damaged = {damaged_in(directory_id): directory_id for directory_id in self._by_id}
        self._given_up = {given_up_in(directory_id): directory_id for directory_id in self._by_id}

    @property
    def any_bad(self) -> bool:
        """Whether some configured directory cannot be used: what is not found may be there (S3.6)."""
        return any(directory.problem is not None for directory in self.all)

    def reason_to_stop(self, metadata_directory: bytes | None) -> str | None:
        """Why the broker has to stop, in one line: no directory is good, or that of the metadata log is bad.
        Else None."""
        if metadata_directory is not None and self.is_bad(metadata_directory):
            known = self._by_id[metadata_directory]
            return (
                f"stopped: the directory of the metadata log is offline: {known.path} ({known.problem}); "
                "repair it and restart"
            )
        if all(directory.problem is not None for directory in self.all):
            lines = ", ".join(f"{directory.path} ({directory.problem})" for directory in self.bad())
            return f"stopped: no log directory is online: {lines}; repair one of log.dirs and restart"
        return None

    def good_ids(self) -> tuple[bytes, ...]:
        return tuple(sorted(directory_id for directory_id in self._by_id if self.is_good(directory_id)))

    def bad_ids(self) -> tuple[bytes, ...]:
        """Ids of the bad directories whose id is known."""
        return tuple(sorted(directory_id for directory_id in self._by_id if self.is_bad(directory_id)))

    def bad(self) -> list[Directory]:
        return [directory for directory in self.all if directory.problem is not None]

    def get(self, directory_id: bytes) -> Directory | None:
        return self._by_id.get(directory_id)

    def named(self, path: str) -> Directory | None:
        wanted = path.rstrip("/")
        return next((directory for directory in self.all if directory.path.rstrip("/") == wanted), None)

    def name_in(self, directory_id: bytes, topic: str) -> str:
        """The topic's part of a replica's name there: the same for topics that would share a directory."""
        known = self._by_id.get(directory_id)
        return topic.lower() if known is not None and known.ignores_case else topic

    def is_good(self, directory_id: bytes) -> bool:
        known = self._by_id.get(directory_id)
        return known is not None and known.problem is None

    def is_bad(self, directory_id: bytes) -> bool:
        """Configured, and bad. False for one that is not, or no longer, configured: it is gone (S3.17)."""
        known = self._by_id.get(directory_id)
        return known is not None and known.problem is not None

    def holding_damaged(self, mark: bytes) -> bytes | None:
        """The configured directory for which `mark` marks a replica as damaged; else None."""
        return self._damaged.get(mark)

    def given_up(self, mark: bytes) -> bytes | None:
        """The configured directory for which `mark` marks a replica as given up, to start over; else
        None."""
        return self._given_up.get(mark)

    def fail(self, directory_id: bytes, reason: str) -> bool:
        """It is bad from now on. Returns False if it already was, or is not configured."""
        directory = self._by_id.get(directory_id)
        if directory is None or directory.problem is not None:
            return False
        directory.problem = reason
        directory.replicas = 0
        directory.promised_bytes = 0
        return True

    def measured(self, directory_id: bytes, total_bytes: int, usable_bytes: int) -> None:
        """A new measurement; earlier promises still count, because they are being written."""
        known = self._by_id.get(directory_id)
        if known is not None:
            known.total_bytes, known.usable_bytes = total_bytes, usable_bytes

    def choose(self, size_bytes: int = 0) -> bytes | None:
        """The good directory with the fewest replicas, the first of them in the configuration's order, that
        has room for `size_bytes` more; None if none has."""
        fitting = [directory for directory in self._usable() if directory.has_room(size_bytes)]
        if not fitting:
            return None
        return min(fitting, key=lambda each: each.replicas).directory_id

    def _usable(self) -> Iterable[Directory]:
        return (
            directory
            for directory in self.all
            if directory.problem is None and directory.directory_id is not None
        )


# Local copies of replicas: each a log in one good directory, from its creation to its removal.


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
    def had_data(self) -> bool:
        """Whether there were records in it when the process began, or before."""
        return self.was_found and self.log is not None and self.log.end_offset > 0

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

    def __init__(self, directories: Directories, opened: Sequence[FoundDirectory] = ()) -> None:
        self._directories = directories
        self._by_key: dict[PartitionKey, dict[bytes, Copy]] = {}
        self._by_name: dict[tuple[bytes, str, int], Copy] = {}
        for directory in opened:
            directory_id = directory.directory_id
            if directory.problem is None and directory_id is not None:
                for each in directory.replicas:
                    log, future = each.log, each.future
                    self.add(Copy(each.key, each.topic, directory_id, each.incarnation, log, future=future))

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
        """The copy whose directory on the disk has this name, which may be written with other case where the
        file system ignores it; a copy being removed has given up its name."""
        return self._by_name.get(self._slot((directory_id, topic, index)))

    def _slot(self, name: tuple[bytes, str, int]) -> tuple[bytes, str, int]:
        """What only one copy can have: its name, as the file system distinguishes names."""
        directory_id, topic, index = name
        return directory_id, self._directories.name_in(directory_id, topic), index

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
        self._by_name[self._slot(copy.name)] = copy

    def add(self, copy: Copy) -> None:
        self._by_key.setdefault(copy.key, {})[copy.directory_id] = copy
        if not copy.future:
            self._by_name[self._slot(copy.name)] = copy
        directory = self._directories.get(copy.directory_id)
        if directory is not None:
            directory.replicas += 1

    def leave(self, copy: Copy) -> None:
        """It is being removed: its name is free for the work that is requested next."""
        copy.stage = Stage.REMOVING
        if self._by_name.get(self._slot(copy.name)) is copy:
            del self._by_name[self._slot(copy.name)]
        directory = self._directories.get(copy.directory_id)
        if directory is not None:
            directory.replicas -= 1

    def drop(self, copy: Copy) -> None:
        """It is gone, or its directory is."""
        if self._by_name.get(self._slot(copy.name)) is copy:
            del self._by_name[self._slot(copy.name)]
        copies = self._by_key.get(copy.key)
        if copies is not None:
            copies.pop(copy.directory_id, None)
            if not copies:
                del self._by_key[copy.key]


# The space that recreated replicas will take, and which directory has it (S3.29).


class Room:
    """Room in the configured directories."""

    def __init__(self, directories: Directories, copies: Copies) -> None:
        self._directories = directories
        self._copies = copies
        self._promised: dict[PartitionKey, tuple[bytes, int]] = {}
        self._usual_bytes: int | None = None

    def look_again(self) -> None:
        """The usual size has changed."""
        self._usual_bytes = None

    def usual_size(self) -> int:
        """The average size of a replica here; 0 if there are none."""
        if self._usual_bytes is None:
            copies = self._copies.all()
            self._usual_bytes = sum(copy.size_bytes for copy in copies) // max(1, len(copies))
        return self._usual_bytes

    def place_for(self, size_bytes: int, wanted: bytes | None) -> bytes | None:
        """The wanted directory, or the one with the fewest replicas; None if none has the space."""
        if wanted is None:
            return self._directories.choose(size_bytes)
        directory = self._directories.get(wanted)
        return wanted if directory is not None and directory.has_room(size_bytes) else None

    def promise(self, key: PartitionKey, directory_id: bytes, size_bytes: int) -> None:
        """A recreated replica will take this space there."""
        directory = self._directories.get(directory_id)
        if directory is not None and size_bytes > 0:
            directory.promised_bytes += size_bytes
            self._promised[key] = (directory_id, size_bytes)

    def measured(self, directory_id: bytes, total_bytes: int, usable_bytes: int) -> None:
        """A directory was measured again: promised bytes that are already written are in the measurement."""
        self._directories.measured(directory_id, total_bytes, usable_bytes)
        directory = self._directories.get(directory_id)
        if directory is None:
            return
        directory.promised_bytes = 0
        for key, (in_directory, size) in list(self._promised.items()):
            copy = self._copies.at(in_directory, key)
            left = 0 if copy is None else size - copy.size_bytes
            if left <= 0:
                del self._promised[key]
            elif in_directory == directory_id:
                directory.promised_bytes += left
