"""Elections: votes, pre-votes, announcements of leaders and resignations (KIP-595, KIP-996).

Owns when a role changes for reasons of leadership. Knows the log only by its end position.
"""

from __future__ import annotations

from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    RaftError,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.protocol import quorum, transitions
from metaquorum.raft.protocol.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from metaquorum.raft.protocol.state import InFlight, RaftState, Vote

GIVE_WAY_JITTER_MS = 50
"""Voters that granted the same pre-vote draw from so many ms, so that they do not all stand next together."""

# ---- requests ------------------------------------------------------------------------------------


def on_vote(state: RaftState, now_ms: int, key: int, request: VoteRequest) -> None:
    error = _refuse_vote_request(state, request)
    granted = False
    if error is RaftError.NONE:
        if request.pre_vote:
            granted = _on_pre_vote(state, now_ms, request)
        else:
            granted = _on_binding_vote(state, now_ms, request)
    state.respond(
        key,
        VoteResponse(
            error=error,
            epoch=state.epoch,
            leader_id=state.leader_id,
            vote_granted=granted,
            pre_vote=request.pre_vote,
        ),
    )


def _refuse_vote_request(state: RaftState, request: VoteRequest) -> RaftError:
    error = check_voter_request(state, request.cluster_id, request.voter_id, request.voter_directory_id)
    if error is not RaftError.NONE:
        return error
    if request.candidate_id not in state.voters or request.candidate_id == state.node_id:
        return RaftError.INCONSISTENT_VOTER_SET
    if not state.is_voter_replica(request.candidate_id, request.candidate_directory_id):
        return RaftError.INVALID_VOTER_KEY
    return RaftError.FENCED_LEADER_EPOCH if request.epoch < state.epoch else RaftError.NONE


def check_voter_request(
    state: RaftState, cluster_id: str, voter_id: int, voter_directory_id: bytes
) -> RaftError:
    """Whether a request that is for one voter has come to that voter. An empty directory id names none."""
    if cluster_id != state.identity.cluster_id:
        return RaftError.INCONSISTENT_CLUSTER_ID
    if voter_id != state.node_id or voter_directory_id not in (b"", state.identity.directory_id):
        return RaftError.INVALID_VOTER_KEY
    return RaftError.INVALID_VOTER_KEY if state.is_observer else RaftError.NONE


def _on_pre_vote(state: RaftState, now_ms: int, request: VoteRequest) -> bool:
    if request.epoch > state.epoch:
        transitions.become_unattached(state, now_ms, request.epoch)
    granted = _would_grant_pre_vote(state, request)
    if granted:
        _give_way(state, now_ms)
    return granted


def _would_grant_pre_vote(state: RaftState, request: VoteRequest) -> bool:
    """A replica that hears from a live leader refuses, so a node that was cut off disturbs nobody
    (KIP-996)."""
    match state.role:
        case Leader():
            return False
        case Follower() as follower if follower.alive:
            return False
        case _:
            return _is_up_to_date(state, request)


def _is_up_to_date(state: RaftState, request: VoteRequest) -> bool:
    """The candidate's log is at least as far as this one (Raft paper 5.4.1), and reaches as far as this voter
    knows it to be committed: where committed records were lost, a later epoch proves nothing."""
    if request.last_position < state.log.end_position:
        return False
    if state.log.has_committed(request.last_position):
        return True
    state.warn_once(
        f"no vote for node {request.candidate_id}: its log ends at offset {request.last_position.offset}, "
        f"but everything below {state.log.high_watermark} is committed"
    )
    return False


def _on_binding_vote(state: RaftState, now_ms: int, request: VoteRequest) -> bool:
    """A vote for a higher epoch is written together with that epoch."""
    candidate = Vote(request.candidate_id, request.candidate_directory_id)
    if request.epoch > state.epoch:
        granted = _is_up_to_date(state, request)
        transitions.become_unattached(state, now_ms, request.epoch, candidate if granted else None)
        return granted
    if state.vote is not None:
        same = state.vote.node_id == candidate.node_id
        same = same and state.vote.directory_id in (None, candidate.directory_id)
        return same and state.known_leader_id is None
    if state.known_leader_id is not None or not _is_up_to_date(state, request):
        return False
    transitions.become_unattached(state, now_ms, request.epoch, candidate)
    return True


def _give_way(state: RaftState, now_ms: int) -> None:
    # Whoever was just promised a vote should have the time to ask for it: two candidates of one moment
    # split the votes, which is what made failovers slow where all timers end together.
    pause = now_ms + state.config.election_backoff_max_ms // 2 + state.rng.randint(0, GIVE_WAY_JITTER_MS)
    match state.role:
        case Follower() | Unattached() as waiting if waiting.deadline_ms is not None:
            waiting.deadline_ms = max(waiting.deadline_ms, pause)
        case _:
            pass


