"""Every timer of a replica, declared once: when it is due and what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from metaquorum.raft import memory
from metaquorum.raft.protocol import election, fetching, replication, voter_changes
from metaquorum.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    RoleState,
    Unattached,
)
from metaquorum.raft.state import RaftState

_ANY: tuple[type[RoleState], ...] = (Unattached, Prospective, Candidate, Leader, Follower, Resigned)


class Fire(Protocol):
    def __call__(self, state: RaftState, *, now_ms: int) -> None: ...


class Timer(msgspec.Struct, frozen=True):
    """`due_ms` returns when it is due on the clock of `now_ms`, or None if it is not running, which holds
    in all roles but `roles`. `fire` is never called with an earlier time. `name` and `meaning` are for
    people."""

    name: str
    roles: tuple[type[RoleState], ...]
    meaning: str
    due_ms: Callable[[RaftState], int | None]
    fire: Fire


TIMEOUTS = (
    # This comes first: after a pause, nothing may be done in a leadership that is over.
    Timer(
        "check-quorum",
        (Leader,),
        "no majority fetched: the leader resigns",
        replication.check_quorum_due_ms,
        replication.lose_quorum,
    ),
    Timer(
        "request",
        _ANY,
        "a request without an answer has failed",
        fetching.request_due_ms,
        fetching.expire_requests,
    ),
    Timer(
        "high watermark",
        (Leader,),
        "a leader reports a high watermark that no fetch answer carried",
        replication.announce_due_ms,
        replication.announce,
    ),
    Timer(
        "parked fetch",
        (Leader,),
        "a fetch that reached its maximum wait is answered",
        replication.parked_due_ms,
        replication.answer_parked,
    ),
    Timer(
        "voter change",
        (Leader,),
        "a change that is not committed in time is answered",
        voter_changes.answer_due_ms,
        voter_changes.give_answer_up,
    ),
    Timer(
        "transfer",
        (Leader,),
        "a leader ends a transfer to a node that does not catch up",
        replication.transfer_due_ms,
        replication.give_transfer_up,
    ),
    Timer(
        "observer session",
        (Leader,),
        "observers that stopped fetching are removed",
        replication.prune_due_ms,
        replication.prune_observers,
    ),
    Timer(
        "election",
        (Unattached, Candidate),
        "a voter stands for election; a candidate without a majority stands again",
        election.election_due_ms,
        election.stand,
    ),
    Timer(
        "hearing",
        (Prospective,),
        "a node that won its pre-vote stops waiting for other voters",
        election.hearing_due_ms,
        election.end_pre_vote,
    ),
    Timer(
        "pre-vote",
        (Prospective,),
        "it returns to the last leader, or waits",
        election.pre_vote_due_ms,
        election.lose_pre_vote,
    ),
    Timer(
        "fetch timeout",
        (Follower,),
        "a follower stands for election; an observer asks for the leader",
        election.leader_lost_due_ms,
        election.lose_leader,
    ),
    Timer(
        "resignation",
        (Resigned,),
        "it takes part in elections again",
        election.resignation_due_ms,
        election.end_resignation,
    ),
)
"""Only `tick` fires these: a message that has already arrived may make them unnecessary. At most one of
the last five fires, because each belongs to different roles or ends its role."""

SENDS = (
    Timer(
        "committed change",
        (Leader,),
        "a committed change is answered; a removed leader resigns",
        voter_changes.settled_due_ms,
        voter_changes.settle,
    ),
    Timer(
        "update of a voter",
        (Leader, Follower),
        "a voter whose record is out of date requests an update",
        voter_changes.update_due_ms,
        voter_changes.update,
    ),
    Timer(
        "vote requests",
        (Prospective, Candidate),
        "it asks the voters that have not answered",
        election.votes_due_ms,
        election.send_votes,
    ),
    Timer(
        "EndQuorumEpoch",
        (Resigned,),
        "it notifies the voters that do not know the leader",
        election.ends_due_ms,
        election.send_ends,
    ),
    Timer(
        "BeginQuorumEpoch",
        (Leader,),
        "it notifies the voters that do not fetch",
        election.begins_due_ms,
        election.send_begins,
    ),
    Timer(
        "fetch",
        (Follower,),
        "a follower fetches records or a chunk of a snapshot, or sends a keep-alive",
        fetching.fetch_due_ms,
        fetching.send_next_fetch,
    ),
    Timer(
        "search",
        (Unattached,),
        "an observer asks any voter for the leader",
        fetching.search_due_ms,
        fetching.search_leader,
    ),
    Timer(
        "note",
        _ANY,
        "the known high watermark is written to disk",
        memory.note_due_ms,
        memory.note_committed,
    ),
)
"""Every input ends with these, because most inputs make one of them due at once."""


UNKNOWN = -1
"""Stands for a due time that must be computed again."""

_TIMEOUTS = {role: tuple(timer for timer in TIMEOUTS if role in timer.roles) for role in _ANY}
_SENDS = {role: tuple(timer for timer in SENDS if role in timer.roles) for role in _ANY}
_BOTH = {role: _TIMEOUTS[role] + _SENDS[role] for role in _ANY}


def fire_timeouts(state: RaftState, *, now_ms: int) -> None:
    """Fires the timers of a tick. A role that begins meanwhile has nothing due yet."""
    _fire_due(state, _TIMEOUTS[type(state.role)], now_ms=now_ms)


def fire_sends(state: RaftState, *, now_ms: int) -> int | None:
    """Fires the timers that end every input; returns when the first of these is next due, for
    `next_due_ms`."""
    return _fire_due(state, _SENDS[type(state.role)], now_ms=now_ms)


def _fire_due(state: RaftState, timers: tuple[Timer, ...], *, now_ms: int) -> int | None:
    """Returns when the first of the other timers is due, or UNKNOWN if one fired, since that may change
    it."""
    first_ms, fired = None, False
    for timer in timers:
        due_ms = timer.due_ms(state)
        if due_ms is None:
            continue
        if due_ms <= now_ms:
            fired = True
            timer.fire(state, now_ms=now_ms)
        elif first_ms is None or due_ms < first_ms:
            first_ms = due_ms
    return UNKNOWN if fired else first_ms


def next_due_ms(state: RaftState, sends_ms: int | None) -> int | None:
    """When the first timer is due; None if none runs. `sends_ms` is what `fire_sends` last returned if
    nothing has changed since, otherwise UNKNOWN."""
    role = type(state.role)
    if sends_ms == UNKNOWN:
        first_ms, timers = None, _BOTH[role]
    else:
        first_ms, timers = sends_ms, _TIMEOUTS[role]
    for timer in timers:
        due_ms = timer.due_ms(state)
        if due_ms is not None and (first_ms is None or due_ms < first_ms):
            first_ms = due_ms
    return first_ms


def carry(state: RaftState, by_ms: int) -> None:
    """See `RaftCore.carry`: the timeouts that end a leadership are later by so much."""
    role = state.role
    if isinstance(role, Follower):
        role.deadline_ms += by_ms
    elif isinstance(role, Leader):
        role.view.elected_ms += by_ms
        for progress in role.view.voters.values():
            if progress.last_fetch_ms is not None:
                progress.last_fetch_ms += by_ms
