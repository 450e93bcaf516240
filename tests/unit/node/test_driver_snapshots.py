"""Snapshots as a driver writes, serves, fetches and loads them, and the pace of writing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import Provenance
from metaquorum.node import snapshots as snapshots_module
from metaquorum.node.snapshots import SNAPSHOT_PAUSE, SNAPSHOT_PAUSE_MAX_S, paced
from metaquorum.raft import effects as raft
from metaquorum.raft.events import (
    ShutdownRequested,
    SnapshotLoaded,
    SnapshotRejected,
    SnapshotWritten,
    WriteSnapshot,
)
from metaquorum.raft.messages import FetchSnapshotResponse, RaftError
from metaquorum.storage.types import LogPosition
from tests.unit.node.test_driver import Rig


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
