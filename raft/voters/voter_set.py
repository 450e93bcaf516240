"""A set of voters as a value: which nodes vote, from which directory, and where each listens (KIP-853).

Owns how a set may change: by one voter at a time. Does not know the log or roles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from metaquorum.storage.uuids import uuid_to_text

NEWEST_KRAFT_VERSION = 1
"""1: the voters are records in the log (KIP-853). 0: they are configuration."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a voter listens; `name` is the listener's name."""

    name: str
    host: str
    port: int


class VersionRange(msgspec.Struct, frozen=True):
    """The levels of kraft.version that a node supports, both ends included."""

    lowest: int = 0
    highest: int = 0

    def __contains__(self, level: int) -> bool:
        return self.lowest <= level <= self.highest


OWN_VERSIONS = VersionRange(0, NEWEST_KRAFT_VERSION)
"""The levels that this release supports."""


class VoterNode(msgspec.Struct, frozen=True, kw_only=True):
    """One voter. `directory_id` None means any directory (a configured voter that is not pinned)."""

    node_id: int
    directory_id: bytes | None
    endpoints: tuple[Endpoint, ...] = ()
    versions: VersionRange = VersionRange()

    def is_replica(self, node_id: int, directory_id: bytes) -> bool:
        """True if this node with this directory is that voter."""
        return self.node_id == node_id and self.directory_id in (None, directory_id)

    def __str__(self) -> str:
        directory = "" if self.directory_id is None else f":{uuid_to_text(self.directory_id)}"
        return f"{self.node_id}{directory}"


class PreferredCandidate(msgspec.Struct, frozen=True):
    """A voter that a resigning leader proposes as leader. `directory_id` is the one that acknowledged its
    log; empty if the voter was not heard from and no voters record names it."""

    node_id: int
    directory_id: bytes

    def is_replica(self, node_id: int, directory_id: bytes) -> bool:
        """True if this names the node with this directory."""
        return self.node_id == node_id and self.directory_id in (b"", directory_id)


class VoterSet:
    """Voters by node id, each id once. Immutable; iterates over the ids in rising order."""

    __slots__ = ("_voters", "nodes")

    def __init__(self, voters: Iterable[VoterNode] = ()) -> None:
        """Raises ValueError if two voters have the same id."""
        listed = sorted(voters, key=lambda voter: voter.node_id)
        self._voters = {voter.node_id: voter for voter in listed}
        if len(self._voters) < len(listed):
            raise ValueError(f"two voters have one id: {', '.join(map(str, listed))}")
        self.nodes = tuple(listed)
        """By rising id."""

    def __iter__(self) -> Iterator[int]:
        return iter(self._voters)

    def __len__(self) -> int:
        return len(self._voters)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._voters

    def __getitem__(self, node_id: int) -> VoterNode:
        return self._voters[node_id]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self._voters.values())) + "}"

    __repr__ = __str__

    def get(self, node_id: int) -> VoterNode | None:
        """The voter with this id; None if the node does not vote."""
        return self._voters.get(node_id)

    def is_voter(self, node_id: int, directory_id: bytes) -> bool:
        """True if this node with this directory votes."""
        voter = self._voters.get(node_id)
        return voter is not None and voter.directory_id in (None, directory_id)

    def with_voter(self, voter: VoterNode) -> VoterSet:
        """The set with this voter added, or with its entry replaced."""
        return VoterSet({**self._voters, voter.node_id: voter}.values())

    def without(self, node_id: int) -> VoterSet:
        """The set without the voter with this id."""
        return VoterSet(voter for voter in self._voters.values() if voter.node_id != node_id)

    def majorities_meet(self, other: VoterSet) -> bool:
        """True if every majority of one set shares a voter with every majority of the other: at most one
        voter differs. The same id with another directory counts as two voters: one removed and one added."""
        return len(self._keys() ^ other._keys()) <= 1

    def _keys(self) -> set[tuple[int, bytes | None]]:
        return {(voter.node_id, voter.directory_id) for voter in self._voters.values()}
