"""Linearizable reads without a lease: the leader proves that it still leads after the read arrived.

Owns when a read is confirmed. Does not know what is read, and must not use the clock as proof: a fetch may
stay in a paused leader's socket for as long as the pause lasts.

A read is served from a committed offset once the voters of a majority (the leader included) have sent a fetch
of this epoch *after* they saw the round's number, which was assigned after the read arrived. Reads that
arrive during a round share the next one. (Raft dissertation 6.4, for pull Raft.)
"""

from __future__ import annotations

from metaquorum.raft.effects import ReadFailed, ReadReady
from metaquorum.raft.protocol import answers
from metaquorum.raft.state import quorum
from metaquorum.raft.state.roles import Leader
from metaquorum.raft.state.state import RaftState


def request_read(state: RaftState, token: int) -> None:
    role = state.role
    if not isinstance(role, Leader) or len(role.view.reads) >= state.config.pending_reads_max:
        state.out.append(ReadFailed(token=token))
        return
    role.view.reads.waiting.append(token)
    begin_round(state)


def begin_round(state: RaftState) -> None:
    """Start a round for the waiting reads, if none is in progress and a record of this epoch is committed:
    before that, a new leader does not know what its predecessors committed."""
    role = state.role
    if not isinstance(role, Leader):
        return
    queue = role.view.reads
    if queue.asking or not queue.waiting or state.log.high_watermark <= role.epoch_start_offset:
        return
    queue.asking, queue.waiting = queue.waiting, []
    queue.round += 1
    queue.offset = state.log.high_watermark
    answers.wake_voters(state)
    settle(state)


def settle(state: RaftState) -> None:
    """Serve the reads of the round that a majority has confirmed."""
    role = state.role
    if not isinstance(role, Leader) or not role.view.reads.asking:
        return
    queue = role.view.reads
    confirmed = {
        node_id for node_id, progress in role.view.voters.items() if progress.read_round >= queue.round
    }
    if quorum.has_majority(confirmed | {state.node_id}, state.voters):
        tokens, queue.asking = queue.asking, []
        for token in tokens:
            state.out.append(ReadReady(token=token, offset=queue.offset))
        begin_round(state)
