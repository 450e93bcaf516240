"""Snapshots (KIP-630): serving one in chunks, and fetching one from the leader.

An interrupted fetch of a snapshot resumes if the leader and the snapshot's id are still the same, and
otherwise restarts at byte 0: two nodes' files for one id hold the same records but not necessarily the same
bytes.
"""

from __future__ import annotations

from metaquorum.raft import effects, memory
from metaquorum.raft.errors import RaftUsageError
from metaquorum.raft.messages import FetchSnapshotRequest, FetchSnapshotResponse, RaftError
from metaquorum.raft.protocol import membership, replication, transitions
from metaquorum.raft.roles import Follower, Leader, SnapshotFetch
from metaquorum.raft.state import InFlight, RaftState
from metaquorum.raft.voters import VotersAt
from metaquorum.storage.types import LogPosition

# ---- leader --------------------------------------------------------------------------------------


def on_fetch_snapshot(state: RaftState, key: int, request: FetchSnapshotRequest, *, now_ms: int) -> None:
    error = replication.check_leader_request(state, request.cluster_id, request.epoch)
    if error is RaftError.NONE:
        replication.touch(state, (request.replica_id, request.replica_directory_id), now_ms=now_ms)
        if request.snapshot not in state.log.snapshots or request.snapshot.offset == 0:
            error = RaftError.SNAPSHOT_NOT_FOUND
        elif request.position < 0:
            error = RaftError.POSITION_OUT_OF_RANGE
    response = FetchSnapshotResponse(
        error=error,
        epoch=state.epoch,
        leader_id=state.leader_id,
        snapshot=request.snapshot,
        position=request.position,
    )
    if error is not RaftError.NONE:
        state.respond(key, response)
        return
    state.out.append(
        effects.RespondWithSnapshotChunk(
            key=key,
            response=response,
            snapshot=request.snapshot,
            position=request.position,
            max_bytes=max(1, min(request.max_bytes, state.config.snapshot_chunk_bytes)),
            after=state.unpersisted_token,
        )
    )


# ---- follower and observer -----------------------------------------------------------------------


def holds(state: RaftState, snapshot: LogPosition) -> bool:
    """Whether this log has everything that the snapshot covers (log matching: Raft paper 5.3)."""
    log = state.log
    return (
        log.start_offset <= snapshot.offset <= log.end_offset
        and log.epoch_before(snapshot.offset) == snapshot.epoch
    )


def redirect(
    state: RaftState, role: Follower, snapshot: LogPosition, fetched_from: int, *, now_ms: int
) -> None:
    """The leader reported that the log up to `fetched_from` can only continue from a snapshot."""
    log = state.log
    if fetched_from < log.end_offset and holds(state, snapshot):
        return  # the fetch carried an older, lower synced end: the next one continues from there
    memory.check_snapshot(state, snapshot, fetched_from)
    if snapshot.offset < log.high_watermark or snapshot == log.end_position:
        role.next_fetch_ms = now_ms + state.config.retry_backoff_max_ms
        state.warn_once(
            f"the leader refers this node to snapshot {snapshot}, which is not ahead of it (log end "
            f"{log.end_position}, high watermark {log.high_watermark}); compare this node's metadata "
            "directory with the leader's"
        )
        return
    role.snapshot = SnapshotFetch(snapshot=snapshot)


def send_fetch_snapshot(state: RaftState, role: Follower, fetch: SnapshotFetch, *, now_ms: int) -> None:
    request = FetchSnapshotRequest(
        cluster_id=state.identity.cluster_id,
        replica_id=state.node_id,
        replica_directory_id=state.identity.directory_id,
        epoch=state.epoch,
        snapshot=fetch.snapshot,
        position=fetch.position,
        max_bytes=state.config.snapshot_chunk_bytes,
    )
    state.send(role.leader_id, request, state.config.request_timeout_ms, now_ms=now_ms)


