"""One Raft replica, voter or observer, as a pure state machine (KIP-595, KIP-630, KIP-996).

Every input takes the time and returns the effects to carry out, in order; nothing else leaves the core. The
records that it writes and reads itself are in `voters.records`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import assert_never

from metaquorum.raft import invariants, messages
from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
from metaquorum.raft.effects import RaftEffect
from metaquorum.raft.protocol import (
    answers,
    election,
    fetching,
    replication,
    snapshots,
    timers,
    transitions,
    voter_changes,
)
from metaquorum.raft.roles import Leader, ReplicaState, Resigned
from metaquorum.raft.state import RaftState
from metaquorum.raft.voters import CONFIGURED_VOTERS, Endpoint, VotersAt, VoterSet
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.files.known_committed import CommittedLoss
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text


class RaftCore:
    """Call `start` once, then the inputs as they happen, and `tick` when the inbox is empty or
    `next_deadline_ms` is reached. Set `wall_ms` (Unix time, for display and record timestamps) before an
    input.

    Raises RaftUsageError for a mistake of the caller and RaftInvariantError for a broken law of Raft: both
    must stop the process. Raises CommittedLostError if continuing would take committed records back: this too
    must stop the process, and its message says what to do.
    """

    def __init__(
        self,
        config: RaftConfig,
        identity: Identity,
        voters: tuple[Voter, ...],
        recovered: RecoveredLog,
        rng: random.Random,
    ) -> None:
        self.state = RaftState(config, identity, voters, recovered, rng)
        self.sound_voters: tuple[tuple[int, VoterSet], ...] = ()
        """The voter sets in the log that `invariants` has checked; it checks again when they change."""
        self._sends_ms: int | None = timers.UNKNOWN

    # ---- inputs ------------------------------------------------------------------------------

    def start(self, *, now_ms: int) -> list[RaftEffect]:
        """Take the role that hard state calls for. Never leads in an epoch in which it led before."""
        state = self.state
        if state.is_observer and state.node_id in state.voters:
            state.warn_once(_wrong_directory(state))
        snapshots.begin(state)
        election.begin(state, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def tick(self, *, now_ms: int) -> list[RaftEffect]:
        """Fire every timer that is due."""
        timers.fire_timeouts(self.state, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def know_observers(self, is_registered: Callable[[int], bool]) -> None:
        """Tells which ids the cluster has registered: what another observer says to be committed is not
        believed. Without this, everyone is."""
        self.state.knows_observer = is_registered

    def on_request(self, key: int, request: messages.RaftRequest, *, now_ms: int) -> list[RaftEffect]:
        state = self.state
        if election.refuse_request(state, key, request):
            return self._done(now_ms=now_ms)
        match request:
            case messages.VoteRequest():
                election.on_vote(state, key, request, now_ms=now_ms)
            case messages.BeginQuorumEpochRequest():
                election.on_begin_quorum_epoch(state, key, request, now_ms=now_ms)
            case messages.EndQuorumEpochRequest():
                election.on_end_quorum_epoch(state, key, request, now_ms=now_ms)
            case messages.FetchRequest():
                replication.on_fetch(state, key, request, now_ms=now_ms)
            case messages.FetchSnapshotRequest():
                snapshots.on_fetch_snapshot(state, key, request, now_ms=now_ms)
            case (
                messages.AddVoterRequest()
                | messages.RemoveVoterRequest()
                | messages.UpdateVoterRequest()
                | messages.UpgradeRequest()
            ):
                voter_changes.on_request(state, key, request, now_ms=now_ms)
            case _:
                assert_never(request)
        return self._done(now_ms=now_ms)

    def on_request_abandoned(self, key: int, *, now_ms: int) -> list[RaftEffect]:
        """The caller disconnected: its parked fetch is dropped without a response."""
        if isinstance(self.state.role, Leader):
            self.state.role.view.parked.pop_key(key)
        return self._done(now_ms=now_ms)

    def on_response(
        self, source: int, correlation_id: int, response: messages.RaftResponse, *, now_ms: int
    ) -> list[RaftEffect]:
        """Ignores a response to a request that is no longer pending (it is late, or belongs to an earlier
        role)."""
        state = self.state
        flight = state.in_flight.get(correlation_id)
        if flight is None or flight.to != source:
            return []
        del state.in_flight[correlation_id]
        if response.error is messages.RaftError.INCONSISTENT_CLUSTER_ID:
            # Nothing from another cluster means anything here, least of all its epoch.
            who, key = f"node {source}", "controller.quorum.voters"
            if source in state.config.bootstrap_ids:
                who, key = "a bootstrap server", "controller.quorum.bootstrap.servers"
            own = state.identity.cluster_id
            state.warn_once(f"{who} belongs to another cluster than {own}: correct its address in {key}")
            fetching.on_request_failed(state, flight, now_ms=now_ms)
            return self._done(now_ms=now_ms)
        if election.refuse_response(state, source, response):
            fetching.on_request_failed(state, flight, now_ms=now_ms)
            return self._done(now_ms=now_ms)
        match response, flight.request:
            case messages.VoteResponse(), messages.VoteRequest():
                election.on_vote_response(state, flight, response, now_ms=now_ms)
            case messages.BeginQuorumEpochResponse(), messages.BeginQuorumEpochRequest():
                transitions.learn(state, response, now_ms=now_ms)
            case messages.EndQuorumEpochResponse(), messages.EndQuorumEpochRequest():
                election.on_end_response(state, flight, response, now_ms=now_ms)
            case messages.FetchResponse(), messages.FetchRequest() as request:
                fetching.on_fetch_response(state, flight, request, response, now_ms=now_ms)
            case messages.FetchSnapshotResponse(), messages.FetchSnapshotRequest():
                snapshots.on_fetch_snapshot_response(state, flight, response, now_ms=now_ms)
            case messages.VoterChangeResponse(), messages.UpdateVoterRequest():
                voter_changes.on_update_response(state, response, now_ms=now_ms)
            case _:
                fetching.on_request_failed(state, flight, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def on_request_failed(
        self, target: int, correlation_id: int, reason: str, *, now_ms: int
    ) -> list[RaftEffect]:
        """The request could not be sent or got no response in time. `reason` is for people; the core
        considers only the elapsed time."""
        state = self.state
        flight = state.in_flight.get(correlation_id)
        if flight is None or flight.to != target:
            return []
        del state.in_flight[correlation_id]
        fetching.on_request_failed(state, flight, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def on_quorum_state_persisted(self, token: int, *, now_ms: int) -> list[RaftEffect]:
        self.state.persisted(token)
        return self._done(now_ms=now_ms)

    def on_log_synced(self, end_offset: int, *, now_ms: int) -> list[RaftEffect]:
        """Everything below `end_offset` of the current log is durable."""
        self.state.log.synced(end_offset)
        replication.advance_high_watermark(self.state, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def append(self, batches: Batches, wake_observers: bool = True, *, now_ms: int) -> list[RaftEffect]:
        """Leader only. `batches` begin at `log_end_offset`, and their epoch is `epoch`. Without
        `wake_observers` (a NoOp), observers get them with the next news, or when their wait ends."""
        replication.append(self.state, batches, wake_observers=wake_observers, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def on_snapshot_written(self, position: LogPosition, *, now_ms: int) -> list[RaftEffect]:
        """This node's own snapshot is durable and may be served. It carries what `voters_at` returned."""
        self.state.log.snapshots.add(position)
        self.state.voter_history.trim(position.offset)
        return self._done(now_ms=now_ms)

    def on_snapshot_loaded(
        self, position: LogPosition, voters: VotersAt = CONFIGURED_VOTERS, *, now_ms: int
    ) -> list[RaftEffect]:
        """The fetched snapshot was checked and is in force; `voters` are the voters it names. Replace the
        state only if the effects contain ResetLog: the log may have passed the snapshot meanwhile."""
        snapshots.on_loaded(self.state, position, voters, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def on_snapshot_rejected(self, position: LogPosition, *, now_ms: int) -> list[RaftEffect]:
        snapshots.on_rejected(self.state, position, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def on_log_trimmed(self, log_start_offset: int, *, now_ms: int) -> list[RaftEffect]:
        """The log now starts at `log_start_offset`, at or before a snapshot's end."""
        self.state.log.trim(log_start_offset)
        return self._done(now_ms=now_ms)

    def request_read(self, token: int, *, now_ms: int) -> list[RaftEffect]:
        """Request a linearizable read: ReadReady(token, offset) or ReadFailed(token) follows, now or
        later."""
        answers.request_read(self.state, token)
        return self._done(now_ms=now_ms)

    def transfer_leadership(self, target: int, *, now_ms: int) -> list[RaftEffect]:
        """Resign in favour of `target` once it holds the whole log; if that is impossible, a Warn says
        why. While `transferring`, the caller should hold back new appends."""
        replication.transfer(self.state, target, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def transfer_refusal(self, target: int) -> str | None:
        """Why `transfer_leadership(target)` would be refused, as an instruction; None if it would be
        tried."""
        return replication.transfer_refusal(self.state, target)

    def resign(self, *, now_ms: int) -> list[RaftEffect]:
        """SIGTERM: a leader names its successors and stops leading; no effect in any other role."""
        if isinstance(self.state.role, Leader):
            replication.resign(self.state, now_ms=now_ms)
        return self._done(now_ms=now_ms)

    def carry(self, by_ms: int) -> None:
        """The clock was set forward by so much at once, and no message could arrive meanwhile: how long the
        other voters have been silent stays as it is."""
        timers.carry(self.state, by_ms)

    # ---- what the driver and the node read -----------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `tick` next has something to do; None if no timer runs."""
        return timers.next_due_ms(self.state, self._sends_ms)

    def describe(self, *, now_ms: int) -> list[ReplicaState]:
        """The leader's view of all replicas, itself first, then voters, then observers; [] elsewhere."""
        return replication.describe(self.state, now_ms=now_ms)

    @property
    def wall_ms(self) -> int:
        return self.state.wall_ms

    @wall_ms.setter
    def wall_ms(self, wall_ms: int) -> None:
        self.state.wall_ms = wall_ms

    @property
    def node_id(self) -> int:
        return self.state.node_id

    @property
    def role(self) -> str:
        return self.state.role.role.value

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int | None:
        return self.state.leader_id

    @property
    def voted_id(self) -> int | None:
        """The node that got this node's vote in its epoch; None if it has not voted."""
        return None if self.state.vote is None else self.state.vote.node_id

    @property
    def is_leader(self) -> bool:
        return isinstance(self.state.role, Leader)

    @property
    def is_observer(self) -> bool:
        return self.state.is_observer

    @property
    def voters(self) -> VoterSet:
        """The voters in force on this node: those of the newest voters record in its log, committed or
        not."""
        return self.state.voters

    @property
    def kraft_version(self) -> int:
        """1 if the voters are records in the log, 0 if they are configured."""
        return self.state.kraft_version

    @property
    def committed_kraft_version(self) -> int:
        """The level that committed records set."""
        return self.state.voter_history.at(max(0, self.high_watermark)).kraft_version

    @property
    def voters_offset(self) -> int | None:
        """Offset of the record of the voters in force; None if they are configured."""
        return self.state.voter_history.newest_offset

    def endpoints_of(self, node_id: int) -> tuple[Endpoint, ...]:
        """Where a node listens, according to the log or a leader; empty if it is configured."""
        return self.state.endpoints_of(node_id)

    def voters_at(self, end_offset: int) -> VotersAt:
        """The voters that a snapshot ending there must carry; not below the newest snapshot."""
        return self.state.voter_history.at(end_offset)

    @property
    def transferring(self) -> bool:
        """True while a leader waits for the node that will take over leadership."""
        return isinstance(self.state.role, Leader) and self.state.role.view.transfer is not None

    @property
    def resignation_pending(self) -> bool:
        """True while voters have not acknowledged the resignation: a stopping process may wait for this."""
        return isinstance(self.state.role, Resigned) and bool(self.state.role.unacknowledged)

    @property
    def log_end_offset(self) -> int:
        return self.state.log.end_offset

    @property
    def synced_offset(self) -> int:
        return self.state.log.synced_offset

    @property
    def high_watermark(self) -> int:
        return self.state.log.high_watermark

    @property
    def losses(self) -> tuple[CommittedLoss, ...]:
        """Committed records that other replicas know of and that this node, the leader, does not have."""
        return tuple(self.state.losses.values()) if self.is_leader else ()

    @property
    def log_start_offset(self) -> int:
        return self.state.log.start_offset

    @property
    def epoch_start_offset(self) -> int | None:
        """Offset of this leader's LeaderChange record; None if it does not lead."""
        return self.state.role.epoch_start_offset if isinstance(self.state.role, Leader) else None

    @property
    def epochs(self) -> EpochTable:
        return self.state.log.epochs

    # ---- inside ------------------------------------------------------------------------------

    def _done(self, *, now_ms: int) -> list[RaftEffect]:
        self._sends_ms = timers.fire_sends(self.state, now_ms=now_ms)
        invariants.check_core(self)
        return self.state.out.take()


def _wrong_directory(state: RaftState) -> str:
    """One line, with what to do: this node's id is a voter's, but its directory is another one."""
    theirs = uuid_to_text(state.voters[state.node_id].directory_id or b"")
    own = uuid_to_text(state.identity.directory_id)
    if state.kraft_version >= 1:
        return (
            f"node {state.node_id} is a voter with directory id {theirs}, but this directory has {own}: it "
            "only observes; remove the voter with the lost directory, then add this one"
        )
    return (
        f"node {state.node_id} is configured as a voter with directory id {theirs}, but this "
        f"directory has {own}: it only observes, and neither votes nor stands for election; do "
        "not change the configured id by hand, and do not restore an older copy of the directory"
    )