def on_begin_quorum_epoch(state: RaftState, now_ms: int, key: int, request: BeginQuorumEpochRequest) -> None:
    error = check_voter_request(state, request.cluster_id, request.voter_id, request.voter_directory_id)
    if error is RaftError.NONE:
        error = _check_leader_claim(state, request.epoch, request.leader_id)
    if error is RaftError.NONE:
        follow(state, now_ms, request.epoch, request.leader_id)
    state.respond(key, BeginQuorumEpochResponse(error=error, epoch=state.epoch, leader_id=state.leader_id))


def _check_leader_claim(state: RaftState, epoch: int, leader_id: int) -> RaftError:
    if epoch < state.epoch:
        return RaftError.FENCED_LEADER_EPOCH
    if leader_id not in state.voters:
        return RaftError.INCONSISTENT_VOTER_SET
    if leader_id == state.node_id:
        return RaftError.INVALID_REQUEST
    if epoch == state.epoch and state.known_leader_id not in (None, leader_id):
        state.warn_once(
            f"node {leader_id} claims to lead epoch {epoch}, but node {state.known_leader_id} does: two "
            "nodes have the same id, or a directory was copied; stop one of them"
        )
        return RaftError.INVALID_REQUEST
    return RaftError.NONE


def on_end_quorum_epoch(state: RaftState, now_ms: int, key: int, request: EndQuorumEpochRequest) -> None:
    error = RaftError.NONE
    if request.cluster_id != state.identity.cluster_id:
        error = RaftError.INCONSISTENT_CLUSTER_ID
    elif state.is_observer:
        error = RaftError.INVALID_VOTER_KEY
    else:
        error = _check_leader_claim(state, request.epoch, request.leader_id)
    # The answer goes out before this node stands: the epoch it names is the one that ended.
    state.respond(key, EndQuorumEpochResponse(error=error, epoch=state.epoch, leader_id=state.leader_id))
    if error is RaftError.NONE:
        follow(state, now_ms, request.epoch, request.leader_id)
        _succeed(state, now_ms, request)


def _succeed(state: RaftState, now_ms: int, request: EndQuorumEpochRequest) -> None:
    if not isinstance(state.role, Follower) or state.role.leader_id != request.leader_id:
        return
    successors = request.preferred_successors
    if successors and successors[0] == state.node_id:
        # No pre-vote: the leader itself gave way, and its other followers may not have heard yet.
        transitions.become_candidate(state, now_ms)
        settle_election(state, now_ms)
        return
    rank = successors.index(state.node_id) if state.node_id in successors else len(successors)
    wait = rank * state.config.election_backoff_max_ms + state.rng.randint(
        0, state.config.election_backoff_max_ms
    )
    doubt_leader(state, now_ms, wait)


# ---- what this node learns of leaders ------------------------------------------------------------


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


# ---- responses -----------------------------------------------------------------------------------


def on_vote_response(state: RaftState, now_ms: int, flight: InFlight, response: VoteResponse) -> None:
    if learn(state, now_ms, response):
        return
    role = state.role
    if not isinstance(role, Prospective | Candidate) or flight.to not in state.voters:
        return
    if response.pre_vote != isinstance(role, Prospective):
        return
    if response.error not in (RaftError.NONE, RaftError.FENCED_LEADER_EPOCH):
        state.warn_once(
            f"voter {flight.to} refuses vote requests of this node with {response.error.name}: "
            "compare cluster id, controller.quorum.voters and directory ids of both nodes"
        )
    if response.vote_granted and response.error is RaftError.NONE:
        role.granted.add(flight.to)
    elif flight.to not in role.granted:
        role.rejected.add(flight.to)
    settle_election(state, now_ms)


def settle_election(state: RaftState, now_ms: int) -> None:
    """Draw the consequence of the votes so far. A quorum of one voter passes through in one go."""
    role = state.role
    if isinstance(role, Prospective):
        if quorum.has_majority(role.granted, state.voters):
            transitions.become_candidate(state, now_ms)
            settle_election(state, now_ms)
        elif quorum.cannot_win(role.rejected, state.voters):
            lose_pre_vote(state, now_ms)
    elif isinstance(role, Candidate):
        if quorum.has_majority(role.granted, state.voters):
            transitions.become_leader(state, now_ms, role.granted)
        elif quorum.cannot_win(role.rejected, state.voters) and role.backoff_until_ms is None:
            role.backoff_until_ms = now_ms + state.backoff_ms()


# ---- time ----------------------------------------------------------------------------------------


def election_due_ms(state: RaftState) -> int | None:
    match state.role:
        case Unattached(deadline_ms=deadline_ms):
            return deadline_ms
        case Candidate(deadline_ms=deadline_ms, backoff_until_ms=backoff_until_ms):
            return deadline_ms if backoff_until_ms is None else min(deadline_ms, backoff_until_ms)
        case _:
            return None


def stand(state: RaftState, now_ms: int) -> None:
    """Begin an election: first ask whether it would be won."""
    transitions.become_prospective(state, now_ms)
    settle_election(state, now_ms)


def pre_vote_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, Prospective) else None


def lose_pre_vote(state: RaftState, now_ms: int) -> None:
    """Back to the last leader of this epoch where there is one, else wait for an election timeout."""
    if state.known_leader_id is not None and state.known_leader_id != state.node_id:
        transitions.become_follower(state, now_ms, state.epoch, state.known_leader_id)
    else:
        transitions.become_unattached(state, now_ms, state.epoch)


