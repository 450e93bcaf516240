"""Measures replay, snapshots and memory of the image, on one core.

Builds logs in the shape that the requirement names (100 partitions per topic, 300 brokers, two directories
each, replication factor 3), and times the real code on their bytes, including the CRC check: in memory, and
from a file as a node reads its log.
"""

from __future__ import annotations

import argparse
import gc
import random
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    BrokerRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import Replayer, ReplayState, replay_records
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.reader import LogReader
from tests.bench.figures import Figure

BROKERS = 300
PARTITIONS_A_TOPIC = 100
RF = 3
AT_LEAST = {
    "replay_records_per_s_batches_of_1000": 1_000_000,
    "replay_records_per_s_batches_of_10000": 1_000_000,
    "replay_from_file_records_per_s": 1_000_000,
    "one_record_batches_per_s": 80_000,
}
AT_MOST = {"image_bytes_per_partition": 150, "peak_bytes_per_partition_with_snapshot": 150}
UNITS = (
    ("bytes_per_partition", "bytes"),
    ("batches_per_s", "batches/s"),
    ("records_per_s", "records/s"),
    ("partitions_per_s", "partitions/s"),
    ("_us", "us"),
    ("_ms", "ms"),
)
DIRECTORIES = [[random.Random(f"dir{b}{d}").randbytes(16) for d in range(2)] for b in range(BROKERS)]


def topic_id(number: int) -> bytes:
    return random.Random(number).randbytes(16)


