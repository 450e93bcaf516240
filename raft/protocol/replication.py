"""The leader's side of replication: fetches, the high watermark, check-quorum, resignation."""

from __future__ import annotations

from metaquorum.raft import memory, voters
from metaquorum.raft.effects import AppendLog, HighWatermarkChanged, Warn
from metaquorum.raft.errors import RaftUsageError
from metaquorum.raft.messages import FetchRequest, FetchResponse, RaftError
from metaquorum.raft.protocol import answers, membership, transitions
from metaquorum.raft.roles import (
    Leader,
    LeaderView,
    ReplicaKey,
    ReplicaProgress,
    ReplicaState,
    Transfer,
)
from metaquorum.raft.state import RaftState
from metaquorum.raft.voters import PreferredCandidate, voter_changes
from metaquorum.storage.batches.batch import Batches

# ---- fetches -------------------------------------------------------------------------------------


def check_leader_request(state: RaftState, cluster_id: str, epoch: int) -> RaftError:
    """Whether a request for the leader of an epoch has reached that leader, in that epoch."""
    if cluster_id != state.identity.cluster_id:
        return RaftError.INCONSISTENT_CLUSTER_ID
    if epoch < state.epoch:
        return RaftError.FENCED_LEADER_EPOCH
    if epoch > state.epoch:
        return RaftError.UNKNOWN_LEADER_EPOCH
    return RaftError.NONE if isinstance(state.role, Leader) else RaftError.NOT_LEADER_OR_FOLLOWER


def on_fetch(state: RaftState, key: int, request: FetchRequest, *, now_ms: int) -> None:
    error = check_leader_request(state, request.cluster_id, request.epoch)
    if error is RaftError.NONE and request.fetch_offset < 0:
        error = RaftError.INVALID_REQUEST
    if error is not RaftError.NONE:
        endpoints = state.leader_endpoints_for(request.replica_id)
        response = FetchResponse(
            error=error, epoch=state.epoch, leader_id=state.leader_id, leader_endpoints=endpoints
        )
        state.respond(key, response)
        return
    acknowledged = memory.refuse_fetch(state, request)
    if acknowledged is not None:
        refusal = FetchResponse(
            error=RaftError.INVALID_VOTER_KEY,
            epoch=state.epoch,
            leader_id=state.leader_id,
            high_watermark=acknowledged,
        )
        state.respond(key, refusal)
        return
    view = state.leader_view()
    replica = (request.replica_id, request.replica_directory_id)
    earlier = view.parked.pop_replica(replica)
    if earlier is not None:
        answers.answer(state, earlier.key, earlier.request, with_records=False)
    progress = touch(state, replica, now_ms=now_ms)
    progress.read_round = max(progress.read_round, request.read_round)
    log = state.log
    if log.snapshot_needed(request.fetch_offset, request.last_fetched_epoch):
        behind = request.fetch_offset < log.start_offset
        memory.compare(state, request, log.end_offset if behind else log.start_offset)
        answers.settle_reads(state)
        answers.redirect_to_snapshot(state, key, request)
        return
    diverging = log.divergence(request.fetch_offset, request.last_fetched_epoch)
    memory.compare(state, request, log.end_offset if diverging is None else diverging.offset)
    if diverging is not None:
        answers.settle_reads(state)
        state.respond(key, answers.response_now(state, request, diverging=diverging))
        return
    _count(state, view, progress, request, now_ms=now_ms)
    answers.answer_or_park(state, key, request, replica, now_ms=now_ms)
    answers.settle_reads(state)
    _try_transfer(state, now_ms=now_ms)


