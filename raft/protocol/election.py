"""Elections: votes and pre-votes (KIP-595, KIP-996), and the timers that begin and end them.

Owns who gets this node's vote and when it stands for election itself. Knows the log only by its end position.
"""

from __future__ import annotations

from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    RaftError,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.protocol import leaders, transitions
from metaquorum.raft.state import memory, quorum
from metaquorum.raft.state.roles import (
    AtStart,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Role,
    RoleState,
    Unattached,
    first_role,
)
from metaquorum.raft.state.state import InFlight, RaftState, Vote

GIVE_WAY_JITTER_MS = 50
"""Voters that granted the same pre-vote wait a random time up to this, so that they do not all stand for
election at the same time."""
GIVE_WAY_PART = 2
"""And this part of the longest backoff before that."""

# ---- requests ------------------------------------------------------------------------------------


def on_vote(state: RaftState, key: int, request: VoteRequest, *, now_ms: int) -> None:
    error = _refuse_vote_request(state, request)
    granted = False
    if error is RaftError.NONE:
        if request.pre_vote:
            granted = _on_pre_vote(state, request, now_ms=now_ms)
        else:
            granted = _on_binding_vote(state, request, now_ms=now_ms)
    state.respond(
        key,
        VoteResponse(
            error=error,
            epoch=state.epoch,
            leader_id=state.leader_id,
            vote_granted=granted,
            pre_vote=request.pre_vote,
            last_position=state.log.end_position,
        ),
    )


def _refuse_vote_request(state: RaftState, request: VoteRequest) -> RaftError:
    # From kraft.version 1 on, either log may lack the newest voters: only the candidate knows whose vote
    # counts, and the voter judges the candidate's log alone (KIP-853).
    by_log = state.kraft_version >= 1 or request.kraft_version >= 1
    error = check_voter_request(state, request, to_any_voter=by_log)
    if error is not RaftError.NONE:
        return error
    if request.candidate_id == state.node_id:
        return RaftError.INCONSISTENT_VOTER_SET
    if not by_log and request.candidate_id not in state.voters:
        return RaftError.INCONSISTENT_VOTER_SET
    if not by_log and not state.is_voter_replica(request.candidate_id, request.candidate_directory_id):
        return RaftError.INVALID_VOTER_KEY
    return RaftError.FENCED_LEADER_EPOCH if request.epoch < state.epoch else RaftError.NONE


def check_voter_request(
    state: RaftState, request: VoteRequest | BeginQuorumEpochRequest, *, to_any_voter: bool
) -> RaftError:
    """Whether a request for one voter has reached that voter. An empty directory id names no directory.
    With `to_any_voter`, a voter that its own log does not name is accepted too."""
    if request.cluster_id != state.identity.cluster_id:
        return RaftError.INCONSISTENT_CLUSTER_ID
    to_other_directory = request.voter_directory_id not in (b"", state.identity.directory_id)
    if request.voter_id != state.node_id or to_other_directory:
        return RaftError.INVALID_VOTER_KEY
    is_voter = not state.is_observer or (to_any_voter and state.identity.may_vote)
    return RaftError.NONE if is_voter else RaftError.INVALID_VOTER_KEY


def _on_pre_vote(state: RaftState, request: VoteRequest, *, now_ms: int) -> bool:
    if request.epoch > state.epoch:
        transitions.become_unattached(state, request.epoch, now_ms=now_ms)
    granted = _would_grant_pre_vote(state, request)
    if granted:
        _give_way(state, now_ms=now_ms)
    return granted


def _would_grant_pre_vote(state: RaftState, request: VoteRequest) -> bool:
    """A replica in contact with a live leader refuses, so a node that was cut off disrupts no one
    (KIP-996)."""
    match state.role:
        case Leader():
            return False
        case Follower() as follower if follower.alive:
            return False
        case _:
            return _is_up_to_date(state, request)


def _is_up_to_date(state: RaftState, request: VoteRequest) -> bool:
    """The candidate's log is at least as up to date as this one (Raft paper 5.4.1), and reaches the offset
    up to which this voter knows the log to be committed: where committed records were lost, a later epoch
    proves nothing."""
    if memory.refuse_candidate(state, request):
        return False
    if request.last_position < state.log.end_position:
        return False
    if state.log.has_committed(request.last_position):
        return True
    state.warn_once(
        f"no vote for node {request.candidate_id}: its log ends at offset {request.last_position.offset}, "
        f"but everything below {state.log.high_watermark} is committed"
    )
    return False


def _on_binding_vote(state: RaftState, request: VoteRequest, *, now_ms: int) -> bool:
    """A vote for a higher epoch is persisted together with that epoch."""
    candidate = Vote(request.candidate_id, request.candidate_directory_id)
    if request.epoch > state.epoch:
        granted = _is_up_to_date(state, request)
        transitions.become_unattached(state, request.epoch, candidate if granted else None, now_ms=now_ms)
        return granted
    if state.vote is not None:
        same = state.vote.node_id == candidate.node_id
        same = same and state.vote.directory_id in (None, candidate.directory_id)
        return same and state.known_leader_id is None
    if state.known_leader_id is not None or not _is_up_to_date(state, request):
        return False
    transitions.become_unattached(state, request.epoch, candidate, now_ms=now_ms)
    return True


def _give_way(state: RaftState, *, now_ms: int) -> None:
    # A candidate that was just granted a pre-vote needs time to request the vote: two candidates at the same
    # moment split the votes, which slowed failovers where all timers expire together.
    pause = (
        now_ms
        + state.config.election_backoff_max_ms // GIVE_WAY_PART
        + state.rng.randint(0, GIVE_WAY_JITTER_MS)
    )
    match state.role:
        case Follower() | Unattached() as waiting if waiting.deadline_ms is not None:
            waiting.deadline_ms = max(waiting.deadline_ms, pause)
        case _:
            pass


