"""The next step for one partition's replica on this broker: KIP-112's and KIP-858's rules, as a function.

Level-triggered: the image and the local state go in, the next step comes out, whatever happened in between.
Pure and without state.

The rules (S3.5 to S3.8, S3.16, S3.17, S3.29, S3.35): the image alone says whether a replica exists. It is
recreated only if the image says that no directory was assigned yet, if the image began to name this broker
while this process was running, or if no configured directory is bad: otherwise a missing replica may be in
the bad one.

A replica that moves to another directory of this broker (KIP-113) runs in the old one until the log names the
new directory and the copy there is whole.

A copy whose log is damaged does not run, and the controller learns of it (`metadata.image.directories`)
before anything else happens to it. It starts over only if another broker leads the partition, or if an
operator moved it away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from metaquorum.broker.replica.disk_work import DamagedReplica, FoundDirectory
from metaquorum.broker.replica.placement.directories import Directories
from metaquorum.metadata.image import LOST, MIGRATING, NO_LEADER, UNASSIGNED, PartitionInfo
from metaquorum.metadata.image.directories import NOT_FOUND, damaged_in, given_up_in
from metaquorum.metadata.requests.data import PartitionKey

_UNPLACED = frozenset({UNASSIGNED, LOST})
_UNASSIGNED = frozenset({UNASSIGNED, LOST, MIGRATING})


class Remove(msgspec.Struct, frozen=True):
    """The image does not place a replica here: every local copy is removed (S2.4, S3.21)."""

    reason: str


class Run(msgspec.Struct, frozen=True):
    """The copy in `directory_id` is the replica: it leads or follows. Copies elsewhere are obsolete.
    `leaves`: the log already names the directory to which it is being moved."""

    directory_id: bytes
    leaves: bool = False


class Assign(msgspec.Struct, frozen=True):
    """A copy is in `directory_id` and the image does not say so: it must be reported to the controller
    first."""

    directory_id: bytes


class Create(msgspec.Struct, frozen=True):
    """There is no copy, and one may be made. `directory_id` None: where the fewest replicas are. `replaces`:
    recreates one that was elsewhere, for which there must be room (S3.29)."""

    directory_id: bytes | None
    replaces: bool = False


class Offline(msgspec.Struct, frozen=True):
    """The replica is in a bad directory, or may be: KAFKA_STORAGE_ERROR, and nothing is created. `report`:
    the id that the log must have as its place; None: the one that it has."""

    reason: str
    report: bytes | None = None


class Wait(msgspec.Struct, frozen=True):
    """Something has to be acknowledged first."""

    reason: str


class Damaged(msgspec.Struct, frozen=True):
    """The copy in `directory_id` is damaged, or was and is gone: nothing runs. `report`: the place to report
    to the controller; None: it knows, and no other broker leads the partition.
    """

    directory_id: bytes
    report: bytes | None


Decision = Remove | Run | Assign | Create | Offline | Wait | Damaged


def decide(
    info: PartitionInfo | None,
    *,
    broker_id: int,
    copies: Collection[bytes],
    directories: Directories,
    damaged: Collection[bytes] = (),
    future: bytes | None = None,
    is_new: bool = False,
    owes_lost: bool = False,
    can_assign: bool = True,
) -> Decision:
    """`info` None: the image has no such partition. `copies`: good directories that hold one, best first.
    `damaged`: good directories that hold one whose log is damaged. `future`: a good directory to which one is
    being moved; if nothing is left to move from, it counts as damaged. `is_new`: the image began to place a
    replica here while this process was running. `owes_lost`: the controller has not acknowledged that an
    unassigned copy is lost (S3.6). `can_assign`: the metadata.version has directories (3.7-IV2)."""
    if info is None:
        return Remove("its topic was deleted, or the partition no longer exists")
    directory_id = info.directory_of(broker_id)
    if directory_id is None:
        return Remove(f"broker {broker_id} is not among its replicas {list(info.replicas)}")
    moves = _moving(directory_id, future, copies)
    if future is not None and directory_id in {future, damaged_in(future)}:
        damaged = [*damaged, future]
    led_elsewhere = info.leader not in {NO_LEADER, broker_id}
    hurt = moves or _hurt(directory_id, led_elsewhere, copies, directories, damaged)
    if hurt is not None and not owes_lost:
        return hurt
    if directory_id in _UNPLACED or (directory_id == MIGRATING and not can_assign):
        return _unplaced(directory_id, copies, directories, is_new, owes_lost, can_assign)
    if directory_id in {MIGRATING, NOT_FOUND}:
        return _never_recorded(directories, is_new, copies, is_reported=directory_id == NOT_FOUND)
    if directories.is_bad(directory_id):
        return Offline(f"its log directory is offline: {_problems(directories)}")
    if directories.is_good(directory_id):
        return (
            Run(directory_id)
            if directory_id in copies
            else _missing(directory_id, copies, directories, is_new)
        )
    where = f"in the directory {directory_id.hex()}, which is not configured"
    return _not_found(directories, False, where, copies, replaces=True)


def _moving(assigned: bytes, future: bytes | None, copies: Collection[bytes]) -> Decision | None:
    """The log names the new directory of a replica that is still being moved there. None if it does not, or
    nothing is left to move from."""
    if future is None or not copies:
        return None
    if assigned == future:
        return Run(next(iter(copies)), leaves=True)
    return Assign(future) if assigned == damaged_in(future) else None


def _hurt(
    assigned: bytes,
    led_elsewhere: bool,
    copies: Collection[bytes],
    directories: Directories,
    damaged: Collection[bytes],
) -> Decision | None:
    """The decision on a replica that is or was damaged. None if it is not, or its directory is unknown."""
    holding, given_up = directories.holding_damaged(assigned), directories.given_up(assigned)
    if holding is not None:
        return _damaged(holding, led_elsewhere, copies, directories, damaged)
    if given_up is not None:
        return _given_up(given_up, copies, directories)
    if assigned in damaged:
        return Damaged(assigned, damaged_in(assigned))
    if assigned in _UNASSIGNED and damaged and not copies:
        here = next(iter(damaged))
        return Damaged(here, damaged_in(here))
    return None


def _damaged(
    directory: bytes,
    led_elsewhere: bool,
    copies: Collection[bytes],
    directories: Directories,
    damaged: Collection[bytes],
) -> Decision:
    """The controller knows that the copy in `directory` was damaged."""
    if directories.is_bad(directory):
        return Offline(f"its log directory is offline: {_problems(directories)}")
    if directory in damaged:
        return Damaged(directory, given_up_in(directory) if led_elsewhere else None)
    if directory in copies:
        return Assign(directory)  # it is whole again
    return Damaged(directory, given_up_in(directory))


def _given_up(directory: bytes, copies: Collection[bytes], directories: Directories) -> Decision:
    """The controller knows that what `directory` held no longer counts."""
    if directories.is_bad(directory):
        return Offline(f"its log directory is offline: {_problems(directories)}")
    if copies:
        return Assign(directory if directory in copies else next(iter(copies)))
    return Create(directory, replaces=True)


def _unplaced(
    assigned: bytes,
    copies: Collection[bytes],
    directories: Directories,
    is_new: bool,
    owes_lost: bool,
    can_assign: bool,
) -> Decision:
    if owes_lost:
        return Wait(
            "its directory failed before the replica was assigned to it: waiting for the "
            "controller to acknowledge this"
        )
    here = next(iter(copies), None)
    if here is not None:
        return Assign(here) if can_assign else Run(here)
    if assigned == MIGRATING and not is_new and directories.any_bad:
        return Offline(f"it was not found, and may be in an offline directory: {_problems(directories)}")
    return Create(None)


def _missing(assigned: bytes, copies: Collection[bytes], directories: Directories, is_new: bool) -> Decision:
    """The image names a good directory that holds no copy."""
    elsewhere = next(iter(copies), None)
    if elsewhere is not None:
        return Assign(elsewhere)
    if is_new or not directories.any_bad:
        return Create(assigned)
    return Offline(
        f"it was not found in its directory, and another directory is offline: {_problems(directories)}"
    )


def _never_recorded(
    directories: Directories, is_new: bool, copies: Collection[bytes], *, is_reported: bool
) -> Decision:
    """It held data before directories had ids: it keeps serving while its place is added to the log. If it
    may be in an offline directory, the log has to say so: or it would go on to name this broker as leader."""
    what = "in a directory that was never recorded"
    decision = _not_found(directories, is_new, what, copies, replaces=is_reported)
    if is_reported or not isinstance(decision, Offline):
        return decision
    bad = directories.bad()
    only = bad[0].directory_id if len(bad) == 1 else None
    return Offline(decision.reason, NOT_FOUND if only is None else only)


def found_again(directory: bytes) -> Offline:
    """For a replica that was reported as not found, and whose data is in `directory` after all."""
    text = "the directory that holds it is back, and the controller has to learn that first"
    return Offline(text, damaged_in(directory))


def _not_found(
    directories: Directories,
    is_new: bool,
    what: str,
    copies: Collection[bytes],
    *,
    replaces: bool = False,
) -> Decision:
    """The image names no directory of this broker."""
    here = next(iter(copies), None)
    if directories.any_bad and not is_new and (here is None or replaces):
        return Offline(f"it is {what}, or in an offline one: {_problems(directories)}")
    return Create(None, replaces=replaces) if here is None else Assign(here)


def _problems(directories: Directories) -> str:
    lines = [f"{directory.path} ({directory.problem})" for directory in directories.bad()]
    return ", ".join(lines) + "; repair it, or take it out of log.dirs, and restart the broker"


# Copies of replicas in good directories whose logs were damaged when the process began.

CANNOT_BE_REPORTED = (
    "the log cannot say that one replica is offline before metadata.version 3.7-IV2: move the replica's"
    " directory away if another broker leads, and restart"
)


class DamagedCopies:
    """By partition and directory; entries are only removed."""

    def __init__(self, opened: Sequence[FoundDirectory]) -> None:
        self._by_key: dict[PartitionKey, dict[bytes, DamagedReplica]] = {}
        self._paths: dict[bytes, str] = {}
        self._reported: dict[PartitionKey, str] = {}
        for directory in opened:
            if directory.problem is None and directory.directory_id is not None:
                self._paths[directory.directory_id] = directory.path
                for copy in directory.damaged:
                    self._by_key.setdefault(copy.key, {})[directory.directory_id] = copy

    def keys(self) -> list[PartitionKey]:
        return list(self._by_key)

    def of(self, key: PartitionKey) -> Iterable[bytes]:
        """The directories that hold one."""
        return self._by_key.get(key) or ()

    def size_of(self, key: PartitionKey, directory_id: bytes) -> int:
        """The size of its files; 0 if there is none."""
        copy = self._by_key.get(key, {}).get(directory_id)
        return 0 if copy is None else copy.size_bytes

    def named(self, directory_id: bytes, topic: str, index: int, directories: Directories) -> str | None:
        """The topic of a copy there whose directory has this name, as the file system distinguishes names."""
        wanted = directories.name_in(directory_id, topic)
        copies = (each[directory_id] for each in self._by_key.values() if directory_id in each)
        for copy in copies:
            if copy.key[1] == index and directories.name_in(directory_id, copy.topic) == wanted:
                return copy.topic
        return None

    def forget(self, key: PartitionKey, directory_id: bytes) -> bool:
        """It is being removed. Returns False if there was none."""
        copies = self._by_key.get(key, {})
        had = copies.pop(directory_id, None) is not None
        if had and not copies:
            del self._by_key[key]
        return had

    def leave(self, directory_id: bytes) -> list[PartitionKey]:
        """Its directory failed. Returns the partitions that had a copy in it."""
        return [key for key in self.keys() if self.forget(key, directory_id)]

    def take(self, key: PartitionKey) -> list[bytes]:
        """Removes and returns the directories whose copies are now being removed."""
        return list(self._by_key.pop(key, ()))

    def text_of(self, key: PartitionKey, topic: str, decision: Damaged) -> str:
        """Why the replica does not run, and what happens next."""
        path = f"{self._paths.get(decision.directory_id, '')}/{topic}-{key[1]}"
        copy = self._by_key.get(key, {}).get(decision.directory_id)
        if copy is None:
            return f"{path} was damaged and is gone: the replica is recreated"
        if decision.report == given_up_in(decision.directory_id):
            return f"{path} is set aside, and the replica is recreated from its leader: {copy.problem}"
        if decision.report is not None:
            return f"{path} cannot be served: {copy.problem}"
        return (
            f"{path} stays offline, because no other broker leads: {copy.problem}; restore the directory and"
            " restart this broker, or accept the loss: metaquorum partitions elect --election unclean --topic"
            f" {topic} --partition {key[1]} elects another live replica, or an empty one if you first move"
            f" {path} away and restart this broker"
        )

    def is_news(self, key: PartitionKey, text: str) -> bool:
        """Whether this differs from the last text about it."""
        news = self._reported.get(key) != text
        self._reported[key] = text
        return news
