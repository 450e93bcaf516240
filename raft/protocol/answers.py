"""What a leader answers later: fetches, parked until there is news (KIP-595), and linearizable reads."""

from __future__ import annotations

from metaquorum.raft import voters
from metaquorum.raft.effects import ReadFailed, ReadReady, Respond, RespondWithRecords
from metaquorum.raft.messages import NOTHING_COMMITTED, UNSTATED, FetchRequest, FetchResponse, RaftError
from metaquorum.raft.roles import Leader, LeaderView, ParkedFetch, ReplicaKey
from metaquorum.raft.state import RaftState
from metaquorum.storage.types import LogPosition


def answer_or_park(
    state: RaftState, key: int, request: FetchRequest, replica: ReplicaKey, *, now_ms: int
) -> None:
    """Responds to a fetch at once if there is news or the fetch allows no wait; otherwise parks it."""
    view = state.leader_view()
    is_voter = _is_other_voter(state, view, request)
    wait_ms = min(request.max_wait_ms, state.config.observer_fetch_max_wait_ms)
    full = not is_voter and len(view.parked.observers) >= state.config.parked_fetches_max
    if wait_ms <= 0 or full or _has_news(state, view, request, is_voter=is_voter):
        answer(state, key, request)
        return
    fetch = ParkedFetch(key=key, request=request, replica=replica, deadline_ms=now_ms + wait_ms)
    view.parked.park(fetch, is_voter=is_voter)


def _is_other_voter(state: RaftState, view: LeaderView, request: FetchRequest) -> bool:
    known = request.replica_id in view.voters
    return known and state.is_voter_replica(request.replica_id, request.replica_directory_id)


def _has_news(state: RaftState, view: LeaderView, request: FetchRequest, *, is_voter: bool) -> bool:
    if not is_voter:
        # Observers are woken only for records that matter to them, not for records that only mark time.
        return view.observer_wake_offset > min(request.fetch_offset, max(request.high_watermark, 0))
    if view.reads.asking and request.read_round < view.reads.round:
        return True
    return request.fetch_offset < state.log.end_offset or view.announced > request.high_watermark


def answer(state: RaftState, key: int, request: FetchRequest, *, with_records: bool = True) -> None:
    """Responds with what is available: voters read to the log's end, observers to the high watermark."""
    response = response_now(state, request)
    is_voter = _is_other_voter(state, state.leader_view(), request)
    read_to = state.log.end_offset if is_voter else max(0, state.log.high_watermark)
    if not with_records or read_to <= request.fetch_offset:
        state.out.append(Respond(key=key, response=response, after=state.unpersisted_token))
        return
    state.out.append(
        RespondWithRecords(
            key=key,
            response=response,
            read_from=request.fetch_offset,
            read_to=read_to,
            max_bytes=min(request.max_bytes, state.config.fetch_max_bytes),
            after=state.unpersisted_token,
        )
    )


def redirect_to_snapshot(state: RaftState, key: int, request: FetchRequest) -> None:
    """Names the newest snapshot to a replica that needs records that the log no longer holds (KIP-630)."""
    snapshot = state.log.latest_snapshot
    error = RaftError.NONE if snapshot is not None else RaftError.OFFSET_OUT_OF_RANGE
    response = FetchResponse(
        error=error,
        epoch=state.epoch,
        leader_id=state.node_id,
        high_watermark=reported_high_watermark(state, request),
        log_start_offset=state.log.start_offset,
        snapshot=snapshot,
        read_round=state.leader_view().reads.round,
        leader_endpoints=state.leader_endpoints_for(request.replica_id),
    )
    state.respond(key, response)


def response_now(
    state: RaftState, request: FetchRequest, *, diverging: LogPosition | None = None
) -> FetchResponse:
    """Returns a response without records, with this leader's current offsets."""
    return FetchResponse(
        error=RaftError.NONE,
        epoch=state.epoch,
        leader_id=state.node_id,
        high_watermark=reported_high_watermark(state, request),
        log_start_offset=state.log.start_offset,
        diverging=diverging,
        read_round=state.leader_view().reads.round,
        leader_endpoints=state.leader_endpoints_for(request.replica_id),
    )


def reported_high_watermark(state: RaftState, request: FetchRequest) -> int:
    """The high watermark in a response. A new leader may know of less than a follower does, until it commits
    a record of its own epoch: it then names none, because a voter of Kafka's ends if it falls."""
    role, own = state.role, state.log.high_watermark
    if request.high_watermark != UNSTATED:
        return own if own >= request.high_watermark else NOTHING_COMMITTED
    return own if isinstance(role, Leader) and own > role.epoch_start_offset else NOTHING_COMMITTED


def wake_voters(state: RaftState) -> None:
    """Respond to the voters' parked fetches for which there is news."""
    view = state.leader_view()
    for parked in list(view.parked.voters.values()):
        if _has_news(state, view, parked.request, is_voter=True):
            view.parked.pop_key(parked.key)
            answer(state, parked.key, parked.request)


def wake_observers(state: RaftState) -> None:
    """Respond to the observers' parked fetches for which there is news."""
    view = state.leader_view()
    for parked in list(view.parked.observers.values()):
        if _has_news(state, view, parked.request, is_voter=False):
            view.parked.pop_key(parked.key)
            answer(state, parked.key, parked.request)


# Linearizable reads without a lease: the leader proves that it still leads after the read arrived. The
# clock is no proof: a fetch may stay in a paused leader's socket for as long as the pause lasts.
#
# A read is served from a committed offset once the voters of a majority (the leader included) have sent a
# fetch of this epoch *after* they saw the round's number, which was assigned after the read arrived.
# Reads that arrive during a round share the next one. (Raft dissertation 6.4, for pull Raft.)


def request_read(state: RaftState, token: int) -> None:
    role = state.role
    if not isinstance(role, Leader) or len(role.view.reads) >= state.config.pending_reads_max:
        state.out.append(ReadFailed(token=token))
        return
    role.view.reads.waiting.append(token)
    begin_read_round(state)


def begin_read_round(state: RaftState) -> None:
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
    wake_voters(state)
    settle_reads(state)


def settle_reads(state: RaftState) -> None:
    """Serve the reads of the round that a majority has confirmed."""
    role = state.role
    if not isinstance(role, Leader) or not role.view.reads.asking:
        return
    queue = role.view.reads
    confirmed = {
        node_id for node_id, progress in role.view.voters.items() if progress.read_round >= queue.round
    }
    if voters.has_majority(confirmed | {state.node_id}, state.voters):
        tokens, queue.asking = queue.asking, []
        for token in tokens:
            state.out.append(ReadReady(token=token, offset=queue.offset))
        begin_read_round(state)
