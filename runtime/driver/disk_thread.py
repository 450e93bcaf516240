"""The thread that waits for the disk, so that the loop never does: it writes the quorum state, and syncs the
log if the disk has no background sync.

Owns the thread and its queue. Does not know what it runs: callers submit functions. A failure arrives as an
exception, after which nothing more runs (a failed sync is never retried).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

QUEUE_MAX = 1024
"""The most queued work: one sync in progress and the votes of a few epochs. More is a bug."""

Work = Callable[[], object]
Done = Callable[[BaseException | None], None]


class DiskThread:
    """Runs work in the order of submission, then calls `done` on the loop with the exception or None."""

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
