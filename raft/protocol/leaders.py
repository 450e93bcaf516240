"""What a replica learns about leaders: from an announcement, from any response, or from silence.

Owns which leader a replica follows, and when it begins to doubt it. Does not know votes.
"""

from __future__ import annotations

from metaquorum.raft.messages import RaftResponse
from metaquorum.raft.protocol import transitions
from metaquorum.raft.state.roles import Follower, Leader, Prospective, Resigned
from metaquorum.raft.state.state import RaftState
from metaquorum.raft.voters.voter_set import Endpoint


def doubt_leader(state: RaftState, wait_ms: int, *, now_ms: int) -> None:
    """The leader appears dead or has resigned: grant pre-votes, and request them after `wait_ms` unless it
    responds."""
    if isinstance(state.role, Follower) and not state.role.suspect:
        state.role.suspect = True
        state.role.deadline_ms = min(state.role.deadline_ms, now_ms + wait_ms)


def can_follow(state: RaftState, leader_id: int, endpoints: tuple[Endpoint, ...]) -> bool:
    """Whether this node may follow that leader: it is a voter, or the message that named it has its
    endpoints. Messages to voters have them from kraft.version 1 on, where this log may not name the newest
    voters yet; responses to fetches of other nodes always have them."""
    return leader_id != state.node_id and (leader_id in state.voters or bool(state.told(endpoints)))


def follow(
    state: RaftState, epoch: int, leader_id: int, endpoints: tuple[Endpoint, ...], *, now_ms: int
) -> None:
    """Follow the leader of an epoch that is not behind, unless this node already does. `endpoints` are
    where the leader listens, empty at kraft.version 0."""
    endpoints = state.told(endpoints)
    if epoch < state.epoch or not can_follow(state, leader_id, endpoints):
        return
    if epoch > state.epoch or (
        state.known_leader_id in (None, leader_id)
        and not isinstance(state.role, Follower | Resigned | Leader)
    ):
        transitions.become_follower(state, epoch, leader_id, endpoints, now_ms=now_ms)
    elif endpoints and leader_id == state.known_leader_id:
        state.told_endpoints = endpoints


def learn(state: RaftState, response: RaftResponse, *, now_ms: int) -> bool:
    """Take epoch and leader from a response. True if the role changed, which makes the rest of the response
    stale.

    A prospective node keeps requesting pre-votes even if others still name the leader that it lost.
    """
    before, leader_id, endpoints = state.role, response.leader_id, state.told(response.leader_endpoints)
    if response.epoch < state.epoch:
        return False
    if leader_id == state.node_id:
        _warn_of_namesake(state, response.epoch)
    if response.epoch > state.epoch:
        if leader_id is not None and can_follow(state, leader_id, endpoints):
            transitions.become_follower(state, response.epoch, leader_id, endpoints, now_ms=now_ms)
        else:
            transitions.become_unattached(state, response.epoch, now_ms=now_ms)
    elif leader_id is not None:
        lost_it = isinstance(state.role, Prospective) and state.known_leader_id == leader_id
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
