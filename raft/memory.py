"""What a replica remembers beyond this process, to detect that a directory came back as an older copy of
itself.

Raft depends on voters keeping what they acknowledged. A voter whose directory was replaced by an older copy
does not, and cannot know it; the others can.
"""

from __future__ import annotations

from metaquorum.raft.effects import NoteCommitted
from metaquorum.raft.messages import UNSTATED, FetchRequest, VoteRequest, VoteResponse
from metaquorum.raft.roles import Leader, LeaderView
from metaquorum.raft.state import KnownMore, RaftState
from metaquorum.storage.errors import CommittedLostError
from metaquorum.storage.files.known_committed import FILE_NAME, WHERE, Acknowledged, CommittedLoss
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text

DIRECTORIES_MAX = 32
"""The most directories remembered; those of former voters are forgotten first."""


def fold(state: RaftState, view: LeaderView) -> None:
    """Adds what the leader of this epoch has learned so far to what it remembers."""
    acknowledged = state.acknowledged
    for progress in view.voters.values():
        offset = min(progress.highest_acked_offset, state.log.high_watermark)
        before = acknowledged.get(progress.directory_id)
        if progress.directory_id and offset > (0 if before is None else before.offset):
            acknowledged[progress.directory_id] = Acknowledged(progress.directory_id, offset, state.epoch)
    in_force = {voter.directory_id for voter in state.voters.nodes}
    while len(acknowledged) > DIRECTORIES_MAX:
        oldest = min(
            acknowledged.values(), key=lambda one: (one.directory_id in in_force, one.epoch, one.offset)
        )
        del acknowledged[oldest.directory_id]


def remembered(state: RaftState) -> tuple[Acknowledged, ...]:
    """Everything remembered, to be written down."""
    return tuple(state.acknowledged[directory_id] for directory_id in sorted(state.acknowledged))


# ---- what proves that a directory forgot -----------------------------------------------------------


def refuse_fetch(state: RaftState, request: FetchRequest) -> int | None:
    """Leader: how far the fetching directory has acknowledged the log, if it fetches from below that.

    A delayed fetch of this epoch looks the same. Its caller no longer waits for it, and the refusal reaches
    no one; so only the second such fetch is reported.
    """
    view, node_id, directory_id = state.leader_view(), request.replica_id, request.replica_directory_id
    progress, before = view.voters.get(node_id), state.acknowledged.get(directory_id)
    bound = 0 if before is None else before.offset
    if progress is not None and progress.directory_id == directory_id:
        bound = max(bound, min(progress.highest_acked_offset, state.log.high_watermark))
    if request.fetch_offset >= bound or not directory_id:
        return None
    fold(state, view)
    acknowledged = state.acknowledged[directory_id]
    again = view.refused.get(directory_id) == request.fetch_offset
    view.refused[directory_id] = request.fetch_offset
    if again or acknowledged.epoch < state.epoch:
        _warn(state, f"no records for node {node_id}", node_id, acknowledged, request.fetch_offset)
    return acknowledged.offset


def refuse_candidate(state: RaftState, request: VoteRequest) -> bool:
    """Whether the candidate has forgotten what it acknowledged. A request of the same epoch may have been
    sent before it acknowledged that."""
    acknowledged = state.acknowledged.get(request.candidate_directory_id)
    offset = request.last_position.offset
    if acknowledged is None or request.epoch <= acknowledged.epoch or offset >= acknowledged.offset:
        return False
    _warn(state, f"no vote for node {request.candidate_id}", request.candidate_id, acknowledged, offset)
    return True


def refuse_vote(state: RaftState, voter_id: int, directory_id: bytes, response: VoteResponse) -> bool:
    """Whether a responding voter has forgotten what it acknowledged: its vote might elect a leader that
    lacks committed records."""
    known, last = state.acknowledged.get(directory_id), response.last_position
    if known is None or last is None or last.offset >= known.offset:
        return False
    _warn(state, f"the vote of node {voter_id} does not count", voter_id, known, last.offset)
    return True


def _warn(state: RaftState, what: str, node_id: int, acknowledged: Acknowledged, offset: int) -> None:
    state.warn_once(
        f"{what}: its directory {uuid_to_text(acknowledged.directory_id)} has acknowledged everything"
        f" below offset {acknowledged.offset} (epoch {acknowledged.epoch}), and its log ends at {offset}: it"
        f" is an older copy of itself; stop node {node_id} and {_advice(state, node_id)}"
    )


