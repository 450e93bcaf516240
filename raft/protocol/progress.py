"""What a leader remembers of its replicas: progress, parked fetches, and rounds of reads.

Plain data and the queues' own rules; `replication.py` and `reads.py` decide with it.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from metaquorum.raft.messages import FetchRequest

ReplicaKey = tuple[int, bytes]
"""Node id and directory id: a node whose disk was replaced is another replica."""


@dataclass(slots=True, kw_only=True)
class ReplicaProgress:
    """`acked_offset`: end of what the replica holds (a voter: durably), None before its first matching fetch
    in this epoch. `*_ms` are the core's clock, `*_wall_ms` Unix time for display."""

    node_id: int
    directory_id: bytes
    acked_offset: int | None = None
    last_fetch_ms: int | None = None
    last_fetch_wall_ms: int | None = None
    last_caught_up_wall_ms: int | None = None
    end_at_last_fetch: int = 0
    read_round: int = 0
    next_begin_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One line of `describe`. Times are Unix ms, None: never (or the leader itself)."""

    node_id: int
    directory_id: bytes
    is_voter: bool
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


@dataclass(slots=True, kw_only=True)
class ParkedFetch:
    key: int
    request: FetchRequest
    replica: ReplicaKey
    deadline_ms: int


class ParkedFetches:
    """Fetches that wait for news, at most one a replica. Voters and observers are woken by different news."""

    def __init__(self) -> None:
        self.voters: dict[ReplicaKey, ParkedFetch] = {}
        self.observers: dict[ReplicaKey, ParkedFetch] = {}
        self._by_key: dict[int, ParkedFetch] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._by_key)

    def park(self, fetch: ParkedFetch, *, is_voter: bool) -> None:
        (self.voters if is_voter else self.observers)[fetch.replica] = fetch
        self._by_key[fetch.key] = fetch
        heapq.heappush(self._deadlines, (fetch.deadline_ms, fetch.key))

    def pop_replica(self, replica: ReplicaKey) -> ParkedFetch | None:
        parked = self.voters.get(replica) or self.observers.get(replica)
        return None if parked is None else self.pop_key(parked.key)

    def pop_key(self, key: int) -> ParkedFetch | None:
        parked = self._by_key.pop(key, None)
        if parked is not None:
            self.voters.pop(parked.replica, None)
            self.observers.pop(parked.replica, None)
        return parked

    def pop_all(self) -> list[ParkedFetch]:
        parked = list(self._by_key.values())
        self.voters.clear()
        self.observers.clear()
        self._by_key.clear()
        self._deadlines.clear()
        return parked

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and self._deadlines[0][1] not in self._by_key:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def pop_expired(self, now_ms: int) -> list[ParkedFetch]:
        expired: list[ParkedFetch] = []
        while (deadline := self.next_deadline_ms()) is not None and deadline <= now_ms:
            parked = self.pop_key(self._deadlines[0][1])
            if parked is not None:
                expired.append(parked)
        return expired


@dataclass(slots=True)
class ReadQueue:
    """Linearizable reads. `waiting` join the next round; `asking` wait for the answers to round `round`."""

    waiting: list[int] = field(default_factory=list)
    asking: list[int] = field(default_factory=list)
    round: int = 0
    offset: int = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.asking)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Leadership goes to `target_id` once it holds the whole log; given up at `deadline_ms`."""

    target_id: int
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class LeaderView:
    """`voters` are the other voters by node id. `observer_wake_offset` is the committed end of the
    last append that observers are woken for; `wakes` are the uncommitted ones. `announced` is the high
    watermark that is worth an answer to a voter of its own, and `announce_ms` when a newer one will be."""

    voters: dict[int, ReplicaProgress]
    observers: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    parked: ParkedFetches = field(default_factory=ParkedFetches)
    reads: ReadQueue = field(default_factory=ReadQueue)
    observer_wake_offset: int = 0
    wakes: deque[int] = field(default_factory=deque)
    elected_ms: int = 0
    transfer: Transfer | None = None
    next_prune_ms: int = 0
    announced: int = -1
    announce_ms: int | None = None
