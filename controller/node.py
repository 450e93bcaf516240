"""A controller node as one pure state machine: events in, an ordered list of effects out.

Raft knows no metadata and the active controller no log: both return what they want done, and one loop carries
it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import assert_never

from metaquorum.controller.active.active import ActiveController
from metaquorum.controller.active.outcome import NOTHING, Batch, Outcome, Resumed, Step, Turn
from metaquorum.controller.active.steps import FIRST_STEPS, TIMED_STEPS
from metaquorum.controller.answers import describe_quorum, image_response, not_controller, transfer_target
from metaquorum.controller.brokers.sessions import Sessions
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
from metaquorum.controller.ledger import Ledger
from metaquorum.controller.voters import VOTER_CHANGES, answer_of, raft_request
from metaquorum.metadata.errors import ApiError, InvariantViolation, RecordEncodeError, ReplayError, busy
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.replica import MetadataReplica
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.requests.status import Counters
from metaquorum.raft import effects as raft_effects
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import (
    HighWatermarkChanged,
    Outbox,
    RaftEffect,
    ReadFailed,
    ReadReady,
    RoleChanged,
    Warn,
)
from metaquorum.raft.messages import RaftError
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.errors import BatchError, CommittedLostError
from metaquorum.storage.uuids import random_uuid

SHUTDOWN_GRACE_MS = 200
"""How long a resigned leader waits for its successors to learn of it before it stops."""

GATHERED_MAX_BYTES = 64 * 1024
"""Batches of one step that Raft appends together; larger ones should not wait for each other."""

OVERDUE_MS = 25
"""A timer that is this late, because steps are full, runs after an input. Not sooner: each costs a slice."""

NOT_YET = 2**62
"""Later than any time: no deadline is armed."""

_Notice = HighWatermarkChanged | RoleChanged | ReadReady | ReadFailed


class ControllerNode:
    """Driver contract: `start` once, `handle` for each input in the order of arrival, `settle` after the
    inputs of a step, `tick` with `drained=True` when the inbox is empty, and a timer at `next_deadline_ms`.
    `now_ms` is monotonic; `wall_ms` is Unix time, for timestamps only. Execute effects in order. No effects
    follow a `Stop`.

    `image` is the newest snapshot on disk, or an empty one; its provenance says where the log continues.
    """

    def __init__(
        self, config: ControllerConfig, raft: RaftCore, image: MetadataImage, rng: Random, now_ms: int
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
        self._out: Outbox[Effect] = Outbox()
        self._notices: deque[_Notice] = deque()
        self._epoch_start: int | None = None
        self._turns = TurnQueue(config.waiting_requests_max)
        self._reads = ReadQueue()
        self._decided = DecidedBatches()
        self._armed_ms = NOT_YET
        self._stop_at_ms: int | None = None
        self._foreign = ForeignVoters(config.cluster_id, raft)
        raft.know_observers(self._is_registered)

    def _is_registered(self, node_id: int) -> bool:
        image = self.ledger.committed.image
        return image.brokers.get(node_id) is not None or node_id in image.controllers

    # ---- inputs

    def start(self, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """The first input."""
        self._begin(now_ms, wall_ms)
        self._absorb(self.raft.start(now_ms=now_ms))
        self._run()
        self._maybe_read()
        return self._out.take()

    def handle(self, event: Event, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """One input, in the order of arrival."""
        return self._guarded(event, now_ms, wall_ms, drained=False)

    def settle(self, *, now_ms: int, wall_ms: int) -> list[Effect]:
        """The inputs of a step are over: what they decided becomes one append, which voters get whole."""
        if self._decided.batches and not self.stopped:
            self._begin(now_ms, wall_ms)
            self._append_decided()
        return self._out.take()

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Effect]:
        """Time passed. `drained`: everything that had arrived was handled before."""
        return self._guarded(None, now_ms, wall_ms, drained=drained)

    def note_gap(self, until_ms: int) -> None:
        """The process was paused: until then the silence of brokers proves nothing."""
        self.sessions.note_gap(until_ms)

    @property
    def decided_end_offset(self) -> int:
        """The end of the log with what is decided and not appended yet."""
        return self._decided.end_offset(self.raft.log_end_offset)

    def next_deadline_ms(self) -> int | None:
        """The time by which `tick` must be called; never before the last input."""
        deadlines = [self.replica.next_deadline_ms(), self._stop_at_ms]
        if self.active is not None and not self.raft.transferring:
            deadlines.append(self.active.next_deadline_ms(self.now_ms))
        due = min([each for each in deadlines if each is not None], default=None)
        self._armed_ms = NOT_YET if due is None else due
        return due if due is None else max(due, self.now_ms)

    def _begin(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms = now_ms
        self.wall_ms = self.raft.wall_ms = wall_ms

    def _guarded(self, event: Event | None, now_ms: int, wall_ms: int, *, drained: bool) -> list[Effect]:
        """The effects of `event`, or (None) of time that passed; Stop if this node cannot continue."""
        if self.stopped:
            return []
        self._begin(now_ms, wall_ms)
        try:
            if event is not None:
                self._on_event(event)
                self._run()
            if event is None or now_ms >= self._armed_ms + OVERDUE_MS:
                # A full inbox must not keep timers from running.
                self._on_time(drained=drained)
            if event is not None and now_ms >= self._armed_ms + OVERDUE_MS:
                self.next_deadline_ms()
        except ReplayError as error:
            self._stop(f"a decision of this controller does not replay, which is a bug: {error}", failed=True)
        except CommittedLostError as error:
            self._stop(str(error), failed=True)
        stop_at_ms = self._stop_at_ms
        if stop_at_ms is not None and (now_ms >= stop_at_ms or not self.raft.resignation_pending):
            self._stop("stopped on request", failed=False)
        return self._out.take()

    def _on_time(self, *, drained: bool) -> None:
        self._append_decided()
        self.sessions.note_time(self.now_ms, drained=drained)
        # Raft first: a leader that was paused for long must resign before it judges brokers.
        self._absorb(self.raft.tick(now_ms=self.now_ms))
        self._run()
        if self.active is not None and not self.raft.transferring:
            self._turns.add_waiting()
            self._turns.add(*TIMED_STEPS)
            self._run()
            self.counters.timed_out_heartbeats = self.sessions.expired_count
            self._append_decided()
        self._out.offer(self.replica.snapshot_due(self.now_ms))

    def _on_event(self, event: Event) -> None:
        match event:
            case RequestArrived():
                return self._on_request(event)
            case LogRead():
                self._on_log_read(event)
                return
            case ShutdownRequested():
                self._append_decided()
                self._shut_down()
                return
            case RaftResponseArrived(source=source, response=response):
                foreign = self._foreign.heard(source, response.error)
                if foreign is not None:
                    self._stop(foreign, failed=True)
            case SnapshotWritten():
                self.counters.snapshots_written += 1
            case SnapshotLoaded():
                self.counters.snapshots_loaded += 1
        self._append_decided()
        self._release(self.replica.handle(event, self.now_ms))

    def _absorb(self, effects: list[RaftEffect]) -> None:
        """Carries out what Raft wants done after an input."""
        self._release(self.replica.release(effects))

    def _release(self, effects: Iterable[RaftEffect | TrimLog]) -> None:
        """Outgoing effects leave in Raft's order; those for this node wait for its loop."""
        for effect in effects:
            if isinstance(effect, _Notice):
                self._notices.append(effect)
            elif type(effect) is raft_effects.Respond and effect.key < 0:
                self._answer(-effect.key, answer_of(effect.response))
            else:
                self._out.append(effect)
                if type(effect) is raft_effects.AppendLog and self.active is not None:
                    self.ledger.follow(effect.batches)

    def _run(self) -> None:
        """First what Raft reported to this node, then one turn of the active controller after another."""
        while self._notices or self._turns:
            if self._notices:
                self._on_notice(self._notices.popleft())
            else:
                self._on_turn(self._turns.take())

    def _on_notice(self, notice: _Notice) -> None:
        match notice:
            case HighWatermarkChanged():
                self._on_high_watermark()
            case RoleChanged(role=role, epoch_start=epoch_start):
                self._on_role(epoch_start if role == "leader" else None)
            case ReadReady(token=token, offset=offset):
                self._reads.confirm(token, offset)
                self._serve_reads()
            case ReadFailed(token=token):
                self._answer(self._reads.fail(token), self._not_controller())
            case _:
                assert_never(notice)

    def _on_role(self, epoch_start: int | None) -> None:
        if epoch_start != self._epoch_start:
            if self._epoch_start is not None:
                self._lose_leadership()
            self._epoch_start = epoch_start
            self._maybe_activate()

    # ---- commits

    def _on_high_watermark(self) -> None:
        ledger = self.ledger
        if ledger.pending:
            for key, response in ledger.commit(self.raft.high_watermark):
                self._answer(key, response)
            self._serve_reads()
            self._out.offer(self.replica.snapshot_due(self.now_ms))
        else:
            self._maybe_read()

    def _maybe_read(self) -> None:
        """Reads committed batches that this node has not replayed, one bounded slice at a time."""
        self._out.offer(None if self.ledger.pending else self.replica.next_read())

    def _on_log_read(self, event: LogRead) -> None:
        try:
            self.counters.batches_replayed_bytes += self.replica.apply(event)
        except ReplayError as error:
            self._stop(f"committed metadata cannot be replayed, {error}", failed=True)
            return
        self._out.offer(self.replica.snapshot_due(self.now_ms))
        self._maybe_activate()
        self._maybe_read()

    def _maybe_activate(self) -> None:
        """The first record of this leadership is committed and applied (S4.14), and so is any voter
        change that Raft has appended since."""
        if self.active is not None or self._epoch_start is None:
            return
        if self.ledger.committed_offset != self.raft.log_end_offset:
            return
        self.sessions.clear()
        self.counters.activations += 1
        self.active = ActiveController(
            self.config,
            self.ledger,
            self.sessions,
            self._rng,
            quorum=self.raft,
            incarnation_id=self.incarnation_id,
            now_ms=self.now_ms,
        )
        self._turns.add(*FIRST_STEPS)
        self._turns.add_waiting()

    def _lose_leadership(self) -> None:
        """Everything uncommitted is dropped. Pending batches may or may not be committed: NOT_CONTROLLER, as
        in Kafka, whose brokers ask again, too. So every request is one that may be carried out twice: what
        the first one did is found (a topic: TOPIC_ALREADY_EXISTS), is the same again (a setting, a level), or
        is one more, of no use (a block of producer ids, a token that expires)."""
        error = self._not_controller()
        keys = self.ledger.drop()
        self._decided = DecidedBatches()
        if self.active is not None:
            self.counters.leaderships_lost += 1
            keys += self.active.parked_keys()
        keys += self._turns.drop() + self._reads.drop_ready()
        self.active = None
        self.sessions.clear()
        self.counters.answers_dropped += len(keys)
        for key in keys:
            self._answer(key, error)
        self._maybe_read()

    # ---- requests

    def _on_request(self, arrived: RequestArrived) -> None:
        """A request for the active controller becomes a turn; the rest is answered now."""
        self.counters.requests += 1
        self.sessions.note_arrival(arrived.arrived_ms)
        key, raft = arrived.key, self.raft
        match arrived.request:
            case api.BrokerHeartbeatRequest():
                self.counters.heartbeats += 1
                self._turns.add(arrived)
            case api.ReadImageRequest(linearizable=False):
                self._answer(key, image_response(self.ledger.committed.image))
            case api.DescribeQuorumRequest():
                self._answer(key, describe_quorum(raft, self.ledger.committed.image, self.now_ms))
            case api.TransferLeadershipRequest(target_id=target_id):
                target = transfer_target(raft, target_id, self.now_ms)
                self._answer(key, target if isinstance(target, ApiError) else api.Done())
                if not isinstance(target, ApiError):
                    self._append_decided()
                    self._absorb(raft.transfer_leadership(target, now_ms=self.now_ms))
            case request if isinstance(request, VOTER_CHANGES):
                self._append_decided()
                self._absorb(raft.on_request(-key, raft_request(request, self.config), now_ms=self.now_ms))
            case _:
                self._turns.add(arrived)

    def _serve_reads(self) -> None:
        """Serves reads whose round is over and whose offset is applied; the others stay in order."""
        for key in self._reads.take(self.ledger.committed_offset):
            self._answer(key, image_response(self.ledger.committed.image))

    def _answer(self, key: int, response: api.ControllerResponse | ApiError) -> None:
        self._out.append(Answer(key=key, response=response))

    def _not_controller(self) -> ApiError:
        return not_controller(self.config.node_id, self.raft.leader_id)

    # ---- turns of the active controller

    def _on_turn(self, turn: Turn) -> None:
        """Decides, appends, remembers, answers: one turn; the turns that it requests come next."""
        if type(turn) is RequestArrived and not self._lets_through(turn):
            return
        if self.active is None:
            raise InvariantViolation(f"no active controller can take the turn {turn}")
        outcome = self.active.decide(turn, now_ms=self.now_ms, wall_ms=self.wall_ms)
        if outcome is not NOTHING:
            self._carry_out(self.active, turn, outcome)

    def _lets_through(self, arrived: RequestArrived) -> bool:
        """Whether the request is decided now: it may have to wait, is refused, or is a read."""
        is_read = type(arrived.request) is api.ReadImageRequest
        # Records appended during a transfer would only keep the successor from catching up.
        if self.active is None or (self.raft.transferring and not is_read):
            if self._epoch_start is None:
                self._answer(arrived.key, self._not_controller())
            elif not self._turns.postpone(arrived):
                self._refuse_busy(arrived.key)
            return False
        waiting = len(self._reads) if is_read else self.ledger.replies_waiting
        if waiting >= self.config.answers_max:
            self._refuse_busy(arrived.key)
        elif is_read:
            self._append_decided()
            self._absorb(self.raft.request_read(self._reads.begin(arrived.key), now_ms=self.now_ms))
        else:
            return True
        return False

    def _carry_out(self, active: ActiveController, turn: Turn, outcome: Outcome) -> None:
        self._out += [Warn(message=message) for message in outcome.warnings]
        if outcome.batch is not None:
            try:
                self._append(outcome.batch)
            except (BatchError, RecordEncodeError) as error:
                outcome = active.unwritable(turn, error)
        active.take_up(outcome, self.now_ms)
        for key, response in self.ledger.settle(outcome.answers):
            self._answer(key, response)
        self._turns.add_first(outcome.then)

    def _append(self, batch: Batch) -> None:
        """Appends only what replays, at the latest before Raft takes another input, which may append, too.
        Raises BatchError and RecordEncodeError before anything happened, and ReplayError for a decision that
        does not fit its own image: a bug."""
        raft, decided = self.raft, self._decided
        batches = self.ledger.append(
            batch.records,
            base_offset=self.decided_end_offset,
            epoch=raft.epoch,
            timestamp_ms=self.wall_ms,
        )
        self.counters.note_appended(len(batch.records))
        decided.add(batches, wake_observers=batch.wake_observers)
        if decided.size_bytes >= GATHERED_MAX_BYTES:
            self._append_decided()

    def _append_decided(self) -> None:
        """Raft appends what was decided, all at once."""
        if not self._decided.batches:
            return
        batches, wake_observers = self._decided.take()
        self.ledger.appended(batches.next_offset)
        self._absorb(self.raft.append(batches, wake_observers, now_ms=self.now_ms))

    def _refuse_busy(self, key: int) -> None:
        self.counters.refused_busy += 1
        self._answer(key, busy("too many requests are waiting for a commit"))

    def _shut_down(self) -> None:
        """A leader names its successors, and stays until they have received it or the grace is over."""
        if self._stop_at_ms is None:
            self._stop_at_ms = self.now_ms + SHUTDOWN_GRACE_MS
            self._absorb(self.raft.resign(now_ms=self.now_ms))

    def _stop(self, reason: str, *, failed: bool) -> None:
        if not self.stopped:
            self.stopped = True
            self._out.append(Stop(reason=reason, failed=failed))


