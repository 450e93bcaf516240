"""Carries out role changes: role, epoch and vote of a node change here (`election.py` sets them at a start).

Each `become_*` checks the table in `roles.py`, leaves the old role (a leader responds to what it parked),
changes hard state in one write, and announces the new role.
"""

from __future__ import annotations

from metaquorum.raft import memory, roles
from metaquorum.raft.effects import AppendLog, ReadFailed
from metaquorum.raft.messages import FetchResponse, RaftError, RaftResponse
from metaquorum.raft.state import RaftState, Vote
from metaquorum.raft.voters import (
    CONFIGURED,
    Endpoint,
    PreferredCandidate,
    encode_control_batch,
    kraft_version_record,
    leader_change_record,
    voter_changes,
    voters_record,
)
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.types import LogPosition


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
    role = roles.Prospective(
        deadline_ms=now_ms + state.with_jitter(state.config.election_timeout_ms), granted={state.node_id}
    )
    _change(state, role, epoch=state.epoch, vote=state.vote, leader_id=state.known_leader_id)


def become_candidate(state: RaftState, *, now_ms: int) -> None:
    """Epoch + 1 and the node's own vote are one write; the vote requests wait for it."""
    state.election_attempts += 1
    assumed = isinstance(state.role, roles.Prospective) and bool(state.role.assumed)
    role = roles.Candidate(
        deadline_ms=now_ms + state.election_patience_ms(), granted={state.node_id}, assumed=assumed
    )
    vote = Vote(state.node_id, state.identity.directory_id)
    _change(state, role, epoch=state.epoch + 1, vote=vote, leader_id=None)


