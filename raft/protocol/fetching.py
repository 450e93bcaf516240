"""The follower's and observer's side of replication: when to fetch, from which node, and what a response
does.

A voter fetches from its synced end, because its fetch offset is its acknowledgement; while a sync is in
progress it only sends an occasional keep-alive. An observer that can never vote fetches from its end.
"""

from __future__ import annotations

from metaquorum.raft import memory
from metaquorum.raft.config import doubled_ms
from metaquorum.raft.effects import AppendLog, TruncateLog, Warn
from metaquorum.raft.messages import FetchRequest, FetchResponse, FetchSnapshotRequest, RaftError
from metaquorum.raft.protocol import membership, replication, snapshots, transitions
from metaquorum.raft.roles import Follower, Unattached
from metaquorum.raft.state import InFlight, RaftState
from metaquorum.raft.voters import voter_changes
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.errors import StorageError
from metaquorum.storage.types import LogPosition

KEEPALIVE_MAX_BYTES = 1
"""A keep-alive requests no records. If there are any, the response holds at least one batch, so this is
the minimum."""
FIRST_SEARCH_PAUSE_MS = 50
"""An observer that finds no leader retries after half to all of this, then of twice as much, and so on: a
thousand brokers must not flood voters that are holding an election."""
EARLY_TENTHS = 9
"""A failure before this many tenths of the timeout is not a timeout: the connection was refused."""
EARLY_ANSWER_PART = 2
"""An empty answer before this part of the wait means that the leader had no room to park the fetch."""
FAILURES_TO_DOUBT = 2
"""This many such failures in a row mean that the leader's process is gone; a single one may be a broken
connection."""


def fetch_due_ms(state: RaftState) -> int | None:
    role = state.role
    if not isinstance(role, Follower) or state.is_asking(role.leader_id):
        return None
    fetches_snapshot = role.snapshot is not None and not role.snapshot.loading
    only_keepalive = _is_busy(state, role) and not fetches_snapshot
    return max(role.next_fetch_ms, role.keepalive_ms) if only_keepalive else role.next_fetch_ms


def send_next_fetch(state: RaftState, *, now_ms: int) -> None:
    """Request the next records, or the next chunk of the snapshot, from the leader. One request at a time."""
    role = state.role
    if not isinstance(role, Follower):
        return
    if role.snapshot is not None and not role.snapshot.loading:
        snapshots.send_fetch_snapshot(state, role, role.snapshot, now_ms=now_ms)
    else:
        _send_fetch(state, role.leader_id, role, now_ms=now_ms)


def search_due_ms(state: RaftState) -> int | None:
    role = state.role
    return role.next_fetch_ms if isinstance(role, Unattached) and not state.in_flight else None


def search_leader(state: RaftState, *, now_ms: int) -> None:
    """An observer finds the leader by querying any voter or any bootstrap server."""
    role = state.role
    if not isinstance(role, Unattached):
        return
    pause = doubled_ms(FIRST_SEARCH_PAUSE_MS, role.attempts, state.config.retry_backoff_max_ms)
    role.attempts += 1
    role.next_fetch_ms = now_ms + pause // 2 + state.rng.randint(0, pause // 2)
    memory = [*state.other_voters, *state.config.bootstrap_ids]
    if memory:
        _send_fetch(state, state.rng.choice(memory), None, now_ms=now_ms)


def _is_busy(state: RaftState, role: Follower) -> bool:
    """True while this replica cannot use more records: it is syncing what it has, or fetching a snapshot."""
    unsynced = state.acknowledges and state.log.synced_offset < state.log.end_offset
    return unsynced or role.snapshot is not None


def _send_fetch(state: RaftState, to: int, role: Follower | None, *, now_ms: int) -> None:
    log = state.log
    offset = log.synced_offset if state.acknowledges else log.end_offset
    config = state.config
    wait_ms = config.observer_fetch_max_wait_ms if state.is_observer else config.fetch_max_wait_ms
    keepalive = role is not None and _is_busy(state, role)
    request = FetchRequest(
        cluster_id=state.identity.cluster_id,
        replica_id=state.node_id,
        replica_directory_id=state.identity.directory_id,
        epoch=state.epoch,
        fetch_offset=offset,
        last_fetched_epoch=log.epoch_before(offset),
        high_watermark=log.high_watermark,
        max_wait_ms=0 if role is None or keepalive else wait_ms,
        max_bytes=KEEPALIVE_MAX_BYTES if keepalive else config.fetch_max_bytes,
        read_round=0 if role is None else role.read_round,
    )
    state.send(to, request, request.max_wait_ms + config.fetch_grace_ms, now_ms=now_ms)


