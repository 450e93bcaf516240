"""Every timer of a replica, declared once: when it is due and what it does.

Owns the two tables, and with them the answer to the question when a replica has something to do next. The
rules themselves stand in the modules that the tables name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metaquorum.raft.protocol import announcements, election, fetching, replication
from metaquorum.raft.state import known
from metaquorum.raft.state.state import RaftState


@dataclass(frozen=True, slots=True)
class Timer:
    """`due_ms` says when it is due on the clock of `now_ms`, None: it does not run now. `fire` is called with
    a time that is not before that. `name` and `meaning` are for people."""

    name: str
    meaning: str
    due_ms: Callable[[RaftState], int | None]
    fire: Callable[[RaftState, int], None]


TIMEOUTS = (
    # First of all: after a pause nothing may be done as a leader of the past.
    Timer(
        "check-quorum",
        "a leader from which no majority fetched resigns",
        replication.check_quorum_due_ms,
        replication.lose_quorum,
    ),
    Timer(
        "request",
        "a request without answer and without report has failed",
        fetching.request_due_ms,
        fetching.expire_requests,
    ),
    Timer(
        "high watermark",
        "a leader tells voters a high watermark that no record carried to them",
        replication.announce_due_ms,
        replication.announce,
    ),
    Timer(
        "parked fetch",
        "a leader answers a fetch that waited as long as it allowed",
        replication.parked_due_ms,
        replication.answer_parked,
    ),
    Timer(
        "transfer",
        "a leader keeps leadership that it was to hand to a node that does not catch up",
        replication.transfer_due_ms,
        replication.give_transfer_up,
    ),
    Timer(
        "observer session",
        "a leader forgets observers that fell silent",
        replication.prune_due_ms,
        replication.prune_observers,
    ),
    Timer(
        "election",
        "an unattached voter stands; a candidate that lost, or heard too little, stands again",
        election.election_due_ms,
        election.stand,
    ),
    Timer(
        "pre-vote",
        "a prospective voter goes back to the last leader, or waits",
        election.pre_vote_due_ms,
        election.lose_pre_vote,
    ),
    Timer(
        "fetch timeout",
        "a follower whose fetches fail stands; an observer asks for the leader",
        election.leader_lost_due_ms,
        election.lose_leader,
    ),
    Timer(
        "resignation",
        "a leader that resigned takes part in elections again",
        announcements.resignation_due_ms,
        announcements.end_resignation,
    ),
)
"""Only `tick` fires these: a message that is already here may make them needless. At most one of the last
four runs, since each belongs to other roles."""

SENDS = (
    Timer(
        "vote requests",
        "a prospective voter or candidate asks those that have not answered",
        election.votes_due_ms,
        election.send_votes,
    ),
    Timer(
        "EndQuorumEpoch",
        "a leader that resigned tells those that do not know",
        announcements.ends_due_ms,
        announcements.send_ends,
    ),
    Timer(
        "BeginQuorumEpoch",
        "a leader tells voters that do not fetch",
        announcements.begins_due_ms,
        announcements.send_begins,
    ),
    Timer(
        "fetch",
        "a follower fetches records or a chunk of a snapshot, or shows that it lives",
        fetching.fetch_due_ms,
        fetching.send_next_fetch,
    ),
    Timer(
        "search",
        "an observer without a leader asks any voter",
        fetching.search_due_ms,
        fetching.search_leader,
    ),
    Timer(
        "note",
        "a replica writes down what is committed",
        known.note_due_ms,
        known.note,
    ),
)
"""Every input ends with these, since most inputs make one of them due at once."""


def fire_due(state: RaftState, now_ms: int, timers: tuple[Timer, ...]) -> None:
    """Fires what is due, in the order of the table."""
    for timer in timers:
        due_ms = timer.due_ms(state)
        if due_ms is not None and due_ms <= now_ms:
            timer.fire(state, now_ms)


def next_due_ms(state: RaftState) -> int | None:
    """When the first timer is due; None: none runs."""
    due = (timer.due_ms(state) for timer in TIMEOUTS + SENDS)
    return min((due_ms for due_ms in due if due_ms is not None), default=None)


def render_document() -> str:
    """The tables of docs/raft.md, as Markdown."""
    parts = []
    for kind, table in (("Only a tick fires these", TIMEOUTS), ("Every input ends with these", SENDS)):
        rows = [f"| {timer.name} | {timer.meaning} |" for timer in table]
        parts += [f"{kind}, in this order:", "\n".join(["| timer | when it is due |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"
