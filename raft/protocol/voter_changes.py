"""Adding, removing and updating voters, and the upgrade to voters in records: the leader's side (KIP-853).

Only one change runs at a time, and only after a record of the leader's own epoch is committed: so every
majority of the new set shares a voter with every majority that could have committed, or could still commit,
anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metaquorum.raft.messages import (
    AddVoterRequest,
    RaftError,
    RemoveVoterRequest,
    UpdateVoterRequest,
    UpgradeRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from metaquorum.raft.protocol import replication, transitions
from metaquorum.raft.roles import Follower, Leader, PendingChange
from metaquorum.raft.state import RaftState
from metaquorum.raft.voters import (
    NEWEST_KRAFT_VERSION,
    ControlValue,
    VoterNode,
    VoterSet,
    encode_control_batch,
    kraft_version_record,
    voters_record,
)
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.uuids import UUID_BYTES, ZERO_UUID, uuid_to_text


class Refusal(NamedTuple):
    """Why a change is refused, and what to do."""

    error: RaftError
    message: str


# ---- requests ------------------------------------------------------------------------------------


def on_request(state: RaftState, key: int, request: VoterChangeRequest, *, now_ms: int) -> None:
    """Refuse, or append the new set. An update gets its response at once, other changes once they are
    committed."""
    judged = _judge(state, request, now_ms=now_ms)
    if isinstance(judged, Refusal):
        _answer(state, key, judged)
        return
    if judged:
        append(state, judged, now_ms=now_ms)
    if isinstance(request, UpdateVoterRequest) or not judged:
        _answer(state, key, None)
        return
    state.leader_view().change = PendingChange(
        key=key,
        epoch=state.epoch,
        offset=state.log.end_offset - 1,
        deadline_ms=now_ms + request.timeout_ms,
    )


def append(state: RaftState, records: Sequence[ControlValue], *, now_ms: int) -> None:
    """Append control records of this leader: they are in force at once."""
    batches = Batches.sealed(
        encode_control_batch(
            records, base_offset=state.log.end_offset, epoch=state.epoch, timestamp_ms=state.wall_ms
        )
    )
    replication.append(state, batches, wake_observers=True, now_ms=now_ms)
    replication.advance_high_watermark(state, now_ms=now_ms)


def _answer(state: RaftState, key: int, refusal: Refusal | None) -> None:
    state.respond(
        key,
        VoterChangeResponse(
            error=RaftError.NONE if refusal is None else refusal.error,
            epoch=state.epoch,
            leader_id=state.leader_id,
            message=None if refusal is None else refusal.message,
        ),
    )


def _judge(state: RaftState, request: VoterChangeRequest, *, now_ms: int) -> list[ControlValue] | Refusal:
    """Returns the records that make the change, none if it is already in force; or why it is refused."""
    epoch = request.epoch if isinstance(request, UpdateVoterRequest) else state.epoch
    error = replication.check_leader_request(state, request.cluster_id, epoch)
    if error is not RaftError.NONE:
        return _not_this_leader(state, request, error)
    if isinstance(request, UpgradeRequest):
        return _upgrade(state, request)
    if state.kraft_version == 0:
        return Refusal(
            RaftError.UNSUPPORTED_VERSION,
            "voters are configured while kraft.version is 0: upgrade kraft.version to 1 first",
        )
    refusal = _not_now(state)
    if refusal is not None:
        return refusal
    match request:
        case AddVoterRequest(voter=voter):
            refusal = _refuse_new_voter(state, voter, now_ms=now_ms)
            return refusal or [voters_record(state.voters.with_voter(voter))]
        case RemoveVoterRequest(voter_id=voter_id):
            refusal = _refuse_removal(state, request)
            return refusal or [voters_record(state.voters.without(voter_id))]
        case UpdateVoterRequest(voter=voter):
            refusal = _refuse_entry(state, voter) or _refuse_unknown(
                state, voter.node_id, voter.directory_id or b""
            )
            changed = [] if state.voters.get(voter.node_id) == voter else [voter]
            return refusal or [voters_record(state.voters.with_voter(one)) for one in changed]


def _not_this_leader(state: RaftState, request: VoterChangeRequest, error: RaftError) -> Refusal:
    match error:
        case RaftError.INCONSISTENT_CLUSTER_ID:
            own = state.identity.cluster_id
            text = f"this is cluster {own}, not {request.cluster_id}: connect to that cluster"
        case RaftError.NOT_LEADER_OR_FOLLOWER if state.leader_id is not None:
            text = f"node {state.node_id} does not lead: send the request to node {state.leader_id}"
        case RaftError.NOT_LEADER_OR_FOLLOWER:
            text = f"node {state.node_id} knows no leader: try again when there is one"
        case _:
            text = f"this is epoch {state.epoch}: send the request to its leader"
    return Refusal(error, text)


def _not_now(state: RaftState) -> Refusal | None:
    """Why no change may begin now. A set that is not committed may be undone, and two steps at once may
    lead to majorities that do not meet. Until a record of its own epoch is committed, a leader does not
    know whether another set is (the flaw in the Raft dissertation's single-server changes, as its author
    found)."""
    role, newest = state.role, state.voter_history.newest_offset
    if not isinstance(role, Leader) or state.log.high_watermark <= role.epoch_start_offset:
        return Refusal(
            RaftError.REQUEST_TIMED_OUT, "the leader has committed nothing in its epoch yet: try again"
        )
    if role.view.change is not None or (newest is not None and newest >= state.log.high_watermark):
        return Refusal(
            RaftError.REQUEST_TIMED_OUT,
            f"the voters {state.voters} at offset {newest} are not committed yet: try again when they are",
        )
    return None


# ---- one rule per kind of change -----------------------------------------------------------------


def _refuse_entry(state: RaftState, voter: VoterNode) -> Refusal | None:
    if voter.node_id < 0 or len(voter.directory_id or b"") != UUID_BYTES or voter.directory_id == ZERO_UUID:
        return Refusal(RaftError.INVALID_REQUEST, f"voter {voter.node_id} needs an id and a directory id")
    if not voter.endpoints:
        return Refusal(RaftError.INVALID_REQUEST, f"voter {voter.node_id} needs an endpoint")
    if state.kraft_version not in voter.versions:
        return Refusal(
            RaftError.INVALID_REQUEST,
            f"node {voter.node_id} supports kraft.version {voter.versions.lowest} to {voter.versions.highest}"
            f" and this quorum is at {state.kraft_version}: install a release there that supports it",
        )
    return None


def _refuse_new_voter(state: RaftState, voter: VoterNode, *, now_ms: int) -> Refusal | None:
    refusal = _refuse_entry(state, voter)
    if refusal is not None:
        return refusal
    if voter.node_id in state.voters:
        return Refusal(
            RaftError.DUPLICATE_VOTER,
            f"{state.voters[voter.node_id]} is already a voter: to replace its directory, remove it first",
        )
    lag = _lag(state, voter, now_ms=now_ms)
    if lag is None:
        return Refusal(
            RaftError.REQUEST_TIMED_OUT,
            f"node {voter} does not fetch from this leader: start it, and try again when it observes",
        )
    if lag > state.config.new_voter_lag_max:
        return Refusal(
            RaftError.REQUEST_TIMED_OUT,
            f"node {voter} is {lag} records behind the leader, more than {state.config.new_voter_lag_max}: "
            "try again when it has caught up",
        )
    return None


def _lag(state: RaftState, voter: VoterNode, *, now_ms: int) -> int | None:
    """How many records an observer is behind; None if it has not been heard from. What it fetched before
    its log had kraft.version 1 was not acknowledged: it does not count as heard from until it has passed
    the newest voters record."""
    view, newest = state.leader_view(), state.voter_history.newest_offset
    progress = view.observers.get((voter.node_id, voter.directory_id or b""))
    if progress is None or progress.acked_offset is None or progress.last_fetch_ms is None:
        return None
    silent_ms = now_ms - progress.last_fetch_ms
    if silent_ms > state.config.observer_patience_ms or newest is None or progress.acked_offset <= newest:
        return None
    return state.log.end_offset - progress.acked_offset


def _refuse_unknown(state: RaftState, voter_id: int, directory_id: bytes) -> Refusal | None:
    known = state.voters.get(voter_id)
    if known is not None and known.directory_id == directory_id:
        return None
    named = uuid_to_text(directory_id) if len(directory_id) == UUID_BYTES else "none"
    return Refusal(
        RaftError.VOTER_NOT_FOUND,
        f"node {voter_id} with directory id {named} is not a voter: the voters are {state.voters}",
    )


def _refuse_removal(state: RaftState, request: RemoveVoterRequest) -> Refusal | None:
    refusal = _refuse_unknown(state, request.voter_id, request.voter_directory_id)
    if refusal is None and len(state.voters) == 1:
        return Refusal(
            RaftError.VOTER_NOT_FOUND, f"node {request.voter_id} is the last voter: add another one first"
        )
    return refusal


def _upgrade(state: RaftState, request: UpgradeRequest) -> list[ControlValue] | Refusal:
    level, voters = request.kraft_version, request.voters
    if level == state.kraft_version:
        is_committed = state.voter_history.at(max(0, state.log.high_watermark)).kraft_version == level
        return [] if is_committed else _not_now(state) or []
    if level < state.kraft_version:
        problem = f"kraft.version is {state.kraft_version} and never falls"
    elif level > NEWEST_KRAFT_VERSION:
        problem = f"this release knows kraft.version 0 to {NEWEST_KRAFT_VERSION}: install a newer one"
    else:
        problem = _refuse_first_set(state, level, voters)
    if problem:
        return Refusal(RaftError.INVALID_UPDATE_VERSION, problem)
    return _not_now(state) or [kraft_version_record(level), voters_record(voters)]


def _refuse_first_set(state: RaftState, level: int, voters: VoterSet) -> str:
    """The first set in the log must be the configured one, each voter with the directory that it votes
    from."""
    if list(voters) != list(state.voters):
        return f"the configured voters are {state.voters}: name exactly those, not {voters}"
    for voter in voters.nodes:
        if level not in voter.versions:
            highest = voter.versions.highest
            return f"node {voter.node_id} supports kraft.version up to {highest}: upgrade it first"
        if not voter.endpoints:
            return f"node {voter.node_id} needs an endpoint"
        if voter.directory_id != _directory_in_use(state, voter.node_id):
            return f"node {voter.node_id} is not known to use the directory of {voter}: check its id"
    return ""


def _directory_in_use(state: RaftState, node_id: int) -> bytes | None:
    """The directory that a voter uses; None if it is not pinned and has not fetched in this epoch."""
    if node_id == state.node_id:
        return state.identity.directory_id
    progress = state.leader_view().voters[node_id]
    return progress.directory_id or None


# ---- timers --------------------------------------------------------------------------------------


def settled_due_ms(state: RaftState) -> int | None:
    """At once if the change that a caller waits for, or this leader's own removal, is committed."""
    if not isinstance(state.role, Leader):
        return None
    change = state.role.view.change
    answered = change is not None and change.offset < state.log.high_watermark
    return 0 if answered or _is_removed(state) else None


