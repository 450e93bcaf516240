"""The cleaner, and what a leader does with the records of a batch, in processor time.

Cleaner: a log of keyed records; uncompressed input bytes per processor second of one whole pass (both walks,
checksums, the rewritten segments), on a disk in memory so that only the processor counts. Leader: one batch
checked, opened and stored. Also: events of a loop while another process cleans, on the real disk.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable

from metaquorum.broker.replica.partition.validation import OpenedBatch, check_batch, stored_batch
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.broker.server.data.cleaners import CleanerProcesses
from metaquorum.storage.batches.batch import Batches, encode_batch, parse_header, seal_batch
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.format import HEADER_BYTES, Compression
from metaquorum.storage.cleaner.cleaning import Cleaning, segment_facts
from metaquorum.storage.cleaner.plan import CleanerSettings, plan_cleaning
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import Disk, parent_of
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.bench.figures import Figure
from tests.unit.storage.cleaner_bench import settle

PLACE = "/d/t-0"
NOW_MS = 1_700_000_000_000
ROUNDS = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=32, help="MB of records in the log that is cleaned")


def run(options: argparse.Namespace) -> list[Figure]:
    figures = []
    for value_bytes, codec in ((1000, 0), (100, 0), (100, 4)):
        rate = max(cleaned(options.megabytes, value_bytes, Compression(codec)) for _ in range(3))
        name = f"cleaner, {value_bytes} byte values, {Compression(codec).name.lower()}"
        figures.append(Figure(name=name, value=rate, unit="MB/s", at_least=40))
    for count, value_bytes in ((256, 1000), (640, 100)):
        for codec in (0, 1, 3, 4):
            rate = opened(count, value_bytes, Compression(codec))
            name = f"leader, {count} records of {value_bytes} bytes, {Compression(codec).name.lower()}"
            figures.append(Figure(name=name, value=rate, unit="MB/s"))
    events, rate = beside(options.megabytes)
    figures.append(Figure(name="events beside a cleaner, of 500 that are due", value=events, unit="/s"))
    figures.append(Figure(name="  cleaned meanwhile, 200 byte values", value=rate, unit="MB/s"))
    return figures


def beside(megabytes: int) -> tuple[float, float]:
    """How many events of 0.6 ms, due every 2 ms, a loop handles per second while a pass is in progress, with
    system calls between their parts; and the MB per second of the pass."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        place = f"{directory}/t-0"
        disk = PosixDisk()
        disk.make_directory(place)
        cleaning, _ = dirty(disk, place, megabytes, 200, Compression.NONE)
        processes, over, events = CleanerProcesses(1, 1e12), threading.Event(), 0
        processes.start()

        def stepped(cleaning: Cleaning, error: Exception | None) -> None:
            if cleaning.staged is None:
                over.set()
                return
            cleaning.swap()
            processes.submit(cleaning, stepped)

        begun_s = due_s = time.monotonic()
        processes.submit(cleaning, stepped)
        while not over.is_set():
            due_s += 0.002
            time.sleep(max(0.0, due_s - time.monotonic()))
            for _ in range(3):
                until_s = time.thread_time() + 0.0002
                while time.thread_time() < until_s:
                    pass
                time.sleep(0)
            events += 1
        took_s = time.monotonic() - begun_s
        processes.stop()
        read_bytes = 2 * sum(each.size_bytes for each in cleaning.task.segments)
        return events / took_s, read_bytes / took_s / 1e6


def one_batch(base: int, keys: list[bytes], value_bytes: int, codec: int, rng: random.Random) -> bytes:
    half = value_bytes // 2  # half random: values compress to about half
    values = [rng.randbytes(half) + b"v" * half for _ in keys]
    plain = encode_batch(base_offset=base, leader_epoch=0, timestamp_ms=NOW_MS, keys=keys, values=values)
    header = parse_header(plain)._replace(attributes=codec)
    return seal_batch(header, pack(codec, plain[HEADER_BYTES:]))


def dirty(disk: Disk, place: str, megabytes: int, value_bytes: int, codec: int) -> tuple[Cleaning, int]:
    """A pass, and the end of its log. Every key occurs twice on average; batches of 16 KiB."""
    rng = random.Random(7)
    config = LogConfig(segment_bytes=megabytes << 17, index_interval_bytes=64 << 10)
    log = PartitionLog.load(disk, place, config, FilePool(disk, 8), disk.file_system(parent_of(place)))
    records = (megabytes << 20) // value_bytes
    for _ in range(0, records, 16_384 // value_bytes):
        keys = [b"key %08d" % rng.randrange(records // 2) for _ in range(16_384 // value_bytes)]
        log.append(Batches.sealed(one_batch(log.end_offset, keys, value_bytes, codec, rng)))
    settle(log)
    rules = CleanerSettings()
    plan = plan_cleaning(
        segment_facts(log), first_dirty=0, stable_to=log.end_offset, settings=rules, now_ms=NOW_MS
    )
    assert plan is not None
    return Cleaning(log, plan, rules, now_ms=NOW_MS, key_bytes=1 << 30), plan.end


def cleaned(megabytes: int, value_bytes: int, codec: int) -> float:
    disk = FaultyDisk(random.Random(7))
    for place in ("/d", PLACE):
        disk.make_directory(place)
        disk.sync_directory(parent_of(place))
    cleaning, end = dirty(disk, PLACE, megabytes, value_bytes, codec)
    begun = time.process_time()
    while cleaning.result is None:
        for _ in cleaning.pieces():
            pass
        if cleaning.staged is not None:
            cleaning.swap()
    took_s = time.process_time() - begun
    # A record's length, deltas and counts take about 8 bytes.
    return end * (value_bytes + len(b"key 00000000") + 8) / took_s / 1e6


def opened(count: int, value_bytes: int, codec: int) -> float:
    rng = random.Random(7)
    keys = [b"key %08d" % index for index in range(count)]
    data = one_batch(0, keys, value_bytes, codec, rng)
    settings = TopicSettings()

    def once() -> None:
        batch = check_batch(Batches.arrived(data), settings, wall_ms=NOW_MS)
        assert isinstance(batch, OpenedBatch)
        stored_batch(batch, base_offset=5, leader_epoch=1, append_time_ms=None)

    return count * value_bytes / best_s(once) / 1e6


def best_s(work: Callable[[], None]) -> float:
    """Processor time of one call, the best of several rounds."""
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(50):
            work()
        times.append((time.process_time() - begun) / 50)
    return min(times)