def _say_whom_it_cannot_follow(state: RaftState, response: FetchResponse) -> None:
    """The search continues: the next node may name a leader that this node can follow."""
    leader_id = response.leader_id
    if leader_id not in (None, state.node_id) and not transitions.can_follow(
        state, leader_id, response.leader_endpoints
    ):
        state.warn_once(
            f"node {leader_id} leads the quorum, but this node does not know its address: name every "
            "controller in controller.quorum.voters"
        )


# ---- responses -----------------------------------------------------------------------------------


def on_fetch_response(
    state: RaftState, flight: InFlight, request: FetchRequest, response: FetchResponse, *, now_ms: int
) -> None:
    if transitions.learn(state, response, now_ms=now_ms):
        return
    role = state.role
    if isinstance(role, Unattached):
        _say_whom_it_cannot_follow(state, response)
    if not isinstance(role, Follower) or role.leader_id != flight.to:
        return
    if response.epoch != state.epoch:
        # It led this epoch and no longer knows it: an immediate retry would only repeat this in a loop.
        role.next_fetch_ms = now_ms + state.config.empty_fetch_pause_ms
        return
    if response.error is not RaftError.NONE:
        _on_error(state, role, request.fetch_offset, response, now_ms=now_ms)
        return
    news = bool(
        response.records
        or response.diverging
        or response.snapshot
        or response.high_watermark > request.high_watermark
        or response.read_round > role.read_round
    )
    early = now_ms - flight.sent_ms < request.max_wait_ms // EARLY_ANSWER_PART
    role.has_fetched, role.suspect, role.failures = True, False, 0
    role.deadline_ms = now_ms + transitions.fetch_patience_ms(state)
    role.keepalive_ms = now_ms + state.config.keepalive_ms
    role.read_round = max(role.read_round, response.read_round)
    # A leader that parks no more fetches sends empty responses at once: pause before the next fetch.
    role.next_fetch_ms = now_ms + (state.config.empty_fetch_pause_ms if early and not news else 0)
    if role.snapshot is not None or request.fetch_offset < state.log.start_offset:
        return  # the response to a keep-alive: the snapshot decides what comes next, or has by now
    if response.snapshot is not None:
        snapshots.redirect(state, role, response.snapshot, request.fetch_offset, now_ms=now_ms)
    elif response.diverging is not None:
        on_diverging(state, response.diverging, now_ms=now_ms)
    else:
        agreed = on_records(state, role, request.fetch_offset, response.records, now_ms=now_ms)
        replication.set_high_watermark(state, min(response.high_watermark, agreed))


def _on_error(
    state: RaftState, role: Follower, fetch_offset: int, response: FetchResponse, *, now_ms: int
) -> None:
    role.next_fetch_ms = now_ms + state.config.empty_fetch_pause_ms
    if response.error is RaftError.INVALID_VOTER_KEY:
        memory.check_refusal(state, role.leader_id, fetch_offset, response.high_watermark)
    if response.error is RaftError.NOT_LEADER_OR_FOLLOWER:
        transitions.doubt_leader(state, state.backoff_ms(), now_ms=now_ms)
    elif response.error not in (RaftError.FENCED_LEADER_EPOCH, RaftError.UNKNOWN_LEADER_EPOCH):
        state.warn_once(
            f"leader {role.leader_id} refuses fetches from this node with {response.error.name}: "
            "compare this node's configuration with the leader's"
        )


def on_diverging(state: RaftState, diverging: LogPosition, *, now_ms: int) -> None:
    """The leader reported where the common epoch ends in its log: this log diverges above that."""
    end = state.log.truncation_offset(diverging)
    if end < state.log.end_offset:
        _cut(state, end, now_ms=now_ms)