def leader_lost_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, Follower) else None


def lose_leader(state: RaftState, now_ms: int) -> None:
    """No fetch succeeded in time: a voter stands, an observer asks who leads."""
    if state.is_observer:
        transitions.become_unattached(state, now_ms, state.epoch)
    else:
        stand(state, now_ms)


def resignation_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, Resigned) else None


def end_resignation(state: RaftState, now_ms: int) -> None:
    """Nobody succeeded this node in time: it takes part in elections again."""
    transitions.become_unattached(state, now_ms, state.epoch)


# ---- what the role owes the other voters ---------------------------------------------------------


def votes_due_ms(state: RaftState) -> int | None:
    if not isinstance(state.role, Prospective | Candidate):
        return None
    return state.next_ask_ms(undecided(state, state.role))


def send_votes(state: RaftState, now_ms: int) -> None:
    """Ask every voter that has not answered yet."""
    standing = state.role
    if not isinstance(standing, Prospective | Candidate):
        return
    for voter_id in sorted(undecided(state, standing)):
        if state.may_ask(now_ms, voter_id):
            _send_vote(state, now_ms, voter_id, pre_vote=isinstance(standing, Prospective))


def ends_due_ms(state: RaftState) -> int | None:
    return state.next_ask_ms(state.role.unacknowledged) if isinstance(state.role, Resigned) else None


def send_ends(state: RaftState, now_ms: int) -> None:
    """Tell every voter that does not know yet that this node gave leadership up."""
    role = state.role
    if not isinstance(role, Resigned):
        return
    for voter_id in sorted(role.unacknowledged):
        if state.may_ask(now_ms, voter_id):
            request = EndQuorumEpochRequest(
                cluster_id=state.identity.cluster_id,
                epoch=state.epoch,
                leader_id=state.node_id,
                preferred_successors=role.successors,
            )
            state.send(now_ms, voter_id, request, state.config.request_timeout_ms)


def begins_due_ms(state: RaftState) -> int | None:
    if not isinstance(state.role, Leader):
        return None
    return min(
        (
            max(progress.next_begin_ms, state.retry_at_ms.get(voter_id, 0))
            for voter_id, progress in state.role.view.voters.items()
            if not state.is_asking(voter_id)
        ),
        default=None,
    )


def send_begins(state: RaftState, now_ms: int) -> None:
    """Tell every voter that does not fetch that this node leads."""
    for voter_id, progress in sorted(state.leader_view().voters.items()):
        if progress.next_begin_ms <= now_ms and state.may_ask(now_ms, voter_id):
            progress.next_begin_ms = now_ms + state.config.begin_quorum_ms
            _send_begin(state, now_ms, voter_id)


def undecided(state: RaftState, standing: Prospective | Candidate) -> set[int]:
    if isinstance(standing, Candidate) and standing.backoff_until_ms is not None:
        return set()
    return set(state.other_voters) - standing.granted - standing.rejected


def _send_vote(state: RaftState, now_ms: int, voter_id: int, *, pre_vote: bool) -> None:
    request = VoteRequest(
        cluster_id=state.identity.cluster_id,
        epoch=state.epoch,
        candidate_id=state.node_id,
        candidate_directory_id=state.identity.directory_id,
        voter_id=voter_id,
        voter_directory_id=state.voters[voter_id].directory_id or b"",
        last_position=state.log.end_position,
        pre_vote=pre_vote,
    )
    state.send(now_ms, voter_id, request, state.config.request_timeout_ms)


def _send_begin(state: RaftState, now_ms: int, voter_id: int) -> None:
    request = BeginQuorumEpochRequest(
        cluster_id=state.identity.cluster_id,
        epoch=state.epoch,
        leader_id=state.node_id,
        voter_id=voter_id,
        voter_directory_id=state.voters[voter_id].directory_id or b"",
    )
    state.send(now_ms, voter_id, request, state.config.request_timeout_ms)


def on_end_response(
    state: RaftState, now_ms: int, flight: InFlight, response: EndQuorumEpochResponse
) -> None:
    if not learn(state, now_ms, response) and isinstance(state.role, Resigned):
        state.role.unacknowledged.discard(flight.to)


# ---- start ---------------------------------------------------------------------------------------


def begin(state: RaftState, now_ms: int) -> None:
    """The role after a start. The leader of the recorded epoch starts as resigned: records of that
    epoch that it had sent and lost must not be written a second time with other content (KAFKA-10527)."""
    leader_id = state.known_leader_id
    if not state.is_observer and leader_id == state.node_id and state.other_voters:
        transitions.start(state, transitions.resigned_role(state, now_ms, successors=()))
    elif leader_id is not None and leader_id != state.node_id and leader_id in state.voters:
        transitions.start(state, transitions.follower_role(state, now_ms, leader_id))
    else:
        transitions.start(state, transitions.unattached_role(state, now_ms))
    if not state.is_observer and not state.other_voters:
        stand(state, now_ms)
