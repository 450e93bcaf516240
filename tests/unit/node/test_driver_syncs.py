"""What a driver makes durable without waiting for it: the log, and the note of what is committed."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import Provenance
from metaquorum.node import node_runner
from metaquorum.node import snapshots as snapshots_module
from metaquorum.node.node_runner import DiskThread
from metaquorum.node.snapshots import SNAPSHOT_PAUSE, SNAPSHOT_PAUSE_MAX_S, paced
from metaquorum.raft import effects as raft
from metaquorum.raft.events import (
    LogRead,
    LogSynced,
    ReadLog,
    ShutdownRequested,
    SnapshotLoaded,
    SnapshotRejected,
    SnapshotWritten,
    WriteSnapshot,
)
from metaquorum.raft.messages import FetchSnapshotResponse, RaftError
from metaquorum.storage.disk.posix import PosixDisk, PosixFile
from metaquorum.storage.errors import DiskError
from metaquorum.storage.files.known_committed import Acknowledged, Known, load_known
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_file import FaultyBackgroundSync
from tests.conformance.exchanges import until
from tests.unit.node.test_driver import Rig, append


def refuse_sync(file: Any) -> None:
    raise DiskError("/data", "sync", "Input/output error")


class FailingSync(FaultyBackgroundSync):
    """Begins a sync of any file, which fails."""

    def begin(self, file: Any) -> bool:
        return True

    def wait(self) -> None:
        refuse_sync(None)


class HeldSync(FaultyBackgroundSync):
    """A sync that ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False
        self.waited = asyncio.Event()

    def begin(self, file: Any) -> bool:
        return True

    def ended(self) -> bool:
        return self.is_over

    def wait(self) -> None:
        self.waited.set()


def refuse_write(file: Any, data: bytes) -> None:
    raise DiskError("/data", "write", "no space left on device")


@pytest.mark.parametrize("in_background", [True, False], ids=["background", "thread"])
async def test_a_failed_sync_stops_the_process_and_is_never_reported_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_background: bool
) -> None:
    background = FailingSync() if in_background else None
    monkeypatch.setattr(PosixDisk, "background_sync", lambda disk, directory: background)
    rig = Rig(str(tmp_path))
    rig.driver.start()
    monkeypatch.setattr(PosixFile, "sync", refuse_sync)
    rig.node.replies[ShutdownRequested] = lambda _: [append(0)]
    rig.driver.submit(ShutdownRequested())
    ending = await asyncio.wait_for(rig.driver.wait(), 60)
    await rig.driver.close()
    rig.store.close(clean=False)
    assert ending.failed and "Input/output error" in ending.reason
    assert not any(isinstance(event, LogSynced) for event in rig.node.seen)


