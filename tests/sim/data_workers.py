"""What the threads of one log directory do, in simulated time: a queue of work, concurrent syncs, reads.

The real `DirectoryStore` does the work on a simulated disk. Work is carried out in order and takes time, and
so does its report. A sync covers what was appended before it began, while appends continue; reads may
overtake. No operation of a hung directory returns, and it is reported as failed after a bound.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from metaquorum.broker.replica.disk_work import (
    AbandonDirectory,
    AppendPartition,
    DirectoryFailed,
    DiskWork,
    FindOffset,
    ReadPartition,
)
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.store import DirectoryStore, DirectorySync
from metaquorum.storage.errors import DiskError
from tests.sim.data_disks import DataDirectory
from tests.sim.data_load import DataLoad
from tests.sim.engine import Engine

if TYPE_CHECKING:
    from tests.sim.host import Process

HANG_BOUND_MS = 900
PROBE_MS = 600
ROUNDS = (1, 1, 3, 20)
"""How many waiting items are done before the first of them is reported."""


class DirectoryWorker:
    """`on_reported` gets every event on its way to the process, before the process does."""

    def __init__(
        self,
        process: Process,
        engine: Engine,
        load: DataLoad,
        directory: DataDirectory,
        store: DirectoryStore,
        on_reported: Callable[[DataEvent], None],
    ) -> None:
        self._process = process
        self._engine = engine
        self._load = load
        self.directory = directory
        self.directory_id = directory.directory_id
        self.store = store
        self._on_reported = on_reported
        self._queue: deque[DiskWork] = deque()
        self._begun: list[DiskWork] = []
        self._stuck: list[Callable[[], None]] = []
        self._busy = False
        self._syncing = False
        self._sync_wanted = False
        self._checkpoint = False
        self._report_at_ms = 0.0
        self.failed: str | None = None
        self.abandoned = False
        self._engine.after(self._probe_ms(), self._look_after)
        self._told = False

    @property
    def works(self) -> bool:
        return self.failed is None and not self.abandoned and self._process.alive

    def is_busy(self) -> bool:
        return self._busy or self._syncing

    def submit(self, work: DiskWork) -> None:
        """Gives the directory work, in the order in which the core requested it."""
        if isinstance(work, AbandonDirectory):
            self.abandoned = True
            self._queue.clear()
            with contextlib.suppress(DiskError):
                self.store.abandon()
        elif not self.works:
            return
        elif isinstance(work, ReadPartition | FindOffset):
            self._later(self._io_ms(), lambda: self._carry_out([work], in_order=False))
        else:
            self._queue.append(work)
            self._pump()

    def hang(self) -> None:
        """From now on no operation returns; after a while the watchdog reports that, unless the directory
        continues."""
        self.directory.hung = True
        self._engine.after(HANG_BOUND_MS, self._watch)

    def go_on(self) -> None:
        """The directory was slow, not dead."""
        self.directory.hung = False
        stuck, self._stuck = self._stuck, []
        for action in stuck:
            action()

    def fail(self, reason: str) -> None:
        """An error of the disk, or a finding of the probe or the watchdog: reported once, and nothing after
        it."""
        if not self.works:
            return
        self.failed = reason
        self._queue.clear()
        self._report(DirectoryFailed(directory_id=self.directory_id, reason=reason), in_order=False)

    def drain(self) -> None:
        """The process shuts down cleanly: what is queued is carried out first."""
        if self.failed is not None or self.abandoned or self.directory.hung:
            return
        queued, self._queue = [*self._begun, *self._queue], deque()
        try:
            self.store.execute_all(queued)
        except DiskError as error:
            self.failed = str(error)

    # ---- work ------------------------------------------------------------------------------------

    def _probe_ms(self) -> float:
        return PROBE_MS * (0.5 + self._engine.rng.random())

    def _look_after(self) -> None:
        """Periodic work of the shell: the probe that finds a dead directory, a checkpoint, the files of
        removed replicas."""
        if not self.works:
            return
        if not self.directory.hung:
            try:
                self.directory.disk.sync_directory(self.directory.path)
                self.store.tick(self._process.host.monotonic_ms())
            except DiskError as error:
                self.fail(f"found by the probe: {error}")
                return
            self._sync_wanted = self._checkpoint = True
            self._sync()
        self._engine.after(self._probe_ms(), self._look_after)

    def _watch(self) -> None:
        if self.directory.hung:
            self.fail("the directory hangs: nothing ended in time")

    def _io_ms(self) -> float:
        return self._cost(self._load.io_ms)

    def _cost(self, bounds: tuple[float, float]) -> float:
        rng, (low, high) = self._engine.rng, bounds
        cost = low + rng.random() * (high - low)
        if rng.random() < self._load.slow_io_chance:
            cost += self._load.slow_io_ms
        return cost

    def _later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Runs `action` on a thread of this directory; if it hangs, once it continues."""

        def run() -> None:
            if not self.works:
                return
            if self.directory.hung:
                self._stuck.append(run)
                return
            action()

        self._engine.after(delay_ms, run)

    def _pump(self) -> None:
        if self._busy or not self._queue or not self.works:
            return
        self._busy = True
        count = min(len(self._queue), self._engine.rng.choice(ROUNDS))
        works = self._begun = [self._queue.popleft() for _ in range(count)]

        def carry_out() -> None:
            self._busy, self._begun = False, []
            self._carry_out(works, in_order=True)
            self._pump()

        self._later(self._io_ms(), carry_out)

    def _carry_out(self, works: Sequence[DiskWork], *, in_order: bool) -> None:
        try:
            events = self.store.execute(works[0]) if len(works) == 1 else self.store.execute_all(works)
        except DiskError as error:
            self.fail(str(error))
            return
        for event in events:
            self._report(event, in_order=in_order)
        if any(isinstance(work, AppendPartition) and work.sync for work in works):
            self._sync_wanted = True
            self._sync()

    def _report(self, event: DataEvent, *, in_order: bool) -> None:
        """Delivers to the core's inbox, not before what was reported earlier. A failure does not overtake
        unread events either."""
        delay_ms = self._engine.rng.random() * 0.2
        at_ms = self._engine.now_ms + delay_ms
        if in_order or isinstance(event, DirectoryFailed):
            at_ms = self._report_at_ms = max(at_ms, self._report_at_ms)

        def deliver() -> None:
            if self._process.alive and not self._told:
                self._told = isinstance(event, DirectoryFailed)
                self._on_reported(event)
                self._process.deliver(lambda: event)

        self._engine.after(at_ms - self._engine.now_ms, deliver)

    # ---- syncs -----------------------------------------------------------------------------------

    def _sync(self) -> None:
        """One sync at a time; what is requested meanwhile is in the next one. It takes effect at the
        beginning or the end of the time that it takes: what is written in between may be lost in a power
        loss."""
        if self._syncing or not self._sync_wanted or not self.works:
            return
        checkpoint, self._checkpoint = self._checkpoint and not self._busy, False
        self._sync_wanted = False
        sync = self.store.prepare_sync(checkpoint=checkpoint)
        if sync is None:
            return
        self._syncing = True
        at_once = self._engine.rng.random() < 0.5
        if at_once and not self._run(sync):
            return

        def end() -> None:
            self._syncing = False
            if not at_once and not self._run(sync):
                return
            try:
                synced = self.store.sync_completed(sync)
            except DiskError as error:
                # A checkpoint removes files that nobody needs any more.
                self.fail(str(error))
                return
            self._report(synced, in_order=True)
            self._sync()

        self._later(self._cost(self._load.sync_ms), end)

    def _run(self, sync: DirectorySync) -> bool:
        try:
            sync.run()
        except DiskError as error:
            self.fail(str(error))
            return False
        return True
