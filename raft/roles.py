"""The roles of a replica, the table of legal transitions between them (KIP-595, KIP-996), and what a leader
remembers of its replicas.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.messages import NOTHING_COMMITTED, FetchRequest, RaftError, VoterChangeResponse
from metaquorum.raft.voters import PreferredCandidate
from metaquorum.storage.types import LogPosition

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
    highest_acked_offset: int = 0
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


class Role(StrEnum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


class EpochStep(StrEnum):
    """How the new epoch of a transition compares with the old one."""

    SAME = "="
    HIGHER = ">"
    ANY = ">="


_U, _P, _C, _L, _F, _R = (
    Role.UNATTACHED,
    Role.PROSPECTIVE,
    Role.CANDIDATE,
    Role.LEADER,
    Role.FOLLOWER,
    Role.RESIGNED,
)

VOTER_TRANSITIONS: dict[tuple[Role, Role], tuple[EpochStep, str]] = {
    (_U, _U): (EpochStep.ANY, "a higher epoch was seen, or it gave its vote"),
    (_U, _P): (EpochStep.SAME, "the election timeout passed"),
    (_U, _F): (EpochStep.ANY, "the leader of the epoch became known"),
    (_P, _U): (EpochStep.ANY, "a higher epoch, a vote given, or a pre-vote lost without a known leader"),
    (_P, _C): (EpochStep.HIGHER, "a majority would vote for it"),
    (_P, _F): (EpochStep.ANY, "a leader became known, or the pre-vote was lost and the last leader stays"),
    (_C, _U): (EpochStep.HIGHER, "a higher epoch was seen"),
    (_C, _P): (EpochStep.SAME, "the election was lost or timed out"),
    (_C, _L): (EpochStep.SAME, "a majority voted for it"),
    (_C, _F): (EpochStep.ANY, "the leader of the epoch became known"),
    (_L, _U): (EpochStep.HIGHER, "a higher epoch was seen"),
    (_L, _F): (EpochStep.HIGHER, "a leader of a higher epoch became known"),
    (_L, _R): (EpochStep.SAME, "shutdown, leadership transfer, or no majority fetched in time"),
    (_F, _U): (EpochStep.HIGHER, "a higher epoch was seen"),
    (_F, _P): (EpochStep.SAME, "the fetch timeout passed"),
    (_F, _C): (EpochStep.HIGHER, "the leader resigned and named it the first successor"),
    (_F, _F): (EpochStep.HIGHER, "a leader of a higher epoch became known"),
    (_R, _U): (EpochStep.ANY, "a higher epoch was seen, or the election timeout passed"),
    (_R, _F): (EpochStep.HIGHER, "a leader of a higher epoch became known"),
}

OBSERVER_TRANSITIONS: dict[tuple[Role, Role], tuple[EpochStep, str]] = {
    (_U, _U): (
        EpochStep.ANY,
        "a higher epoch was seen, or it voted for one whose log names it",
    ),
    (_U, _F): (EpochStep.ANY, "the leader of the epoch became known"),
    (_F, _U): (EpochStep.ANY, "a higher epoch was seen, or the fetch timeout passed"),
    (_F, _F): (EpochStep.HIGHER, "a leader of a higher epoch became known"),
    (_P, _U): (EpochStep.ANY, "a snapshot that it loaded removed it"),
    (_C, _U): (EpochStep.ANY, "a snapshot that it loaded removed it"),
    (_L, _U): (EpochStep.HIGHER, "a higher epoch was seen"),
    (_L, _F): (EpochStep.HIGHER, "a leader of a higher epoch became known"),
    (_L, _R): (EpochStep.SAME, "it was removed and that is committed, or no majority fetched in time"),
    (_R, _U): (EpochStep.ANY, "a higher epoch was seen, or the election timeout passed"),
    (_R, _F): (EpochStep.HIGHER, "a leader of a higher epoch became known"),
}


class AtStart(NamedTuple):
    """What decides the first role: who led the recorded epoch, and what this node is."""

    led_itself: bool
    voter_led: bool
    """Another node that is a voter led it."""
    may_stand: bool
    is_alone: bool
    """There is no other voter."""


class Start(NamedTuple):
    """A first role; `holds` is for nodes for which no earlier one of `STARTS` holds."""

    role: Role
    holds: Callable[[AtStart], bool]
    reason: str
    of_observers: bool = True


STARTS = (
    Start(
        _R,
        lambda at: at.led_itself and at.may_stand and not at.is_alone,
        "it led the recorded epoch, and never leads one twice, unless it is the only voter",
        of_observers=False,
    ),
    Start(_F, lambda at: at.voter_led, "another voter led it"),
    Start(_U, lambda at: True, "otherwise"),
)
VOTER_STARTS = {start.role: start.reason for start in STARTS}
OBSERVER_STARTS = {start.role: start.reason for start in STARTS if start.of_observers}


def first_role(at_start: AtStart) -> Role:
    return next(start.role for start in STARTS if start.holds(at_start))


def check_start(role: Role, *, observer: bool) -> None:
    """Raises RaftInvariantError unless the tables allow a node to start in this role."""
    if role not in (OBSERVER_STARTS if observer else VOTER_STARTS):
        kind = "an observer" if observer else "a voter"
        raise RaftInvariantError(f"{kind} must not start as {role}")


def check_transition(source: Role, target: Role, *, epoch: int, new_epoch: int, observer: bool) -> None:
    """Raises RaftInvariantError unless the tables allow the transition for this change of epoch."""
    table = OBSERVER_TRANSITIONS if observer else VOTER_TRANSITIONS
    edge = table.get((source, target))
    legal = edge is not None and (
        (new_epoch == epoch and edge[0] is not EpochStep.HIGHER)
        or (new_epoch > epoch and edge[0] is not EpochStep.SAME)
    )
    if not legal:
        kind = "an observer" if observer else "a voter"
        raise RaftInvariantError(
            f"{kind} must not go from {source} in epoch {epoch} to {target} in epoch {new_epoch}"
        )


@dataclass(slots=True, kw_only=True)
class Unattached:
    """Knows no leader."""

    deadline_ms: int | None
    """When a voter stands for election; None for an observer."""
    next_fetch_ms: int | None = None
    """When an observer queries the next voter, or a voter queries a bootstrap server; None if it does not."""
    attempts: int = 0
    """The number of queries so far, which sets the pause before the next."""
    role: Role = field(default=Role.UNATTACHED, init=False)


@dataclass(slots=True, kw_only=True)
class Prospective:
    """Holds a pre-vote to learn whether it would be elected (KIP-996), without a new epoch."""

    deadline_ms: int
    """When the pre-vote is lost, if no majority has granted it by then."""
    granted: set[int]
    """Voter ids, including this node's: a repeated response counts once. Disjoint from `rejected`."""
    assumed: set[int] = field(default_factory=set)
    """Those of `granted` whose release has no pre-vote: they have not compared their log with this one."""
    rejected: set[int] = field(default_factory=set)
    """Voter ids. Once the others are no majority, the pre-vote is lost."""
    hears_until_ms: int | None = None
    """Set once a majority has granted it: until then it waits for the other voters."""
    role: Role = field(default=Role.PROSPECTIVE, init=False)


