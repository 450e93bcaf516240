"""One log directory of a broker: many replicas opened, one of them written, read and searched."""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import tempfile
import time
import tracemalloc
from typing import Any

from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    CreateReplica,
    DiskWork,
    FindOffset,
    FoundDirectory,
    LogSettings,
    PartitionRead,
    ReadPartition,
    RemoveReplica,
)
from metaquorum.broker.replica.store.parts import ExpectedIdentity
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.storage.batches.batch import Batches, encode_batch, hop_headers
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from tests.bench.figures import Figure

IDENTITY = ExpectedIdentity(cluster_id="bench", node_id=1)
DIRECTORY_ID = b"a-log-directory!"
BATCH_BYTES = 64 * 1024
WINDOW_BYTES = 1024 * 1024
CPU_S: list[float] = []
"""The CPU time of every opening of the directory."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=2_000)
    parser.add_argument("--megabytes", type=int, default=1_024, help="size in MB of the log that is read")
    parser.add_argument(
        "--directory", help="where to create the log directory (default: the temporary directory)"
    )


def run(options: argparse.Namespace) -> list[Figure]:
    path = tempfile.mkdtemp(dir=options.directory)
    identity = MetaProperties(cluster_id="bench", node_id=1, directory_id=DIRECTORY_ID)
    try:
        store_meta_properties(PosixDisk(), path, identity)
        figures = many(path, options.replicas)
        return figures + one_log(path, options.megabytes)
    finally:
        shutil.rmtree(path)


def opened(path: str, *, locked: bool = False) -> tuple[DirectoryStore, FoundDirectory, float]:
    start, used = time.perf_counter(), time.process_time()
    store, found = DirectoryStore.open(PosixDisk(), path, IDENTITY, rng=random.Random(1), locked=locked)
    took_s = time.perf_counter() - start
    if store is None:
        raise SystemExit(found.problem)
    CPU_S.append(time.process_time() - used)
    return store, found, took_s


def timed(store: DirectoryStore, works: list[DiskWork]) -> float:
    start = time.perf_counter()
    store.execute_all(works)
    return time.perf_counter() - start


def synced(store: DirectoryStore, *, checkpoint: bool = False) -> float:
    start = time.perf_counter()
    sync = store.prepare_sync(checkpoint=checkpoint)
    if sync is not None:
        sync.run()
        store.sync_completed(sync)
    return time.perf_counter() - start


def data(base: int, size: int, producer: int) -> bytes:
    return encode_batch(
        base_offset=base,
        leader_epoch=1,
        timestamp_ms=base,
        values=[bytes(size - 80)],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=base,
    )


def many(path: str, count: int) -> list[Figure]:
    """`count` replicas with 16 KiB each, opened after a clean shutdown and after a kill."""
    keys = [(number.to_bytes(16, "big"), 0) for number in range(count)]
    where: dict[str, Any] = {"directory_id": DIRECTORY_ID, "incarnation": 1}
    store, _, _ = opened(path)
    settings = LogSettings()
    create: list[DiskWork] = [
        CreateReplica(**where, key=key, topic=f"topic{number}", settings=settings)
        for number, key in enumerate(keys)
    ]
    figures = [Figure(name=f"create {count} replicas", value=timed(store, create), unit="s")]
    fill(store, keys, dict.fromkeys(keys, 1), 0)
    name = f"one sync of {count} logs, written to since the last"
    figures.append(Figure(name=name, value=synced(store), unit="s"))
    start, used = time.perf_counter(), time.process_time()
    store.close(clean=True)
    figures.append(Figure(name="clean shutdown", value=time.perf_counter() - start, unit="s"))
    figures.append(Figure(name="  the same by its own CPU time", value=time.process_time() - used, unit="s"))
    store, found, took_s = opened(path)
    figures.append(Figure(name="open after a clean shutdown", value=took_s, unit="s", at_most=2))
    figures.append(Figure(name="  the same by its own CPU time", value=CPU_S[-1], unit="s"))
    figures.append(Figure(name="open files of idle replicas", value=len(store._opened.pool), unit=""))
    fill(store, keys, {one.key: one.incarnation for one in found.replicas}, 4)
    killed, found, took_s = opened(path, locked=True)
    figures.append(Figure(name="open after kill -9", value=took_s, unit="s", at_most=4))
    figures.append(Figure(name="  the same by its own CPU time", value=CPU_S[-1], unit="s"))
    store.abandon()
    store.close(clean=False)
    killed.close(clean=True)
    del store, killed, found
    gc.collect()
    tracemalloc.start()
    store, found, _ = opened(path)
    with_found = tracemalloc.get_traced_memory()[0] / count
    incarnations = {one.key: one.incarnation for one in found.replicas}
    del found
    gc.collect()
    value = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    figures.append(Figure(name="memory of an idle replica's log", value=value, unit="bytes"))
    handed = with_found - value
    figures.append(Figure(name="and what is handed to the manager", value=handed, unit="bytes"))
    remove: list[DiskWork] = [
        RemoveReplica(directory_id=DIRECTORY_ID, key=key, incarnation=incarnations[key], reason="")
        for key in keys
    ]
    figures.append(Figure(name=f"remove {count} replicas", value=timed(store, remove), unit="s"))
    store.close(clean=True)
    return figures


def fill(store: DirectoryStore, keys: list[Any], incarnations: dict[Any, int], base: int) -> None:
    for number, key in enumerate(keys):
        batches = Batches.sealed(b"".join(data(base + each, 4096, number) for each in range(4)))
        store.execute(
            AppendPartition(
                directory_id=DIRECTORY_ID, key=key, incarnation=incarnations[key], batches=batches, sync=True
            )
        )


def one_log(path: str, megabytes: int) -> list[Figure]:
    """One log of 64 KiB batches, read from the page cache and searched by time."""
    store, _, _ = opened(path)
    key = (b"the log of them!", 0)
    where: dict[str, Any] = {"directory_id": DIRECTORY_ID, "key": key, "incarnation": 1}
    settings = LogSettings(segment_bytes=256 * 1024 * 1024)
    store.execute(CreateReplica(**where, topic="large", settings=settings))
    count = megabytes * 1024 * 1024 // BATCH_BYTES
    works = [
        AppendPartition(**where, batches=Batches.sealed(data(base, BATCH_BYTES, 1)), sync=True)
        for base in range(count)
    ]
    took_s = timed(store, list(works))
    del works
    figures = [Figure(name="append 64 KiB, mean", value=took_s / count * 1e6, unit="us")]
    figures.append(Figure(name="appended", value=megabytes / took_s, unit="MiB/s"))
    synced(store, checkpoint=True)
    figures += read("read, written by this process", store, where, count)
    store.close(clean=True)
    store, found, _ = opened(path)
    where["incarnation"] = next(one.incarnation for one in found.replicas if one.key == key)
    figures.append(find("find by time, first after a restart", store, where, count, 10))
    figures.append(find("find by time, later ones", store, where, count, 100))
    figures += read("read, written earlier: with CRCs", store, where, count)
    folder = os.path.join(path, "large-0")
    for name in os.listdir(folder):
        if name.endswith("index"):
            os.unlink(os.path.join(folder, name))
    store.close(clean=True)
    store, found, _ = opened(path)
    where["incarnation"] = next(one.incarnation for one in found.replicas if one.key == key)
    figures.append(find("find by time without index files, first", store, where, count, 10))
    store.close(clean=True)
    return figures


def read(name: str, store: DirectoryStore, where: dict[str, Any], count: int) -> list[Figure]:
    """From the page cache, in windows of 1 MiB."""
    start, used = time.perf_counter(), time.process_time()
    at = total = 0
    while at < count:
        work = ReadPartition(**where, token=1, from_offset=at, to_offset=count, max_bytes=WINDOW_BYTES)
        (event,) = store.execute(work)
        if not isinstance(event, PartitionRead) or not event.data:
            raise SystemExit(f"offset {at} cannot be read: {event}")
        total += len(event.data)
        at = hop_headers(event.data)[-1][2]
    rate = total / (time.perf_counter() - start) / 1e9
    own = total / (time.process_time() - used) / 1e9
    return [
        Figure(name=name, value=rate, unit="GB/s", at_least=1),
        Figure(name="  the same by its own CPU time", value=own, unit="GB/s"),
    ]


def find(name: str, store: DirectoryStore, where: dict[str, Any], count: int, share: int) -> Figure:
    """The record at one place of the log."""
    start = time.perf_counter()
    time_ms = count - count // share
    store.execute(FindOffset(**where, token=1, timestamp_ms=time_ms, below_offset=count))
    return Figure(name=name, value=(time.perf_counter() - start) * 1000, unit="ms")