async def test_a_write_that_fails_during_a_sync_stops_the_process_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was appended in between is not synced any more, and nothing is said of that."""
    held = HeldSync()
    monkeypatch.setattr(PosixDisk, "background_sync", lambda disk, directory: held)
    rig = Rig(str(tmp_path))
    rig.driver.start()
    appended = [append(0), append(1)]
    rig.node.replies[ShutdownRequested] = lambda _: [appended.pop(0)]
    for _ in range(2):
        rig.driver.submit(ShutdownRequested())
        await rig.node.until(lambda: len(appended) < 2)
    await rig.node.until(lambda: not appended)
    monkeypatch.setattr(PosixFile, "append", refuse_write)
    appended.append(append(2))
    rig.driver.submit(ShutdownRequested())
    ending = await asyncio.wait_for(rig.driver.wait(), 60)
    held.is_over = True
    await asyncio.wait_for(held.waited.wait(), 60)
    assert rig.driver.statistics.syncs == 2
    await rig.driver.close()
    rig.store.close(clean=False)
    assert ending.failed and "no space left on device" in ending.reason
    assert "Exception" not in caplog.text


async def test_a_disk_without_syncs_in_the_background_is_synced_on_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixDisk, "background_sync", lambda disk, directory: None)
    rig = Rig(str(tmp_path))
    rig.driver.start()
    rig.node.replies[ShutdownRequested] = lambda _: [append(0)]
    rig.driver.submit(ShutdownRequested())
    await rig.node.until(lambda: LogSynced(end_offset=1) in rig.node.seen)
    await rig.driver.close()
    rig.store.close(clean=False)
    assert rig.watch.flushes.times_ms["metadata"].count == 1


async def test_a_sync_begins_before_this_node_reads_its_own_log(tmp_path: Path) -> None:
    """A follower acknowledges with the sync; its image may lag by a step."""
    rig = Rig(str(tmp_path))
    rig.driver.start()
    syncs_at_read: list[int] = []

    def on_read(_: Any) -> list[Any]:
        syncs_at_read.append(rig.driver.statistics.syncs)
        return []

    rig.node.replies[LogRead] = on_read
    rig.node.replies[ShutdownRequested] = lambda _: [
        append(0),
        ReadLog(from_offset=0, to_offset=1, max_bytes=100),
    ]
    rig.driver.submit(ShutdownRequested())
    await rig.node.until(lambda: bool(syncs_at_read))
    await rig.driver.close()
    rig.store.close(clean=False)
    assert syncs_at_read == [1] and rig.driver.statistics.steps == 1


async def test_work_that_waits_for_the_disk_is_not_done_after_a_failed_sync() -> None:
    done: list[BaseException | None] = []
    thread = DiskThread(asyncio.get_running_loop())
    ran: list[int] = []
    thread.fail(DiskError("/data", "sync", "Input/output error"))
    thread.submit(lambda: ran.append(1), done.append)
    thread.close()
    await asyncio.sleep(0)
    assert not ran and isinstance(done[0], DiskError)


async def test_the_disk_thread_refuses_more_than_its_queue_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_runner, "QUEUE_MAX", 3)
    thread = DiskThread(asyncio.get_running_loop())
    begun, release, ran = threading.Event(), threading.Event(), []

    def hold() -> None:
        begun.set()
        release.wait(60)

    thread.submit(hold, lambda _: None)
    await asyncio.to_thread(begun.wait, 60)
    for number in range(3):
        thread.submit(partial(ran.append, number), lambda _: None)
    with pytest.raises(queue.Full):
        thread.submit(partial(ran.append, 3), lambda _: None)
    release.set()
    await asyncio.to_thread(thread.close)
    assert ran == [0, 1, 2]


HEARD = (Acknowledged(b"d" * 16, 1, 1),)


def note(offset: int, *, durably: bool) -> raft.NoteCommitted:
    return raft.NoteCommitted(
        position=LogPosition(1, offset), durably=durably, acknowledged=HEARD if durably else ()
    )


def noted(rig: Rig) -> Known:
    """What a node that starts now would find."""
    return load_known(PosixDisk(), rig.store.replica_directory)


async def test_what_is_committed_is_noted_in_the_step_and_made_durable_behind_it(tmp_path: Path) -> None:
    rig = Rig(str(tmp_path))
    rig.driver.start()
    effects = [[append(0), note(1, durably=True)], [append(1), note(2, durably=False)]]
    rig.node.replies[ShutdownRequested] = lambda _: effects.pop(0)
    rig.driver.submit(ShutdownRequested())
    await until(lambda: noted(rig).acknowledged == HEARD)
    assert noted(rig).position == LogPosition(1, 1)
    rig.driver.submit(ShutdownRequested())
    await until(lambda: noted(rig).position == LogPosition(1, 2))
    await rig.driver.close()
    rig.store.close(clean=False)
    assert noted(rig) == Known(LogPosition(1, 2), HEARD)


async def test_what_is_committed_during_a_durable_write_is_noted_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(str(tmp_path))
    rig.driver.start()
    rig.node.replies[ShutdownRequested] = lambda _: [
        append(0),
        note(1, durably=True),
        append(1),
        note(2, durably=False),
    ]
    rig.driver.submit(ShutdownRequested())
    await until(lambda: noted(rig) == Known(LogPosition(1, 2), HEARD))
    await rig.driver.close()
    rig.store.close(clean=False)


async def test_a_note_that_cannot_be_made_durable_stops_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(str(tmp_path))
    rig.driver.start()
    monkeypatch.setattr(PosixFile, "sync", refuse_sync)
    rig.node.replies[ShutdownRequested] = lambda _: [note(0, durably=True)]
    rig.driver.submit(ShutdownRequested())
    ending = await asyncio.wait_for(rig.driver.wait(), 60)
    await rig.driver.close()
    rig.store.close(clean=False)
    assert ending.failed and "Input/output error; repair the disk" in ending.reason


# Snapshots as a driver writes, serves, fetches and loads them, and the pace of writing.


async def test_a_snapshot_is_written_served_in_chunks_fetched_and_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(str(tmp_path))
    rig.driver.start()
    position = LogPosition(1, 0)
    image = MetadataImage(provenance=Provenance(0, 1, 5))
    rig.node.replies[ShutdownRequested] = lambda _: [
        WriteSnapshot(image=image, position=position, timestamp_ms=5)
    ]
    rig.driver.submit(ShutdownRequested())
    await rig.node.until(lambda: any(isinstance(e, SnapshotWritten) for e in rig.node.seen))
    written = next(e for e in rig.node.seen if isinstance(e, SnapshotWritten))
    assert written.position == position
    chunk = await serve_chunk(rig, position, 0)
    assert chunk.size_bytes == written.size_bytes == len(chunk.data)
    assert (await serve_chunk(rig, position, 10)).data == chunk.data[10:]
    assert (await serve_chunk(rig, LogPosition(7, 7), 0)).error is RaftError.SNAPSHOT_NOT_FOUND
    beyond = await serve_chunk(rig, position, written.size_bytes + 1)
    assert beyond.error is RaftError.POSITION_OUT_OF_RANGE

    fetched_as = LogPosition(1, 50)
    await fetch_snapshot(rig, fetched_as, chunk.data)
    await rig.node.until(lambda: any(isinstance(e, SnapshotLoaded) for e in rig.node.seen))
    assert fetched_as in rig.store.snapshots()
    assert (rig.watch.snapshots.generated_bytes, rig.watch.snapshots.loads) == (written.size_bytes, 1)
    assert rig.driver.snapshots_loaded == 1

    damaged = LogPosition(1, 60)
    await fetch_snapshot(rig, damaged, chunk.data[:-1] + bytes([chunk.data[-1] ^ 1]))
    await rig.node.until(lambda: any(isinstance(e, SnapshotRejected) for e in rig.node.seen))
    assert damaged not in rig.store.snapshots()
    assert (rig.watch.snapshots.rejected, rig.watch.load_errors, rig.driver.snapshots_loaded) == (1, 1, 1)
    size, worker = written.size_bytes, snapshots_module.__name__
    lines = [record.getMessage() for record in caplog.records if record.name == worker]
    assert [line.partition(" in ")[0] for line in lines] == [
        f"wrote snapshot {position}: {size} bytes",
        f"loaded snapshot {fetched_as} from the leader: {size} bytes",
    ]
    await rig.driver.close()
    rig.store.close(clean=False)


async def serve_chunk(rig: Rig, position: LogPosition, start: int) -> FetchSnapshotResponse:
    response = FetchSnapshotResponse(error=RaftError.NONE, epoch=1, leader_id=1)
    rig.node.replies[ShutdownRequested] = lambda _: [
        raft.RespondWithSnapshotChunk(
            key=1, response=response, snapshot=position, position=start, max_bytes=1 << 20
        )
    ]
    rig.transport.answered.clear()
    rig.driver.submit(ShutdownRequested())
    await asyncio.wait_for(rig.transport.answered.wait(), 60)
    answer = rig.transport.answers[1]
    assert isinstance(answer, FetchSnapshotResponse)
    return answer


async def fetch_snapshot(rig: Rig, position: LogPosition, content: bytes) -> None:
    half = len(content) // 2
    rig.node.replies[ShutdownRequested] = lambda _: [
        raft.WriteSnapshotChunk(snapshot=position, position=0, data=content[:half]),
        raft.WriteSnapshotChunk(snapshot=position, position=half, data=content[half:]),
        raft.FinishSnapshot(snapshot=position, size_bytes=len(content)),
    ]
    rig.driver.submit(ShutdownRequested())


def test_a_snapshot_is_written_with_pauses_that_follow_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    pauses: list[float] = []
    monkeypatch.setattr(snapshots_module.time, "thread_time", lambda: clock[0])
    monkeypatch.setattr(snapshots_module.time, "sleep", pauses.append)

    def batches() -> Iterator[bytes]:
        for cost_s, batch in ((0.002, b"a"), (0.0, b"b"), (5.0, b"c")):
            clock[0] += cost_s
            yield batch

    assert list(paced(batches())) == [b"a", b"b", b"c"]
    assert pauses == [pytest.approx(0.002 * SNAPSHOT_PAUSE), 0.0, SNAPSHOT_PAUSE_MAX_S]
