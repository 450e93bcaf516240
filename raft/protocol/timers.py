"""Every timer of a replica, declared once: when it is due and what it does.

Owns the two tables, and with them the answer to the question when a replica has something to do next. The
rules themselves are in the modules that the tables name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metaquorum.raft.protocol import announcements, election, fetching, replication, voter_changes
from metaquorum.raft.state import known
from metaquorum.raft.state.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    RoleState,
    Unattached,
)
from metaquorum.raft.state.state import RaftState

_ANY: tuple[type[RoleState], ...] = (Unattached, Prospective, Candidate, Leader, Follower, Resigned)


@dataclass(frozen=True, slots=True)
class Timer:
    """`due_ms` says when it is due on the clock of `now_ms`, None: it does not run now, as in all roles but
    `roles`. `fire` is called with a time that is not before that. `name` and `meaning` are for people."""

    name: str
    roles: tuple[type[RoleState], ...]
    meaning: str
    due_ms: Callable[[RaftState], int | None]
    fire: Callable[[RaftState, int], None]


TIMEOUTS = (
    # First of all: after a pause nothing may be done as a leader of the past.
    Timer(
        "check-quorum",
        (Leader,),
        "a leader from which no majority fetched resigns",
        replication.check_quorum_due_ms,
        replication.lose_quorum,
    ),
    Timer(
        "request",
        _ANY,
        "a request without answer and without report has failed",
        fetching.request_due_ms,
        fetching.expire_requests,
    ),
    Timer(
        "high watermark",
        (Leader,),
        "a leader tells voters a high watermark that no record carried to them",
        replication.announce_due_ms,
        replication.announce,
    ),
    Timer(
        "parked fetch",
        (Leader,),
        "a leader answers a fetch that waited as long as it allowed",
        replication.parked_due_ms,
        replication.answer_parked,
    ),
    Timer(
        "change of voters",
        (Leader,),
        "a leader answers a change of voters that is not committed in time",
        voter_changes.answer_due_ms,
        voter_changes.give_answer_up,
    ),
    Timer(
        "transfer",
        (Leader,),
        "a leader keeps leadership that it was to hand to a node that does not catch up",
        replication.transfer_due_ms,
        replication.give_transfer_up,
    ),
    Timer(
        "observer session",
        (Leader,),
        "a leader forgets observers that fell silent",
        replication.prune_due_ms,
        replication.prune_observers,
    ),
    Timer(
        "election",
        (Unattached, Candidate),
        "an unattached voter stands; a candidate that lost, or heard too little, stands again",
        election.election_due_ms,
        election.stand,
    ),
    Timer(
        "pre-vote",
        (Prospective,),
        "a prospective voter goes back to the last leader, or waits",
        election.pre_vote_due_ms,
        election.lose_pre_vote,
    ),
    Timer(
        "fetch timeout",
        (Follower,),
        "a follower whose fetches fail stands; an observer asks for the leader",
        election.leader_lost_due_ms,
        election.lose_leader,
    ),
    Timer(
        "resignation",
        (Resigned,),
        "a leader that resigned takes part in elections again",
        announcements.resignation_due_ms,
        announcements.end_resignation,
    ),
)
"""Only `tick` fires these: a message that is already here may make them needless. At most one of the last
four runs, since each belongs to other roles."""

SENDS = (
    Timer(
        "committed change",
        (Leader,),
        "a leader answers a change of voters that is committed, and resigns when it was removed",
        voter_changes.settled_due_ms,
        voter_changes.settle,
    ),
    Timer(
        "update of a voter",
        (Leader, Follower),
        "a voter that listens elsewhere than its record says makes that known",
        voter_changes.update_due_ms,
        voter_changes.update,
    ),
    Timer(
        "vote requests",
        (Prospective, Candidate),
        "a prospective voter or candidate asks those that have not answered",
        election.votes_due_ms,
        election.send_votes,
    ),
    Timer(
        "EndQuorumEpoch",
        (Resigned,),
        "a leader that resigned tells those that do not know",
        announcements.ends_due_ms,
        announcements.send_ends,
    ),
    Timer(
        "BeginQuorumEpoch",
        (Leader,),
        "a leader tells voters that do not fetch",
        announcements.begins_due_ms,
        announcements.send_begins,
    ),
    Timer(
        "fetch",
        (Follower,),
        "a follower fetches records or a chunk of a snapshot, or shows that it lives",
        fetching.fetch_due_ms,
        fetching.send_next_fetch,
    ),
    Timer(
        "search",
        (Unattached,),
        "an observer without a leader asks any voter",
        fetching.search_due_ms,
        fetching.search_leader,
    ),
    Timer(
        "note",
        _ANY,
        "a replica writes down what is committed",
        known.note_due_ms,
        known.note,
    ),
)
"""Every input ends with these, since most inputs make one of them due at once."""


_TIMEOUTS = {role: tuple(timer for timer in TIMEOUTS if role in timer.roles) for role in _ANY}
_SENDS = {role: tuple(timer for timer in SENDS if role in timer.roles) for role in _ANY}
_BOTH = {role: _TIMEOUTS[role] + _SENDS[role] for role in _ANY}


def fire_timeouts(state: RaftState, now_ms: int) -> None:
    """Fires what a tick fires. A role that begins meanwhile has nothing due yet."""
    _fire_due(state, now_ms, _TIMEOUTS[type(state.role)])


def fire_sends(state: RaftState, now_ms: int) -> None:
    """Fires what every input ends with."""
    _fire_due(state, now_ms, _SENDS[type(state.role)])


def _fire_due(state: RaftState, now_ms: int, timers: tuple[Timer, ...]) -> None:
    for timer in timers:
        due_ms = timer.due_ms(state)
        if due_ms is not None and due_ms <= now_ms:
            timer.fire(state, now_ms)


def next_due_ms(state: RaftState) -> int | None:
    """When the first timer is due; None: none runs."""
    first_ms = None
    for timer in _BOTH[type(state.role)]:
        due_ms = timer.due_ms(state)
        if due_ms is not None and (first_ms is None or due_ms < first_ms):
            first_ms = due_ms
    return first_ms


def render_document() -> str:
    """The tables of docs/raft.md, as Markdown."""
    parts = []
    for kind, table in (("Only a tick fires these", TIMEOUTS), ("Every input ends with these", SENDS)):
        rows = [f"| {timer.name} | {_names(timer.roles)} | {timer.meaning} |" for timer in table]
        head = ["| timer | of | when it is due |", "|---|---|---|"]
        parts += [f"{kind}, in this order:", "\n".join([*head, *rows])]
    return "\n\n".join(parts) + "\n"


def _names(roles: tuple[type[RoleState], ...]) -> str:
    return "every role" if roles == _ANY else ", ".join(role.__name__.lower() for role in roles)
