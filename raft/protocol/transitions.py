"""Carries out role changes: role, epoch and vote of a node change here (`election.py` sets them at a start).

Owns the steps of a change. Does not decide when to change: other modules of `protocol` do. Each `become_*`
checks the table in `roles.py`, leaves the old role (a leader responds to what it parked), changes hard state
in one write, and announces the new role.
"""

from __future__ import annotations

from metaquorum.raft.effects import AppendLog, ReadFailed
from metaquorum.raft.messages import FetchResponse, RaftError
from metaquorum.raft.state import memory
from metaquorum.raft.state.progress import LeaderView, ReplicaProgress
from metaquorum.raft.state.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    RoleState,
    Unattached,
    check_start,
    check_transition,
)
from metaquorum.raft.state.state import RaftState, Vote
from metaquorum.raft.voters.history import CONFIGURED
from metaquorum.raft.voters.records import (
    encode_control_batch,
    kraft_version_record,
    leader_change_record,
    voter_changes,
    voters_record,
)
from metaquorum.raft.voters.voter_set import Endpoint, PreferredCandidate
from metaquorum.storage.batches.parsed import Batches


def become_unattached(state: RaftState, epoch: int, vote: Vote | None = None, *, now_ms: int) -> None:
    """No leader is known. A `vote` is persisted with the epoch in one write; within the same epoch an
    earlier vote and leader stay on record."""
    same_epoch = epoch == state.epoch
    _change(
        state,
        unattached_role(state, now_ms=now_ms),
        epoch=epoch,
        vote=vote or (state.vote if same_epoch else None),
        leader_id=state.known_leader_id if same_epoch else None,
    )


def become_prospective(state: RaftState, *, now_ms: int) -> None:
    role = Prospective(
        deadline_ms=now_ms + state.stretched(state.config.election_timeout_ms), granted={state.node_id}
    )
    _change(state, role, epoch=state.epoch, vote=state.vote, leader_id=state.known_leader_id)


def become_candidate(state: RaftState, *, now_ms: int) -> None:
    """Epoch + 1 and the node's own vote are one write; the vote requests wait for it."""
    state.election_attempts += 1
    role = Candidate(
        deadline_ms=now_ms + state.stretched(state.config.election_timeout_ms), granted={state.node_id}
    )
    vote = Vote(state.node_id, state.identity.directory_id)
    _change(state, role, epoch=state.epoch + 1, vote=vote, leader_id=None)


def become_leader(state: RaftState, granting: set[int], *, now_ms: int) -> None:
    """Appends the LeaderChange record: nothing can be committed without a record of the leader's own
    epoch."""
    start = state.log.end_offset
    voters = {
        node_id: ReplicaProgress(node_id=node_id, directory_id=state.voters[node_id].directory_id or b"")
        for node_id in state.other_voters
    }
    view = LeaderView(
        voters=voters,
        observer_wake_offset=max(0, state.log.high_watermark),
        elected_ms=now_ms,
    )
    records = [leader_change_record(leader_id=state.node_id, voter_ids=state.voters, granting_ids=granting)]
    if state.voter_history.newest_offset == CONFIGURED:
        # The voters that formatting wrote are in no log yet, and their checkpoint is never sent (KIP-853).
        records += [kraft_version_record(state.kraft_version), voters_record(state.voters)]
    data = encode_control_batch(records, base_offset=start, epoch=state.epoch, timestamp_ms=state.wall_ms)
    batches = Batches.sealed(data)
    end = batches.next_offset
    state.election_attempts = 0
    _change(
        state,
        Leader(epoch_start_offset=start, view=view),
        epoch=state.epoch,
        vote=state.vote,
        leader_id=state.node_id,
    )
    state.log.append(state.epoch, start, end)
    state.voter_history.note_all(voter_changes(batches))
    view.wakes.append(end)
    state.out.append(AppendLog(batches=batches))


def become_follower(
    state: RaftState, epoch: int, leader_id: int, endpoints: tuple[Endpoint, ...] = (), *, now_ms: int
) -> None:
    """`endpoints` are where the leader listens, from the message that named it; if empty, they stay as
    they were."""
    state.election_attempts = 0
    if endpoints or (epoch, leader_id) != (state.epoch, state.known_leader_id):
        state.told_endpoints = endpoints
    vote = state.vote if epoch == state.epoch else None
    _change(
        state, follower_role(state, leader_id, now_ms=now_ms), epoch=epoch, vote=vote, leader_id=leader_id
    )


def become_resigned(state: RaftState, successors: tuple[PreferredCandidate, ...], *, now_ms: int) -> None:
    role = resigned_role(state, successors, now_ms=now_ms)
    _change(state, role, epoch=state.epoch, vote=state.vote, leader_id=state.known_leader_id)


def start(state: RaftState, role: RoleState) -> None:
    """The first role of a process, in the recorded epoch: hard state does not change."""
    check_start(role.role, observer=not state.may_stand)
    state.role = role
    state.announce()


def resigned_role(state: RaftState, successors: tuple[PreferredCandidate, ...], *, now_ms: int) -> Resigned:
    return Resigned(
        deadline_ms=now_ms + state.stretched(state.config.election_timeout_ms),
        successors=successors,
        unacknowledged=set(state.other_voters),
    )


def unattached_role(state: RaftState, *, now_ms: int) -> Unattached:
    if not state.may_stand:
        return Unattached(deadline_ms=None, next_fetch_ms=now_ms)
    return Unattached(
        deadline_ms=now_ms + state.stretched(state.config.election_timeout_ms),
        next_fetch_ms=now_ms if state.is_observer or state.config.bootstrap_ids else None,
    )


def follower_role(state: RaftState, leader_id: int, *, now_ms: int) -> Follower:
    return Follower(
        leader_id=leader_id,
        deadline_ms=now_ms + fetch_patience_ms(state),
        next_fetch_ms=now_ms,
        keepalive_ms=now_ms,
    )


def fetch_patience_ms(state: RaftState) -> int:
    """How long a follower goes without a successful fetch: randomised, and longer where fetches park
    longer."""
    patience = state.stretched(state.config.fetch_timeout_ms)
    return patience + (state.config.observer_fetch_max_wait_ms if state.is_observer else 0)


def _change(
    state: RaftState, role: RoleState, *, epoch: int, vote: Vote | None, leader_id: int | None
) -> None:
    check_transition(
        state.role.role, role.role, epoch=state.epoch, new_epoch=epoch, observer=not state.may_stand
    )
    old = state.role
    if isinstance(old, Leader):
        memory.fold(state, old.view)
    hard_state = (state.epoch, state.vote, state.known_leader_id)
    state.role = role
    state.epoch, state.vote, state.known_leader_id = epoch, vote, leader_id
    state.in_flight.clear()
    state.retry_at_ms.clear()
    if isinstance(old, Leader):
        _leave_leadership(state, old.view)
    if (epoch, vote, leader_id) != hard_state:
        state.persist()
    state.announce()


def _leave_leadership(state: RaftState, view: LeaderView) -> None:
    # Callers must not wait for a leader that no longer leads. The response names the epoch that they know, so
    # it does not depend on anything that is being persisted.
    if view.change is not None:
        state.respond(view.change.key, view.change.abandoned())
    for parked in view.parked.pop_all():
        state.respond(
            parked.key,
            FetchResponse(error=RaftError.NOT_LEADER_OR_FOLLOWER, epoch=parked.request.epoch, leader_id=None),
        )
    for token in (*view.reads.asking, *view.reads.waiting):
        state.out.append(ReadFailed(token=token))