def touch(state: RaftState, replica: ReplicaKey, *, now_ms: int) -> ReplicaProgress:
    """The progress of a replica that was just heard from in this epoch; created if it is new."""
    view = state.leader_view()
    if state.is_voter_replica(*replica) and replica[0] in view.voters:
        progress = view.voters[replica[0]]
        if progress.directory_id != replica[1]:
            # Another disk: the previous disk's acknowledgements no longer count (an unpinned voter).
            memory.fold(state, view)
            progress.directory_id = replica[1]
            progress.acked_offset, progress.highest_acked_offset = None, 0
        progress.next_begin_ms = now_ms + state.config.quiet_voter_ms
    elif replica[0] < 0:
        # A tool that reads the log: served like an observer, but nothing is remembered about it.
        return ReplicaProgress(node_id=replica[0], directory_id=replica[1])
    else:
        if not view.observers:
            view.next_prune_ms = now_ms + state.config.observer_session_ms
        progress = view.observers.setdefault(
            replica, ReplicaProgress(node_id=replica[0], directory_id=replica[1])
        )
    progress.last_fetch_ms = now_ms
    return progress


def _count(
    state: RaftState, view: LeaderView, progress: ReplicaProgress, request: FetchRequest, *, now_ms: int
) -> None:
    """The fetch passed the divergence check: this leader's log contains everything below its offset."""
    end = state.log.end_offset
    if request.fetch_offset >= end:
        progress.last_caught_up_wall_ms = state.wall_ms
    elif progress.last_fetch_wall_ms is not None and request.fetch_offset >= progress.end_at_last_fetch:
        progress.last_caught_up_wall_ms = max(
            progress.last_fetch_wall_ms, progress.last_caught_up_wall_ms or 0
        )
    progress.last_fetch_wall_ms = state.wall_ms
    progress.end_at_last_fetch = end
    progress.acked_offset = request.fetch_offset
    if progress is view.voters.get(progress.node_id):
        progress.highest_acked_offset = max(progress.highest_acked_offset, request.fetch_offset)
        advance_high_watermark(state, now_ms=now_ms)


# ---- the log and the high watermark --------------------------------------------------------------


def append(state: RaftState, batches: Batches, *, now_ms: int, wake_observers: bool) -> int:
    """Append whole batches of this epoch at the log's end; returns the new end. Raises RaftUsageError if
    this node does not lead or the batches do not fit."""
    if not isinstance(state.role, Leader):
        raise RaftUsageError(f"only the leader appends; this node is {state.role.role}")
    end = state.log.end_offset
    for header in batches.headers:
        if header.base_offset != end or header.leader_epoch != state.epoch:
            raise RaftUsageError(
                f"batch at offset {header.base_offset} of epoch {header.leader_epoch} was given where offset"
                f" {end} of epoch {state.epoch} comes next"
            )
        end = header.next_offset
    if not batches.headers:
        raise RaftUsageError("an append needs at least one batch")
    state.log.append(state.epoch, batches.base_offset, end)
    state.out.append(AppendLog(batches=batches))
    # This comes first: a voter that these batches remove must not get them before they are committed.
    # Otherwise its vote, which may still be needed, goes to no log without them.
    membership.note(state, voter_changes(batches), now_ms=now_ms)
    if wake_observers:
        state.role.view.wakes.append(end)
    answers.wake_voters(state)
    # Every voter gets these records, and the high watermark with them.
    state.role.view.announce_ms = None
    return end


def advance_high_watermark(state: RaftState, *, now_ms: int) -> None:
    """Commit what a majority holds durably, once that includes a record of this epoch (Raft paper 5.4.2):
    a record of an older epoch can still be overwritten although a majority holds it (figure 8)."""
    role = state.role
    if not isinstance(role, Leader):
        return
    durable = [progress.acked_offset for progress in role.view.voters.values()]
    if not state.is_observer:  # a leader that is being removed no longer counts
        durable.append(state.log.synced_offset)
    reached = voters.majority_value(durable)
    if reached is None or reached <= role.epoch_start_offset or reached <= state.log.high_watermark:
        return
    set_high_watermark(state, reached)
    view = role.view
    woken = False
    while view.wakes and view.wakes[0] <= reached:
        view.observer_wake_offset = view.wakes.popleft()
        woken = True
    if state.config.high_watermark_linger_ms <= 0:
        announce(state, now_ms=now_ms)
    elif view.announce_ms is None:
        view.announce_ms = now_ms + state.config.high_watermark_linger_ms
    if woken:
        answers.wake_observers(state)
    answers.begin_read_round(state)


