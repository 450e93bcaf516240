"""Drives one node (a controller's or a broker's) on an asyncio loop: events in, effects out, in order.

Owns the inbox, the timer, the hand-over to the disk thread and the worker, and how the process ends. Knows
nothing of what events mean: a node is a pure object, and effects that are not about the replica go to a hook.

Group commit needs nothing more than this order: all events that are there are handled, then one sync is
started; whatever is appended while it runs is covered by the next one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiofiles

from metaquorum.metadata.errors import InvariantViolation, RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.raft import effects as raft
from metaquorum.raft.events import (
    LogRead,
    LogSynced,
    QuorumStatePersisted,
    RaftRequestArrived,
    ReadLog,
    SnapshotLoaded,
    SnapshotRejected,
    SnapshotWritten,
    Stop,
    TrimLog,
    WriteSnapshot,
)
from metaquorum.raft.store.store import ReplicaStore
from metaquorum.runtime.clock import Clock
from metaquorum.runtime.disk_thread import DiskThread
from metaquorum.runtime.loop_statistics import LoopStatistics
from metaquorum.runtime.metrics.node import METADATA, NodeStatistics
from metaquorum.runtime.transport import RaftTransport
from metaquorum.storage.errors import CommittedLostError, DiskError, StorageError
from metaquorum.storage.log.log import SyncTicket
from metaquorum.storage.types import LogPosition

EVENTS_PER_STEP_MAX = 256
STEP_MAX_MS = 20
"""Events handled, and time spent, before the loop gets a turn for sockets and timers."""

LINGER_FROM = 12
LINGER_ENOUGH = 24
LINGER_S = 0.002
LINGER_MAX_S = 0.008
"""With so many clients waiting, a step waits as long as requests keep coming, which it looks at so often,
until so many events are there or the time is over. A round costs every node the same, however much is in it:
bursts halve the CPU of a write. More would leave followers and clients without work meanwhile."""

GAP_MS = 200
"""A pause of the process, or a step, that is longer makes silence of others prove nothing."""

GAP_SETTLE_MS = 100
"""After a gap the inbox counts as drained only when the sockets have had so long to be read."""

SNAPSHOT_PAUSE = 2
SNAPSHOT_PAUSE_MAX_S = 0.02
"""How much longer than its work the worker pauses between two batches of a snapshot, and how long at most."""

_log = logging.getLogger(__name__)


class Node(Protocol):
    """ControllerNode and BrokerNode."""

    def start(self, now_ms: int, wall_ms: int) -> list[Any]: ...

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> list[Any]: ...

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Any]: ...

    def next_deadline_ms(self) -> int | None: ...


class SnapshotCodec(Protocol):
    """How an image becomes a snapshot's batches and comes back; called on the worker."""

    def encode(self, image: MetadataImage, position: LogPosition, timestamp_ms: int) -> Iterable[bytes]: ...

    def load(self, path: Path, position: LogPosition) -> MetadataImage: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a driver stopped. `reason` is the process's last line."""

    reason: str
    failed: bool


def paced(batches: Iterable[bytes]) -> Iterator[bytes]:
    """The batches of a snapshot, with a pause after each that is twice as long as the work: the worker shares
    the interpreter with the loop, and three controllers write theirs at the same time."""
    begun_s = time.thread_time()
    for batch in batches:
        yield batch
        time.sleep(min(SNAPSHOT_PAUSE_MAX_S, SNAPSHOT_PAUSE * (time.thread_time() - begun_s)))
        begun_s = time.thread_time()


