"""What a leader remembers of its replicas: progress, parked fetches, and rounds of reads.

Owns the data and the queues' own rules. Does not decide: `replication.py` and `reads.py` do.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

import msgspec

from metaquorum.raft.messages import NOTHING_COMMITTED, FetchRequest, RaftError, VoterChangeResponse

ReplicaKey = tuple[int, bytes]
"""Node id and directory id: a node whose disk was replaced is another replica."""


@dataclass(slots=True, kw_only=True)
class ReplicaProgress:
    """What a leader knows of one replica. `*_ms` are the core's clock, `*_wall_ms` Unix time for display."""

    node_id: int
    """Never the leader's own."""
    directory_id: bytes
    """A new directory makes a new replica: what the old one acknowledged does not count for it."""
    acked_offset: int | None = None
    """End of what the replica holds, durably for a voter. Never above the leader's end, and never falls
    for a voter; None before its first fetch of this epoch that matched the log."""
    furthest_offset: int = 0
    """The highest `acked_offset` as a voter: a delayed fetch does not lower it."""
    last_fetch_ms: int | None = None
    """Its newest fetch of this epoch, whether it matched or not, for check-quorum. Never falls."""
    last_fetch_wall_ms: int | None = None
    """The same for display, only for fetches that matched."""
    last_caught_up_wall_ms: int | None = None
    """When it last held everything that the leader had."""
    end_at_last_fetch: int = 0
    """The leader's end at its newest matching fetch. A later fetch from there was caught up at that time."""
    read_round: int = 0
    """The highest read round that it repeated; at most the leader's `reads.round`. Never falls."""
    next_begin_ms: int = 0
    """When this leader next announces itself to a voter that does not fetch; 0 before the first time."""


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `describe`. Times are Unix ms, or None for never and for the leader itself. `is_alive`:
    it is the leader, or has fetched recently, in this epoch."""

    node_id: int
    directory_id: bytes
    is_voter: bool
    log_end_offset: int
    last_fetch_wall_ms: int | None
    last_caught_up_wall_ms: int | None
    is_alive: bool = False


@dataclass(slots=True, kw_only=True)
class ParkedFetch:
    """A fetch that gets its response when there is news, and by `deadline_ms` at the latest."""

    key: int
    """The caller's, unique in this process: no other parked fetch has it."""
    request: FetchRequest
    """Of the leader's own epoch; its offset matched the log when it was parked."""
    replica: ReplicaKey
    """Who sent it: no other parked fetch is of the same replica."""
    deadline_ms: int
    """The end of the wait that the request allows."""


class ParkedFetches:
    """Fetches waiting for news, at most one per replica. Different news wakes voters and observers."""

    def __init__(self) -> None:
        self.voters: dict[ReplicaKey, ParkedFetch] = {}
        """Those of replicas that were voters when they were parked."""
        self.observers: dict[ReplicaKey, ParkedFetch] = {}
        """All others. No replica is in both."""
        self._by_key: dict[int, ParkedFetch] = {}
        """Every parked fetch, voters' and observers', by its key."""
        self._deadlines: list[tuple[int, int]] = []
        """A heap of deadline and key of every parked fetch, and of some that are gone."""

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

    def pop_expired(self, *, now_ms: int) -> list[ParkedFetch]:
        expired: list[ParkedFetch] = []
        while (deadline := self.next_deadline_ms()) is not None and deadline <= now_ms:
            parked = self.pop_key(self._deadlines[0][1])
            if parked is not None:
                expired.append(parked)
        return expired


@dataclass(slots=True)
class ReadRounds:
    """Linearizable reads by token, in rounds."""

    waiting: list[int] = field(default_factory=list)
    """Join the next round: they arrived after the current one began."""
    asking: list[int] = field(default_factory=list)
    """Wait until a majority has repeated `round`. Empty if no round is in progress."""
    round: int = 0
    """The newest round's number. Grows by one per round; sent in every response to a fetch."""
    offset: int = 0
    """The high watermark when the round began: its reads must see everything below it."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.asking)


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Leadership goes to `target_id` once it holds the whole log; cancelled at `deadline_ms`."""

    target_id: int
    deadline_ms: int


class PendingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A voter change that was requested under `key` and appended at `offset` in `epoch`. The response
    is sent once it is committed, and by `deadline_ms` at the latest."""

    key: int
    epoch: int
    offset: int
    deadline_ms: int

    def abandoned(self) -> VoterChangeResponse:
        """The response of a leader that no longer leads: the next one may commit the change, or undo it."""
        return VoterChangeResponse(
            error=RaftError.NOT_LEADER_OR_FOLLOWER,
            epoch=self.epoch,
            leader_id=None,
            message="the leader changed before the voter change was committed: check whether it is in"
            " force, and if not, ask the new leader again",
        )


@dataclass(slots=True, kw_only=True)
class LeaderView:
    """What a leader remembers. It starts empty with every election and ends with the leadership."""

    voters: dict[int, ReplicaProgress]
    """The other voters in force by node id."""
    observers: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    """Every other node that fetched within `observer_session_ms`."""
    parked: ParkedFetches = field(default_factory=ParkedFetches)
    """Fetches without a response yet; all get one when the leadership ends."""
    reads: ReadRounds = field(default_factory=ReadRounds)
    """Reads without a response yet; all fail when the leadership ends."""
    observer_wake_offset: int = 0
    """The committed end of the last append that wakes observers. Never falls, never above the high
    watermark."""
    wakes: deque[int] = field(default_factory=deque)
    """The same for appends that are not committed yet, rising, all above the high watermark."""
    elected_ms: int = 0
    """Check-quorum treats a voter that has not fetched as heard from at this time."""
    change: PendingChange | None = None
    """Set while the caller that requested a voter change waits."""
    transfer: Transfer | None = None
    """Set while leadership is being transferred: the owner holds appends back."""
    next_prune_ms: int = 0
    """When silent observers are forgotten; set with the first observer."""
    refused: dict[bytes, int] = field(default_factory=dict)
    """By directory that has forgotten what it acknowledged: the offset that it fetched from."""
    announced: int = NOTHING_COMMITTED
    """The high watermark that justifies a response of its own to a voter. Never above the current one."""
    announce_ms: int | None = None
    """When the current high watermark is announced; None if it is `announced` or waits for the next rise."""
