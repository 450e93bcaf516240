"""Copies of replicas in good directories whose logs were damaged when the process began.

Owns what is left of them and the text for an operator. Does not decide what becomes of one: `reconcile` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metaquorum.broker.replica.found import DamagedReplica, FoundDirectory
from metaquorum.broker.replica.placement.reconcile import Damaged
from metaquorum.metadata.image.damaged import given_up_in
from metaquorum.metadata.requests.data import PartitionKey

CANNOT_BE_TOLD = (
    "the log cannot say that one replica is offline before metadata.version 3.7-IV2: move the replica's"
    " directory away if another broker leads, and restart"
)


class DamagedCopies:
    """By partition and directory; entries are only removed."""

    def __init__(self, found: Sequence[FoundDirectory]) -> None:
        self._by_key: dict[PartitionKey, dict[bytes, DamagedReplica]] = {}
        self._paths: dict[bytes, str] = {}
        self._told: dict[PartitionKey, str] = {}
        for directory in found:
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
        if decision.tell == given_up_in(decision.directory_id):
            return f"{path} is set aside, and the replica is recreated from its leader: {copy.problem}"
        if decision.tell is not None:
            return f"{path} cannot be served: {copy.problem}"
        return (
            f"{path} stays offline, because no other broker leads: {copy.problem}; restore the directory and"
            " restart this broker, or accept the loss: metaquorum partitions elect --election unclean --topic"
            f" {topic} --partition {key[1]} elects another live replica, or an empty one if you first move"
            f" {path} away and restart this broker"
        )

    def is_news(self, key: PartitionKey, text: str) -> bool:
        """Whether this differs from the last text about it."""
        news = self._told.get(key) != text
        self._told[key] = text
        return news