# What a step has decided, on its way to Raft.


class DecidedBatches:
    """Batches that are pending in the ledger, and not yet in the log."""

    def __init__(self) -> None:
        self.batches: list[Batches] = []
        self.size_bytes = 0
        self._wake_observers = False

    def end_offset(self, log_end_offset: int) -> int:
        """Where the next batch begins."""
        return self.batches[-1].next_offset if self.batches else log_end_offset

    def add(self, batches: Batches, *, wake_observers: bool) -> None:
        self.batches.append(batches)
        self.size_bytes += len(batches.data)
        self._wake_observers = self._wake_observers or wake_observers

    def take(self) -> tuple[Batches, bool]:
        """All of them, and whether observers are woken for one; there are none afterwards."""
        taken = Batches.chained(self.batches), self._wake_observers
        self.batches, self.size_bytes, self._wake_observers = [], 0, False
        return taken


# Linearizable reads in progress: requested from Raft, confirmed, and waiting for what they must see.


class ReadQueue:
    """A read is begun, confirmed for an offset (or failed), and served when all below it is applied."""

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}
        self._ready: deque[tuple[int, int]] = deque()
        self._last_token = 0

    def __len__(self) -> int:
        return len(self._keys) + len(self._ready)

    def begin(self, key: int) -> int:
        """The token under which Raft confirms the read of request `key`."""
        self._last_token += 1
        self._keys[self._last_token] = key
        return self._last_token

    def confirm(self, token: int, offset: int) -> None:
        """The read may be served once everything below `offset` is applied."""
        self._ready.append((offset, self._keys.pop(token)))

    def fail(self, token: int) -> int:
        """The request key of a read that will not be confirmed."""
        return self._keys.pop(token)

    def take(self, applied_offset: int) -> list[int]:
        """Request keys of the reads that can be served now, in the order of their confirmation."""
        keys: list[int] = []
        while self._ready and self._ready[0][0] <= applied_offset:
            keys.append(self._ready.popleft()[1])
        return keys

    def drop_ready(self) -> list[int]:
        """Leadership is lost: keys of what was confirmed and not served. Raft fails the others."""
        keys = [key for _, key in self._ready]
        self._ready.clear()
        return keys


