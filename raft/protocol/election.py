"""Elections: votes and pre-votes (KIP-595, KIP-996), the timers that begin and end them, and how a leader
announces itself and names its successors (BeginQuorumEpoch, EndQuorumEpoch).
"""

from __future__ import annotations

from metaquorum.raft import memory, roles, voters
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    RaftError,
    RaftRequest,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.raft.protocol import transitions
from metaquorum.raft.state import InFlight, RaftState, Vote

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
        if request.candidate_id in state.voters:
            state.log_ends[request.candidate_id] = request.last_position
        if request.pre_vote:
            granted = _on_pre_vote(state, request, now_ms=now_ms)
        else:
            granted = _on_binding_vote(state, request, now_ms=now_ms)
    foreign = error not in (RaftError.NONE, RaftError.FENCED_LEADER_EPOCH)
    state.respond(
        key,
        VoteResponse(
            error=error,
            epoch=state.epoch,
            leader_id=state.leader_id,
            vote_granted=granted,
            pre_vote=request.pre_vote,
            last_position=state.log.end_position,
            known_committed=None if granted or foreign else state.log.committed_position,
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
        case roles.Leader():
            return False
        case roles.Follower() as follower if follower.alive:
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
    """A vote for a higher epoch is persisted together with that epoch. An observer that refuses its vote
    keeps its epoch: a voter without pre-votes that missed its removal raises its own for as long as it runs,
    and in that epoch the leader, in a lower one, would answer no fetch."""
    candidate = Vote(request.candidate_id, request.candidate_directory_id)
    if request.epoch > state.epoch:
        granted = _is_up_to_date(state, request)
        if not granted and not state.may_stand:
            return False
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
        case roles.Follower() | roles.Unattached() as waiting if waiting.deadline_ms is not None:
            waiting.deadline_ms = max(waiting.deadline_ms, pause)
        case _:
            pass


# ---- responses -----------------------------------------------------------------------------------


def on_vote_response(state: RaftState, flight: InFlight, response: VoteResponse, *, now_ms: int) -> None:
    if flight.to in state.voters:
        memory.note_claim(state, flight.to, response, now_ms=now_ms)
    if transitions.learn(state, response, now_ms=now_ms):
        return
    role = state.role
    if not isinstance(role, roles.Prospective | roles.Candidate) or flight.to not in state.voters:
        return
    if response.pre_vote != isinstance(role, roles.Prospective):
        return
    if _has_no_pre_vote(response):
        _assume_answer(state, role, flight.to)
        settle_election(state, now_ms=now_ms)
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
    else:
        role.rejected.add(flight.to)
    settle_election(state, now_ms=now_ms)


def _assume_answer(state: RaftState, role: roles.Prospective | roles.Candidate, voter_id: int) -> None:
    """What a voter without pre-votes would say. It would refuse if its log, as far as this node knows, is
    ahead: the vote itself would end the election, or the epoch, of the one that has the records. Otherwise,
    as among voters of its release, nothing but the vote is asked."""
    end = state.log_ends.get(voter_id)
    if end is not None and end > state.log.end_position:
        role.rejected.add(voter_id)
        return
    role.granted.add(voter_id)
    if isinstance(role, roles.Prospective):
        role.assumed.add(voter_id)


def _has_no_pre_vote(response: VoteResponse) -> bool:
    """Whether the voter's release is from before KIP-996."""
    return response.pre_vote and response.error is RaftError.UNSUPPORTED_VERSION


def _asked(flight: InFlight) -> bytes:
    """The directory that a vote was requested from; empty if the voter is not pinned."""
    return flight.request.voter_directory_id if isinstance(flight.request, VoteRequest) else b""


def settle_election(state: RaftState, *, now_ms: int) -> None:
    """Act on the votes so far. A quorum of one voter is elected in a single pass."""
    role = state.role
    if isinstance(role, roles.Prospective):
        if voters.has_majority(role.granted, state.voters):
            if role.hears_until_ms is None:
                role.hears_until_ms = min(now_ms + state.config.hear_voters_ms, role.deadline_ms)
            if now_ms >= role.hears_until_ms or not _unheard(state, role):
                end_pre_vote(state, now_ms=now_ms)
        elif voters.cannot_win(role.rejected, state.voters):
            lose_pre_vote(state, now_ms=now_ms)
    elif isinstance(role, roles.Candidate):
        if voters.has_majority(role.granted, state.voters):
            if not memory.must_not_lead(state, now_ms=now_ms):
                transitions.become_leader(state, role.granted, now_ms=now_ms)
            elif role.backoff_until_ms is None:
                role.backoff_until_ms = now_ms + state.backoff_ms()
        elif voters.cannot_win(role.rejected, state.voters) and role.backoff_until_ms is None:
            role.backoff_until_ms = now_ms + _pause_ms(state, role)


def _pause_ms(state: RaftState, lost: roles.Candidate) -> int:
    """The pause after an election that was lost. Without pre-votes, only the vote says that this log is
    behind, and each one ends the election of the voter that has the records."""
    return state.election_patience_ms() if lost.assumed else state.backoff_ms()


def _unheard(state: RaftState, role: roles.Prospective) -> bool:
    """Whether a voter has not answered yet and, as far as this node knows, is alive."""
    return any(
        state.is_asking(voter_id) and voter_id not in state.retry_at_ms for voter_id in undecided(state, role)
    )


def end_pre_vote(state: RaftState, *, now_ms: int) -> None:
    """A majority has granted the pre-vote, and the other voters have answered or had their time. What a voter
    knows to be committed is lost only if a majority lacks it, and an assumed grant does not say that."""
    role = state.role
    proven = role.granted - role.assumed if isinstance(role, roles.Prospective) else set()
    is_loss = voters.has_majority(proven, state.voters)
    if memory.must_not_lead(state, is_loss=is_loss, now_ms=now_ms):
        lose_pre_vote(state, now_ms=now_ms)
    elif become_candidate(state, now_ms=now_ms):
        settle_election(state, now_ms=now_ms)
    else:
        lose_pre_vote(state, now_ms=now_ms)


def become_candidate(state: RaftState, *, now_ms: int) -> bool:
    """Begins the next epoch; returns False if there is none."""
    if state.epoch < EPOCH_MAX:
        transitions.become_candidate(state, now_ms=now_ms)
        return True
    state.warn_once(
        f"node {state.node_id} is in epoch {EPOCH_MAX}, the last one: no leader can be elected; stop all"
        " controllers, keep every directory, and make new ones with `metaquorum log salvage`"
    )
    return False


# ---- time ----------------------------------------------------------------------------------------


def election_due_ms(state: RaftState) -> int | None:
    match state.role:
        case roles.Unattached(deadline_ms=deadline_ms):
            return deadline_ms
        case roles.Candidate(deadline_ms=deadline_ms, backoff_until_ms=backoff_until_ms):
            return deadline_ms if backoff_until_ms is None else min(deadline_ms, backoff_until_ms)
        case _:
            return None


def stand(state: RaftState, *, now_ms: int) -> None:
    """Begin an election with a pre-vote."""
    transitions.become_prospective(state, now_ms=now_ms)
    settle_election(state, now_ms=now_ms)


def pre_vote_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, roles.Prospective) else None


def hearing_due_ms(state: RaftState) -> int | None:
    role = state.role
    if not isinstance(role, roles.Prospective) or role.hears_until_ms is None:
        return None
    return role.hears_until_ms if _unheard(state, role) else 0


def lose_pre_vote(state: RaftState, *, now_ms: int) -> None:
    """Return to the last leader of this epoch if there is one, otherwise wait for an election timeout. If
    there are bootstrap servers, query them: the voters that this log names may all be gone."""
    has_leader = state.known_leader_id is not None and state.known_leader_id != state.node_id
    if state.known_leader_id is not None and has_leader and not state.config.bootstrap_ids:
        transitions.become_follower(state, state.epoch, state.known_leader_id, now_ms=now_ms)
    else:
        transitions.become_unattached(state, state.epoch, now_ms=now_ms)


def leader_lost_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, roles.Follower) else None


