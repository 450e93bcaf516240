"""Replicas with records in a log directory, and what is read of them."""

from __future__ import annotations

from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    ChangeLogSettings,
    LogSettings,
    PartitionRead,
    ReadPartition,
)
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import join
from tests.unit.broker.directory_bench import PATH, SMALL, Bench, walked


def batch(base: int, *, time_ms: int = 0, epoch: int = 1, size: int = 20, records: int = 1) -> bytes:
    values = [bytes([base % 251]) * size for _ in range(records)]
    return encode_batch(base_offset=base, leader_epoch=epoch, timestamp_ms=time_ms, values=values)


def filled(bench: Bench, count: int = 20, settings: LogSettings = SMALL) -> PartitionKey:
    """A replica with `count` batches of one record each, of 10 ms each, synced."""
    key = bench.create()
    bench.do(ChangeLogSettings, key, settings=settings)
    for base in range(count):
        bench.do(
            AppendPartition,
            key,
            batches=walked(batch(base, time_ms=base * 10, epoch=1 + base // 8)),
            sync=True,
        )
    prepared = bench.opened().prepare_sync()
    assert prepared is not None
    prepared.run()
    ((synced, incarnation, end, _),) = bench.opened().sync_completed(prepared).ends
    assert (synced, incarnation, end) == (key, bench.models[key].incarnation, count)
    return key


def files(bench: Bench, name: str = "t1-0") -> list[str]:
    return bench.disk.list_directory(join(PATH, name))


def read(bench: Bench, key: PartitionKey, start: int, to: int, max_bytes: int = 10_000) -> PartitionRead:
    (event,) = bench.do(ReadPartition, key, token=9, from_offset=start, to_offset=to, max_bytes=max_bytes)
    assert isinstance(event, PartitionRead) and event.token == 9
    return event