def values(partitions: int, seed: int = 1) -> Iterator[bytes]:
    """Framed records of a cluster: feature level, brokers, then topics with their partitions."""
    rng = random.Random(seed)
    yield encode(FeatureLevelRecord("metadata.version", 19), 0)
    for broker in range(BROKERS):
        yield encode(
            BrokerRecord(
                broker, bytes([broker % 256]) * 16, broker, fenced=False, log_dirs=tuple(DIRECTORIES[broker])
            ),
            3,
        )
    lists: list[tuple[bytes, bytes]] = []
    for _ in range(5000):
        replicas = rng.sample(range(BROKERS), RF)
        packed = struct.pack(">3i", *replicas)
        directories = b"".join(DIRECTORIES[b][rng.randrange(2)] for b in replicas)
        template = encode(
            PartitionRecord(
                0,
                bytes(16),
                tuple(replicas),
                tuple(replicas),
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=tuple(directories[at : at + 16] for at in range(0, 48, 16)),
            ),
            1,
        )
        assert packed in template
        lists.append((template[:3], template[23:]))
    for number in range(partitions // PARTITIONS_A_TOPIC):
        uuid = topic_id(number)
        yield encode(TopicRecord(f"topic-{number:06d}", uuid), 0)
        for index in range(PARTITIONS_A_TOPIC):
            head, tail = lists[rng.randrange(5000)]
            yield head + index.to_bytes(4, "big") + uuid + tail


def log_of(values: Iterator[bytes], batch_records: int) -> bytes:
    parts: list[bytes] = []
    pending: list[bytes] = []
    offset = 0
    for value in values:
        pending.append(value)
        if len(pending) == batch_records:
            parts.append(encode_batch(base_offset=offset, leader_epoch=1, timestamp_ms=1000, values=pending))
            offset += len(pending)
            pending = []
    if pending:
        parts.append(encode_batch(base_offset=offset, leader_epoch=1, timestamp_ms=1000, values=pending))
    return b"".join(parts)


def replayed(log: bytes) -> ReplayState:
    engine = Replayer()
    for batch in iter_batches(log):
        engine.apply_batch(batch)
    return engine.state()


def replayed_from_file(directory: Path) -> ReplayState:
    """As a tool or a restarted node does it: batches from the disk, checked, and into the image."""
    engine = Replayer()
    reader = LogReader(PosixDisk(), str(directory), start_offset=0)
    try:
        for batch in reader.batches():
            engine.apply_batch(batch)
    finally:
        reader.close()
    return engine.state()


def from_file(log: bytes, partitions: int, repeat: int) -> float:
    """Records per second; the file is in the page cache."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        (Path(directory) / f"{0:020d}.log").write_bytes(log)
        return partitions / best_of(repeat, lambda: replayed_from_file(Path(directory)))


def best_of(repeat: int, work: Callable[[], Any]) -> float:
    times = []
    for _ in range(repeat):
        gc.collect()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def one_record_log(batches: int, partitions: int, base_offset: int) -> bytes:
    """A log like real ones: one record per batch, half of them changes of partitions, half NoOp."""
    rng = random.Random(5)
    parts = []
    no_op = encode(NoOpRecord(), 0)
    topics = partitions // PARTITIONS_A_TOPIC
    for at in range(batches):
        if at % 2:
            value = no_op
        else:
            isr = tuple(rng.sample(range(BROKERS), 2))
            leader = isr[0] if at % 4 else None
            value = encode(
                PartitionChangeRecord(
                    rng.randrange(PARTITIONS_A_TOPIC), topic_id(rng.randrange(topics)), isr=isr, leader=leader
                ),
                1,
            )
        parts.append(
            encode_batch(base_offset=base_offset + at, leader_epoch=2, timestamp_ms=2000 + at, values=[value])
        )
    return b"".join(parts)


def change_log(changes: int, partitions: int, base_offset: int) -> bytes:
    """Broker 7 fenced: changes of many partitions, 1,000 per batch, sorted by topic."""
    records = []
    for at in range(changes):
        number, index = divmod(at * (partitions // changes), PARTITIONS_A_TOPIC)
        records.append(
            encode(
                PartitionChangeRecord(
                    index, topic_id(number), isr=(at % 300, (at + 1) % 300), leader=at % 300
                ),
                1,
            )
        )
    parts = []
    for low in range(0, changes, 1000):
        parts.append(
            encode_batch(
                base_offset=base_offset + low,
                leader_epoch=2,
                timestamp_ms=2000,
                values=records[low : low + 1000],
            )
        )
    return b"".join(parts)


def measure(partitions: int, repeat: int) -> dict[str, float]:
    figures: dict[str, float] = {"partitions": partitions}
    log = b""
    for size in (1000, 10_000):
        log = log_of(values(partitions), size)
        seconds = best_of(repeat, lambda: replayed(log))  # noqa: B023 -- used at once
        figures[f"replay_records_per_s_batches_of_{size}"] = round(partitions / seconds)
    figures["crc_and_split_only_share"] = round(
        best_of(1, lambda: sum(1 for _ in iter_batches(log))) / seconds, 3
    )
    figures["replay_from_file_records_per_s"] = round(from_file(log, partitions, repeat))
    state = replayed(log)
    figures.update(tails(state, partitions, repeat))
    figures.update(single_writes(state))
    figures.update(memory(log, partitions))
    return figures


def tails(state: ReplayState, partitions: int, repeat: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    count = 100_000
    tail = one_record_log(count, partitions, state.end_offset)
    changes = min(100_000, partitions)
    many = change_log(changes, partitions, state.end_offset)

    def run(log: bytes) -> None:
        engine = Replayer(state)
        for batch in iter_batches(log):
            engine.apply_batch(batch)
        engine.state()

    figures["one_record_batches_per_s"] = round(count / best_of(repeat, lambda: run(tail)))
    figures["change_records_per_s_batches_of_1000"] = round(changes / best_of(repeat, lambda: run(many)))
    return figures


def single_writes(state: ReplayState) -> dict[str, float]:
    """Microseconds of one pure step from a frozen image, as the active controller does it."""
    record = PartitionChangeRecord(5, topic_id(3), isr=(1, 2))
    loops = 2000

    def run() -> None:
        current = state
        for _ in range(loops):
            current = replay_records(
                current, base_offset=current.end_offset, epoch=3, timestamp_ms=5, records=(record,)
            )

    topics = state.image.topics
    return {
        "single_change_from_frozen_us": round(best_of(3, run) / loops * 1e6, 1),
        "rows_led_by_ms": round(best_of(3, lambda: topics.rows_led_by(7)) * 1e3, 2),
        "rows_with_isr_ms": round(best_of(3, lambda: topics.rows_with_isr(7)) * 1e3, 2),
    }


def memory(log: bytes, partitions: int) -> dict[str, float]:
    """Bytes per partition of the image, and at the peak while a snapshot of it is written."""
    from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
    from metaquorum.storage.types import LogPosition

    gc.collect()
    tracemalloc.start()
    state = replayed(log)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    position = LogPosition(1, state.end_offset)
    for _ in snapshot_batches(state.image, position=position):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    seconds = best_of(2, lambda: sum(map(len, snapshot_batches(state.image, position=position))))
    written = list(snapshot_batches(state.image, position=position))
    loading = best_of(2, lambda: load_snapshot(written, position=position))
    return {
        "image_bytes_per_partition": round(held / partitions, 1),
        "peak_bytes_per_partition_with_snapshot": round(peak / partitions, 1),
        "snapshot_write_partitions_per_s": round(partitions / seconds),
        "snapshot_load_partitions_per_s": round(partitions / loading),
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)


def run(options: argparse.Namespace) -> list[Figure]:
    figures = measure(options.partitions, options.repeat)
    return [figure(name, value) for name, value in figures.items()]


def figure(name: str, value: float) -> Figure:
    at_least, at_most = AT_LEAST.get(name), AT_MOST.get(name)
    unit = next((unit for end, unit in UNITS if end in name), "")
    return Figure(name=name.replace("_", " "), value=value, unit=unit, at_least=at_least, at_most=at_most)