def on_fetch_snapshot_response(
    state: RaftState, flight: InFlight, response: FetchSnapshotResponse, *, now_ms: int
) -> None:
    if transitions.learn(state, response, now_ms=now_ms):
        return
    role = state.role
    if not isinstance(role, Follower) or role.leader_id != flight.to:
        return
    fetch = role.snapshot
    if fetch is None or fetch.loading:
        return
    if response.error is not RaftError.NONE:
        _chunk_refused(state, role, response, now_ms=now_ms)
        return
    role.has_fetched, role.suspect, role.failures = True, False, 0
    role.deadline_ms = now_ms + transitions.fetch_patience_ms(state)
    _take_chunk(state, role, fetch, response, now_ms=now_ms)


def _chunk_refused(state: RaftState, role: Follower, response: FetchSnapshotResponse, *, now_ms: int) -> None:
    if response.error in (RaftError.SNAPSHOT_NOT_FOUND, RaftError.POSITION_OUT_OF_RANGE):
        # The leader has a newer one: the response to the next fetch names it.
        role.snapshot = None
    elif response.error is RaftError.NOT_LEADER_OR_FOLLOWER:
        transitions.doubt_leader(state, state.backoff_ms(), now_ms=now_ms)
    role.next_fetch_ms = now_ms + state.config.retry_backoff_ms


def _take_chunk(
    state: RaftState, role: Follower, fetch: SnapshotFetch, response: FetchSnapshotResponse, *, now_ms: int
) -> None:
    end = response.position + len(response.data)
    changed = fetch.size_bytes is not None and fetch.size_bytes != response.size_bytes
    if (
        response.snapshot != fetch.snapshot
        or response.position != fetch.position
        or changed
        or end > response.size_bytes
        or (not response.data and end < response.size_bytes)
    ):
        role.snapshot = None
        role.next_fetch_ms = now_ms + state.config.retry_backoff_ms
        state.out.append(
            effects.Warn(
                message=f"leader {role.leader_id} answered for snapshot {fetch.snapshot} at byte "
                f"{fetch.position} with {response.snapshot} at byte {response.position}, "
                f"size {response.size_bytes}: starting again"
            )
        )
        return
    fetch.size_bytes = response.size_bytes
    state.out.append(
        effects.WriteSnapshotChunk(snapshot=fetch.snapshot, position=fetch.position, data=response.data)
    )
    fetch.position = end
    if end == response.size_bytes:
        fetch.loading = True
        role.keepalive_ms = now_ms + state.config.keepalive_ms
        state.out.append(effects.FinishSnapshot(snapshot=fetch.snapshot, size_bytes=end))


def begin(state: RaftState) -> None:
    """A snapshot of committed records can become durable before this node's own copy of the records: a
    crash in between leaves a log that ends below the snapshot. The log restarts after the snapshot."""
    latest = state.log.latest_snapshot
    if latest is not None and latest.offset > state.log.end_offset:
        state.log.reset(latest)
        state.out.append(effects.ResetLog(position=latest))


def on_loaded(state: RaftState, position: LogPosition, voters: VotersAt, *, now_ms: int) -> None:
    """The file is in force: the log restarts after it, unless this node has moved on meanwhile (another
    leader may have sent it records beyond the snapshot, which it has acknowledged). Raises RaftUsageError
    if `voters` lacks the voters that were committed here."""
    role = state.role
    wanted = False
    if isinstance(role, Follower) and role.snapshot is not None:
        wanted = role.snapshot.loading and role.snapshot.snapshot == position
        role.snapshot = None
        role.next_fetch_ms = now_ms
    behind = state.log.end_offset < position.offset
    if isinstance(role, Leader) or position.offset < state.log.high_watermark or not (wanted or behind):
        return
    if voters.kraft_version < state.voter_history.at(state.log.high_watermark).kraft_version:
        raise RaftUsageError(f"the snapshot {position} was loaded without the voters that it names")
    state.log.reset(position)
    state.out.append(effects.ResetLog(position=position))
    membership.restart(state, position.offset, voters, now_ms=now_ms)
    state.out.append(effects.HighWatermarkChanged(high_watermark=position.offset))


def on_rejected(state: RaftState, position: LogPosition, *, now_ms: int) -> None:
    role = state.role
    if isinstance(role, Follower) and role.snapshot is not None and role.snapshot.snapshot == position:
        role.snapshot = None
        role.next_fetch_ms = now_ms + state.config.retry_backoff_max_ms
    state.out.append(
        effects.Warn(message=f"the fetched snapshot {position} is damaged; it is discarded and fetched again")
    )
