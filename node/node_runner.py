"""Gives a node its inputs and carries out its effects, in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from metaquorum.clock import Clock
from metaquorum.node.log_sync import DiskThread, LogSync
from metaquorum.node.snapshots import SnapshotCodec, SnapshotWorker
from metaquorum.observability.metrics.statistics import METADATA, LoopStatistics, NodeStatistics
from metaquorum.raft import effects as raft
from metaquorum.raft.events import (
    LogRead,
    LogSynced,
    QuorumStatePersisted,
    ReadLog,
    Stop,
    TrimLog,
    WriteSnapshot,
)
from metaquorum.raft.store import ReplicaStore
from metaquorum.rpc.transport import RaftTransport
from metaquorum.storage.errors import stopped_text

_log = logging.getLogger(__name__)


class Node(Protocol):
    """Implemented by ControllerNode, BrokerNode and CombinedNode."""

    def start(self, *, now_ms: int, wall_ms: int) -> list[Any]: ...

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> list[Any]: ...

    def must_wait(self, event: Any) -> bool: ...

    def settle(self, *, now_ms: int, wall_ms: int) -> list[Any]: ...

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Any]: ...

    def note_gap(self, until_ms: int) -> None: ...

    def next_deadline_ms(self) -> int | None: ...


class Host(Protocol):
    """The driver, as its runner sees it."""

    def post(self, event: Any) -> None:
        """Queues a response to the node's own request."""

    def end(self, reason: str, *, failed: bool) -> None:
        """Stops the process."""

    def guarded(self, work: Callable[[], bool | None]) -> bool | None:
        """Returns the result of `work`. An exception in it ends the process with one line."""

    @property
    def waiting(self) -> int:
        """Number of events in the inbox."""


class NodeRunner:
    """The scheduler's runner of `node`. Needs a running loop. `statistics` counts syncs, `watch` counts for
    metrics, None: none."""

    def __init__(
        self,
        node: Node,
        host: Host,
        store: ReplicaStore,
        transport: RaftTransport,
        codec: SnapshotCodec,
        clock: Clock,
        *,
        statistics: LoopStatistics,
        watch: NodeStatistics | None,
    ) -> None:
        self._node = node
        self._host = host
        self._store = store
        self._transport = transport
        self._clock = clock
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._disk = DiskThread(self._loop)
        self._snapshots = SnapshotWorker(
            store,
            codec,
            clock,
            post=host.post,
            fail=lambda reason: host.end(reason, failed=True),
            respond=transport.respond,
            watch=watch,
        )
        self._sync = LogSync(store, self._disk, statistics, synced=self._synced, failed=self._disk_failed)
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

    def hand_over(self, handlers: Mapping[type, Callable[[Any], None]]) -> None:
        """Lets these handlers carry out effects of these types."""
        self._handlers |= handlers

    def start(self, *, now_ms: int) -> None:
        """Starts the node."""
        self._carry_out(self._node.start(now_ms=now_ms, wall_ms=self._clock.wall_ms()))

    def start_sync(self) -> None:
        """Starts a sync of the log if there are unsynced records and none is in progress."""
        if self._sync.wanted:
            self._sync.start()

    async def close(self) -> None:
        """Ends the tasks and both threads. The caller closes the store."""
        await self._snapshots.close()
        await self._sync.close()
        await self._loop.run_in_executor(None, self._disk.close)

    @property
    def snapshots_loaded(self) -> int:
        """Number of fetched snapshots that replaced the log."""
        return self._snapshots.loaded

    # --- for the scheduler

    def must_wait(self, event: Any) -> bool:
        return self._node.must_wait(event)

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> None:
        watch, is_last = self._watch, not self._host.waiting
        begun_ns = 0 if watch is None else time.monotonic_ns()
        self._carry_out(self._node.handle(event, now_ms=now_ms, wall_ms=wall_ms))
        if is_last:
            # The rest of this step, such as a read for this node's image, can wait for the sync to start.
            self.start_sync()
        if watch is not None:
            watch.handled(begun_ns)

    def settle(self, *, now_ms: int, wall_ms: int) -> None:
        self._carry_out(self._node.settle(now_ms=now_ms, wall_ms=wall_ms))
        self.start_sync()

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> None:
        self._carry_out(self._node.tick(now_ms=now_ms, wall_ms=wall_ms, drained=drained))

    def next_deadline_ms(self) -> int | None:
        return self._node.next_deadline_ms()

    def stalled(self, gap_ms: int, until_ms: int) -> None:
        self._node.note_gap(until_ms)
        if self._clock.was_moved():
            return
        _log.warning(
            "this process was stalled for %d ms: the machine is overloaded, or the process was paused", gap_ms
        )

    def _carry_out(self, effects: list[Any]) -> None:
        handlers = self._handlers
        for effect in effects:
            handler = handlers.get(type(effect))
            if handler is None:
                raise TypeError(f"no part of this process carries out {type(effect).__name__}")
            handler(effect)

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
            self._host.post(trimmed)

    def _read_log(self, effect: ReadLog) -> None:
        batches = self._store.read_log(effect.from_offset, effect.to_offset, effect.max_bytes)
        self._host.post(LogRead(from_offset=effect.from_offset, batches=batches))

    def _synced(self, end_offset: int, took_ms: float) -> None:
        if self._watch is not None:
            self._watch.flushes.observe(METADATA, took_ms)
        self._host.post(LogSynced(end_offset=end_offset))

    def _persist(self, effect: raft.PersistQuorumState) -> None:
        def done(failure: BaseException | None) -> None:
            if failure is not None:
                self._disk_failed(failure)
            else:
                self._host.post(QuorumStatePersisted(token=effect.token))

        self._disk.submit(lambda: self._store.persist_quorum_state(effect), done)

    def _note_committed(self, effect: raft.NoteCommitted) -> None:
        self._store.execute(effect)
        if effect.durably:
            position = self._store.prepare_committed()

            def done(failure: BaseException | None) -> None:
                if failure is not None:
                    self._disk_failed(failure)
                else:
                    self._host.guarded(lambda: self._store.committed_persisted(position))

            self._disk.submit(lambda: self._store.persist_committed(position), done)

    def _disk_failed(self, failure: BaseException) -> None:
        self._host.end(stopped_text(failure), failed=True)

    # --- effects on the network

    def _send(self, effect: raft.SendRequest) -> None:
        self._transport.send(effect.to, effect.correlation_id, effect.request, effect.timeout_ms)

    def _respond(self, effect: raft.Respond) -> None:
        self._transport.respond(effect.key, effect.response)

    def _respond_with_records(self, effect: raft.RespondWithRecords) -> None:
        self._transport.respond(effect.key, self._store.fill_records(effect))

    # --- the rest

    def _warn(self, effect: raft.Warn) -> None:
        _log.log(logging.ERROR if effect.is_loss else logging.WARNING, "%s", effect.message)

    def _stop(self, effect: Stop) -> None:
        self._host.end(effect.reason, failed=effect.failed)
