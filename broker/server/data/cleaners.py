"""The threads that compact logs: a broker has `log.cleaner.threads` of them for all its directories.

Owns the queue of passes, the bound on bytes per second, and the pauses in which other threads get the
interpreter. What a pass does is `storage.cleaner`'s; the directory's io thread begins it and swaps in what it
made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from metaquorum.storage.cleaner.cleaning import Cleaning

PAUSE_S = 0.0002
"""After each piece at least. A thread that never waits is asked for the interpreter only every 5 ms."""

GIVE_WAY = 4
PAUSE_MAX_S = 0.02
"""A pause is this many times what its piece waited, for the interpreter, a processor or the disk: who made it
wait has something to do, and was held up as much. Even so a thread cleans 4 MB/s."""

Done = Callable[[Cleaning, Exception | None], None]
"""Called on a cleaner's thread: something is staged, or the pass is at its end, or failed."""

_log = logging.getLogger(__name__)


class CleanerThreads:
    """See the module. `bytes_per_second` of reads and writes, for all threads together."""

    def __init__(self, count: int, bytes_per_second: float) -> None:
        self._count = count
        self._bytes_per_second = bytes_per_second / max(count, 1)
        self._work: SimpleQueue[tuple[Cleaning, Done] | None] = SimpleQueue()
        self._stopping = False

    @property
    def enabled(self) -> bool:
        """Whether anything is ever cleaned."""
        return self._count > 0

    def start(self) -> None:
        for number in range(self._count):
            threading.Thread(target=self._run, name=f"log cleaner {number}", daemon=True).start()

    def stop(self) -> None:
        """After the piece that is under way. What is not swapped in by then goes at the next start."""
        self._stopping = True
        for _ in range(self._count):
            self._work.put(None)

    def submit(self, cleaning: Cleaning, done: Done) -> None:
        """Work on the pass until something is staged, or to its end."""
        self._work.put((cleaning, done))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            cleaning, done = work
            error: Exception | None = None
            try:
                self._clean(cleaning)
            except Exception as raised:
                error = raised
            if not self._stopping:
                done(cleaning, error)

    def _clean(self, cleaning: Cleaning) -> None:
        begun_s, used = time.monotonic(), 0
        piece_s, worked_s = begun_s, time.thread_time()
        for size in cleaning.pieces():
            if self._stopping:
                return
            used += size
            now_s = time.monotonic()
            waited_s = now_s - piece_s - (time.thread_time() - worked_s)
            time.sleep(pause_s(waited_s, used / self._bytes_per_second - (now_s - begun_s)))
            piece_s, worked_s = time.monotonic(), time.thread_time()


def pause_s(waited_s: float, ahead_s: float) -> float:
    """After a piece that waited for `waited_s` of its time, and is `ahead_s` ahead of the bound on bytes."""
    return max(PAUSE_S, min(GIVE_WAY * waited_s, PAUSE_MAX_S), min(ahead_s, 1.0))
