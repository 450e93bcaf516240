"""What a replica remembers of other directories: how far each has acknowledged the log to it, as its leader.

A directory that was replaced by an older copy of itself cannot know that; nodes that it acknowledged more to
can. Owns what is remembered, and when a request or a response proves that a directory has forgotten
something.

Only what is both acknowledged and committed counts. A voter may drop what it has acknowledged and no leader
has committed, when it follows a new leader that never had it; but no voter ever drops what is committed, and
what it acknowledged was on its disk. So a log that ends before that has lost it, whatever the epoch of its
end.
"""

from __future__ import annotations

from metaquorum.raft.messages import FetchRequest, VoteRequest, VoteResponse
from metaquorum.raft.state.progress import LeaderView
from metaquorum.raft.state.state import RaftState
from metaquorum.storage.errors import CommittedLostError
from metaquorum.storage.files.known_committed import Acknowledged
from metaquorum.storage.uuids import uuid_to_text

DIRECTORIES_MAX = 32
"""The most directories remembered; those of former voters are forgotten first."""


def fold(state: RaftState, view: LeaderView) -> None:
    """Adds what the leader of this epoch has learned so far to what it remembers."""
    known = state.acknowledged
    for progress in view.voters.values():
        offset = min(progress.furthest_offset, state.log.high_watermark)
        before = known.get(progress.directory_id)
        if progress.directory_id and offset > (0 if before is None else before.offset):
            known[progress.directory_id] = Acknowledged(progress.directory_id, offset, state.epoch)
    in_force = {voter.directory_id for voter in state.voters.nodes}
    while len(known) > DIRECTORIES_MAX:
        oldest = min(known.values(), key=lambda one: (one.directory_id in in_force, one.epoch, one.offset))
        del known[oldest.directory_id]


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
        bound = max(bound, min(progress.furthest_offset, state.log.high_watermark))
    if request.fetch_offset >= bound or not directory_id:
        return None
    fold(state, view)
    known = state.acknowledged[directory_id]
    again = view.refused.get(directory_id) == request.fetch_offset
    view.refused[directory_id] = request.fetch_offset
    if again or known.epoch < state.epoch:
        _warn(state, f"no records for node {node_id}", node_id, known, request.fetch_offset)
    return known.offset


def refuse_candidate(state: RaftState, request: VoteRequest) -> bool:
    """Whether the candidate has forgotten what it acknowledged. A request of the same epoch may have been
    sent before it acknowledged that."""
    known = state.acknowledged.get(request.candidate_directory_id)
    offset = request.last_position.offset
    if known is None or request.epoch <= known.epoch or offset >= known.offset:
        return False
    _warn(state, f"no vote for node {request.candidate_id}", request.candidate_id, known, offset)
    return True


def refuse_vote(state: RaftState, voter_id: int, directory_id: bytes, response: VoteResponse) -> bool:
    """Whether a responding voter has forgotten what it acknowledged: its vote might elect a leader that
    lacks committed records."""
    known, last = state.acknowledged.get(directory_id), response.last_position
    if known is None or last is None or last.offset >= known.offset:
        return False
    _warn(state, f"the vote of node {voter_id} does not count", voter_id, known, last.offset)
    return True


def _warn(state: RaftState, what: str, node_id: int, known: Acknowledged, offset: int) -> None:
    state.warn_once(
        f"{what}: its directory {uuid_to_text(known.directory_id)} has acknowledged everything below offset"
        f" {known.offset} (epoch {known.epoch}), and its log ends at {offset}: it is an older copy of itself;"
        f" stop node {node_id} and {_advice(state, node_id)}"
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
