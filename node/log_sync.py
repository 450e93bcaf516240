"""The disk of a node, beside its loop: the thread that waits for it, and the syncs of the log.

The next sync covers whatever is appended during one (group commit). After a failure nothing more runs: a
failed sync is never retried.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable

from metaquorum.observability.metrics.statistics import LoopStatistics
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.log import SyncTicket

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
