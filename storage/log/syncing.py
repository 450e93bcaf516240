"""One sync of a log, from the moment that fixes what it covers until that is durable.

Owns the two ways to run it: `run` on a thread that blocks, or `begin` and `end` around a sync that the disk
runs by itself; and the gate that keeps truncations and rolls out meanwhile. Does not know threads or event
loops.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, TypeVar

import msgspec

from metaquorum.storage.disk.interface import BackgroundSync, DiskFile
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.recovery import RecoveryPoint
from metaquorum.storage.log.segment import Segment

T = TypeVar("T")


class SyncGate:
    """Inside `with`, no sync of the log is in progress and none begins. Entering waits for a background
    sync and raises its DiskError: continuing would treat as durable what that sync reported as lost, since
    the kernel reports an error once."""

    def __init__(self, mutex: AbstractContextManager[object]) -> None:
        self._mutex = mutex
        self._background: BackgroundSync | None = None

    def begin(self, background: BackgroundSync, file: DiskFile) -> bool:
        """Begins a sync of the log's last file, like `BackgroundSync.begin`."""
        if not background.begin(file):
            return False
        self._background = background
        return True

    def end(self) -> None:
        """Waits for the sync in the background, if there is one. Raises its DiskError."""
        background, self._background = self._background, None
        if background is not None:
            background.wait()

    def __enter__(self) -> None:
        if self._background is not None:
            self._background.wait()
        self._mutex.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mutex.__exit__(kind, error, trace)


class SyncedLog(Protocol):
    """What a ticket asks of its log, and no one else may."""

    _io: SyncGate

    def _check_usable(self) -> None: ...
    def _or_failed(self, work: Callable[[], T]) -> T: ...
    def _run_sync(self, ticket: SyncTicket) -> None: ...


class SyncTicket(msgspec.Struct, frozen=True, kw_only=True):
    """What one sync must make durable, taken on the loop thread at one moment. Either `run` it on the disk
    thread or, if `begin` returns True, `end` it. Call `sync_completed` after either."""

    log: SyncedLog
    generation: int
    end_offset: int
    segment: Segment
    epochs: EpochTable
    point: RecoveryPoint | None

    def run(self) -> None:
        """The sync itself, on the disk thread. Raises DiskError; the log then accepts no more writes."""
        self.log._run_sync(self)

    def begin(self, background: BackgroundSync) -> bool:
        """Begins the sync and returns at once, on the loop thread. If it returns False, nothing happened:
        use `run`, because there is more to write than the sync, or the disk cannot take it now. Raises
        DiskError."""
        log = self.log
        if self.point is not None:
            return False
        log._check_usable()
        return log._or_failed(lambda: log._io.begin(background, self.segment.file))

    def end(self) -> None:
        """Waits until the sync that `begin` began has ended. Raises DiskError; the log then accepts no
        more writes."""
        self.log._or_failed(self.log._io.end)