def set_high_watermark(state: RaftState, high_watermark: int) -> None:
    """The high watermark never falls."""
    if high_watermark > state.log.high_watermark:
        state.log.high_watermark = high_watermark
        state.out.append(HighWatermarkChanged(high_watermark=high_watermark))


# ---- giving up leadership ------------------------------------------------------------------------


def check_quorum_due_ms(state: RaftState) -> int | None:
    """When fewer than a majority (this voter included) will have fetched within the window."""
    role = state.role
    if not isinstance(role, Leader) or not role.view.voters:
        return None
    heard = [
        progress.last_fetch_ms if progress.last_fetch_ms is not None else role.view.elected_ms
        for progress in role.view.voters.values()
    ]
    heard.sort()
    needed = voters.majority(len(state.voters.nodes)) - (0 if state.is_observer else 1)
    return heard[len(heard) - needed] + state.config.check_quorum_ms


def lose_quorum(state: RaftState, *, now_ms: int) -> None:
    """A leader that is cut off must stop acting as leader: the others elect a new one (KAFKA-15489)."""
    state.out.append(
        Warn(
            message=f"resigning as leader of epoch {state.epoch}: no majority of voters fetched in "
            f"{state.config.check_quorum_ms} ms; check the network to voters {state.other_voters}"
        )
    )
    resign(state, now_ms=now_ms)


def resign(state: RaftState, first: int | None = None, *, now_ms: int) -> None:
    """Name the successors, most caught-up first (`first` before all others), and stop leading."""
    view = state.leader_view()

    def rank(progress: ReplicaProgress) -> tuple[bool, int, int, int]:
        acked = -1 if progress.acked_offset is None else progress.acked_offset
        heard = -1 if progress.last_fetch_ms is None else progress.last_fetch_ms
        return (progress.node_id != first, -acked, -heard, progress.node_id)

    ranked = sorted(view.voters.values(), key=rank)
    successors = tuple(PreferredCandidate(one.node_id, one.directory_id) for one in ranked)
    transitions.become_resigned(state, successors, now_ms=now_ms)


def transfer_refusal(state: RaftState, target_id: int) -> str | None:
    """Why leadership cannot be transferred to this node, as an instruction; None if it can be tried."""
    if not isinstance(state.role, Leader):
        return f"this node is not the leader; use the leader (node {state.leader_id})"
    if not state.other_voters:
        return "there is no other voter; add one first"
    if target_id == state.node_id:
        return f"node {target_id} already leads; name another voter of {state.other_voters}"
    if target_id not in state.voters:
        return f"node {target_id} is not a voter; name one of {state.other_voters}"
    if state.role.view.voters[target_id].acked_offset is None:
        return f"node {target_id} has not fetched in epoch {state.epoch}; start it or name another voter"
    return None


def transfer(state: RaftState, target_id: int, *, now_ms: int) -> None:
    """Resign in favour of `target_id` as soon as it holds the whole log; cancel after an election timeout."""
    refusal = transfer_refusal(state, target_id)
    if refusal is not None:
        state.out.append(Warn(message=f"leadership was not transferred: {refusal}"))
        return
    view = state.leader_view()
    view.transfer = Transfer(target_id=target_id, deadline_ms=now_ms + state.config.election_timeout_ms)
    _try_transfer(state, now_ms=now_ms)


def _try_transfer(state: RaftState, *, now_ms: int) -> None:
    if not isinstance(state.role, Leader) or state.role.view.transfer is None:
        return
    target_id = state.role.view.transfer.target_id
    if state.role.view.voters[target_id].acked_offset == state.log.end_offset:
        resign(state, first=target_id, now_ms=now_ms)


# ---- time ----------------------------------------------------------------------------------------


def announce_due_ms(state: RaftState) -> int | None:
    return state.role.view.announce_ms if isinstance(state.role, Leader) else None


