"""A simulated machine: a disk, a clock, and one process that runs a node's state machine on them.

Owns how effects are carried out: the log in the page cache at once, syncs and small files by one disk
queue in order, messages through the simulated network. It runs the nodes and the store that the real
driver runs, so what is tested is their order of effects, not a copy of it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.raft import effects as raft
from metaquorum.raft.events import (
    LogRead,
    LogSynced,
    QuorumStatePersisted,
    ReadLog,
    ShutdownRequested,
    SnapshotLoaded,
    SnapshotRejected,
    SnapshotWritten,
    Stop,
    TrimLog,
    WriteSnapshot,
)
from metaquorum.raft.store.store import ReplicaStore
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.errors import CorruptLogError, DiskError
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faults import PowerLossError
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.sim.engine import Engine
from tests.sim.network import Network
from tests.sim.profile import FaultProfile

WALL_START_MS = 1_800_000_000_000


def read_image(disk: FaultyDisk, path: str, position: LogPosition) -> MetadataImage:
    """Load the snapshot file at `path`."""
    file = disk.open_read(path)
    try:
        return load_snapshot(iter_batches(file.read_at(0, file.size()), file=path), position=position)
    finally:
        file.close()


class Node(Protocol):
    """What a controller's and a broker's node have in common."""

    def start(self, now_ms: int, wall_ms: int) -> list[Any]: ...
    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> list[Any]: ...
    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Any]: ...
    def next_deadline_ms(self) -> int | None: ...


@dataclass(slots=True)
class _DiskJob:
    run: Callable[[], Any]
    done: Callable[[Any], None]
    is_sync: bool


class Host:
    """One machine. `process` is None while it is down; `boot` numbers its processes."""

    def __init__(self, name: str, engine: Engine, network: Network, profile: FaultProfile) -> None:
        rng = engine.rng
        self.name = name
        self.engine = engine
        self.network = network
        self.profile = profile
        self.disk = FaultyDisk(random.Random(rng.getrandbits(64)))
        self.rng = random.Random(rng.getrandbits(64))
        self.boot = 0
        self.process: Process | None = None
        self.perfect_disk = False
        drift = profile.clock_drift_ppm
        self._rate = 1.0 + rng.randint(-drift, drift) / 1_000_000
        self._origin_ms = rng.randrange(1_000_000)
        offset = profile.clock_offset_ms
        self._wall_ms = WALL_START_MS + rng.randint(-offset, offset)

    def monotonic_ms(self) -> int:
        """This machine's monotonic clock: its own start, its own rate."""
        return self._origin_ms + int(self.engine.now_us * self._rate / 1000)

    def wall_ms(self) -> int:
        return self._wall_ms + int(self.engine.now_us * self._rate / 1000)

    def true_delay_ms(self, local_deadline_ms: int) -> float:
        """How long until this machine's monotonic clock shows `local_deadline_ms`."""
        due_us = (local_deadline_ms - self._origin_ms) * 1000 / self._rate
        return max(0.0, (due_us - self.engine.now_us) / 1000 + 0.001)

    def sync_cost_ms(self) -> float:
        if self.perfect_disk:
            return 0.2
        low, high = self.profile.sync_ms
        cost = low + self.engine.rng.random() * (high - low) + 0.05
        if self.engine.rng.random() < self.profile.slow_disk_chance:
            cost += self.profile.slow_disk_ms
        return cost

    def crash(self, *, power_loss: bool) -> None:
        """End the process: with `power_loss` the disk forgets what was not synced."""
        if self.process is None:
            return
        self.engine.trace(self.name, "power loss" if power_loss else "killed")
        self.process.end()
        self.process = None
        self.disk = self.disk.crash() if power_loss else self.disk.kill()


