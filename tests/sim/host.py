"""A simulated machine: a disk, a clock, and one process that runs a node's state machine on them.

How effects are carried out: the log in the page cache at once, syncs and small files in order by one
disk queue, messages through the simulated network. It runs the same nodes and store as the real driver, so
their own order of effects is tested, not a copy of it.
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
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.node.replica import SnapshotFiles
from metaquorum.node.scheduler import Scheduler, SchedulerConfig
from metaquorum.raft import effects as raft
from metaquorum.raft import events
from metaquorum.raft.messages import RaftResponse
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.errors import CorruptLogError, DiskError
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import PowerLossError
from tests.sim.engine import Engine
from tests.sim.marks import Marks
from tests.sim.network import Network
from tests.sim.profile import FaultProfile

WALL_START_MS = 1_800_000_000_000
WAKE_MS = 0.05
"""The minimum delay of a wake-up, so that a deadline that is already due does not cause a busy loop."""

SCHEDULER_CONFIG = SchedulerConfig(step_max_events=3, linger_from=2, linger_enough=4)
"""Bounds so small that a few events reach them."""


def read_image(disk: FaultyDisk, path: str, position: LogPosition) -> MetadataImage:
    """Loads the snapshot file at `path`."""
    file = disk.open_read(path)
    try:
        return load_snapshot(iter_batches(file.read_at(0, file.size()), file=path), position=position)
    finally:
        file.close()


class Node(Protocol):
    """What a controller's node and a broker's node have in common."""

    def start(self, *, now_ms: int, wall_ms: int) -> list[Any]: ...
    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> list[Any]: ...
    def settle(self, *, now_ms: int, wall_ms: int) -> list[Any]: ...
    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> list[Any]: ...
    def note_gap(self, until_ms: int) -> None: ...
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
        """This machine's monotonic clock: it has its own start and its own rate."""
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
        """Ends the process; with `power_loss` the disk loses what was not synced."""
        if self.process is None:
            return
        self.engine.trace(self.name, "power loss" if power_loss else "killed")
        self.process.end()
        self.process = None
        self.disk = self.disk.crash() if power_loss else self.disk.kill()