class Driver:
    """See the module. `on_effect` gets what is not the replica's; `after_step` runs behind every step;
    `load` says how many clients wait for an answer; `watch` counts for metrics, None: no one looks."""

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
        self.statistics = LoopStatistics()
        self._store = store
        self._transport = transport
        self._snapshots = snapshots
        self._clock = clock
        self._on_effect = on_effect
        self._after_step = after_step
        self._load = load
        self._inbox: deque[Any] = deque()
        self._inbox_max = inbox_max
        self.snapshots_loaded = 0
        """Fetched ones that took the place of the log."""
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._disk = DiskThread(self._loop)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshots")
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self._scheduled = False
        self._lingering: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._gap_until_ms = 0
        self._sync_running = False
        self._unsynced = False
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
            raft.RespondWithSnapshotChunk: self._respond_with_chunk,
            raft.FinishSnapshot: self._finish_snapshot,
            raft.Warn: self._warn,
            ReadLog: self._read_log,
            WriteSnapshot: self._write_snapshot,
            TrimLog: self._trim_log,
            Stop: self._stop,
        }

    # --- from outside, on the loop's thread

    def submit(self, event: Any) -> bool:
        """Takes an event from outside; False, and nothing happens, when the inbox is full (BUSY)."""
        if len(self._inbox) >= self._inbox_max or self._ended.done():
            self.statistics.refused += 1
            return False
        self.post(event)
        return True

    def post(self, event: Any) -> None:
        """Takes an event that answers what this node asked for; what it asks bounds their number."""
        self._inbox.append(event)
        if self._watch is not None:
            self._watch.queued()
        if not self._scheduled:
            self._schedule()
        elif self._lingering is not None and len(self._inbox) >= LINGER_ENOUGH:
            self._stop_lingering()
            self._loop.call_soon(self._step)

    def take_transport_event(self, event: Any) -> bool:
        """The transport's sink: requests of others are bounded, answers to ours are always taken."""
        if type(event) is RaftRequestArrived:
            return self.submit(event)
        if not self._ended.done():
            self.post(event)
        return True

    def start(self) -> None:
        """Begins; the node's first effects are carried out before this returns."""
        now_ms, begun_ns = self._clock.monotonic_ms(), time.monotonic_ns()
        self._guarded(lambda: self._carry_out(self.node.start(now_ms, self._clock.wall_ms())))
        if not self._ended.done():
            self._after_effects(now_ms, self.node.next_deadline_ms())
        if self._watch is not None:
            self._watch.stepped(begun_ns, now_ms)

    async def wait(self) -> Ending:
        """Returns when the node has stopped or the process cannot go on."""
        return await asyncio.shield(self._ended)

    def end(self, reason: str, *, failed: bool) -> None:
        """Stops at once, without asking the node."""
        if not self._ended.done():
            self._ended.set_result(Ending(reason=reason, failed=failed))

    async def close(self) -> None:
        """Ends the timer, the tasks and both threads. The store is the caller's."""
        self.end("closed", failed=False)
        _log.debug("the loop's work: %s", self.statistics)
        if self._timer is not None:
            self._timer.cancel()
        self._stop_lingering()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.run_in_executor(None, self._disk.close)
        await self._loop.run_in_executor(None, self._worker.shutdown)

    @property
    def waiting(self) -> int:
        """Events in the inbox."""
        return len(self._inbox)

    # --- the step

    def _step(self) -> None:
        self._scheduled = False
        if self._ended.done():
            return
        if self._watch is None:
            self._work()
            return
        begun_ns = time.monotonic_ns()
        self._work()
        self._watch.stepped(begun_ns, self._clock.monotonic_ms())

    def _work(self) -> None:
        now_ms = started_ms = self._clock.monotonic_ms()
        if self._timer is not None and now_ms > self._timer_ms:
            self._note_gap(now_ms - self._timer_ms, now_ms)
            self._timer.cancel()
            self._timer = None
        self._guarded(self._handle_inbox)
        if self._ended.done():
            return
        now_ms = self._clock.monotonic_ms()
        deadline_ms = self.node.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            drained = not self._inbox and now_ms >= self._gap_until_ms
            self._guarded(
                lambda: self._carry_out(
                    self.node.tick(now_ms=now_ms, wall_ms=self._clock.wall_ms(), drained=drained)
                )
            )
            deadline_ms = self.node.next_deadline_ms()
        finished_ms = self._clock.monotonic_ms()
        self._note_gap(finished_ms - started_ms, finished_ms)
        self._after_effects(finished_ms, deadline_ms)

    def _handle_inbox(self) -> None:
        inbox, handle, clock, watch = self._inbox, self.node.handle, self._clock, self._watch
        wall_ms, now_ms = clock.wall_ms(), clock.monotonic_ms()
        until_ms = now_ms + STEP_MAX_MS
        count = 0
        while inbox and count < EVENTS_PER_STEP_MAX and now_ms <= until_ms and not self._ended.done():
            count += 1
            begun_ns = 0 if watch is None else time.monotonic_ns()
            self._carry_out(handle(inbox.popleft(), now_ms=now_ms, wall_ms=wall_ms))
            if watch is not None:
                watch.handled(begun_ns)
            now_ms = clock.monotonic_ms()
        self.statistics.events += count
        self.statistics.steps += 1

    def _note_gap(self, gap_ms: int, now_ms: int) -> None:
        self.statistics.longest_gap_ms = max(self.statistics.longest_gap_ms, gap_ms)
        if gap_ms > GAP_MS:
            self.statistics.gaps += 1
            self._gap_until_ms = now_ms + GAP_SETTLE_MS
            _log.warning(
                "this process was stalled for %d ms: the machine is overloaded, or the process was paused",
                gap_ms,
            )

    def _after_effects(self, now_ms: int, deadline_ms: int | None) -> None:
        if self._ended.done():
            return
        if self._unsynced and not self._sync_running:
            self._start_sync()
        self._after_step(now_ms)
        if self._inbox:
            self._schedule()
        else:
            self._arm(now_ms, deadline_ms)

    def _schedule(self) -> None:
        """One step soon. Under load it waits for a moment, so that one sync and one answer to each follower
        cover many requests; a lone request never waits."""
        if self._scheduled:
            return
        self._scheduled = True
        if self._load() >= LINGER_FROM and len(self._inbox) < LINGER_ENOUGH:
            self._linger(0, self._loop.time() + LINGER_MAX_S)
        else:
            self._loop.call_soon(self._step)

    def _linger(self, seen: int, until_s: float) -> None:
        """The step, unless the inbox still grows and there is time."""
        here = len(self._inbox)
        if seen < here and self._loop.time() < until_s:
            self._lingering = self._loop.call_later(LINGER_S, self._linger, here, until_s)
        else:
            self._lingering = None
            self._step()

    def _stop_lingering(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def _arm(self, now_ms: int, deadline_ms: int | None) -> None:
        """One timer at the node's next deadline; an earlier one that is armed already does as well."""
        if self._gap_until_ms > now_ms:
            # Nothing that is overdue may be judged before: a tick in between would only spin.
            deadline_ms = self._gap_until_ms if deadline_ms is None else max(deadline_ms, self._gap_until_ms)
        if deadline_ms is None or (self._timer is not None and now_ms < self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = max(deadline_ms, now_ms + 1)
        self._timer = self._loop.call_later((self._timer_ms - now_ms) / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if not self._scheduled:
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._timer_ms > GAP_MS:
                self._note_gap(now_ms - self._timer_ms, now_ms)
            self._step()

    def _carry_out(self, effects: list[Any]) -> None:
        handlers = self._handlers
        for effect in effects:
            handler = handlers.get(type(effect))
            if handler is None:
                self._on_effect(effect)
            else:
                handler(effect)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong in a node or in carrying out its effects ends the process in one line."""
        try:
            work()
        except DiskError as error:
            self.end(f"stopped: {error}; repair the disk, then start again", failed=True)
        except CommittedLostError as error:
            self.end(f"stopped: {error}", failed=True)
        except (StorageError, ReplayError, RecordDecodeError) as error:
            if self._watch is not None:
                self._watch.load_errors += 1
            self.end(f"stopped: {error}", failed=True)
        except InvariantViolation as error:
            if self._watch is not None:
                self._watch.apply_errors += 1
            _log.exception("an invariant was violated")
            self.end(f"stopped by a bug, before it spreads: {error}", failed=True)
        except Exception as error:
            _log.exception("unexpected error")
            self.end(f"stopped by a bug: {type(error).__name__}: {error}", failed=True)

    # --- effects on the log

    def _append(self, effect: raft.AppendLog) -> None:
        self._store.execute(effect)
        self._unsynced = True
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

    def _start_sync(self) -> None:
        ticket = self._store.prepare_sync()
        self._unsynced = False
        self._sync_running = True
        self.statistics.syncs += 1
        times_ns: list[int] = []

        def run() -> None:
            begun_ns = time.monotonic_ns()
            ticket.run()
            times_ns.append(time.monotonic_ns() - begun_ns)

        self._disk.submit(run, lambda failure: self._synced(ticket, failure, times_ns))

    def _synced(self, ticket: SyncTicket, failure: BaseException | None, times_ns: list[int]) -> None:
        self._sync_running = False
        if failure is not None:
            self._disk_failed(failure)
            return
        if self._watch is not None and times_ns:
            self._watch.flushes.observe(METADATA, times_ns[0] / 1e6)
        self.post(LogSynced(end_offset=self._store.sync_completed(ticket)))
        if self._unsynced:
            self._start_sync()

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

    def _respond_with_chunk(self, effect: raft.RespondWithSnapshotChunk) -> None:
        self._spawn(self._serve_chunk(effect))

    async def _serve_chunk(self, effect: raft.RespondWithSnapshotChunk) -> None:
        """Reads the chunk off the loop. The errors are those of `ReplicaStore.fill_snapshot_chunk`."""
        try:
            path = self._store.snapshot_path(effect.snapshot)
            async with aiofiles.open(path, "rb") as file:
                size = await file.seek(0, 2)
                await file.seek(effect.position)
                data = await file.read(effect.max_bytes)
        except FileNotFoundError:
            response = self._store.snapshot_missing(effect)
        except OSError as error:
            self.end(f"stopped: cannot read snapshot {path}: {error.strerror}; repair the disk", failed=True)
            return
        else:
            response = self._store.snapshot_chunk(effect, size, data)
        self._transport.respond(effect.key, response)

    # --- snapshots, on the worker

    def _write_snapshot(self, effect: WriteSnapshot[MetadataImage]) -> None:
        self._spawn(self._write_in_background(effect))

    async def _write_in_background(self, effect: WriteSnapshot[MetadataImage]) -> None:
        def write() -> int:
            batches = self._snapshots.encode(effect.image, effect.position, effect.timestamp_ms)
            return self._store.write_snapshot(effect.position, paced(batches))

        begun_ms = self._clock.monotonic_ms()
        try:
            size = await self._loop.run_in_executor(self._worker, write)
        except Exception as error:
            self.end(f"stopped: cannot write snapshot {effect.position}: {error}", failed=True)
            return
        took_ms = self._clock.monotonic_ms() - begun_ms
        _log.info("wrote snapshot %s: %d bytes in %d ms", effect.position, size, took_ms)
        if self._watch is not None:
            self._watch.snapshot_written(size, self._clock.monotonic_ms())
        self.post(SnapshotWritten(position=effect.position, size_bytes=size))

    def _finish_snapshot(self, effect: raft.FinishSnapshot) -> None:
        self._spawn(self._load_in_background(effect))

    async def _load_in_background(self, effect: raft.FinishSnapshot) -> None:
        """Checks the fetched file by loading it; only a good one gets its final name."""

        def load() -> MetadataImage:
            path = self._store.partial_snapshot(effect.snapshot, effect.size_bytes)
            image = self._snapshots.load(Path(path), effect.snapshot)
            self._store.finish_snapshot(effect.snapshot)
            return image

        try:
            image = await self._loop.run_in_executor(self._worker, load)
        except DiskError as error:
            self._disk_failed(error)
        except (StorageError, RecordDecodeError, ReplayError, ValueError) as error:
            self._store.drop_snapshot()
            if self._watch is not None:
                self._watch.snapshot_rejected()
            self.post(SnapshotRejected(position=effect.snapshot, reason=str(error)))
        except Exception as error:
            self.end(f"stopped by a bug: cannot load snapshot {effect.snapshot}: {error!r}", failed=True)
        else:
            self.snapshots_loaded += 1
            if self._watch is not None:
                self._watch.snapshot_loaded(effect.size_bytes)
            self.post(SnapshotLoaded(position=effect.snapshot, image=image))

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("unexpected error", exc_info=error)
            self.end(f"stopped by a bug: {type(error).__name__}: {error}", failed=True)

    # --- the rest

    def _warn(self, effect: raft.Warn) -> None:
        _log.warning("%s", effect.message)

    def _stop(self, effect: Stop) -> None:
        self.end(effect.reason, failed=effect.failed)