def lose_leader(state: RaftState, *, now_ms: int) -> None:
    """No fetch succeeded in time: a voter stands for election, an observer looks for the leader."""
    if state.may_stand:
        stand(state, now_ms=now_ms)
    else:
        transitions.become_unattached(state, state.epoch, now_ms=now_ms)


# ---- requests to the other voters ----------------------------------------------------------------


def votes_due_ms(state: RaftState) -> int | None:
    if not isinstance(state.role, roles.Prospective | roles.Candidate):
        return None
    return state.next_ask_ms(undecided(state, state.role))


def send_votes(state: RaftState, *, now_ms: int) -> None:
    """Request a vote from every voter that has not responded yet."""
    standing = state.role
    if not isinstance(standing, roles.Prospective | roles.Candidate):
        return
    for voter_id in sorted(undecided(state, standing)):
        if state.may_ask(voter_id, now_ms=now_ms):
            _send_vote(state, voter_id, pre_vote=isinstance(standing, roles.Prospective), now_ms=now_ms)


def undecided(state: RaftState, standing: roles.Prospective | roles.Candidate) -> set[int]:
    if isinstance(standing, roles.Candidate) and standing.backoff_until_ms is not None:
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
    at_start = roles.AtStart(
        led_itself=leader_id == state.node_id,
        voter_led=leader_id != state.node_id and leader_id in state.voters,
        may_stand=state.may_stand,
        is_alone=not state.other_voters,
    )
    match roles.first_role(at_start):
        case roles.Role.RESIGNED:
            role: roles.RoleState = transitions.resigned_role(state, successors=(), now_ms=now_ms)
        case roles.Role.FOLLOWER if leader_id is not None:
            role = transitions.follower_role(state, leader_id, now_ms=now_ms)
        case _:
            role = transitions.unattached_role(state, now_ms=now_ms)
    transitions.start(state, role)
    if not state.is_observer and not state.other_voters:
        stand(state, now_ms=now_ms)


