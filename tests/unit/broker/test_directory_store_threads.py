"""A directory's three threads on the real disk: what is read is never anything that was not there."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from metaquorum.broker.replica import disk_work
from metaquorum.broker.replica.store.parts import StoreOptions
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import Batches, encode_batch, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from tests.unit.broker.directory_bench import DIRECTORY_ID, EXPECTED, key_of

SETTINGS = disk_work.LogSettings(segment_bytes=8_000, retention_bytes=20_000, retention_ms=-1)
STEPS = 200


class Threads:
    """The `io` thread is the test; one thread syncs, two read. Whatever they raise fails the test."""

    def __init__(self, store: DirectoryStore, seed: int) -> None:
        self.store = store
        self.rng = random.Random(seed)
        self.ends = {key_of(number): 0 for number in range(1, 13)}
        self.incarnations = dict.fromkeys(self.ends, 1)
        self.starts = dict.fromkeys(self.ends, 0)
        self.stopped = threading.Event()
        self.to_sync = threading.Semaphore(0)
        self.synced = threading.Semaphore(0)
        self.prepared = None
        self.problems: list[BaseException] = []
        self.read_bytes = 0
        self.found = 0

    def guarded(self, work: object) -> None:
        try:
            while not self.stopped.is_set():
                work()  # type: ignore[operator]
        except BaseException as error:
            self.problems.append(error)
            self.stopped.set()
            self.synced.release()

    def sync(self) -> None:
        self.to_sync.acquire()
        if self.prepared is not None:
            self.prepared.run()
            self.synced.release()

    def read(self) -> None:
        rng = random.Random(self.read_bytes)
        key = rng.choice(list(self.ends))
        end, start = self.ends[key], self.starts[key]
        offset = rng.randint(start, max(start, end))
        where = {"directory_id": DIRECTORY_ID, "key": key, "incarnation": self.incarnations[key], "token": 1}
        (event,) = self.store.execute(
            disk_work.ReadPartition(
                **where, from_offset=offset, to_offset=end, max_bytes=rng.randint(1, 9_000)
            )  # type: ignore[arg-type]
        )
        assert isinstance(event, disk_work.PartitionRead) and event.problem is None, event
        self.read_bytes += 1
        for batch in iter_batches(event.data or b""):
            assert batch.header.base_offset <= max(end, offset)
            assert batch.data.endswith(b"%d" % batch.header.base_offset + b"\0")  # the record without headers
            self.read_bytes += len(batch.data)
        (event,) = self.store.execute(disk_work.FindOffset(**where, timestamp_ms=offset, below_offset=end))  # type: ignore[arg-type]
        assert isinstance(event, disk_work.OffsetFound) and event.problem is None
        if event.offset is not None:
            assert event.timestamp_ms >= offset
            self.found += 1

    def step(self, number: int) -> None:
        key = self.rng.choice(list(self.ends))
        where = {"directory_id": DIRECTORY_ID, "key": key, "incarnation": self.incarnations[key]}
        chance = self.rng.random()
        if chance < 0.9:
            data = b"".join(self.batch(key) for _ in range(self.rng.randint(1, 3)))
            self.store.execute(disk_work.AppendPartition(**where, batches=Batches.parse(data), sync=True))  # type: ignore[arg-type]
        elif chance < 0.96:
            end = self.rng.randint(self.starts[key], self.ends[key])
            self.incarnations[key] += 1
            where["incarnation"] = self.incarnations[key]
            self.store.execute(disk_work.CutPartition(**where, end_offset=end))  # type: ignore[arg-type]
            self.ends[key] = end
        elif chance < 0.99:
            events = self.store.execute(
                disk_work.EnforceRetention(**where, below_offset=self.ends[key], wall_ms=0)  # type: ignore[arg-type]
            )
            for event in events:
                assert isinstance(event, disk_work.ReplicaLogTrimmed)
                self.starts[key] = event.start_offset
        else:
            self.store.execute(disk_work.RemoveReplica(**where, reason=""))  # type: ignore[arg-type]
            self.starts[key] = self.ends[key] = 0
            self.incarnations[key] += 1
            self.create(key)
        if number % 7 == 0:
            self.group_commit(checkpoint=number % 5 == 0)

    def group_commit(self, *, checkpoint: bool) -> None:
        if self.prepared is not None:
            if not self.synced.acquire(blocking=False):
                return  # one at a time: the next is prepared when this one is done
            if self.stopped.is_set():
                return
            self.store.sync_completed(self.prepared)
            self.prepared = None
        self.prepared = self.store.prepare_sync(checkpoint=checkpoint)  # type: ignore[assignment]
        if self.prepared is not None:
            self.to_sync.release()

    def batch(self, key: PartitionKey) -> bytes:
        base = self.ends[key]
        self.ends[key] += 1
        return encode_batch(
            base_offset=base, leader_epoch=1, timestamp_ms=base, values=[b"x" * 300 + b"%d" % base]
        )

    def create(self, key: PartitionKey) -> None:
        self.store.execute(
            disk_work.CreateReplica(
                directory_id=DIRECTORY_ID,
                key=key,
                incarnation=self.incarnations[key],
                topic=f"t{key[0][15]}",
                settings=SETTINGS,
            )
        )


@pytest.mark.parametrize("seed", [1])
def test_reads_and_syncs_beside_everything_else(tmp_path: Path, seed: int) -> None:
    disk, path = PosixDisk(), str(tmp_path)
    identity = MetaProperties(cluster_id="cluster", node_id=1, directory_id=DIRECTORY_ID)
    store_meta_properties(disk, path, identity)
    options = StoreOptions(max_open_files=6, index_interval_bytes=500)
    rng = random.Random(seed)
    store, _ = DirectoryStore.open(disk, path, EXPECTED, rng=rng, options=options)
    assert store is not None
    bench = Threads(store, seed)
    for key in bench.ends:
        bench.create(key)
    threads = [
        threading.Thread(target=bench.guarded, args=(work,)) for work in (bench.sync, bench.read, bench.read)
    ]
    for thread in threads:
        thread.start()
    try:
        for number in range(STEPS):
            if bench.stopped.is_set():
                break
            bench.step(number)
    finally:
        bench.stopped.set()
        bench.to_sync.release(2)
        for thread in threads:
            thread.join()
    assert not bench.problems, bench.problems
    assert bench.read_bytes > 1_000 and bench.found
    store.close(clean=True)
    store, found = DirectoryStore.open(disk, path, EXPECTED, rng=rng, options=options)
    assert store is not None
    assert {one.key: one.log.end_offset for one in found.replicas} == bench.ends
    assert {one.key: one.log.start_offset for one in found.replicas} == bench.starts
    store.close(clean=False)
