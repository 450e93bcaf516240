"""BeginQuorumEpoch and EndQuorumEpoch: a leader announces itself, and names its successors (KIP-595).

Owns what both requests do at the receiver, and how long the sender repeats them. Does not know votes:
`election` owns them.
"""

from __future__ import annotations

from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    RaftError,
)
from metaquorum.raft.protocol import election, leaders, transitions
from metaquorum.raft.state.roles import Follower, Leader, Resigned
from metaquorum.raft.state.state import InFlight, RaftState

# ---- requests ------------------------------------------------------------------------------------


def on_begin_quorum_epoch(
    state: RaftState, key: int, request: BeginQuorumEpochRequest, *, now_ms: int
) -> None:
    error = election.check_voter_request(state, request, to_any_voter=bool(request.leader_endpoints))
    if error is RaftError.NONE:
        error = _check_leader_claim(state, request)
    if error is RaftError.NONE:
        leaders.follow(state, request.epoch, request.leader_id, request.leader_endpoints, now_ms=now_ms)
    state.respond(key, BeginQuorumEpochResponse(error=error, epoch=state.epoch, leader_id=state.leader_id))


def _check_leader_claim(
    state: RaftState, request: BeginQuorumEpochRequest | EndQuorumEpochRequest
) -> RaftError:
    epoch, leader_id = request.epoch, request.leader_id
    if epoch < state.epoch:
        return RaftError.FENCED_LEADER_EPOCH
    if leader_id == state.node_id:
        return RaftError.INVALID_REQUEST if leader_id in state.voters else RaftError.INCONSISTENT_VOTER_SET
    if not leaders.can_follow(state, leader_id, request.leader_endpoints):
        return RaftError.INCONSISTENT_VOTER_SET
    if epoch == state.epoch and state.known_leader_id not in (None, leader_id):
        state.warn_once(
            f"node {leader_id} claims to lead epoch {epoch}, but node {state.known_leader_id} does: two "
            "nodes have the same id, or a directory was copied; stop one of them"
        )
        return RaftError.INVALID_REQUEST
    return RaftError.NONE


def on_end_quorum_epoch(state: RaftState, key: int, request: EndQuorumEpochRequest, *, now_ms: int) -> None:
    error = RaftError.NONE
    if request.cluster_id != state.identity.cluster_id:
        error = RaftError.INCONSISTENT_CLUSTER_ID
    elif state.is_observer and not request.leader_endpoints:
        error = RaftError.INVALID_VOTER_KEY
    else:
        error = _check_leader_claim(state, request)
    # The response goes out before this node stands for election: its epoch is the one that ended.
    state.respond(key, EndQuorumEpochResponse(error=error, epoch=state.epoch, leader_id=state.leader_id))
    if error is RaftError.NONE:
        leaders.follow(state, request.epoch, request.leader_id, request.leader_endpoints, now_ms=now_ms)
        _succeed(state, request, now_ms=now_ms)


def _succeed(state: RaftState, request: EndQuorumEpochRequest, *, now_ms: int) -> None:
    if not isinstance(state.role, Follower) or state.role.leader_id != request.leader_id or state.is_observer:
        return
    named = request.preferred_candidates
    own = (one.is_replica(state.node_id, state.identity.directory_id) for one in named)
    rank = next((rank for rank, is_own in enumerate(own) if is_own), len(named))
    if rank == 0 and named:
        # No pre-vote: the leader itself resigned, and its other followers may not know yet.
        transitions.become_candidate(state, now_ms=now_ms)
        election.settle_election(state, now_ms=now_ms)
        return
    wait = rank * state.config.election_backoff_max_ms + state.rng.randint(
        0, state.config.election_backoff_max_ms
    )
    leaders.doubt_leader(state, wait, now_ms=now_ms)


# ---- what leaders and resigned leaders send ------------------------------------------------------


def begins_due_ms(state: RaftState) -> int | None:
    if not isinstance(state.role, Leader):
        return None
    first_ms, retries, asks = None, state.retry_at_ms, bool(state.in_flight)
    for voter_id, progress in state.role.view.voters.items():
        if asks and state.is_asking(voter_id):
            continue
        due_ms = progress.next_begin_ms
        if voter_id in retries:
            due_ms = max(due_ms, retries[voter_id])
        if first_ms is None or due_ms < first_ms:
            first_ms = due_ms
    return first_ms


def send_begins(state: RaftState, *, now_ms: int) -> None:
    """Announce this leader to every voter that does not fetch."""
    for voter_id, progress in sorted(state.leader_view().voters.items()):
        if progress.next_begin_ms <= now_ms and state.may_ask(voter_id, now_ms=now_ms):
            progress.next_begin_ms = now_ms + state.config.begin_quorum_ms
            _send_begin(state, voter_id, now_ms=now_ms)


def _send_begin(state: RaftState, voter_id: int, *, now_ms: int) -> None:
    request = BeginQuorumEpochRequest(
        cluster_id=state.identity.cluster_id,
        epoch=state.epoch,
        leader_id=state.node_id,
        voter_id=voter_id,
        voter_directory_id=state.voters[voter_id].directory_id or b"",
        leader_endpoints=state.leader_endpoints,
    )
    state.send(voter_id, request, state.config.request_timeout_ms, now_ms=now_ms)


def ends_due_ms(state: RaftState) -> int | None:
    return state.next_ask_ms(state.role.unacknowledged) if isinstance(state.role, Resigned) else None


def send_ends(state: RaftState, *, now_ms: int) -> None:
    """Announce the resignation to every voter that has not acknowledged it."""
    role = state.role
    if not isinstance(role, Resigned):
        return
    for voter_id in sorted(role.unacknowledged):
        if state.may_ask(voter_id, now_ms=now_ms):
            request = EndQuorumEpochRequest(
                cluster_id=state.identity.cluster_id,
                epoch=state.epoch,
                leader_id=state.node_id,
                preferred_candidates=role.successors,
                leader_endpoints=state.endpoints_of(state.node_id),
            )
            state.send(voter_id, request, state.config.request_timeout_ms, now_ms=now_ms)


def on_end_response(
    state: RaftState, flight: InFlight, response: EndQuorumEpochResponse, *, now_ms: int
) -> None:
    if not leaders.learn(state, response, now_ms=now_ms) and isinstance(state.role, Resigned):
        state.role.unacknowledged.discard(flight.to)


def resignation_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, Resigned) else None


def end_resignation(state: RaftState, *, now_ms: int) -> None:
    """No node took over in time: this node takes part in elections again."""
    transitions.become_unattached(state, state.epoch, now_ms=now_ms)