def become_leader(state: RaftState, granting: set[int], *, now_ms: int) -> None:
    """Appends the LeaderChange record: nothing can be committed without a record of the leader's own
    epoch."""
    start = state.log.end_offset
    voters = {
        node_id: roles.ReplicaProgress(
            node_id=node_id, directory_id=state.voters[node_id].directory_id or b""
        )
        for node_id in state.other_voters
    }
    view = roles.LeaderView(
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
        roles.Leader(epoch_start_offset=start, view=view),
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
    if leader_id in state.voters:
        first = LogPosition(epoch, 0)
        state.log_ends[leader_id] = max(state.log_ends.get(leader_id, first), first)
    vote = state.vote if epoch == state.epoch else None
    _change(
        state, follower_role(state, leader_id, now_ms=now_ms), epoch=epoch, vote=vote, leader_id=leader_id
    )
    if endpoints:
        state.announced_endpoints = endpoints


def become_resigned(state: RaftState, successors: tuple[PreferredCandidate, ...], *, now_ms: int) -> None:
    role = resigned_role(state, successors, now_ms=now_ms)
    _change(state, role, epoch=state.epoch, vote=state.vote, leader_id=state.known_leader_id)


def start(state: RaftState, role: roles.RoleState) -> None:
    """The first role of a process, in the recorded epoch: hard state does not change."""
    roles.check_start(role.role, observer=not state.may_stand)
    state.role = role
    state.announce()


def resigned_role(
    state: RaftState, successors: tuple[PreferredCandidate, ...], *, now_ms: int
) -> roles.Resigned:
    return roles.Resigned(
        deadline_ms=now_ms + state.with_jitter(state.config.election_timeout_ms),
        successors=successors,
        unacknowledged=set(state.other_voters),
    )


def unattached_role(state: RaftState, *, now_ms: int) -> roles.Unattached:
    if not state.may_stand:
        return roles.Unattached(deadline_ms=None, next_fetch_ms=now_ms)
    return roles.Unattached(
        deadline_ms=now_ms + state.election_patience_ms(),
        next_fetch_ms=now_ms if state.is_observer or state.config.bootstrap_ids else None,
    )


def follower_role(state: RaftState, leader_id: int, *, now_ms: int) -> roles.Follower:
    return roles.Follower(
        leader_id=leader_id,
        deadline_ms=now_ms + fetch_patience_ms(state),
        next_fetch_ms=now_ms,
        keepalive_ms=now_ms,
    )


def fetch_patience_ms(state: RaftState) -> int:
    """How long a follower goes without a successful fetch: randomised, and longer where fetches park
    longer."""
    patience = state.with_jitter(state.config.fetch_timeout_ms)
    return patience + (state.config.observer_fetch_max_wait_ms if state.is_observer else 0)


def _change(
    state: RaftState, role: roles.RoleState, *, epoch: int, vote: Vote | None, leader_id: int | None
) -> None:
    roles.check_transition(
        state.role.role, role.role, epoch=state.epoch, new_epoch=epoch, observer=not state.may_stand
    )
    old = state.role
    if isinstance(old, roles.Leader):
        memory.fold(state, old.view)
    if (epoch, leader_id) != (state.epoch, state.known_leader_id):
        # They are of the leader that announced them. This node may lead now, at kraft.version 0 without
        # endpoints of its own, and voters of Kafka 3.9 would look for it at those.
        state.announced_endpoints = ()
    hard_state = (state.epoch, state.vote, state.known_leader_id)
    state.role = role
    state.epoch, state.vote, state.known_leader_id = epoch, vote, leader_id
    state.in_flight.clear()
    state.retry_at_ms.clear()
    if isinstance(old, roles.Leader):
        _leave_leadership(state, old.view)
    if (epoch, vote, leader_id) != hard_state:
        state.persist()
    state.announce()


def _leave_leadership(state: RaftState, view: roles.LeaderView) -> None:
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


def doubt_leader(state: RaftState, wait_ms: int, *, now_ms: int) -> None:
    """The leader appears dead or has resigned: grant pre-votes, and request them after `wait_ms` unless it
    responds."""
    if isinstance(state.role, roles.Follower) and not state.role.suspect:
        state.role.suspect = True
        state.role.deadline_ms = min(state.role.deadline_ms, now_ms + wait_ms)


def can_follow(state: RaftState, leader_id: int, endpoints: tuple[Endpoint, ...]) -> bool:
    """Whether this node may follow that leader: it is a voter, or the message that named it has its
    endpoints. Messages to voters have them from kraft.version 1 on, where this log may not name the newest
    voters yet; responses to fetches of other nodes always have them."""
    return leader_id != state.node_id and (
        leader_id in state.voters or bool(state.accepted_endpoints(endpoints))
    )


def follow(
    state: RaftState, epoch: int, leader_id: int, endpoints: tuple[Endpoint, ...], *, now_ms: int
) -> None:
    """Follow the leader of an epoch that is not behind, unless this node already does. `endpoints` are
    where the leader listens, empty at kraft.version 0."""
    endpoints = state.accepted_endpoints(endpoints)
    if epoch < state.epoch or not can_follow(state, leader_id, endpoints):
        return
    if epoch > state.epoch or (
        state.known_leader_id in (None, leader_id) and not isinstance(state.role, roles.Follower)
    ):
        become_follower(state, epoch, leader_id, endpoints, now_ms=now_ms)
    elif endpoints and leader_id == state.known_leader_id:
        state.announced_endpoints = endpoints


def learn(state: RaftState, response: RaftResponse, *, now_ms: int) -> bool:
    """Take epoch and leader from a response. True if the role changed, which makes the rest of the response
    stale.

    A prospective node keeps requesting pre-votes even if others still name the leader that it lost.
    """
    before, leader_id = state.role, response.leader_id
    endpoints = state.accepted_endpoints(response.leader_endpoints)
    if response.epoch < state.epoch:
        return False
    if leader_id == state.node_id:
        _warn_of_namesake(state, response.epoch)
    if response.epoch > state.epoch:
        if leader_id is not None and can_follow(state, leader_id, endpoints):
            become_follower(state, response.epoch, leader_id, endpoints, now_ms=now_ms)
        else:
            become_unattached(state, response.epoch, now_ms=now_ms)
    elif leader_id is not None:
        lost_it = isinstance(state.role, roles.Prospective) and state.known_leader_id == leader_id
        if not lost_it:
            follow(state, response.epoch, leader_id, endpoints, now_ms=now_ms)
    return state.role is not before


def _warn_of_namesake(state: RaftState, epoch: int) -> None:
    """Other nodes follow a leader with this node's id. This node cannot follow it, since no one could
    distinguish the two. It may be this node itself, if it had recorded no more than its vote before it
    stopped."""
    voted_for_itself = state.vote is not None and state.vote.node_id == state.node_id
    if epoch == state.epoch and (voted_for_itself or state.known_leader_id == state.node_id):
        return
    state.warn_once(
        f"node {state.node_id} leads epoch {epoch}, and it is not this one: a voter with the same id runs, "
        "or ran until now; if it runs, give this one another node.id and format it again, or stop the other"
    )
