"""The one thread that waits for the disk, so that the loop never does: the quorum state, and syncs of the log
where the disk makes none by itself.

Owns the thread and its queue. What it runs is given to it; a failure comes back as an exception, after which
nothing more is run (a failed sync is never retried).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

QUEUE_MAX = 1024
"""Work that waits for the disk: a sync in flight and the votes of a few epochs. More is a bug."""

Work = Callable[[], object]
Done = Callable[[BaseException | None], None]


class DiskThread:
    """Runs work in the order in which it was given; `done` is called on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._failure: BaseException | None = None
        self._queue: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    def submit(self, work: Work, done: Done) -> None:
        """Queues `work`. Raises queue.Full when the disk is hopelessly behind."""
        if self._queue.qsize() >= QUEUE_MAX:
            raise queue.Full
        self._queue.put((work, done))

    def fail(self, failure: BaseException) -> None:
        """What the disk has refused elsewhere: work that has not begun is not run, and ends with this."""
        self._failure = self._failure or failure

    def close(self) -> None:
        """Lets the work in the queue finish, and ends the thread."""
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
                return  # the loop is closed: no one is left to hear it
