"""Gives a node its inputs and carries out its effects, in order."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from metaquorum.clock import Clock
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
from metaquorum.storage.errors import StorageError, stopped_text
from metaquorum.storage.log.log import SyncTicket

# The disk of a node, beside its loop: the thread that waits for it, and the syncs of the log.
#
# The next sync covers whatever is appended during one (group commit). After a failure nothing more runs: a
# failed sync is never retried.

Synced = Callable[[int, float], None]
"""Called with the offset up to which the log is durable, and the duration of the sync in ms."""


class LogSync:
    """Makes the log durable, one sync after another, while the loop continues: in the background if the disk
    supports that, otherwise on the disk thread. `failed` is called once, with the exception of a sync. All
    calls are on the loop's thread."""

    def __init__(
        self,
        store: ReplicaStore,
        thread: DiskThread,
        statistics: LoopStatistics,
        *,
        synced: Synced,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._statistics = statistics
        self._synced = synced
        self._failed = failed
        self.wanted = False
        """True if the log has records that no sync covers yet."""
        self._running = self._closed = False
        self._ticket: SyncTicket | None = None
        """The sync in progress in the background, started at `_begun_ns`."""
        self._begun_ns = 0
        self._background = store.background_sync()
        if self._background is not None:
            self._loop.add_reader(self._background.fileno(), self._look)

    def appended(self) -> None:
        """Notes that the log has new records."""
        self.wanted = True

    def start(self) -> None:
        """Starts a sync if there are unsynced records and none is in progress."""
        if self._running or self._closed or not self.wanted:
            return
        ticket = self._store.prepare_sync()
        self.wanted = False
        self._running = True
        self._statistics.syncs += 1
        background = self._background
        try:
            if background is not None and ticket.begin(background):
                self._ticket, self._begun_ns = ticket, time.monotonic_ns()
                return
        except StorageError as error:  # also if a write has failed meanwhile and ended this node
            self._fail(error)
            return
        self._start_on_thread(ticket)

    async def close(self) -> None:
        """Starts no more syncs, and waits for one in the background. The caller closes the thread."""
        self._closed = True
        background, self._background = self._background, None
        if background is None:
            return
        self._loop.remove_reader(background.fileno())
        if self._ticket is not None:
            await self._loop.run_in_executor(None, self._end, self._ticket)
        background.close()

    # --- in the background

    def _look(self) -> None:
        ticket, background = self._ticket, self._background
        if background is None or not background.ended() or ticket is None:
            return
        self._ticket = None
        took_ns = time.monotonic_ns() - self._begun_ns
        self._done(ticket, self._end(ticket), took_ns)

    @staticmethod
    def _end(ticket: SyncTicket) -> BaseException | None:
        try:
            ticket.end()
        except BaseException as error:
            return error
        return None

    # --- on the thread

    def _start_on_thread(self, ticket: SyncTicket) -> None:
        took_ns = 0

        def run() -> None:
            nonlocal took_ns
            begun_ns = time.monotonic_ns()
            ticket.run()
            took_ns = time.monotonic_ns() - begun_ns

        self._thread.submit(run, lambda failure: self._done(ticket, failure, took_ns))

    def _done(self, ticket: SyncTicket, failure: BaseException | None, took_ns: int) -> None:
        if failure is not None:
            self._fail(failure)
            return
        self._running = False
        self._synced(self._store.sync_completed(ticket), took_ns / 1e6)
        self.start()

    def _fail(self, failure: BaseException) -> None:
        """No more syncs: `_running` stays True, and the thread runs nothing."""
        self._thread.fail(failure)
        self._failed(failure)


QUEUE_MAX = 1024
"""The most queued work: one sync in progress and the votes of a few epochs. More is a bug."""

Work = Callable[[], object]
Done = Callable[[BaseException | None], None]


class DiskThread:
    """The thread that waits for the disk, so that the loop never does: it writes the quorum state, and syncs
    the log if the disk has no background sync. Runs work in the order of submission, then calls `done` on the
    loop with the exception or None."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._failure: BaseException | None = None
        self._queue: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    def submit(self, work: Work, done: Done) -> None:
        """Queues `work`. Raises queue.Full if QUEUE_MAX is reached."""
        if self._queue.qsize() >= QUEUE_MAX:
            raise queue.Full
        self._queue.put((work, done))

    def fail(self, failure: BaseException) -> None:
        """Reports a failure of the disk elsewhere: queued work does not run and ends with this exception."""
        self._failure = self._failure or failure

    def close(self) -> None:
        """Finishes the queued work and ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            work, done = item
            if self._failure is None:
                try:
                    work()
                except BaseException as error:
                    self._failure = error
            try:
                self._loop.call_soon_threadsafe(done, self._failure)
            except RuntimeError:
                return  # the loop is closed, and with it the node


_log = logging.getLogger(__name__)


class Node(Protocol):
    """Implemented by ControllerNode, BrokerNode and CombinedNode."""

    def start(self, *, now_ms: int, wall_ms: int) -> list[Any]: ...

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> list[Any]: ...

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
