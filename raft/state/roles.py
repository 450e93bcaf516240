"""The roles of a replica and the table of legal transitions between them (KIP-595, KIP-996).

Owns what each role remembers and which role may follow which. Does not know messages or effects:
`transitions.py` carries out a change, and calls `check_transition` first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.state.progress import LeaderView
from metaquorum.raft.voters.voter_set import PreferredCandidate
from metaquorum.storage.types import LogPosition


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


def first_role(at: AtStart) -> Role:
    return next(start.role for start in STARTS if start.holds(at))


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
    rejected: set[int] = field(default_factory=set)
    """Voter ids. Once the others are no majority, the pre-vote is lost."""
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