# ---- responses -----------------------------------------------------------------------------------


def on_vote_response(state: RaftState, flight: InFlight, response: VoteResponse, *, now_ms: int) -> None:
    if leaders.learn(state, response, now_ms=now_ms):
        return
    role = state.role
    if not isinstance(role, Prospective | Candidate) or flight.to not in state.voters:
        return
    if response.pre_vote != isinstance(role, Prospective):
        return
    if response.error not in (RaftError.NONE, RaftError.FENCED_LEADER_EPOCH):
        state.warn_once(
            f"voter {flight.to} refuses vote requests from this node with {response.error.name}: "
            "compare cluster id, voters and directory ids of both nodes"
        )
    granted = response.vote_granted and response.error is RaftError.NONE
    granted = granted and not memory.refuse_vote(state, flight.to, _asked(flight), response)
    if granted:
        role.granted.add(flight.to)
    elif flight.to not in role.granted:
        role.rejected.add(flight.to)
    settle_election(state, now_ms=now_ms)


def _asked(flight: InFlight) -> bytes:
    """The directory that a vote was requested from; empty if the voter is not pinned."""
    return flight.request.voter_directory_id if isinstance(flight.request, VoteRequest) else b""


def settle_election(state: RaftState, *, now_ms: int) -> None:
    """Act on the votes so far. A quorum of one voter is elected in a single pass."""
    role = state.role
    if isinstance(role, Prospective):
        if quorum.has_majority(role.granted, state.voters):
            transitions.become_candidate(state, now_ms=now_ms)
            settle_election(state, now_ms=now_ms)
        elif quorum.cannot_win(role.rejected, state.voters):
            lose_pre_vote(state, now_ms=now_ms)
    elif isinstance(role, Candidate):
        if quorum.has_majority(role.granted, state.voters):
            transitions.become_leader(state, role.granted, now_ms=now_ms)
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


def stand(state: RaftState, *, now_ms: int) -> None:
    """Begin an election with a pre-vote."""
    transitions.become_prospective(state, now_ms=now_ms)
    settle_election(state, now_ms=now_ms)


def pre_vote_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, Prospective) else None


def lose_pre_vote(state: RaftState, *, now_ms: int) -> None:
    """Return to the last leader of this epoch if there is one, otherwise wait for an election timeout. If
    there are bootstrap servers, query them: the voters that this log names may all be gone."""
    has_leader = state.known_leader_id is not None and state.known_leader_id != state.node_id
    if state.known_leader_id is not None and has_leader and not state.config.bootstrap_ids:
        transitions.become_follower(state, state.epoch, state.known_leader_id, now_ms=now_ms)
    else:
        transitions.become_unattached(state, state.epoch, now_ms=now_ms)


def leader_lost_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, Follower) else None


def lose_leader(state: RaftState, *, now_ms: int) -> None:
    """No fetch succeeded in time: a voter stands for election, an observer looks for the leader."""
    if state.may_stand:
        stand(state, now_ms=now_ms)
    else:
        transitions.become_unattached(state, state.epoch, now_ms=now_ms)


# ---- requests to the other voters ----------------------------------------------------------------


def votes_due_ms(state: RaftState) -> int | None:
    if not isinstance(state.role, Prospective | Candidate):
        return None
    return state.next_ask_ms(undecided(state, state.role))


def send_votes(state: RaftState, *, now_ms: int) -> None:
    """Request a vote from every voter that has not responded yet."""
    standing = state.role
    if not isinstance(standing, Prospective | Candidate):
        return
    for voter_id in sorted(undecided(state, standing)):
        if state.may_ask(voter_id, now_ms=now_ms):
            _send_vote(state, voter_id, pre_vote=isinstance(standing, Prospective), now_ms=now_ms)


def undecided(state: RaftState, standing: Prospective | Candidate) -> set[int]:
    if isinstance(standing, Candidate) and standing.backoff_until_ms is not None:
        return set()
    return set(state.other_voters) - standing.granted - standing.rejected


def _send_vote(state: RaftState, voter_id: int, *, now_ms: int, pre_vote: bool) -> None:
    request = VoteRequest(
        cluster_id=state.identity.cluster_id,
        epoch=state.epoch,
        candidate_id=state.node_id,
        candidate_directory_id=state.identity.directory_id,
        voter_id=voter_id,
        voter_directory_id=state.voters[voter_id].directory_id or b"",
        last_position=state.log.end_position,
        pre_vote=pre_vote,
        kraft_version=state.kraft_version,
    )
    state.send(voter_id, request, state.config.request_timeout_ms, now_ms=now_ms)


# ---- start ---------------------------------------------------------------------------------------


def begin(state: RaftState, *, now_ms: int) -> None:
    """The role after a start. The leader of the recorded epoch starts as resigned: it may have sent
    records of that epoch and lost them, and must not write them again with other content (KAFKA-10527)."""
    leader_id = state.known_leader_id
    at = AtStart(
        led_itself=leader_id == state.node_id,
        voter_led=leader_id != state.node_id and leader_id in state.voters,
        may_stand=state.may_stand,
        is_alone=not state.other_voters,
    )
    match first_role(at):
        case Role.RESIGNED:
            role: RoleState = transitions.resigned_role(state, successors=(), now_ms=now_ms)
        case Role.FOLLOWER if leader_id is not None:
            role = transitions.follower_role(state, leader_id, now_ms=now_ms)
        case _:
            role = transitions.unattached_role(state, now_ms=now_ms)
    transitions.start(state, role)
    if not state.is_observer and not state.other_voters:
        stand(state, now_ms=now_ms)
