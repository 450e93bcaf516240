"""Drives one node (a controller's or a broker's) on an asyncio loop: events in, effects out, in order.

Owns the wake-ups for the scheduler, the hand-over to the disk thread and to the snapshots' worker, and how
the process ends. Knows nothing of what events mean: a node is a pure object, and effects that are not about
the replica go to a hook.

This order provides group commit: the driver handles all events that have arrived, then starts one sync; the
next sync covers whatever is appended while it runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from metaquorum.metadata.errors import (
    InvariantViolation,
    RecordDecodeError,
    ReplayError,
    UnsupportedVersionError,
)
from metaquorum.raft import effects as raft
from metaquorum.raft.events import (
    LogRead,
    LogSynced,
    QuorumStatePersisted,
    RaftRequestArrived,
    ReadLog,
    Stop,
    TrimLog,
    WriteSnapshot,
)
from metaquorum.raft.store.store import ReplicaStore
from metaquorum.runtime.clock import Clock
from metaquorum.runtime.driver.disk_thread import DiskThread
from metaquorum.runtime.driver.log_sync import LogSync
from metaquorum.runtime.driver.scheduler import Scheduler, SchedulerConfig
from metaquorum.runtime.driver.snapshots import SnapshotCodec, SnapshotWorker
from metaquorum.runtime.driver.statistics import LoopStatistics
from metaquorum.runtime.driver.step_end import StepEnd
from metaquorum.runtime.metrics.node import METADATA, NodeStatistics
from metaquorum.runtime.transport import RaftTransport
from metaquorum.storage.errors import CommittedLostError, DiskError, StorageError

_log = logging.getLogger(__name__)


class Node(Protocol):
    """Implemented by ControllerNode, BrokerNode and CombinedNode."""

    def start(self, now_ms: int, wall_ms: int) -> list[Any]: ...

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> list[Any]: ...

    def settle(self, *, now_ms: int, wall_ms: int) -> list[Any]: ...

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Any]: ...

    def note_gap(self, until_ms: int) -> None: ...

    def next_deadline_ms(self) -> int | None: ...


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a driver stopped. `reason` is the last line that the process logs."""

    reason: str
    failed: bool