# ---- requests ------------------------------------------------------------------------------------


def on_begin_quorum_epoch(
    state: RaftState, key: int, request: BeginQuorumEpochRequest, *, now_ms: int
) -> None:
    error = check_voter_request(state, request, to_any_voter=bool(request.leader_endpoints))
    if error is RaftError.NONE:
        error = _check_leader_claim(state, request)
    if error is RaftError.NONE:
        transitions.follow(state, request.epoch, request.leader_id, request.leader_endpoints, now_ms=now_ms)
    state.respond(key, BeginQuorumEpochResponse(error=error, epoch=state.epoch, leader_id=state.leader_id))


def _check_leader_claim(
    state: RaftState, request: BeginQuorumEpochRequest | EndQuorumEpochRequest
) -> RaftError:
    epoch, leader_id = request.epoch, request.leader_id
    if epoch < state.epoch:
        return RaftError.FENCED_LEADER_EPOCH
    if leader_id == state.node_id:
        return RaftError.INVALID_REQUEST if leader_id in state.voters else RaftError.INCONSISTENT_VOTER_SET
    is_known = (epoch, leader_id) == (state.epoch, state.known_leader_id)
    # A removed leader of Apache Kafka's resigns without saying where it listens.
    if not is_known and not transitions.can_follow(state, leader_id, request.leader_endpoints):
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
        transitions.follow(state, request.epoch, request.leader_id, request.leader_endpoints, now_ms=now_ms)
        _succeed(state, request, now_ms=now_ms)


def _succeed(state: RaftState, request: EndQuorumEpochRequest, *, now_ms: int) -> None:
    if (
        not isinstance(state.role, roles.Follower)
        or state.role.leader_id != request.leader_id
        or state.is_observer
    ):
        return
    named = request.preferred_candidates
    own = (one.is_replica(state.node_id, state.identity.directory_id) for one in named)
    rank = next((rank for rank, is_own in enumerate(own) if is_own), len(named))
    if rank == 0 and named:
        # No pre-vote: the leader itself resigned, and its other followers may not know yet.
        if become_candidate(state, now_ms=now_ms):
            settle_election(state, now_ms=now_ms)
        return
    wait = rank * state.config.election_backoff_max_ms + state.rng.randint(
        0, state.config.election_backoff_max_ms
    )
    transitions.doubt_leader(state, wait, now_ms=now_ms)