@dataclass(slots=True, kw_only=True)
class Candidate:
    """Requests votes in its epoch; its own vote is durable before any request is sent."""

    deadline_ms: int
    """When it returns to a pre-vote."""
    granted: set[int]
    """Voter ids, including this node's. Disjoint from `rejected`; a majority of them makes it leader."""
    rejected: set[int] = field(default_factory=set)
    """Voter ids. Once the others are no majority, the election is lost."""
    backoff_until_ms: int | None = None
    """Set once it has lost: the end of a random pause, so that two losers do not collide again."""
    assumed: bool = False
    """Whether voters without pre-votes were asked for nothing before: they were not asked whether this log is
    behind theirs."""
    role: Role = field(default=Role.CANDIDATE, init=False)


@dataclass(slots=True, kw_only=True)
class Leader:
    """Leads its epoch, and no other node ever leads it."""

    epoch_start_offset: int
    """Where its LeaderChange record is: below it, nothing is of this epoch. Nothing is newly committed
    before that record is."""
    view: LeaderView
    """What it knows of the other replicas."""
    role: Role = field(default=Role.LEADER, init=False)


@dataclass(slots=True, kw_only=True)
class SnapshotFetch:
    """A snapshot being fetched."""

    snapshot: LogPosition
    """The one that the leader named; not below this node's high watermark then."""
    position: int = 0
    """The bytes that have arrived, without a gap. Never falls."""
    size_bytes: int | None = None
    """The size of the whole file, the same in all chunks, never below `position`; None before the first."""
    loading: bool = False
    """The file is complete and being checked; no chunk is fetched meanwhile."""


@dataclass(slots=True, kw_only=True)
class Follower:
    """Fetches from the leader of the current epoch."""

    leader_id: int
    """Never this node, and never another one in the same epoch."""
    deadline_ms: int
    """Without a successful fetch by then, a voter stands for election and an observer looks for the
    leader. Drawn again after every success."""
    next_fetch_ms: int
    """The earliest time for the next fetch; there is only one at a time."""
    keepalive_ms: int
    """When a fetch is due even during a sync, so that the leader keeps hearing from this voter."""
    has_fetched: bool = False
    """A fetch from this leader has succeeded: it is known to lead."""
    suspect: bool = False
    """The leader's process appears dead, or it has resigned. The next success clears this."""
    failures: int = 0
    """Fetches that failed in a row: their number sets the pause before the next."""
    read_round: int = 0
    """The highest read round that the leader has sent; repeated in every fetch. Never falls."""
    snapshot: SnapshotFetch | None = None
    """Set while a snapshot is fetched or loaded: no records are fetched meanwhile."""
    next_update_ms: int = 0
    """The earliest time to request from the leader an update of this voter's entry in the voters record."""
    role: Role = field(default=Role.FOLLOWER, init=False)

    @property
    def alive(self) -> bool:
        return self.has_fetched and not self.suspect


@dataclass(slots=True, kw_only=True)
class Resigned:
    """Gave up leadership of this epoch, and tells the other voters."""

    deadline_ms: int
    """When it takes part in elections again."""
    successors: tuple[PreferredCandidate, ...]
    """Other voters, best synced first; the first becomes a candidate at once. Empty after a start."""
    unacknowledged: set[int]
    """Other voters in force that have not confirmed that they know of the resignation. Only shrinks."""
    role: Role = field(default=Role.RESIGNED, init=False)


RoleState = Unattached | Prospective | Candidate | Leader | Follower | Resigned


def render_document() -> str:
    """The generated part of docs/raft.md in Markdown: the voter's diagram."""
    diagram = ["```mermaid", "stateDiagram-v2", *(f"    [*] --> {role}" for role in VOTER_STARTS)]
    diagram += [f"    {source} --> {target}" for source, target in VOTER_TRANSITIONS if source is not target]
    return "\n".join([*diagram, "```"]) + "\n"