def on_records(state: RaftState, role: Follower, fetch_offset: int, records: bytes, *, now_ms: int) -> int:
    """Append the leader's bytes unchanged; returns the offset up to which this log is known to match the
    leader's.

    A voter fetches from its synced end, so its log can extend beyond `fetch_offset`: with batches that this
    leader has already sent (in response to a keep-alive), or with batches written or received in an older
    epoch. The former are skipped, the latter are truncated, and only then is what is new appended at the
    log's end. What is above the response has not been compared: the high watermark must not reach into it.
    """
    if not records:
        return fetch_offset
    log, agreed, held = state.log, fetch_offset, 0
    try:
        batches = Batches.parse(records, file=f"the answer of node {role.leader_id}")
        changes = voter_changes(batches)
    except StorageError as error:
        _refuse_records(state, role, str(error), now_ms=now_ms)
        return agreed
    for header in batches.headers:
        same_epoch = log.epochs.epoch_at(header.base_offset) == header.leader_epoch
        if header.next_offset > log.end_offset or not same_epoch:
            break
        held, agreed = held + 1, header.next_offset
    new = batches.after(held)
    if not new.headers:
        return agreed
    if new.base_offset < log.end_offset:
        _cut(state, new.base_offset, now_ms=now_ms)
    problem = new.problem_after(log.end_offset, log.epochs.last_epoch)
    newest_epoch = new.headers[-1].leader_epoch
    if problem is None and newest_epoch > state.epoch:
        problem = f"a batch of epoch {newest_epoch} in epoch {state.epoch}"
    if problem is not None:
        _refuse_records(state, role, problem, now_ms=now_ms)
        return agreed
    for header in new.headers:
        log.append(header.leader_epoch, header.base_offset, header.next_offset)
    state.out.append(AppendLog(batches=new))
    membership.note(state, [change for change in changes if change.offset >= new.base_offset], now_ms=now_ms)
    return new.next_offset


def _cut(state: RaftState, end_offset: int, *, now_ms: int) -> None:
    memory.check_cut(state, end_offset)
    state.log.truncate(end_offset)
    state.out.append(TruncateLog(end_offset=end_offset))
    membership.undo(state, end_offset, now_ms=now_ms)


def _refuse_records(state: RaftState, role: Follower, problem: str, *, now_ms: int) -> None:
    role.next_fetch_ms = now_ms + state.config.retry_backoff_max_ms
    state.out.append(
        Warn(message=f"records from leader {role.leader_id} were not appended: {problem}; fetching again")
    )


# ---- failed requests -----------------------------------------------------------------------------


def on_request_failed(state: RaftState, flight: InFlight, *, now_ms: int) -> None:
    """A request of any kind got no useful response: retry this node after a pause."""
    state.retry_at_ms[flight.to] = now_ms + state.config.retry_backoff_ms
    if isinstance(flight.request, FetchRequest | FetchSnapshotRequest):
        _on_fetch_failed(state, flight, now_ms=now_ms)


def request_due_ms(state: RaftState) -> int | None:
    flights = state.in_flight
    return min([flight.expires_ms for flight in flights.values()]) if flights else None


def expire_requests(state: RaftState, *, now_ms: int) -> None:
    """The driver reports every failure; this only keeps a lost report from silencing a replica for good."""
    for correlation_id, flight in list(state.in_flight.items()):
        if flight.expires_ms <= now_ms:
            del state.in_flight[correlation_id]
            on_request_failed(state, flight, now_ms=now_ms)


def _on_fetch_failed(state: RaftState, flight: InFlight, *, now_ms: int) -> None:
    """A fetch got no response. If it fails long before its timeout twice in a row, nothing listens at the
    leader's address: its process is gone, so do not wait for the whole fetch timeout. The pre-vote keeps a
    wrong guess harmless."""
    role = state.role
    if not isinstance(role, Follower) or role.leader_id != flight.to:
        return
    role.failures += 1
    config = state.config
    pause = doubled_ms(config.retry_backoff_ms, role.failures - 1, config.retry_backoff_max_ms)
    role.next_fetch_ms = role.keepalive_ms = now_ms + pause
    is_early = now_ms - flight.sent_ms < flight.timeout_ms * EARLY_TENTHS // 10
    if is_early and role.failures >= FAILURES_TO_DOUBT:
        transitions.doubt_leader(state, state.rng.randint(0, config.election_backoff_max_ms), now_ms=now_ms)
