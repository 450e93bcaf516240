"""What a replica learns of leaders: from an announcement, from any answer, or from silence.

Owns whom a replica follows, and when it begins to doubt. Knows no votes.
"""

from __future__ import annotations

from metaquorum.raft.messages import RaftResponse
from metaquorum.raft.protocol import transitions
from metaquorum.raft.state.roles import Follower, Leader, Prospective, Resigned
from metaquorum.raft.state.state import RaftState
from metaquorum.raft.voters.voter_set import Endpoint


def doubt_leader(state: RaftState, now_ms: int, wait_ms: int) -> None:
    """The leader looks dead or resigned: grant pre-votes, and ask for them after `wait_ms` unless it
    answers."""
    if isinstance(state.role, Follower) and not state.role.suspect:
        state.role.suspect = True
        state.role.deadline_ms = min(state.role.deadline_ms, now_ms + wait_ms)


def can_follow(state: RaftState, leader_id: int, endpoints: tuple[Endpoint, ...]) -> bool:
    """Whether this node may follow that one: it is a voter, or the message that named it has its endpoints.
    Messages to voters have them from kraft.version 1 on, where this log may not name the newest voters yet;
    answers to fetches of others always."""
    return leader_id != state.node_id and (leader_id in state.voters or bool(state.told(endpoints)))


def follow(
    state: RaftState, now_ms: int, epoch: int, leader_id: int, endpoints: tuple[Endpoint, ...]
) -> None:
    """Follow the leader of an epoch that is not behind, unless this node does so already. `endpoints` are
    where it listens, none at kraft.version 0."""
    endpoints = state.told(endpoints)
    if epoch < state.epoch or not can_follow(state, leader_id, endpoints):
        return
    if epoch > state.epoch or (
        state.known_leader_id in (None, leader_id)
        and not isinstance(state.role, Follower | Resigned | Leader)
    ):
        transitions.become_follower(state, now_ms, epoch, leader_id, endpoints)
    elif endpoints and leader_id == state.known_leader_id:
        state.told_endpoints = endpoints


def learn(state: RaftState, now_ms: int, response: RaftResponse) -> bool:
    """Take epoch and leader from a response. True when the role changed: then the rest of it is stale.

    A prospective node keeps asking although others still name the leader that it lost.
    """
    before, leader_id, endpoints = state.role, response.leader_id, state.told(response.leader_endpoints)
    if response.epoch < state.epoch:
        return False
    if leader_id == state.node_id:
        _warn_of_namesake(state, response.epoch)
    if response.epoch > state.epoch:
        if leader_id is not None and can_follow(state, leader_id, endpoints):
            transitions.become_follower(state, now_ms, response.epoch, leader_id, endpoints)
        else:
            transitions.become_unattached(state, now_ms, response.epoch)
    elif leader_id is not None:
        lost_it = isinstance(state.role, Prospective) and state.known_leader_id == leader_id
        if not lost_it:
            follow(state, now_ms, response.epoch, leader_id, endpoints)
    return state.role is not before


def _warn_of_namesake(state: RaftState, epoch: int) -> None:
    """Others follow a leader with this node's id, which cannot be followed: no one could tell the two apart.
    It may be this one, which had noted no more than its vote before it stopped."""
    voted_for_itself = state.vote is not None and state.vote.node_id == state.node_id
    if epoch == state.epoch and (voted_for_itself or state.known_leader_id == state.node_id):
        return
    state.warn_once(
        f"node {state.node_id} leads epoch {epoch}, and it is not this one: a voter with the same id runs, "
        "or did until now; if it runs, give this one another node.id and format it again, or stop the other"
    )
