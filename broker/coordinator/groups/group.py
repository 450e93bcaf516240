"""A group of the classic protocol: its members, its phase, and what follows from them.

Owns the rules about one group at one moment: which protocols all members support, which member leads, whether
all have joined. Does not change the phase or set timers: `rebalance` does. Source: KIP-62, KIP-345, KIP-394.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from metaquorum.wire.embedded import subscribed_topics

CONSUMER = "consumer"
"""The protocol type of consumers: their metadata names the topics that they subscribe to."""

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in order of preference."""


class Phase(Enum):
    """EMPTY: no members. PREPARING: members join. COMPLETING: the leader assigns. STABLE: all consume."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True, kw_only=True)
class GroupMember:
    """`join_key`, `sync_key`: the caller whose JoinGroup or SyncGroup is not answered yet. `is_new`: it has
    not received its id, and cannot send heartbeats."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols = ()
    assignment: bytes = b""
    join_key: object | None = None
    sync_key: object | None = None
    is_new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(slots=True, kw_only=True)
class Group:
    """One group. `pending`: ids that were given out and have not joined (KIP-394). `not_synced`: members of
    the current generation whose SyncGroup has not arrived. `state_since_ms`: the time of day at which the
    phase began."""

    group_id: str
    phase: Phase = Phase.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    state_since_ms: int = -1
    members: dict[str, GroupMember] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    not_synced: set[str] = field(default_factory=set)
    is_first_join: bool = False
    delay_left_ms: int = 0
    someone_came: bool = False

    # ---- members ---------------------------------------------------------------------------------

    def static_id(self, instance_id: str | None) -> str | None:
        """The id of the member with an instance id (KIP-345)."""
        if instance_id is None:
            return None
        return next(
            (each.member_id for each in self.members.values() if each.instance_id == instance_id), None
        )

    def add(self, member: GroupMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        self.members.pop(member_id, None)
        self.pending.discard(member_id)
        self.not_synced.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, old_id: str, new_id: str) -> GroupMember:
        """A static member gets another id and keeps its place."""
        member = self.members[old_id]
        member.member_id = new_id
        self.members = {each.member_id: each for each in self.members.values()}
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.not_synced:
            self.not_synced.discard(old_id)
            self.not_synced.add(new_id)
        return member

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    @property
    def awaiting_join(self) -> int:
        return sum(each.join_key is not None for each in self.members.values())

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and self.awaiting_join == len(self.members)

    def accepts(self, member_id: str, max_size: int) -> bool:
        """Whether there is room for the sender of a JoinGroup."""
        known = self.members.get(member_id)
        if self.phase is Phase.EMPTY:
            return True
        if self.phase is Phase.PREPARING:
            return (known is not None and known.join_key is not None) or self.awaiting_join < max_size
        return known is not None or len(self.members) < max_size

    def elect(self) -> bool:
        """Returns whether there is a leader: the old one has joined, or another member that has joined now
        leads."""
        leader = None if self.leader is None else self.members.get(self.leader)
        if not self.members or (leader is not None and leader.join_key is not None):
            return True
        joined = next((each.member_id for each in self.members.values() if each.join_key is not None), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    # ---- protocols -------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can be in the group."""
        names = tuple(names)
        if not self.members:
            return bool(protocol_type) and bool(names)
        shared = self._shared()
        return protocol_type == self.protocol_type and any(name in shared for name in names)

    def select_protocol(self) -> str | None:
        """The shared protocol that most members prefer; in a tie, the one that the first member prefers."""
        shared = self._shared()
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes.update([next(name for name, _ in member.protocols if name in shared)] if shared else ())
        return max(votes, key=lambda name: votes[name]) if votes else None

    def _shared(self) -> set[str]:
        named = [{name for name, _ in each.protocols} for each in self.members.values()]
        return set.intersection(*named) if named else set()

    def subscribed(self) -> frozenset[str] | None:
        """The topics that members consume; None if they are unknown."""
        if self.protocol_type != CONSUMER or self.protocol is None:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol))
            if topics is None:
                return None
            found.update(topics)
        return frozenset(found)