class Driver:
    """See the module. `on_effect` gets effects that are not about the replica; `after_step` runs after every
    step; `load` returns the number of clients that wait for a response; `watch` counts for metrics, None:
    none."""

    def __init__(  # noqa: PLR0913
        self,
        node: Node,
        store: ReplicaStore,
        transport: RaftTransport,
        snapshots: SnapshotCodec,
        *,
        clock: Clock,
        on_effect: Callable[[Any], None],
        after_step: Callable[[int], None] = lambda now_ms: None,
        load: Callable[[], int] = lambda: 0,
        inbox_max: int = 20_000,
        watch: NodeStatistics | None = None,
    ) -> None:
        self.node = node
        self._store = store
        self._transport = transport
        self._clock = clock
        self._on_effect = on_effect
        self._after_step = after_step
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._disk = DiskThread(self._loop)
        self._snapshots = SnapshotWorker(
            store,
            snapshots,
            clock,
            post=self.post,
            fail=lambda reason: self.end(reason, failed=True),
            respond=transport.respond,
            watch=watch,
        )
        config = SchedulerConfig(inbox_max_events=inbox_max)
        self._scheduler = Scheduler(self, clock, config, waiting_clients=load)
        self._sync = LogSync(
            store, self._disk, self.statistics, synced=self._synced, failed=self._disk_failed
        )
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self.step_end = StepEnd()
        self._soon: asyncio.Handle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            raft.PersistQuorumState: self._persist,
            raft.AppendLog: self._append,
            raft.TruncateLog: self._change_log,
            raft.ResetLog: self._change_log,
            raft.WriteSnapshotChunk: self._change_log,
            raft.NoteCommitted: self._note_committed,
            raft.SendRequest: self._send,
            raft.Respond: self._respond,
            raft.RespondWithRecords: self._respond_with_records,
            raft.RespondWithSnapshotChunk: self._snapshots.serve,
            raft.FinishSnapshot: self._snapshots.finish,
            raft.Warn: self._warn,
            ReadLog: self._read_log,
            WriteSnapshot: self._snapshots.write,
            TrimLog: self._trim_log,
            Stop: self._stop,
        }

    # --- from outside, on the loop's thread

    def submit(self, event: Any) -> bool:
        """Queues a request from outside; returns False if the inbox is full (BUSY)."""
        if not self._scheduler.submit(event):
            return False
        self._queued()
        return True

    def post(self, event: Any) -> None:
        """Queues a response to this node's own request; the number of requests bounds these events."""
        self._scheduler.post(event)
        self._queued()

    def take_transport_event(self, event: Any) -> bool:
        """The transport's sink: bounds requests of others, always accepts responses to this node's."""
        if type(event) is RaftRequestArrived:
            return self.submit(event)
        if not self._ended.done():
            self.post(event)
        return True

    def start(self) -> None:
        """Starts the node; carries out its first effects before it returns."""
        now_ms, begun_ns = self._clock.monotonic_ms(), time.monotonic_ns()
        self._guarded(lambda: self._carry_out(self.node.start(now_ms, self._clock.wall_ms())))
        if not self._ended.done():
            self._scheduler.began(self.node.next_deadline_ms())
            self._finish_step(now_ms, begun_ns)

    def hand_over(self, handlers: Mapping[type, Callable[[Any], None]]) -> None:
        """Routes effects of these types to their handlers instead of `on_effect`. Call it before `start`."""
        self._handlers |= handlers

    async def wait(self) -> Ending:
        """Returns once the node has stopped or the process cannot continue."""
        return await asyncio.shield(self._ended)

    def end(self, reason: str, *, failed: bool) -> None:
        """Stops at once, without a clean shutdown of the node."""
        if not self._ended.done():
            self._scheduler.stopped = True
            self._ended.set_result(Ending(reason=reason, failed=failed))

    async def close(self) -> None:
        """Ends the timer, the tasks and both threads. The caller closes the store."""
        self.end("closed", failed=False)
        _log.debug("the loop's work: %s", self.statistics)
        for handle in (self._soon, self._wake):
            if handle is not None:
                handle.cancel()
        await self._snapshots.close()
        await self._sync.close()
        await self._loop.run_in_executor(None, self._disk.close)

    @property
    def waiting(self) -> int:
        """Number of events in the inbox."""
        return len(self._scheduler)

    @property
    def statistics(self) -> LoopStatistics:
        return self._scheduler.statistics

    @property
    def snapshots_loaded(self) -> int:
        """Number of fetched snapshots that replaced the log."""
        return self._snapshots.loaded

    # --- steps, when the scheduler asks for them

    def _queued(self) -> None:
        if self._watch is not None:
            self._watch.queued()
        if not self._scheduler.stepping:
            self._plan()

    def _plan(self) -> None:
        """Sets a timer for the scheduler's next step. An earlier timer stays: most deadlines move before they
        are reached, and resetting the timer costs more than a wake-up with nothing to do."""
        due_ms = self._scheduler.due_ms
        if due_ms is None or self._soon is not None or self._ended.done():
            return
        if due_ms <= self._scheduler.now_ms:
            self._soon = self._loop.call_soon(self._step)
            return
        if self._wake is not None:
            if self._wake_ms <= due_ms:
                return
            self._wake.cancel()
        self._wake_ms = due_ms
        delay_ms = due_ms - self._clock.monotonic_ms()
        self._wake = self._loop.call_later(max(delay_ms, 0) / 1000, self._look)

    def _look(self) -> None:
        """Called by the timer: takes a step if one is due."""
        self._wake = None
        due_ms = self._scheduler.due_ms
        if due_ms is None or self._soon is not None:
            return
        if due_ms <= self._clock.monotonic_ms():
            self._step()
        else:
            self._plan()

    def _step(self) -> None:
        self._soon = None
        begun_ns = 0 if self._watch is None else time.monotonic_ns()
        if not self._guarded(self._take_step):
            self._plan()
        elif not self._ended.done():
            self._finish_step(self._scheduler.now_ms, begun_ns)

    def _take_step(self) -> bool:
        self.step_end.begin()
        try:
            return self._scheduler.step()
        finally:
            self.step_end.come()

    def _finish_step(self, now_ms: int, begun_ns: int) -> None:
        if self._sync.wanted:
            self._sync.start()
        self._after_step(now_ms)
        if self._watch is not None:
            self._watch.stepped(begun_ns, now_ms)
        self._plan()

    # --- what the scheduler runs

    def handle(self, event: Any, now_ms: int, wall_ms: int) -> None:
        watch, is_last = self._watch, not len(self._scheduler)
        begun_ns = 0 if watch is None else time.monotonic_ns()
        self._carry_out(self.node.handle(event, now_ms=now_ms, wall_ms=wall_ms))
        if is_last and self._sync.wanted:
            # The rest of this step, such as a read for this node's image, can wait for the sync to start.
            self._sync.start()
        if watch is not None:
            watch.handled(begun_ns)

    def settle(self, now_ms: int, wall_ms: int) -> None:
        self._carry_out(self.node.settle(now_ms=now_ms, wall_ms=wall_ms))

    def tick(self, now_ms: int, wall_ms: int, *, drained: bool) -> None:
        self._carry_out(self.node.tick(now_ms=now_ms, wall_ms=wall_ms, drained=drained))

    def next_deadline_ms(self) -> int | None:
        return self.node.next_deadline_ms()

    def stalled(self, gap_ms: int, until_ms: int) -> None:
        self.node.note_gap(until_ms)
        _log.warning(
            "this process was stalled for %d ms: the machine is overloaded, or the process was paused", gap_ms
        )

    def _carry_out(self, effects: list[Any]) -> None:
        handlers = self._handlers
        for effect in effects:
            handler = handlers.get(type(effect))
            if handler is None:
                self._on_effect(effect)
            else:
                handler(effect)

    def _guarded(self, work: Callable[[], bool | None]) -> bool | None:
        """Returns the result of `work`. An exception in it ends the process with one line."""
        try:
            return work()
        except DiskError as error:
            self.end(f"stopped: {error}; repair the disk, then start again", failed=True)
        except CommittedLostError as error:
            self.end(f"stopped: {error}", failed=True)
        except (StorageError, ReplayError, RecordDecodeError, UnsupportedVersionError) as error:
            if self._watch is not None:
                self._watch.load_errors += 1
            self.end(f"stopped: {error}", failed=True)
        except InvariantViolation as error:
            if self._watch is not None:
                self._watch.apply_errors += 1
            _log.exception("an invariant was violated")
            self.end(f"stopped by a bug, to limit the damage: {error}", failed=True)
        except Exception as error:
            _log.exception("unexpected error")
            self.end(f"stopped by a bug: {type(error).__name__}: {error}", failed=True)
        return None

    # --- effects on the log

    def _append(self, effect: raft.AppendLog) -> None:
        self._store.execute(effect)
        self._sync.appended()
        if self._watch is not None:
            self._watch.appended_batch(effect.base_offset, effect.end_offset, self._clock.monotonic_ms())

    def _change_log(self, effect: raft.TruncateLog | raft.ResetLog | raft.WriteSnapshotChunk) -> None:
        self._store.execute(effect)

    def _trim_log(self, effect: TrimLog) -> None:
        trimmed = self._store.execute(effect, wall_ms=self._clock.wall_ms())
        if trimmed is not None:
            self.post(trimmed)

    def _read_log(self, effect: ReadLog) -> None:
        batches = self._store.read_log(effect.from_offset, effect.to_offset, effect.max_bytes)
        self.post(LogRead(from_offset=effect.from_offset, batches=batches))

    def _synced(self, end_offset: int, took_ms: float) -> None:
        if self._watch is not None:
            self._watch.flushes.observe(METADATA, took_ms)
        self.post(LogSynced(end_offset=end_offset))

    def _persist(self, effect: raft.PersistQuorumState) -> None:
        def done(failure: BaseException | None) -> None:
            if failure is not None:
                self._disk_failed(failure)
            else:
                self.post(QuorumStatePersisted(token=effect.token))

        self._disk.submit(lambda: self._store.persist_quorum_state(effect), done)

    def _note_committed(self, effect: raft.NoteCommitted) -> None:
        self._store.execute(effect)
        if effect.durably:
            position = self._store.prepare_committed()

            def done(failure: BaseException | None) -> None:
                if failure is not None:
                    self._disk_failed(failure)
                else:
                    self._guarded(lambda: self._store.committed_persisted(position))

            self._disk.submit(lambda: self._store.persist_committed(position), done)

    def _disk_failed(self, failure: BaseException) -> None:
        self.end(f"stopped: {failure}; repair the disk, then start again", failed=True)

    # --- effects on the network

    def _send(self, effect: raft.SendRequest) -> None:
        self._transport.send(effect.to, effect.correlation_id, effect.request, effect.timeout_ms)

    def _respond(self, effect: raft.Respond) -> None:
        self._transport.respond(effect.key, effect.response)

    def _respond_with_records(self, effect: raft.RespondWithRecords) -> None:
        self._transport.respond(effect.key, self._store.fill_records(effect))

    # --- the rest

    def _warn(self, effect: raft.Warn) -> None:
        _log.warning("%s", effect.message)

    def _stop(self, effect: Stop) -> None:
        self.end(effect.reason, failed=effect.failed)