def settle(state: RaftState, *, now_ms: int) -> None:
    """Respond to the caller; a leader that was removed resigns now, and not before."""
    view = state.leader_view()
    if view.change is not None and view.change.offset < state.log.high_watermark:
        _answer(state, view.change.key, None)
        view.change = None
    if _is_removed(state):
        replication.resign(state, now_ms=now_ms)


def _is_removed(state: RaftState) -> bool:
    newest = state.voter_history.newest_offset
    return state.is_observer and newest is not None and newest < state.log.high_watermark


def answer_due_ms(state: RaftState) -> int | None:
    change = state.role.view.change if isinstance(state.role, Leader) else None
    return None if change is None else change.deadline_ms


def give_answer_up(state: RaftState, *, now_ms: int) -> None:
    """The caller no longer waits. The change stays in the log, and is committed later or undone."""
    view = state.leader_view()
    if view.change is not None:
        text = f"the voter change at offset {view.change.offset} is not committed yet: check again later"
        _answer(state, view.change.key, Refusal(RaftError.REQUEST_TIMED_OUT, text))
        view.change = None


def update_due_ms(state: RaftState) -> int | None:
    """When a voter reports that its entry in the voters record is out of date."""
    if state.kraft_version == 0 or not state.is_misdescribed:
        return None
    match state.role:
        case Leader():
            return 0 if _not_now(state) is None else None
        case Follower(leader_id=leader_id, next_update_ms=due_ms) if not state.is_asking(leader_id):
            return due_ms
        case _:
            return None


def update(state: RaftState, *, now_ms: int) -> None:
    """A leader corrects its own entry; a follower requests the update from the leader."""
    voter = state.identity.as_voter
    if isinstance(state.role, Leader):
        append(state, [voters_record(state.voters.with_voter(voter))], now_ms=now_ms)
    elif isinstance(state.role, Follower):
        state.role.next_update_ms = now_ms + state.config.update_voter_ms
        request = UpdateVoterRequest(cluster_id=state.identity.cluster_id, epoch=state.epoch, voter=voter)
        state.send(state.role.leader_id, request, state.config.request_timeout_ms, now_ms=now_ms)


def on_update_response(state: RaftState, response: VoterChangeResponse, *, now_ms: int) -> None:
    """The record arrives with the log; a refusal that a retry would not resolve is logged."""
    if transitions.learn(state, response, now_ms=now_ms):
        return
    if response.error in (RaftError.INVALID_REQUEST, RaftError.VOTER_NOT_FOUND):
        state.warn_once(f"the leader refuses this voter's endpoints: {response.message}")
