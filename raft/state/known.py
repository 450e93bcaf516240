"""What a replica knows to be committed, beyond this process: recording it, and detecting contradictions.

Raft depends on voters keeping what they acknowledged. A voter whose directory was replaced by an older copy
does not, and cannot know it; the others can, as long as they remember how far the log was committed. So every
replica, voter or observer, keeps a durable lower bound of that (`storage.files.known_committed`). Owns when
the bound is written, and the messages with which a node refuses to give up what is below it.

The bound is never ahead of what this disk has synced of the log: a power loss that takes unsynced records
away must not make a sound node refuse its own log.
"""

from __future__ import annotations

from metaquorum.raft.effects import NoteCommitted
from metaquorum.raft.messages import FetchRequest
from metaquorum.raft.state import memory
from metaquorum.raft.state.roles import Leader
from metaquorum.raft.state.state import RaftState
from metaquorum.storage.errors import CommittedLostError
from metaquorum.storage.files.known_committed import FILE_NAME, WHERE, CommittedLoss
from metaquorum.storage.types import LogPosition

LOSSES_MAX = 100
"""The most replicas that a leader remembers as knowing of more committed records; callers choose their own
ids."""

# ---- writing it down -----------------------------------------------------------------------------


def note_due_ms(state: RaftState) -> int | None:
    """A leader does not wait: a kill must not forget what was reported to clients as committed."""
    log, times = state.log, state.note_times
    is_leader = isinstance(state.role, Leader)
    if min(log.high_watermark, log.synced_offset) > log.noted.offset:
        return 0 if is_leader else times.next_ms
    if times.durable >= log.noted.offset:
        return None
    return times.next_durable_ms if is_leader else max(times.next_ms, times.next_durable_ms)


def note(state: RaftState, *, now_ms: int) -> None:
    """Write down what is committed and synced here, and at intervals make it durable."""
    log, times = state.log, state.note_times
    offset = min(log.high_watermark, log.synced_offset)
    if offset > log.noted.offset:
        log.noted = LogPosition(log.epoch_before(offset), offset)
    durably = now_ms >= times.next_durable_ms
    times.next_ms = now_ms + state.config.note_committed_ms
    if durably:
        times.next_durable_ms = now_ms + state.config.sync_committed_ms
        times.durable = log.noted.offset
    if durably and isinstance(state.role, Leader):
        memory.fold(state, state.role.view)
    acknowledged = memory.remembered(state) if durably else ()
    state.out.append(NoteCommitted(position=log.noted, durably=durably, acknowledged=acknowledged))


# ---- what this node refuses ----------------------------------------------------------------------


def check_cut(state: RaftState, end_offset: int) -> None:
    """The leader's log requires a truncation of this one. Raises CommittedLostError if that removes
    committed records."""
    if end_offset < state.log.high_watermark:
        _refuse(state, f"asks to truncate the log at offset {end_offset}", end_offset)


def check_snapshot(state: RaftState, snapshot: LogPosition, fetched_from: int) -> None:
    """The leader reported that the log up to `fetched_from` can only continue from a snapshot. If that
    ends below both, the leader's log continues from it with other records than were committed here, or
    with none; if it ends within what is committed here, it must follow the same record. Raises
    CommittedLostError."""
    log, end = state.log, snapshot.offset
    if end < min(log.high_watermark, fetched_from):
        _refuse(state, f"holds other records from its snapshot at offset {end} on", end)
    epoch = log.epochs.epoch_at(end - 1) if end <= log.high_watermark else None
    if epoch not in (None, snapshot.epoch):
        _refuse(state, f"has a snapshot up to offset {end} whose last record is of another epoch", end - 1)


def _refuse(state: RaftState, what: str, end_offset: int) -> None:
    log = state.log
    back = (
        "stop all nodes, keep every directory, and compare them with `metaquorum log salvage`"
        if not state.is_observer
        else "stop the controllers and compare all directories with `metaquorum log salvage`; if they were"
        " salvaged or repaired on purpose, remove this one and start again"
    )
    raise CommittedLostError(
        f"committed records were lost: leader {state.leader_id} (epoch {state.epoch}) {what}, and node"
        f" {state.node_id} knows that everything below offset {log.high_watermark} was committed"
        f" ({log.directory}/{FILE_NAME}): a controller's directory was replaced by an older copy or emptied,"
        f" so offsets {end_offset} to {log.high_watermark - 1} are missing there. Nothing was truncated here:"
        f" {back}; {WHERE}"
    )


# ---- what a leader learns ------------------------------------------------------------------------


def compare(state: RaftState, request: FetchRequest, common_offset: int) -> None:
    """Leader: the caller's log and this one match below `common_offset` at most. A leader holds everything
    that was committed (Raft paper 5.4.3), so a caller that knows of more proves a loss. This is only
    reported: the caller is one replica, and stopping brings nothing back."""
    node_id = request.replica_id
    if request.high_watermark <= common_offset:
        state.losses.pop(node_id, None)
        return
    if node_id < 0 or len(state.losses) >= LOSSES_MAX:
        return
    loss = CommittedLoss(node_id=node_id, known_offset=request.high_watermark, common_offset=common_offset)
    state.losses[node_id] = loss
    state.warn_once(str(loss))
