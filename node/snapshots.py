"""Snapshots off the loop: writes them, serves them in chunks, and loads one that a leader has sent.

A thread encodes and loads images, at its own pace. Results arrive as events on the loop; failures end the
process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from metaquorum.clock import Clock
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.observability.metrics.statistics import NodeStatistics
from metaquorum.raft.effects import FinishSnapshot, RespondWithSnapshotChunk
from metaquorum.raft.events import SnapshotLoaded, SnapshotRejected, SnapshotWritten, WriteSnapshot
from metaquorum.raft.messages import FetchSnapshotResponse
from metaquorum.raft.store import ReplicaStore
from metaquorum.raft.voters import VotersAt
from metaquorum.storage.errors import DiskError, StorageError, stopped_text
from metaquorum.storage.types import LogPosition

SNAPSHOT_PAUSE = 2
SNAPSHOT_PAUSE_MAX_S = 0.02
"""The worker pauses after each batch of a snapshot for SNAPSHOT_PAUSE times as long as it worked, and at most
for SNAPSHOT_PAUSE_MAX_S seconds."""

_log = logging.getLogger(__name__)


class SnapshotCodec(Protocol):
    """Converts an image and the voters to a snapshot's batches, and a snapshot file to an image; called on
    the worker's thread."""

    def encode(
        self, image: MetadataImage, position: LogPosition, timestamp_ms: int, voters: VotersAt
    ) -> Iterable[bytes]: ...

    def load(self, path: Path, position: LogPosition) -> MetadataImage: ...


def paced(batches: Iterable[bytes]) -> Iterator[bytes]:
    """The batches of a snapshot, with a pause after each that is twice as long as the work: the worker shares
    the interpreter with the loop, and three controllers write their snapshots at the same time."""
    begun_s = time.thread_time()
    for batch in batches:
        yield batch
        time.sleep(min(SNAPSHOT_PAUSE_MAX_S, SNAPSHOT_PAUSE * (time.thread_time() - begun_s)))
        begun_s = time.thread_time()


class SnapshotWorker:
    """`post` takes the events, `fail` the last line of a process that cannot continue, `respond` the
    responses."""

    def __init__(
        self,
        store: ReplicaStore,
        codec: SnapshotCodec,
        clock: Clock,
        *,
        post: Callable[[Any], None],
        fail: Callable[[str], None],
        respond: Callable[[int, FetchSnapshotResponse], None],
        watch: NodeStatistics | None,
    ) -> None:
        self.loaded = 0
        """Number of fetched snapshots that replaced the log."""
        self._store = store
        self._codec = codec
        self._clock = clock
        self._post = post
        self._fail = fail
        self._respond = respond
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshots")
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends the tasks and the thread."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.run_in_executor(None, self._thread.shutdown)

    def serve(self, effect: RespondWithSnapshotChunk) -> None:
        """Responds with a chunk of a snapshot, or with an error."""
        self._spawn(self._serve(effect))

    def write(self, effect: WriteSnapshot[MetadataImage]) -> None:
        """Writes the image in the background; `SnapshotWritten` follows."""
        self._spawn(self._write(effect))

    def finish(self, effect: FinishSnapshot) -> None:
        """Checks the fetched file by loading it; `SnapshotLoaded` or `SnapshotRejected` follows."""
        self._spawn(self._finish(effect))

    async def _serve(self, effect: RespondWithSnapshotChunk) -> None:
        # Not on the worker's thread, which may take seconds to write a snapshot.
        try:
            response = await self._loop.run_in_executor(None, self._store.fill_snapshot_chunk, effect)
        except StorageError as error:
            self._fail(stopped_text(error))
        else:
            self._respond(effect.key, response)

    async def _write(self, effect: WriteSnapshot[MetadataImage]) -> None:
        def write() -> int:
            batches = self._codec.encode(effect.image, effect.position, effect.timestamp_ms, effect.voters)
            return self._store.write_snapshot(effect.position, paced(batches))

        begun_ms = self._clock.monotonic_ms()
        try:
            size = await self._loop.run_in_executor(self._thread, write)
        except Exception as error:
            self._fail(f"stopped: cannot write snapshot {effect.position}: {error}")
            return
        took_ms = self._clock.monotonic_ms() - begun_ms
        _log.info("wrote snapshot %s: %d bytes in %d ms", effect.position, size, took_ms)
        if self._watch is not None:
            self._watch.snapshot_written(size, self._clock.monotonic_ms())
        self._post(SnapshotWritten(position=effect.position, size_bytes=size))

    async def _finish(self, effect: FinishSnapshot) -> None:
        def load() -> tuple[MetadataImage, VotersAt]:
            path = self._store.partial_snapshot(effect.snapshot, effect.size_bytes)
            image, voters = self._codec.load(Path(path), effect.snapshot), self._store.voters_in(path)
            self._store.finish_snapshot(effect.snapshot)  # only a snapshot that loads gets its final name
            return image, voters

        try:
            image, voters = await self._loop.run_in_executor(self._thread, load)
        except DiskError as error:
            self._fail(stopped_text(error))
        except (StorageError, RecordDecodeError, ReplayError, ValueError) as error:
            self._store.drop_snapshot()
            if self._watch is not None:
                self._watch.snapshot_rejected()
            self._post(SnapshotRejected(position=effect.snapshot, reason=str(error)))
        except Exception as error:
            self._fail(f"stopped by a bug: cannot load snapshot {effect.snapshot}: {error!r}")
        else:
            self.loaded += 1
            _log.info("loaded snapshot %s from the leader: %d bytes", effect.snapshot, effect.size_bytes)
            if self._watch is not None:
                self._watch.snapshot_loaded(effect.size_bytes)
            self._post(SnapshotLoaded(position=effect.snapshot, image=image, voters=voters))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("unexpected error", exc_info=error)
            self._fail(f"stopped by a bug: {type(error).__name__}: {error}")