# ---- what leaders and resigned leaders send ------------------------------------------------------


def begins_due_ms(state: RaftState) -> int | None:
    if not isinstance(state.role, roles.Leader):
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
    return state.next_ask_ms(state.role.unacknowledged) if isinstance(state.role, roles.Resigned) else None


def send_ends(state: RaftState, *, now_ms: int) -> None:
    """Announce the resignation to every voter that has not acknowledged it."""
    role = state.role
    if not isinstance(role, roles.Resigned):
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
    if not transitions.learn(state, response, now_ms=now_ms) and isinstance(state.role, roles.Resigned):
        state.role.unacknowledged.discard(flight.to)


def resignation_due_ms(state: RaftState) -> int | None:
    return state.role.deadline_ms if isinstance(state.role, roles.Resigned) else None


def end_resignation(state: RaftState, *, now_ms: int) -> None:
    """No node took over in time: this node takes part in elections again."""
    transitions.become_unattached(state, state.epoch, now_ms=now_ms)


# Which epochs a peer may bring: the end of the range stays free for the elections to come. An epoch is an
# int32 in messages and files, and never falls: a single request of the last epoch would end all elections
# of a cluster for good. What a node adds by its own candidacies, one at a time, is not bounded.

EPOCH_MAX = 2**31 - 1
"""The last epoch. A node that has reached it stands for election no more."""
ASKED_MAX = 2**30
"""A request may bring any epoch up to here: one election per second takes 34 years to it."""
ANSWERED_MAX = EPOCH_MAX - 2**20
"""A response may bring any epoch up to here: it comes from a node that this one has chosen to ask, and a new
node must be able to follow the leader of a cluster that is beyond `ASKED_MAX`."""
STEP_MAX = 1_000
"""Beyond these bounds, an epoch may be ahead of this node's by so much: elections that this node missed."""


def refuse_request(state: RaftState, key: int, request: RaftRequest) -> bool:
    """Responds to a request whose epoch is out of bounds, and returns True. Other kinds of requests never
    raise the epoch of their receiver; those of another cluster are refused for that."""
    if not isinstance(request, VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest):
        return False
    if request.cluster_id != state.identity.cluster_id or _is_allowed(state, request.epoch, ASKED_MAX):
        return False
    source = request.candidate_id if isinstance(request, VoteRequest) else request.leader_id
    _warn(state, type(request).__name__.removesuffix("Request"), "requests", source)
    state.respond(key, _refusal(state, request))
    return True


def refuse_response(state: RaftState, source: int, response: RaftResponse) -> bool:
    """Whether a response counts for nothing, because its epoch is out of bounds."""
    if _is_allowed(state, response.epoch, ANSWERED_MAX):
        return False
    _warn(state, type(response).__name__.removesuffix("Response"), "responses", source)
    return True


def _is_allowed(state: RaftState, epoch: int, bound: int) -> bool:
    return epoch <= bound or epoch <= min(state.epoch + STEP_MAX, EPOCH_MAX)


def _refusal(
    state: RaftState, request: VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest
) -> RaftResponse:
    error, epoch, leader_id = RaftError.INVALID_REQUEST, state.epoch, state.leader_id
    match request:
        case VoteRequest():
            return VoteResponse(
                error=error, epoch=epoch, leader_id=leader_id, vote_granted=False, pre_vote=request.pre_vote
            )
        case BeginQuorumEpochRequest():
            return BeginQuorumEpochResponse(error=error, epoch=epoch, leader_id=leader_id)
        case EndQuorumEpochRequest():
            return EndQuorumEpochResponse(error=error, epoch=epoch, leader_id=leader_id)


def _warn(state: RaftState, kind: str, what: str, source: int) -> None:
    """Without the epoch: callers choose it, and each text is logged once."""
    who = f"node {source}" if source in state.voters else "a node that is not a voter"
    state.warn_once(
        f"{kind} {what} of {who} are refused: their epoch is far ahead of this node's and near the end of the"
        f" range ({EPOCH_MAX}); find out what sends them, and whether it may act on this cluster"
    )