def announce(state: RaftState, *, now_ms: int) -> None:
    """Send the voters the high watermark now, without records (KAFKA-14145)."""
    view = state.leader_view()
    view.announced, view.announce_ms = state.log.high_watermark, None
    answers.wake_voters(state)


def parked_due_ms(state: RaftState) -> int | None:
    return state.role.view.parked.next_deadline_ms() if isinstance(state.role, Leader) else None


def answer_parked(state: RaftState, *, now_ms: int) -> None:
    """Respond to the fetches whose maximum wait is over."""
    for parked in state.leader_view().parked.pop_expired(now_ms=now_ms):
        answers.answer(state, parked.key, parked.request)


def transfer_due_ms(state: RaftState) -> int | None:
    transfer = state.role.view.transfer if isinstance(state.role, Leader) else None
    return None if transfer is None else transfer.deadline_ms


def give_transfer_up(state: RaftState, *, now_ms: int) -> None:
    """The target did not catch up: this node keeps leading."""
    view = state.leader_view()
    if view.transfer is None:
        return
    state.out.append(
        Warn(
            message=f"leadership was not transferred: node {view.transfer.target_id} did not catch up "
            f"within {state.config.election_timeout_ms} ms; try again when there are fewer "
            "writes"
        )
    )
    view.transfer = None


def prune_due_ms(state: RaftState) -> int | None:
    return (
        state.role.view.next_prune_ms
        if isinstance(state.role, Leader) and state.role.view.observers
        else None
    )


def prune_observers(state: RaftState, *, now_ms: int) -> None:
    """Forget observers that no longer fetch."""
    view = state.leader_view()
    view.next_prune_ms = now_ms + state.config.observer_session_ms
    oldest = now_ms - state.config.observer_session_ms
    for replica, progress in list(view.observers.items()):
        if progress.last_fetch_ms is not None and progress.last_fetch_ms < oldest:
            del view.observers[replica]


def describe(state: RaftState, *, now_ms: int) -> list[ReplicaState]:
    """The leader's view of every replica, itself first; [] in other roles. Silent observers are left out, and
    one that no longer fetches while another of its node id does: that is the node before it was started
    again, with an empty directory or, if it says none (Kafka's brokers before 3.9), over another
    connection."""
    role = state.role
    if not isinstance(role, Leader):
        return []
    own = ReplicaState(
        node_id=state.node_id,
        directory_id=state.identity.directory_id,
        is_voter=not state.is_observer,
        log_end_offset=state.log.end_offset,
        last_fetch_wall_ms=None,
        last_caught_up_wall_ms=None,
        is_alive=True,
    )
    oldest = now_ms - state.config.observer_session_ms
    observers = [
        _replica_state(state, progress, is_voter=False, now_ms=now_ms)
        for progress in sorted(role.view.observers.values(), key=_by_id)
        if progress.last_fetch_ms is not None and progress.last_fetch_ms >= oldest
    ]
    alive = {observer.node_id for observer in observers if observer.is_alive}
    voters = [role.view.voters[node_id] for node_id in state.other_voters]
    return [
        own,
        *(_replica_state(state, progress, is_voter=True, now_ms=now_ms) for progress in voters),
        *(observer for observer in observers if observer.is_alive or observer.node_id not in alive),
    ]


def _by_id(progress: ReplicaProgress) -> tuple[int, bytes]:
    return (progress.node_id, progress.directory_id)


def _replica_state(
    state: RaftState, progress: ReplicaProgress, *, now_ms: int, is_voter: bool
) -> ReplicaState:
    fetched_ms = progress.last_fetch_ms
    patience_ms = state.config.check_quorum_ms if is_voter else state.config.observer_patience_ms
    return ReplicaState(
        node_id=progress.node_id,
        directory_id=progress.directory_id,
        is_voter=is_voter,
        log_end_offset=-1 if progress.acked_offset is None else progress.acked_offset,
        last_fetch_wall_ms=progress.last_fetch_wall_ms,
        last_caught_up_wall_ms=progress.last_caught_up_wall_ms,
        is_alive=fetched_ms is not None and now_ms - fetched_ms <= patience_ms,
    )