class Process:
    """One run of a node on a host. Subclasses add the effects of their kind in `execute_own`."""

    node: Node

    def __init__(self, host: Host, store: ReplicaStore) -> None:
        self.host = host
        self.store = store
        self.alive = True
        self.stopped: Stop | None = None
        self.paused = False
        self.touched = True
        host.boot += 1
        self._inbox: deque[Callable[[], Any]] = deque()
        self._immediate: deque[Any] = deque()
        self._timer = 0
        self._disk_queue: deque[_DiskJob] = deque()
        self._disk_busy = False
        self._stepping = False

    # ---- driving ---------------------------------------------------------------------------------

    def begin(self) -> None:
        self._guarded(lambda: self._execute_all(self.node.start(*self._now())))
        self._settle()

    def deliver(self, make_event: Callable[[], Any]) -> None:
        """Put an event into the inbox. It is made when it is taken: arrival is stamped by this process."""
        if not self.alive:
            return
        if self.paused:
            self._inbox.append(make_event)
            return
        self._step(make_event())

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """As after SIGCONT: the timer that is long due fires before what waited is read."""
        self.paused = False
        if not self.alive:
            return
        now_ms, wall_ms = self._now()
        drained = not self._inbox
        self.before_event(None)
        self._guarded(
            lambda: self._execute_all(self.node.tick(now_ms=now_ms, wall_ms=wall_ms, drained=drained))
        )
        self.after_event(None)
        while self._inbox and self.alive:
            self._step(self._inbox.popleft()(), settle=not self._inbox)
        self._settle()

    def end(self) -> None:
        self.alive = False

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        self.deliver(ShutdownRequested)

    def writes_in_flight(self) -> bool:
        """Whether something waits for the disk: the moment at which a crash tells most."""
        return self._disk_busy or bool(self._disk_queue)

    def _now(self) -> tuple[int, int]:
        return self.host.monotonic_ms(), self.host.wall_ms()

    def _step(self, event: Any, *, settle: bool = True) -> None:
        self._immediate.append(event)
        while self._immediate and self.alive:
            following = self._immediate.popleft()
            self.before_event(following)
            self._guarded(partial(self._handle, following))
            self.after_event(following)
        if settle:
            self._settle()

    def _handle(self, event: Any) -> None:
        now_ms, wall_ms = self._now()
        self.touched = True
        self._execute_all(self.node.handle(event, now_ms=now_ms, wall_ms=wall_ms))

    def before_event(self, event: Any) -> None:
        """For what a subclass wants to compare."""

    def after_event(self, event: Any) -> None:
        """For what a subclass wants to compare."""

    def _settle(self) -> None:
        """The inbox is empty: tick, carry out what follows at once, and arm the timer."""
        if not self.alive:
            return
        now_ms, wall_ms = self._now()
        self.touched = True
        self.before_event(None)
        self._guarded(lambda: self._execute_all(self.node.tick(now_ms=now_ms, wall_ms=wall_ms, drained=True)))
        self.after_event(None)
        while self._immediate and self.alive:
            self._step(self._immediate.popleft(), settle=False)
        self._arm()

    def _arm(self) -> None:
        if not self.alive:
            return
        deadline = self.node.next_deadline_ms()
        self._timer += 1
        if deadline is None:
            return
        armed = self._timer

        def fire() -> None:
            if self.alive and not self.paused and armed == self._timer:
                self._settle()

        # A deadline that is due already is met on the next millisecond, never in a busy loop.
        self.host.engine.after(max(self.host.true_delay_ms(deadline), 0.05), fire)

    def _guarded(self, action: Callable[[], None]) -> None:
        """A disk that fails ends the process, as the real driver does."""
        try:
            action()
        except (DiskError, PowerLossError) as error:
            self.host.engine.trace(self.host.name, f"disk failed: {error}")
            self.host.crash(power_loss=isinstance(error, PowerLossError))

    # ---- effects ---------------------------------------------------------------------------------

    def _execute_all(self, effects: list[Any]) -> None:
        for effect in effects:
            if not self.alive:
                return
            self._execute(effect)

    def _execute(self, effect: Any) -> None:
        match effect:
            case raft.AppendLog():
                self.store.execute(effect)
                self._want_sync()
            case raft.TruncateLog() | raft.ResetLog():
                self.host.engine.trace(self.host.name, f"{effect}")
                self.on_log_cut(effect)
                self.store.execute(effect)
            case raft.WriteSnapshotChunk():
                self.store.execute(effect)
            case raft.NoteCommitted(durably=durably):
                self.store.execute(effect)
                if durably:
                    position = self.store.prepare_committed()
                    self._on_disk(
                        lambda: self.store.persist_committed(position),
                        lambda _: self.store.committed_persisted(position),
                    )
            case TrimLog():
                trimmed = self.store.execute(effect, wall_ms=self.host.wall_ms())
                if trimmed is not None:
                    self._immediate.append(trimmed)
            case raft.PersistQuorumState():
                self._on_disk(
                    lambda: self.store.persist_quorum_state(effect),
                    lambda _: self._finish(QuorumStatePersisted(token=effect.token)),
                )
            case ReadLog():
                batches = self.store.read_log(effect.from_offset, effect.to_offset, effect.max_bytes)
                self._immediate.append(LogRead(from_offset=effect.from_offset, batches=batches))
            case raft.FinishSnapshot():
                self._on_disk(lambda: self._load(effect), self._finish)
            case WriteSnapshot():
                self._on_disk(lambda: self._write_snapshot(effect), self._finish)
            case raft.Warn(message=message):
                self.host.engine.trace(self.host.name, f"warns: {message}")
            case Stop(reason=reason, failed=failed):
                self.host.engine.trace(
                    self.host.name, f"stops ({'failed' if failed else 'in order'}): {reason}"
                )
                self.stopped = effect
                self.end()
            case _:
                self.execute_own(effect)

    def on_log_cut(self, effect: raft.TruncateLog | raft.ResetLog) -> None:
        """For what a subclass wants to note."""

    def execute_own(self, effect: Any) -> None:
        raise TypeError(f"{type(self).__name__} has no way to carry out {effect!r}")

    def _load(self, effect: raft.FinishSnapshot) -> Any:
        """Check what was fetched, load it, and only then put it in force."""
        position = effect.snapshot
        path = self.store.partial_snapshot(position, effect.size_bytes)
        try:
            image = read_image(self.host.disk, path, position)
        except (CorruptLogError, ReplayError) as error:
            self.store.drop_snapshot()
            return SnapshotRejected(position=position, reason=str(error))
        self.store.finish_snapshot(position)
        return SnapshotLoaded(position=position, image=image)

    def _write_snapshot(self, effect: WriteSnapshot[Any]) -> SnapshotWritten:
        batches = snapshot_batches(effect.image, position=effect.position, timestamp_ms=effect.timestamp_ms)
        size = self.store.write_snapshot(effect.position, batches)
        return SnapshotWritten(position=effect.position, size_bytes=size)

    def _finish(self, event: Any) -> None:
        self.deliver(lambda: event)

    # ---- the disk thread -------------------------------------------------------------------------

    def _want_sync(self) -> None:
        """Group commit: one sync may wait in the queue; it covers all that was appended before it runs."""
        if any(job.is_sync for job in self._disk_queue):
            return
        self._enqueue(_DiskJob(self._begin_sync, self._end_sync, is_sync=True))

    def _begin_sync(self) -> Any:
        ticket = self.store.prepare_sync()
        return lambda: ticket

    def _end_sync(self, ticket: Any) -> None:
        ticket.run()
        end_offset = self.store.sync_completed(ticket)
        self.deliver(lambda: LogSynced(end_offset=end_offset))

    def _on_disk(self, run: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def both(_: Any) -> None:
            done(run())

        self._enqueue(_DiskJob(lambda: lambda: None, both, is_sync=False))

    def _enqueue(self, job: _DiskJob) -> None:
        self._disk_queue.append(job)
        self._pump_disk()

    def _pump_disk(self) -> None:
        if self._disk_busy or not self._disk_queue or not self.alive:
            return
        job = self._disk_queue.popleft()
        self._disk_busy = True
        begun = job.run()

        def complete() -> None:
            if not self.alive:
                return
            self._disk_busy = False
            self._guarded(lambda: job.done(begun()))
            self._pump_disk()

        self.host.engine.after(self.host.sync_cost_ms(), complete)
