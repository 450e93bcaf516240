"""What a replica of any role does when the voters in force change with the log (KIP-853)."""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.raft import memory, roles
from metaquorum.raft.effects import Warn
from metaquorum.raft.protocol import answers, transitions
from metaquorum.raft.state import RaftState
from metaquorum.raft.voters import VoterChange, VotersAt, VoterSet


def note(state: RaftState, changes: Sequence[VoterChange], *, now_ms: int) -> None:
    """Records that change kraft.version or voters were appended to this log."""
    if changes:
        before, kind = state.voters, _kind(state)
        state.voter_history.note_all(changes)
        _settle(state, before, kind, now_ms=now_ms)


def undo(state: RaftState, end_offset: int, *, now_ms: int) -> None:
    """This log was truncated at `end_offset`."""
    before, kind = state.voters, _kind(state)
    state.voter_history.truncate(end_offset)
    _settle(state, before, kind, now_ms=now_ms)


def restart(state: RaftState, end_offset: int, voters: VotersAt, *, now_ms: int) -> None:
    """This log restarts after a snapshot that names these voters."""
    before, kind = state.voters, _kind(state)
    state.voter_history.reset(end_offset, voters)
    _settle(state, before, kind, now_ms=now_ms)


def _kind(state: RaftState) -> tuple[bool, bool]:
    return state.is_observer, state.may_stand


def _settle(state: RaftState, before: VoterSet, kind: tuple[bool, bool], *, now_ms: int) -> None:
    """Adapt the role: which nodes it queries, what it waits for, and whether it may stand for election."""
    if state.voters == before:
        return
    moved = kind != _kind(state)
    match state.role:
        case roles.Leader(view=view):
            _follow_set(state, view, now_ms=now_ms)
        case roles.Prospective() | roles.Candidate() if not state.may_stand:
            transitions.become_unattached(state, state.epoch, now_ms=now_ms)
        case roles.Unattached() as role if moved:
            fresh = transitions.unattached_role(state, now_ms=now_ms)
            role.deadline_ms, role.next_fetch_ms = fresh.deadline_ms, fresh.next_fetch_ms
        case roles.Follower() as role if moved:
            # Its next fetch may be parked for as long as the new kind of replica allows.
            role.deadline_ms = now_ms + transitions.fetch_patience_ms(state)
        case roles.Resigned(unacknowledged=unacknowledged):
            unacknowledged &= set(state.other_voters)
        case _:
            pass


def _follow_set(state: RaftState, view: roles.LeaderView, *, now_ms: int) -> None:
    """Progress is kept: an observer that becomes a voter has acknowledged what it fetched. A parked fetch
    gets a response if its replica has changed kind: observers get only what is committed, so the record
    that makes an observer a voter would never reach it."""
    memory.fold(state, view)
    fetched = dict(view.observers)
    fetched.update(((one.node_id, one.directory_id), one) for one in view.voters.values())
    voters: dict[int, roles.ReplicaProgress] = {}
    for node_id in state.other_voters:
        key: roles.ReplicaKey = (node_id, state.voters[node_id].directory_id or b"")
        new = roles.ReplicaProgress(node_id=node_id, directory_id=key[1], next_begin_ms=now_ms)
        voters[node_id] = fetched.pop(key, new)
    observers = {key: one for key, one in fetched.items() if one.last_fetch_ms is not None}
    moved = [key for key in observers if key not in view.observers]
    moved += [(one.node_id, one.directory_id) for one in voters.values()]
    view.voters, view.observers = voters, observers
    for key in moved:
        parked = view.parked.pop_replica(key)
        if parked is not None:
            answers.answer(state, parked.key, parked.request)
    if view.transfer is not None and view.transfer.target_id not in voters:
        target_id, view.transfer = view.transfer.target_id, None
        text = f"leadership was not transferred: node {target_id} is no longer a voter"
        state.out.append(Warn(message=text))