def check_refusal(state: RaftState, leader_id: int, fetch_offset: int, acknowledged_offset: int) -> None:
    """The leader has refused a fetch of this node. Raises CommittedLostError if it states that this
    directory has acknowledged more than it holds: this directory must no longer vote."""
    if acknowledged_offset <= fetch_offset:
        return
    raise CommittedLostError(
        f"{state.log.directory} is an older copy of itself, or lost what it had synced: to a leader its"
        f" directory {uuid_to_text(state.identity.directory_id)} has acknowledged everything below offset"
        f" {acknowledged_offset}, says node {leader_id}, and its log ends at {fetch_offset}; a voter that"
        " lost them could help to elect a leader that lacks committed records. No byte was changed:"
        f" {_advice(state, state.node_id)}"
    )


def _advice(state: RaftState, node_id: int) -> str:
    back = "put its newest directory back"
    if state.kraft_version >= 1:
        return f"{back}, or reformat it and run `metaquorum quorum replace-voter {node_id}`"
    return f"{back}, or reformat it without --new-cluster (the controller then only observes)"


# Every replica, voter or observer, keeps a durable lower bound of what is committed
# (`storage.files.known_committed`). The bound is never ahead of what this disk has synced of the log: a
# power loss that takes unsynced records away must not make a sound node refuse its own log.

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


def note_committed(state: RaftState, *, now_ms: int) -> None:
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
        fold(state, state.role.view)
    acknowledged = remembered(state) if durably else ()
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


# ---- what a voter that stands for election learns ------------------------------------------------


def note_claim(state: RaftState, voter_id: int, response: VoteResponse, *, now_ms: int) -> None:
    """A voter has answered a vote request. What it knows to be committed is remembered if this log lacks
    it."""
    if response.known_committed is not None and state.log.lacks(response.known_committed):
        state.claims[voter_id] = KnownMore(response.known_committed, now_ms)
    else:
        state.claims.pop(voter_id, None)


def must_not_lead(state: RaftState, *, is_loss: bool = True, now_ms: int) -> bool:
    """Whether a voter that was heard from lately knows of committed records that this log lacks. Asked by a
    node that has the votes of a majority, whose logs then lack them too: that cannot be without a loss, and
    leading would make it final while the records still exist. Without that voter it may lead: the operator
    has stopped it, or it is gone. If some of these votes are assumed (`is_loss` false), a majority may well
    have the records: nothing is reported."""
    oldest_ms = now_ms - state.config.check_quorum_ms
    for voter_id, claim in list(state.claims.items()):
        stale = claim.heard_ms < oldest_ms or voter_id not in state.other_voters
        if stale or not state.log.lacks(claim.position):
            del state.claims[voter_id]
    for voter_id, claim in state.claims.items() if is_loss else ():
        _warn_of_claim(state, voter_id, claim.position)
    return bool(state.claims)


def _warn_of_claim(state: RaftState, voter_id: int, position: LogPosition) -> None:
    log, last = state.log, position.offset - 1
    if log.end_offset < position.offset:
        here = f"offsets {log.end_offset} to {last} are missing"
    else:
        here = f"offset {last} is of another epoch than {position.epoch}"
    state.warn_once(
        f"committed records are missing: node {voter_id} knows that everything below offset"
        f" {position.offset} was committed, and in the log of node {state.node_id}, which a majority would"
        f" elect, {here}: a controller's directory was replaced by an older copy or emptied. Node"
        f" {state.node_id} does not lead while node {voter_id} runs: put the newest directory back; if no"
        " leader is elected then, stop all controllers, keep every directory, and compare them with"
        f" `metaquorum log salvage`; {WHERE}",
        is_loss=True,
    )


# ---- what a leader learns ------------------------------------------------------------------------


def compare(state: RaftState, request: FetchRequest, common_offset: int) -> None:
    """Leader: the caller's log and this one match below `common_offset` at most. A leader holds everything
    that was committed (Raft paper 5.4.3), so a caller that knows of more proves a loss. This is only
    reported: the caller is one replica, and stopping brings nothing back. Callers choose their ids and their
    offsets, so an observer that the cluster has not registered is not believed."""
    node_id = request.replica_id
    if request.high_watermark == UNSTATED:
        return
    if request.high_watermark <= common_offset:
        state.losses.pop(node_id, None)
        return
    if node_id < 0 or len(state.losses) >= LOSSES_MAX:
        return
    if not (state.is_voter_replica(node_id, request.replica_directory_id) or state.knows_observer(node_id)):
        state.warn_once(
            "an observer that is not registered names a high watermark above what it shares with this log:"
            " that is ignored; find out what fetches here, and whether it may act on this cluster"
        )
        return
    loss = CommittedLoss(node_id=node_id, known_offset=request.high_watermark, common_offset=common_offset)
    state.losses[node_id] = loss
    state.warn_once(str(loss), is_loss=True)
