"""A controller node as one pure state machine: events in, an ordered list of effects out (DESIGN 7).

Owns the order between Raft, the replay of what is committed, the active controller's decisions and the
answers; every effect that leaves may be executed at once. Knows no clock, no files and no network. Raft
knows no metadata and the active controller no log: this is where they meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random
from typing import assert_never

from metaquorum.controller.active.active import ActiveController
from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.controller.config import ControllerConfig
from metaquorum.controller.encoding import encode_records_batch
from metaquorum.controller.events import (
    Answer,
    Effect,
    Event,
    LogRead,
    RaftResponseArrived,
    RequestArrived,
    ShutdownRequested,
    SnapshotLoaded,
    SnapshotWritten,
    Stop,
    TrimLog,
)
from metaquorum.controller.ledger import Ledger, Pending, Reply
from metaquorum.controller.queries import node_status, not_controller
from metaquorum.controller.reception import Reception
from metaquorum.controller.status import Counters, NodeStatus
from metaquorum.metadata.columnar import MIN_RECORDS as COLUMNS_MIN_RECORDS
from metaquorum.metadata.errors import ApiError, InvariantViolation, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.replay import replay, replay_records
from metaquorum.metadata.replica import MetadataReplica, RaftEvent
from metaquorum.metadata.requests.common import ControllerResponse
from metaquorum.raft import effects as raft_effects
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import RaftEffect
from metaquorum.raft.messages import RaftError, RaftResponse
from metaquorum.storage.batches.parsed import Batches
from metaquorum.storage.errors import CommittedLostError
from metaquorum.storage.uuids import random_uuid

SHUTDOWN_GRACE_MS = 200
"""How long a resigned leader waits for its successors to hear of it before it stops."""

OVERDUE_MS = 25
"""A timer that the driver has not come to for so long, because the inbox never empties, runs behind an input.
Not sooner: what waits in the inbox must not pay a slice of long work each."""

NOT_YET = 2**62
"""Later than any time: no deadline is armed."""

_Notice = (
    raft_effects.HighWatermarkChanged
    | raft_effects.RoleChanged
    | raft_effects.ReadReady
    | raft_effects.ReadFailed
)


class ControllerNode:
    """Driver contract: `start` once, `handle` for each input in the order of arrival, `tick` with
    `drained=True` when the inbox is empty, and a timer at `next_deadline_ms`. `now_ms` is monotonic;
    `wall_ms` is Unix time, for timestamps only. Effects are to be executed in order. After a `Stop` nothing
    comes out.

    `image` is the newest snapshot on disk, or an empty one; its provenance says where the log goes on.
    """

    def __init__(
        self,
        config: ControllerConfig,
        raft: RaftCore,
        image: MetadataImage,
        rng: Random,
        now_ms: int,
    ) -> None:
        self.config = config
        self.raft = raft
        self.replica = MetadataReplica(raft, image, config.metadata_replica, now_ms=now_ms)
        self.ledger = Ledger(self.replica)
        self.sessions = Sessions(config.broker_session_timeout_ms, config.broker_metadata_lag_timeout_ms)
        self.counters = Counters()
        self.active: ActiveController | None = None
        self.stopped = False
        self.now_ms = now_ms
        self.wall_ms = 0
        self.incarnation_id = random_uuid(rng)
        self._rng = rng
        self._out: list[Effect] = []
        self._notices: deque[_Notice] = deque()
        self._epoch_start: int | None = None
        self._reception = Reception(self)
        self._armed_ms = NOT_YET
        self._stop_at_ms: int | None = None
        self._foreign: set[int] = set()

    # ---- inputs

    def start(self, now_ms: int, wall_ms: int) -> list[Effect]:
        """The first input."""
        self._begin(now_ms, wall_ms)
        self.absorb(self.raft.start(now_ms))
        self._maybe_read()
        return self._end()

    def handle(self, event: Event, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """One input, in the order of arrival."""
        if self.stopped:
            return []
        self._begin(now_ms, wall_ms)
        try:
            if type(event) is RequestArrived:
                self._reception.take(event)
            else:
                self._on_event(event)
            if now_ms >= self._armed_ms + OVERDUE_MS:
                # A full inbox must not keep timers from running.
                self._on_time(drained=False)
                self.next_deadline_ms()
        except ReplayError as error:
            self._stop_on_bug(error)
        except CommittedLostError as error:
            self._stop(str(error), failed=True)
        if self._stop_at_ms is not None:
            self._maybe_stop()
        return self._end()

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Effect]:
        """Time passed. `drained`: everything that had arrived was handled before."""
        if self.stopped:
            return []
        self._begin(now_ms, wall_ms)
        try:
            self._on_time(drained=drained)
        except ReplayError as error:
            self._stop_on_bug(error)
        except CommittedLostError as error:
            self._stop(str(error), failed=True)
        return self._end()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the latest; never in the past of the last input."""
        deadlines = [self.replica.next_deadline_ms(), self._stop_at_ms]
        if self.active is not None and not self.raft.transferring:
            deadlines.append(self.active.next_deadline_ms(self.now_ms))
        due = min((deadline for deadline in deadlines if deadline is not None), default=None)
        self._armed_ms = NOT_YET if due is None else due
        return due if due is None else max(due, self.now_ms)

    def status(self) -> NodeStatus:
        """What this node knows of itself and of the brokers, as of the last input."""
        return node_status(self)

    @property
    def is_in_office(self) -> bool:
        """This node leads and is active, or will be as soon as everything before it is applied."""
        return self._epoch_start is not None

    # ---- the frame around every input

    def _begin(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.raft.wall_ms = wall_ms
        self.sessions.note_input(now_ms)

    def _end(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _on_time(self, *, drained: bool) -> None:
        now_ms = self.now_ms
        if drained:
            self.sessions.note_drained(now_ms)
        # Raft first: a leader that was paused for long must lose its office before it judges brokers.
        self.absorb(self.raft.tick(now_ms))
        active = self.active
        if active is not None and not self.raft.transferring:
            self._reception.serve_waiting()
            active.expire(now_ms)
            self.counters.timed_out_heartbeats = self.sessions.expired_count
            active.step(now_ms)
            active.write_no_op(now_ms)
        self._maybe_snapshot()
        if self._stop_at_ms is not None:
            self._maybe_stop()

    def _on_event(self, event: Event) -> None:
        match event:
            case LogRead():
                self._on_log_read(event)
            case ShutdownRequested():
                self._on_shutdown()
            case RequestArrived():
                self._reception.take(event)
            case _:
                self._on_raft_event(event)

    def _on_raft_event(self, event: RaftEvent) -> None:
        match event:
            case RaftResponseArrived(source=source, response=response):
                self._note_cluster(source, response)
            case SnapshotWritten():
                self.counters.snapshots_written += 1
            case SnapshotLoaded():
                self.counters.snapshots_loaded += 1
            case _:
                pass
        self._release(self.replica.handle(event, self.now_ms))

    # ---- raft's effects

    def absorb(self, effects: list[RaftEffect]) -> None:
        """What Raft wants done after an input that it was given."""
        self._release(self.replica.release(effects))

    def _release(self, effects: Iterable[RaftEffect | TrimLog]) -> None:
        """What goes out goes out in Raft's order; what this node is told is handled after that, in order."""
        idle = not self._notices
        for effect in effects:
            match effect:
                case (
                    raft_effects.HighWatermarkChanged()
                    | raft_effects.RoleChanged()
                    | raft_effects.ReadReady()
                    | raft_effects.ReadFailed()
                ):
                    self._notices.append(effect)
                case _:
                    self._out.append(effect)
        if not idle:
            return  # an outer call is working through the notices
        while self._notices:
            self._on_notice(self._notices[0])
            self._notices.popleft()

    def _on_notice(self, notice: _Notice) -> None:
        match notice:
            case raft_effects.HighWatermarkChanged():
                self._on_high_watermark()
            case raft_effects.RoleChanged():
                self._on_role(notice)
            case raft_effects.ReadReady(token=token, offset=offset):
                self._reception.confirm_read(token, offset)
            case raft_effects.ReadFailed(token=token):
                self._reception.fail_read(token)
            case _:
                assert_never(notice)

    def _on_role(self, notice: raft_effects.RoleChanged) -> None:
        epoch_start = notice.epoch_start if notice.role == "leader" else None
        if epoch_start == self._epoch_start:
            return
        if self._epoch_start is not None:
            self._lose_leadership()
        self._epoch_start = epoch_start
        if epoch_start is not None:
            self._maybe_activate()

    # ---- what is committed

    def _on_high_watermark(self) -> None:
        ledger = self.ledger
        if ledger.pending:
            for key, response in ledger.commit(self.raft.high_watermark):
                self._out.append(Answer(key=key, response=response))
            self._reception.serve_reads()
            self._maybe_snapshot()
        else:
            self._maybe_read()

    def _maybe_read(self) -> None:
        """Committed batches that this node has not replayed are read, one bounded slice at a time."""
        effect = None if self.ledger.pending else self.replica.next_read()
        if effect is not None:
            self._out.append(effect)

    def _on_log_read(self, event: LogRead) -> None:
        try:
            self.counters.batches_replayed_bytes += self.replica.apply(event)
        except ReplayError as error:
            self._stop(f"committed metadata cannot be replayed, {error}", failed=True)
            return
        self._maybe_snapshot()
        self._maybe_activate()
        self._maybe_read()

    def _maybe_snapshot(self) -> None:
        effect = self.replica.snapshot_due(self.now_ms)
        if effect is not None:
            self._out.append(effect)

    # ---- leadership

    def _maybe_activate(self) -> None:
        """The first record of this leadership is committed and everything up to it is applied (S4.14)."""
        if self.active is not None or self._epoch_start is None:
            return
        if self.ledger.committed_offset <= self._epoch_start:
            return
        if self.ledger.committed_offset != self.raft.log_end_offset:
            raise InvariantViolation("something was appended in this leadership before it was active")
        self.sessions.clear()
        self.counters.activations += 1
        self.active = ActiveController(self.config, self.ledger, self.sessions, self._rng, self)
        self.active.activate(self.now_ms, log_is_empty=not self.replica.holds_metadata)
        self._reception.serve_waiting()

    def _lose_leadership(self) -> None:
        """Everything uncommitted is dropped. What was pending may or may not come to be: the answer is
        Kafka's retriable NOT_CONTROLLER, and a client finds out by asking again (its retry may meet its own
        success)."""
        error = not_controller(self)
        keys = self.ledger.drop()
        if self.active is not None:
            self.counters.leaderships_lost += 1
            keys += self.active.parked_keys()
        keys += self._reception.drop()
        self.active = None
        self.sessions.clear()
        self.counters.answers_dropped += len(keys)
        for key in keys:
            self._out.append(Answer(key=key, response=error))
        self._maybe_read()

    # ---- the active controller's port

    @property
    def voters(self) -> frozenset[int]:
        """The ids of all controllers."""
        return frozenset(self.raft.state.voters)

    def append(self, records: Sequence[Record], replies: list[Reply], *, wake_observers: bool = True) -> int:
        """Appends only what replays (DESIGN 6). Raises BatchError and RecordEncodeError before anything
        happened, and ReplayError for a decision that does not fit its own image: a bug."""
        ledger, raft = self.ledger, self.raft
        state = ledger.newest_state
        base_offset = raft.log_end_offset
        batches = Batches.sealed(
            encode_records_batch(
                records,
                base_offset=base_offset,
                epoch=raft.epoch,
                timestamp_ms=self.wall_ms,
                metadata_version=state.newest.features.metadata_version,
            )
        )
        if len(records) >= COLUMNS_MIN_RECORDS:
            after = replay(state, next(batches.split()))
        else:
            after = replay_records(
                state, base_offset=base_offset, epoch=raft.epoch, timestamp_ms=self.wall_ms, records=records
            )
        end_offset = base_offset + len(records)
        ledger.push(
            Pending(end_offset=end_offset, state=after, size_bytes=len(batches.data), replies=replies)
        )
        self.replica.holds_metadata = True
        self.counters.batches_appended += 1
        self.counters.records_appended += len(records)
        self.absorb(raft.append(self.now_ms, batches, wake_observers))
        return end_offset

    def reply(self, key: int, response: ControllerResponse | ApiError) -> None:
        self._out.append(Answer(key=key, response=response))

    def warn(self, message: str) -> None:
        self._out.append(raft_effects.Warn(message=message))

    # ---- the end

    def _on_shutdown(self) -> None:
        """A leader names its successors, and stays until they have heard it or the grace is over."""
        if self._stop_at_ms is None:
            self._stop_at_ms = self.now_ms + SHUTDOWN_GRACE_MS
            self.absorb(self.raft.resign(self.now_ms))

    def _note_cluster(self, source: int, response: RaftResponse) -> None:
        """One voter of another cluster is at a wrong address. When so many are that the others make no
        majority, it is this directory that is foreign, and waiting helps nobody."""
        if response.error is not RaftError.INCONSISTENT_CLUSTER_ID:
            self._foreign.discard(source)
            return
        self._foreign.add(source)
        voters = self.raft.state.voters.keys()
        if 2 * len(voters - self._foreign) <= len(voters):
            others = ", ".join(str(node_id) for node_id in sorted(self._foreign))
            self._stop(
                f"belongs to cluster {self.config.cluster_id}, and a majority of the voters ({others}) to "
                "another one: give it its own cluster's directory, or correct controller.quorum.voters",
                failed=True,
            )

    def _maybe_stop(self) -> None:
        if not self.raft.resignation_pending or (
            self._stop_at_ms is not None and self.now_ms >= self._stop_at_ms
        ):
            self._stop("stopped as asked", failed=False)

    def _stop(self, reason: str, *, failed: bool) -> None:
        if not self.stopped:
            self.stopped = True
            self._out.append(Stop(reason=reason, failed=failed))

    def _stop_on_bug(self, error: ReplayError) -> None:
        self._stop(f"a decision of this controller does not replay, which is a bug: {error}", failed=True)
