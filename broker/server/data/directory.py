"""The threads of a log directory: `io` does its work in order, `sync` makes it durable, `read` serves reads.

The queues between the loop and these threads, group commit (everything that was appended while one sync ran
is covered by the next), and the moment from which a directory counts as bad: after it, the directory's files
are only closed, and nothing more is reported. A thread `checkpoint` runs from time to time. A thread that
hangs in the kernel is left behind: all of them are daemons.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import msgspec

from metaquorum.broker.replica.disk_work import (
    AbandonDirectory,
    AppendPartition,
    DirectoryFailed,
    DiskWork,
    FindOffset,
    LogAppended,
    LogsSynced,
    ReadPartition,
)
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.parts import DirectorySync
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.broker.server.data.cleaners import CleanerProcesses
from metaquorum.clock import Clock
from metaquorum.lines import one_line
from metaquorum.node.scheduler import StepEnd
from metaquorum.storage.cleaner.cleaning import Cleaning
from metaquorum.storage.errors import StorageError

WORK_WARN = 200_000
"""The number of work items waiting for one directory at which one line warns. It is not an error: a hundred
thousand new replicas bring as many at once, and a disk that hangs shows in a call that does not return."""

ROUND_MAX = 256
"""Work items done before their results are reported."""

TICK_MS = 1_000
MEASURE_TICKS = 10
CHECKPOINT_MS = 60_000
"""How often files of removed replicas are deleted, free space is measured, and recovery points are
written."""

SHORT_SYNC_S = 0.002
SYNCS_REMEMBERED = 16
"""If recent syncs took less than this, the io thread runs them itself, and reports appends with them: that
delays waiting appends less than handing the sync to another thread and back."""

CLOSE_MAX_S = 30.0
"""How long the end of the process waits for a directory whose threads do not end."""

_log = logging.getLogger(__name__)


class _Failure(msgspec.Struct, frozen=True):
    error: Exception


class _Synced(msgspec.Struct, frozen=True):
    """`failed`: already reported; nothing more may be done in the directory."""

    sync: DirectorySync
    failed: bool


class _Close(msgspec.Struct, frozen=True):
    clean: bool
    done: Callable[[bool], None]


class _Cleaned(msgspec.Struct, frozen=True):
    """`error`: what ended the pass."""

    cleaning: Cleaning
    error: Exception | None


class _Look(msgspec.Struct, frozen=True):
    """A tick may be due: the clock was moved. `done`: called when all work before this, and all cleaning that
    is due, has been done."""

    done: tuple[Callable[[], object], ...] = ()


_IoItem = DiskWork | _Synced | _Cleaned | _Look | _Close


class DirectoryThreads:
    """See the module. `report` gets every event on the loop, in order, a `DirectoryFailed` at most once;
    `crash` ends the process."""

    def __init__(
        self,
        store: DirectoryStore,
        report: Callable[[DataEvent], None],
        crash: Callable[[str], None],
        loop: asyncio.AbstractEventLoop,
        cleaners: CleanerProcesses,
        step_end: StepEnd,
        clock: Clock,
    ) -> None:
        self.directory_id = store.directory_id
        self.path = store.path
        self.is_bad = False
        self._behind = False
        self._store = store
        self._report = report
        self._crash = crash
        self._loop = loop
        self._cleaners = cleaners
        self._step_end = step_end
        self._clock = clock
        self._gathered: list[DiskWork] = []
        self._reports: LoopQueue[DataEvent | _Failure] = LoopQueue(loop, self._take)
        self._work: SimpleQueue[_IoItem] = SimpleQueue()
        self._reads: SimpleQueue[ReadPartition | FindOffset | None] = SimpleQueue()
        self._syncs: SimpleQueue[DirectorySync | None] = SimpleQueue()
        # Owned by the io thread.
        self._sync_wanted = False
        self._sync_running = self._checkpoint_running = False
        self._sync_s = 2 * SHORT_SYNC_S
        self._broken = False
        self._closing: _Close | None = None
        self._settling: list[Callable[[], object]] = []
        self._ticks = 0
        self._checkpointed_ms = clock.monotonic_ms()

    # ---- on the loop

    def start(self) -> None:
        for name, run in (("io", self._run_io), ("sync", self._run_sync), ("read", self._run_reads)):
            threading.Thread(target=run, name=f"{name} {self.path}", daemon=True).start()
        self._clock.when_moved(lambda: self._work.put(_Look()))

    def submit(self, work: DiskWork) -> None:
        """Work for this directory. A bad one accepts only `AbandonDirectory`."""
        if type(work) is AbandonDirectory:
            self.is_bad = True
        elif self.is_bad:
            return
        if isinstance(work, ReadPartition | FindOffset):
            self._reads.put(work)
            return
        if self._step_end.gathers:
            if not self._gathered:
                self._step_end.add(self)
            self._gathered.append(work)
            return
        self._work.put(work)
        self._look_how_far_behind()

    def flush(self) -> None:
        """The step has ended: its work wakes the io thread once, when it can have the interpreter."""
        gathered, self._gathered = self._gathered, []
        for work in gathered:
            self._work.put(work)
        self._look_how_far_behind()

    async def settle(self) -> None:
        """Returns when all work so far, and all cleaning that is due, has been done."""
        done = self._loop.create_future()
        self.flush()
        self._work.put(_Look((lambda: self._loop.call_soon_threadsafe(done.set_result, None),)))
        await done

    def _look_how_far_behind(self) -> None:
        waiting = self._work.qsize()
        if waiting > WORK_WARN and not self._behind:
            self._behind = True
            _log.warning("log directory %s is behind: %d operations are waiting for it", self.path, waiting)
        elif self._behind and waiting < WORK_WARN // 2:
            self._behind = False

    def fail(self, reason: str) -> None:
        """The directory is bad from now on; reported once."""
        if self.is_bad:
            return
        self.is_bad = True
        _log.error("log directory %s failed: %s", self.path, reason)
        self._report(DirectoryFailed(directory_id=self.directory_id, reason=reason))

    async def close(self, *, clean: bool) -> bool:
        """Ends the threads and closes the files. Returns whether everything is on disk and the directory is
        good. A thread that hangs is left behind."""
        done: asyncio.Future[bool] = self._loop.create_future()

        def closed(good: bool) -> None:
            if not done.done():
                done.set_result(good)

        def report_closed(good: bool) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no one waits
                self._loop.call_soon_threadsafe(closed, good)

        self._reads.put(None)
        self.flush()
        self._work.put(_Close(clean=clean and not self.is_bad, done=report_closed))
        try:
            async with asyncio.timeout(CLOSE_MAX_S if not self.is_bad else 1.0):
                return await done and not self.is_bad
        except TimeoutError:
            _log.warning("log directory %s does not respond: it is not closed", self.path)
            return False

    def _take(self, item: DataEvent | _Failure) -> None:
        if isinstance(item, _Failure):
            if isinstance(item.error, StorageError):
                self.fail(one_line(item.error))
            elif not self.is_bad:
                self.is_bad = True
                self._crash(f"stopped by a bug: {type(item.error).__name__}: {item.error}")
        elif not self.is_bad:
            self._report(item)

    # ---- the io thread

    def _run_io(self) -> None:
        clock = self._clock
        next_tick_ms = clock.monotonic_ms() + TICK_MS
        while True:
            items = self._gather(None if self._broken else next_tick_ms)
            try:
                self._start_sync(self._do(items))
                if not self._broken and (self._settling or clock.monotonic_ms() >= next_tick_ms):
                    self._tick()
                    next_tick_ms = clock.monotonic_ms() + TICK_MS
            except Exception as error:
                self._broken = True
                self._report_failure(error)
            if self._settling and (self._broken or self._closing or not self._is_cleaning()):
                for done in self._settling:
                    done()
                self._settling.clear()
            if self._closing is not None and not (self._sync_running or self._checkpoint_running):
                self._finish(self._closing)
                return

    def _gather(self, until_ms: int | None) -> list[_IoItem]:
        """The waiting items, at most one round; waits until the next tick for the first one, and for ever if
        there is none: a bad directory has no ticks."""
        work = self._work
        timeout_s = None if until_ms is None else max(0, until_ms - self._clock.monotonic_ms()) / 1000
        try:
            items = [work.get(timeout=timeout_s)]
        except Empty:
            return []
        while len(items) < ROUND_MAX and not work.empty():
            items.append(work.get_nowait())
        return items

    def _do(self, items: list[_IoItem]) -> list[DataEvent]:
        """Returns what to report."""
        works: list[DiskWork] = []
        events: list[DataEvent] = []
        for item in items:
            match item:
                case _Close():
                    self._closing = item
                case _Synced(sync=sync, failed=failed):
                    if sync.is_checkpoint:
                        self._checkpoint_running = False
                    else:
                        self._sync_running = False
                    self._broken = self._broken or failed
                    if not self._broken:
                        synced = self._store.sync_completed(sync)
                        events += [] if sync.is_checkpoint else [synced]
                case _Cleaned(cleaning=cleaning, error=error):
                    events += self._take_up(cleaning, error)
                case AbandonDirectory():
                    self._abandon()
                case _Look(done=done):
                    self._settling += done
                case _ if not self._broken:
                    works.append(item)
                    if type(item) is AppendPartition and item.sync:
                        self._sync_wanted = True
        if works and not self._broken:
            events += self._store.execute_all(works)
        return events

    def _start_sync(self, events: list[DataEvent]) -> None:
        """Reports `events`, together with the sync that covers them if it runs here."""
        sync = None
        if self._sync_wanted and not (self._sync_running or self._broken):
            self._sync_wanted = False
            sync = self._store.prepare_sync()
        if sync is not None and self._sync_s <= SHORT_SYNC_S:
            self._run_timed(sync)
            synced, sync = self._store.sync_completed(sync), None
            events = [*_unreported_by(synced, events), synced]
        if events:
            self._reports.put(_newest(events))
        if sync is not None:
            self._sync_running = True
            self._syncs.put(sync)

    def _run_timed(self, sync: DirectorySync) -> None:
        begun_s = time.monotonic()
        sync.run()
        self._sync_s += (time.monotonic() - begun_s - self._sync_s) / SYNCS_REMEMBERED

    def _take_up(self, cleaning: Cleaning, error: Exception | None) -> list[DataEvent]:
        events = [] if self._broken else self._store.cleaner.take_up(cleaning, error)
        if self._store.cleaner.is_under_way(cleaning) and not self._broken:
            self._cleaners.submit(cleaning, self._cleaned)
        else:
            self._cleaners.forget(cleaning)
        return events

    def _cleaned(self, cleaning: Cleaning, error: Exception | None) -> None:
        """Runs on a thread of the cleaners."""
        self._work.put(_Cleaned(cleaning, error))

    def _is_cleaning(self) -> bool:
        return self._cleaners.enabled and not self._store.cleaner.is_idle

    def _tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._store.tick(now_ms)
        if self._ticks % MEASURE_TICKS == 0:
            self._reports.put([self._store.measure()])
        self._ticks += 1
        cleaning = self._store.cleaner.next() if self._cleaners.enabled else None
        if cleaning is not None:
            self._cleaners.submit(cleaning, self._cleaned)
        due = self._store.checkpoint_due or now_ms - self._checkpointed_ms >= CHECKPOINT_MS
        if due and not (self._sync_running or self._checkpoint_running):
            self._checkpointed_ms = now_ms
            self._start_checkpoint()

    def _start_checkpoint(self) -> None:
        """The logs are synced as usual, the checkpoint's own files beside later syncs: no ack waits for them.
        They may take as long as everything that the file system has to write."""
        sync = self._store.prepare_sync(checkpoint=True)
        if sync is not None:
            self._sync_running = self._checkpoint_running = True
            name = f"checkpoint {self.path}"
            threading.Thread(target=self._run_checkpoint, args=sync.split(), name=name, daemon=True).start()

    def _abandon(self) -> None:
        self._broken = True
        try:
            self._store.abandon()
        except Exception as error:
            _log.warning("the files of %s could not all be closed: %s", self.path, error)

    def _finish(self, close: _Close) -> None:
        good = False
        try:
            self._store.close(clean=close.clean and not self._broken)
            good = close.clean and not self._broken
        except Exception as error:
            _log.warning("log directory %s could not be closed cleanly: %s", self.path, error)
        self._syncs.put(None)
        close.done(good)

    # ---- the sync thread

    def _run_sync(self) -> None:
        while (sync := self._syncs.get()) is not None:
            self._run_and_report(sync, partial(self._run_timed, sync))

    def _run_checkpoint(self, logs: DirectorySync, files: DirectorySync) -> None:
        """Runs on a thread of its own."""
        if self._run_and_report(logs, logs.run):
            self._run_and_report(files, files.run)
        else:
            self._work.put(_Synced(files, failed=True))

    def _run_and_report(self, sync: DirectorySync, run: Callable[[], None]) -> bool:
        """Returns whether it succeeded."""
        failed = False
        try:
            run()
        except Exception as error:
            failed = True
            self._report_failure(error)
        self._work.put(_Synced(sync, failed))
        return not failed

    # ---- the read thread

    def _run_reads(self) -> None:
        while (work := self._reads.get()) is not None:
            try:
                self._reports.put(self._store.execute(work))
            except Exception as error:
                self._report_failure(error)

    def _report_failure(self, error: Exception) -> None:
        """A disk error makes the directory bad; any other error is a bug, which ends the process."""
        if not isinstance(error, StorageError) and not self.is_bad:
            _log.error("unexpected error in %s", self.path, exc_info=error)
        self._reports.put([_Failure(error)])


def _unreported_by(synced: LogsSynced, events: list[DataEvent]) -> list[DataEvent]:
    """What is durable was written: one report of an append is enough."""
    ends = {(key, incarnation): end for key, incarnation, end, _ in synced.ends}
    return [
        each
        for each in events
        if type(each) is not LogAppended or each.end_offset > ends.get((each.key, each.incarnation), -1)
    ]


def _newest(events: list[DataEvent]) -> list[DataEvent]:
    """An append reports how far its log is written: the last report of a log is enough."""
    last = {(each.key, each.incarnation): at for at, each in enumerate(events) if type(each) is LogAppended}
    kept = set(last.values())
    return [each for at, each in enumerate(events) if type(each) is not LogAppended or at in kept]


# Items that threads hand to the loop, in bunches: one wake-up for all items since the last one.

T = TypeVar("T")


class LoopQueue(Generic[T]):
    """`put` from any thread; `take` is called on the loop with each item, in order.

    Its length is bounded by the work that the threads were given: they report, and start nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._awaited = False

    def put(self, items: Iterable[T]) -> None:
        self._items.extend(items)
        if not self._awaited:
            self._awaited = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                self._items.clear()  # the loop is closed: no one is left to receive it

    def _drain(self) -> None:
        # First this, then the items: a `put` from now on requests the next round.
        self._awaited = False
        items, take = self._items, self._take
        while items:
            take(items.popleft())
