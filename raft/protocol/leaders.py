"""What a replica learns of leaders: from an announcement, from any answer, or from silence.

Owns whom a replica follows, and when it begins to doubt. Knows no votes.
"""

from __future__ import annotations

from metaquorum.raft.messages import RaftResponse
from metaquorum.raft.protocol import transitions
from metaquorum.raft.state.roles import Follower, Leader, Prospective, Resigned
from metaquorum.raft.state.state import RaftState


def doubt_leader(state: RaftState, now_ms: int, wait_ms: int) -> None:
    """The leader looks dead or resigned: grant pre-votes, and ask for them after `wait_ms` unless it
    answers."""
    if isinstance(state.role, Follower) and not state.role.suspect:
        state.role.suspect = True
        state.role.deadline_ms = min(state.role.deadline_ms, now_ms + wait_ms)


def follow(state: RaftState, now_ms: int, epoch: int, leader_id: int) -> None:
    """Follow the leader of an epoch that is not behind, unless this node does so already."""
    if leader_id == state.node_id or leader_id not in state.voters or epoch < state.epoch:
        return
    if epoch > state.epoch or (
        state.known_leader_id in (None, leader_id)
        and not isinstance(state.role, Follower | Resigned | Leader)
    ):
        transitions.become_follower(state, now_ms, epoch, leader_id)


def learn(state: RaftState, now_ms: int, response: RaftResponse) -> bool:
    """Take epoch and leader from a response. True when the role changed: then the rest of it is stale.

    A prospective node keeps asking although others still name the leader that it lost.
    """
    before = state.role
    if response.epoch < state.epoch:
        return False
    names_leader = response.leader_id is not None and response.leader_id != state.node_id
    if response.epoch > state.epoch:
        if names_leader and response.leader_id is not None and response.leader_id in state.voters:
            transitions.become_follower(state, now_ms, response.epoch, response.leader_id)
        else:
            transitions.become_unattached(state, now_ms, response.epoch)
    elif names_leader and response.leader_id is not None:
        lost_it = isinstance(state.role, Prospective) and state.known_leader_id == response.leader_id
        if not lost_it:
            follow(state, now_ms, response.epoch, response.leader_id)
    return state.role is not before
