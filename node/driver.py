"""Drives one node on an asyncio loop: queues events, and takes a step when one is due.

This order provides group commit: a step handles all events that have arrived, then starts one sync; the
next sync covers whatever is appended while it runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from metaquorum.clock import Clock
from metaquorum.metadata.errors import (
    InvariantViolation,
    RecordDecodeError,
    ReplayError,
    UnsupportedVersionError,
)
from metaquorum.node.node_runner import Node, NodeRunner
from metaquorum.node.scheduler import Scheduler, SchedulerConfig, StepEnd
from metaquorum.node.snapshots import SnapshotCodec
from metaquorum.observability.metrics.statistics import LoopStatistics, NodeStatistics
from metaquorum.raft.events import RaftRequestArrived
from metaquorum.raft.store import ReplicaStore
from metaquorum.rpc.transport import RaftTransport
from metaquorum.storage.errors import CommittedLostError, DiskError, StorageError, stopped_text

_log = logging.getLogger(__name__)


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a driver stopped. `reason` is the last line that the process logs."""

    reason: str
    failed: bool


class Driver:
    """See the module. `after_step` runs after every step; `watch` counts for metrics, None: none."""

    def __init__(
        self,
        node: Node,
        store: ReplicaStore,
        transport: RaftTransport,
        snapshots: SnapshotCodec,
        *,
        clock: Clock,
        inbox_max: int,
        after_step: Callable[[int], None] = lambda now_ms: None,
        watch: NodeStatistics | None = None,
    ) -> None:
        self._clock = clock
        self._after_step = after_step
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self.statistics = LoopStatistics()
        self._runner = runner = NodeRunner(
            node, self, store, transport, snapshots, clock, statistics=self.statistics, watch=watch
        )
        config = SchedulerConfig(inbox_max_events=inbox_max)
        self._scheduler = Scheduler(runner, clock, config, self.statistics)
        self.hand_over = runner.hand_over
        """Call it before `start`."""
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self.step_end = StepEnd()
        self._soon: asyncio.Handle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = 0

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
        self.guarded(lambda: self._runner.start(now_ms=now_ms))
        if not self._ended.done():
            self._scheduler.began(self._runner.next_deadline_ms())
            self._finish_step(now_ms, begun_ns)

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
        await self._runner.close()

    @property
    def waiting(self) -> int:
        """Number of events in the inbox."""
        return len(self._scheduler)

    @property
    def snapshots_loaded(self) -> int:
        """Number of fetched snapshots that replaced the log."""
        return self._runner.snapshots_loaded

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
        if not self.guarded(self._take_step):
            self._plan()
        elif not self._ended.done():
            self._finish_step(self._scheduler.now_ms, begun_ns)

    def _take_step(self) -> bool:
        self.step_end.begin()
        try:
            return self._scheduler.step()
        finally:
            self.step_end.flush()

    def _finish_step(self, now_ms: int, begun_ns: int) -> None:
        self._runner.start_sync()
        self._after_step(now_ms)
        if self._watch is not None:
            self._watch.stepped(begun_ns, now_ms)
        self._plan()

    # --- how it ends

    def guarded(self, work: Callable[[], bool | None]) -> bool | None:
        """Returns the result of `work`. An exception in it ends the process with one line."""
        try:
            return work()
        except DiskError as error:
            self.end(stopped_text(error), failed=True)
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