# Turns of the active controller in their order, and requests that wait until it may take them.


class TurnQueue:
    """`waiting_max`: requests that may wait while a new leader catches up, or hands leadership over."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._turns: deque[Turn] = deque()
        self._waiting: deque[RequestArrived] = deque()

    def __bool__(self) -> bool:
        """Whether there is a turn to take now."""
        return bool(self._turns)

    def take(self) -> Turn:
        """The next turn."""
        return self._turns.popleft()

    def add(self, *turns: Turn) -> None:
        """Takes these after all others."""
        self._turns.extend(turns)

    def add_first(self, turns: Iterable[Turn]) -> None:
        """Takes these next, in this order."""
        self._turns.extendleft(reversed([*turns]))

    def postpone(self, arrived: RequestArrived) -> bool:
        """The request waits for `add_waiting`. Returns False if too many are already waiting."""
        if len(self._waiting) >= self._waiting_max:
            return False
        self._waiting.append(arrived)
        return True

    def add_waiting(self) -> None:
        """Requests that waited may be taken, after all others."""
        self._turns.extend(self._waiting)
        self._waiting.clear()

    def drop(self) -> list[int]:
        """Leadership is lost: keys of all requests that are here, waiting ones first."""
        keys = [arrived.key for arrived in self._waiting]
        for turn in self._turns:
            if not isinstance(turn, Step):
                keys.append(turn.arrived.key if isinstance(turn, Resumed) else turn.key)
        self._waiting.clear()
        self._turns.clear()
        return keys


# Voters that report another cluster: whether the wrong directory is theirs or this node's.
# Judgment and the reports behind it. One voter of another cluster means a wrong address. When there are
# so many that the others are not a majority, the directory of this node is the foreign one, and waiting
# does not help.


class ForeignVoters:
    """`cluster_id` is that for which this node's directory was formatted."""

    def __init__(self, cluster_id: str, raft: RaftCore) -> None:
        self._cluster_id = cluster_id
        self._raft = raft
        self._foreign: set[int] = set()

    def heard(self, source: int, error: RaftError) -> str | None:
        """A voter answered. Returns why this node has to stop, or None."""
        if error is not RaftError.INCONSISTENT_CLUSTER_ID:
            self._foreign.discard(source)
            return None
        self._foreign.add(source)
        voters, servers = set(self._raft.voters), set(self._raft.state.config.bootstrap_ids)
        if 2 * len(voters - self._foreign) > len(voters) or (not voters and servers - self._foreign):
            return None
        others = ", ".join(str(node_id) for node_id in sorted(self._foreign))
        who, key = f"a majority of the voters ({others})", "controller.quorum.voters"
        if not voters:
            who, key = "its bootstrap servers", "controller.quorum.bootstrap.servers"
        return (
            f"belongs to cluster {self._cluster_id}, but {who} to another one: give it its own cluster's "
            f"directory, or correct {key}"
        )