class Process:
    """One run of a node on a host. Subclasses add the effects of their kind in `execute_own`."""

    node: Node

    def __init__(self, host: Host, store: ReplicaStore, marks: Marks) -> None:
        self.host = host
        self.store = store
        self._marks = marks
        self.alive = True
        self.stopped: events.Stop | None = None
        self.warned_of_loss = ""
        self.paused = False
        self.touched = True
        host.boot += 1
        self.scheduler = Scheduler(self, host, SCHEDULER_CONFIG, self.waiting_clients)
        self._sockets: deque[Callable[[], Any]] = deque()
        self._wake = 0
        self._wake_ms: int | None = None
        self._unsynced = False
        self._disk_queue: deque[_DiskJob] = deque()
        self._disk_busy = False

    @property
    def broker(self) -> Any:
        """The broker in this process; None if there is none."""
        return None

    @property
    def driven(self) -> Node:
        """The state machine that takes the inputs: the node, or one that contains it."""
        return self.node

    # ---- driving ---------------------------------------------------------------------------------

    def begin(self) -> None:
        now_ms, wall_ms = self.host.monotonic_ms(), self.host.wall_ms()
        self._guarded(lambda: self._execute_all(self.driven.start(now_ms=now_ms, wall_ms=wall_ms)))
        if self.alive:
            self.scheduler.began(self.driven.next_deadline_ms())
            self._finish_step()

    def deliver(self, make_event: Callable[[], Any]) -> None:
        """Puts an event into the inbox. It is created when it is taken out: this process stamps the
        arrival."""
        if not self.alive:
            return
        if self.paused:
            self._sockets.append(make_event)
            return
        self.scheduler.post(make_event())
        self._plan()

    def waiting_clients(self) -> int:
        """The number of clients that wait for a response."""
        return 0

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """As after SIGCONT: an overdue timer fires before waiting messages are read."""
        self.paused = False
        self._wake_ms = None
        self._step()
        while self._sockets and self.alive:
            self.deliver(self._sockets.popleft())

    def end(self) -> None:
        self.alive = False
        self.scheduler.stopped = True

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        self.deliver(events.ShutdownRequested)

    def writes_in_flight(self) -> bool:
        """Whether something waits for the disk: the most revealing moment for a crash."""
        return self._disk_busy or bool(self._disk_queue)

    def _step(self) -> None:
        if self.alive:
            self._guarded(self._take_step)
            self._finish_step()

    def _take_step(self) -> None:
        if not self.scheduler.step():
            self._marks.add("step waited for more events")
        elif len(self.scheduler):
            self._marks.add("step left events for the next")

    def _finish_step(self) -> None:
        """Group commit, as in the real driver: one sync for everything that a step has appended."""
        if self._unsynced and self.alive:
            self._unsynced = False
            self._want_sync()
        self._plan()

    def _plan(self) -> None:
        """One wake-up at the scheduler's time, or soon if that has passed; an earlier one is good enough."""
        due_ms = self.scheduler.due_ms
        if due_ms is None or not self.alive or (self._wake_ms is not None and self._wake_ms <= due_ms):
            return
        self._wake += 1
        self._wake_ms = due_ms
        planned = self._wake

        def wake() -> None:
            if planned == self._wake and not self.paused:
                self._wake_ms = None
                self._step()

        self.host.engine.after(max(self.host.true_delay_ms(due_ms), WAKE_MS), wake)

    def _guarded(self, action: Callable[[], object]) -> None:
        """A disk that fails ends the process, as in the real driver."""
        try:
            action()
        except (DiskError, PowerLossError) as error:
            self.host.engine.trace(self.host.name, f"disk failed: {error}")
            self.host.crash(power_loss=isinstance(error, PowerLossError))

    # ---- what the scheduler runs -----------------------------------------------------------------

    def handle(self, event: Any, *, now_ms: int, wall_ms: int) -> None:
        self.touched = True
        self.before_event(event)
        self._execute_all(self.driven.handle(event, now_ms=now_ms, wall_ms=wall_ms))
        self.after_event(event)

    def settle(self, *, now_ms: int, wall_ms: int) -> None:
        self.before_event(None)
        self._execute_all(self.driven.settle(now_ms=now_ms, wall_ms=wall_ms))
        self.after_event(None)

    def tick(self, *, now_ms: int, wall_ms: int, drained: bool) -> None:
        self.touched = True
        self.before_event(None)
        self._execute_all(self.driven.tick(now_ms=now_ms, wall_ms=wall_ms, drained=drained))
        self.after_event(None)

    def stalled(self, gap_ms: int, until_ms: int) -> None:
        self.host.engine.trace(self.host.name, f"stood still for {gap_ms} ms")
        self._marks.add("process stood still")
        self.driven.note_gap(until_ms)

    def next_deadline_ms(self) -> int | None:
        return self.driven.next_deadline_ms()

    def before_event(self, event: Any) -> None:
        """For comparisons in a subclass."""

    def after_event(self, event: Any) -> None:
        """For comparisons in a subclass."""

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
                self._unsynced = True
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
            case events.TrimLog():
                trimmed = self.store.execute(effect, wall_ms=self.host.wall_ms())
                if trimmed is not None:
                    self.scheduler.post(trimmed)
            case raft.PersistQuorumState():
                self._on_disk(
                    lambda: self.store.persist_quorum_state(effect),
                    lambda _: self._finish(events.QuorumStatePersisted(token=effect.token)),
                )
            case events.ReadLog():
                batches = self.store.read_log(effect.from_offset, effect.to_offset, effect.max_bytes)
                self.scheduler.post(events.LogRead(from_offset=effect.from_offset, batches=batches))
            case raft.FinishSnapshot():
                self._on_disk(lambda: self._load(effect), self._finish)
            case raft.RespondWithSnapshotChunk():
                self._on_disk(
                    lambda: self.store.fill_snapshot_chunk(effect), partial(self.respond, effect.key)
                )
            case events.WriteSnapshot():
                self._on_disk(lambda: self._write_snapshot(effect), self._finish)
            case raft.Warn(message=message, is_loss=is_loss):
                if is_loss:
                    self.warned_of_loss = message
                if is_loss and "does not lead while" in message:
                    self._marks.add("did not lead while a voter knew better")
                if is_loss and "is left out and all others are served" in message:
                    self._marks.add("record that cannot be read left out")
                self.host.engine.trace(self.host.name, f"warns: {message}")
            case events.Stop(reason=reason, failed=failed):
                self.host.engine.trace(
                    self.host.name, f"stops ({'failed' if failed else 'in order'}): {reason}"
                )
                self.stopped = effect
                self.end()
            case _:
                self.execute_own(effect)

    def on_log_cut(self, effect: raft.TruncateLog | raft.ResetLog) -> None:
        """For what a subclass records."""

    def respond(self, key: int, response: RaftResponse) -> None:
        """Responds to a Raft request; a process that receives none does not need it."""

    def execute_own(self, effect: Any) -> None:
        raise TypeError(f"{type(self).__name__} has no way to carry out {effect!r}")

    def _load(self, effect: raft.FinishSnapshot) -> Any:
        """Checks and loads what was fetched, and only then puts it in force."""
        position = effect.snapshot
        path = self.store.partial_snapshot(position, effect.size_bytes)
        try:
            image, voters = read_image(self.host.disk, path, position), self.store.voters_in(path)
        except (CorruptLogError, ReplayError) as error:
            self.store.drop_snapshot()
            return events.SnapshotRejected(position=position, reason=str(error))
        self.store.finish_snapshot(position)
        if voters.voters is not None:
            self._marks.add("snapshot fetched with its voters")
        return events.SnapshotLoaded(position=position, image=image, voters=voters)

    def _write_snapshot(self, effect: events.WriteSnapshot[Any]) -> events.SnapshotWritten:
        batches = SnapshotFiles().encode(effect.image, effect.position, effect.timestamp_ms, effect.voters)
        size = self.store.write_snapshot(effect.position, batches)
        return events.SnapshotWritten(position=effect.position, size_bytes=size)

    def _finish(self, event: Any) -> None:
        self.deliver(lambda: event)

    # ---- the disk thread -------------------------------------------------------------------------

    def _want_sync(self) -> None:
        """Group commit: one sync may wait in the queue; it covers everything that was appended before it
        runs."""
        if any(job.is_sync for job in self._disk_queue):
            return
        self._enqueue(_DiskJob(self._begin_sync, self._end_sync, is_sync=True))

    def _begin_sync(self) -> Any:
        ticket, background = self.store.prepare_sync(), self.store.background_sync()
        in_background = background is not None and ticket.begin(background)
        return lambda: (ticket, ticket.end if in_background else ticket.run)

    def _end_sync(self, begun: Any) -> None:
        begun[1]()
        self._finish(events.LogSynced(end_offset=self.store.sync_completed(begun[0])))

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
