"""Measures `metaquorum log` as a user runs it: startup, reading, replay and output of whole logs.

Three logs of a million records each: partitions created a thousand per batch; one record per batch on top of
100,000 partitions (half NoOp, half changes), as a quiet cluster writes; all kinds of records, ten per batch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import FENCED, QuotaEntity
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.log.segment import segment_name
from tests.bench.bench_replay import BROKERS, log_of, one_record_log, topic_id, values
from tests.bench.figures import Figure

STATE_S = 3.0
PARTITION_RECORDS_PER_S = 200_000
MIXED_RECORDS_PER_S = 80_000
BASE_PARTITIONS = 100_000
KAFKA_DUMP = "kafka-dump-log, about 100,000 records/s, text only"


def mixed_values(count: int) -> Iterator[bytes]:
    """Framed records of ten types in turn with different ids and names; for reading, not for replay."""
    kinds: list[bytes] = []
    for at in range(200):
        uuid, name = topic_id(at), f"topic-{at}"
        replicas = (at % BROKERS, (at + 1) % BROKERS, (at + 2) % BROKERS)
        kinds += [
            encode(r.NoOpRecord(), 0),
            encode(r.TopicRecord(name, uuid), 0),
            encode(r.PartitionRecord(at, uuid, replicas, replicas, leader=at, directories=(uuid,) * 3), 1),
            encode(r.PartitionChangeRecord(at, uuid, isr=replicas, leader=at), 1),
            encode(r.ConfigRecord(2, name, "retention.ms", str(at)), 0),
            encode(r.BrokerRegistrationChangeRecord(at, at, fenced=FENCED), 1),
            encode(r.ProducerIdsRecord(at, at, at * 1000), 0),
            encode(
                r.ClientQuotaRecord((QuotaEntity("user", name),), "producer_byte_rate", at + 0.5, False), 0
            ),
            encode(r.AccessControlEntryRecord(uuid, 2, name, 3, f"User:{name}", "*", 2, 3), 0),
            encode(r.RemoveTopicRecord(uuid), 0),
        ]
    return islice(cycle(kinds), count)


def put(directory: Path, name: str, log: bytes) -> str:
    place = directory / name
    place.mkdir()
    (place / segment_name(0)).write_bytes(log)
    return str(place)


def seconds(repeat: int, *args: str, codes: tuple[int, ...] = (0,)) -> float:
    """The best of several whole runs of the command, which end with one of `codes`; output is discarded."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        command = [sys.executable, "-m", "metaquorum.cli", "log", *args]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode not in codes:
            raise RuntimeError(f"{command} ended with {done.returncode}")
        times.append(time.perf_counter() - start)
    return min(times)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scan-repeat", type=int, default=1, help="runs of each tool that reads every batch")


def run(options: argparse.Namespace) -> list[Figure]:
    count, repeat = options.records, options.repeat
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        partitions = put(directory, "partitions", log_of(values(count), 1000))
        base = log_of(values(min(BASE_PARTITIONS, count // 2)), 1000)
        end = [batch.header.next_offset for batch in iter_batches(base)][-1]
        tail = one_record_log(count - end, min(BASE_PARTITIONS, count // 2), end)
        singles = put(directory, "singles", base + tail)
        mixed = put(directory, "mixed", log_of(mixed_values(count), 10))
        return [
            *_states(partitions, singles, repeat),
            *_dumps(partitions, singles, mixed, count, repeat),
            *_scans(singles, count, options.scan_repeat),
        ]


def _scans(singles: str, count: int, repeat: int) -> list[Figure]:
    """Tools that look at every batch, on batches of one record."""
    asked = (
        ("log check", (11,), ("check", singles)),
        ("log timeline --severity critical", (0,), ("timeline", "--severity", "critical", singles)),
        ("log why", (0,), ("why", singles, "topic/topic-000001/0.leader")),
        ("log bisect, a partition", (12,), _bisect(singles, "partition('topic-000001', 0).leader > -2")),
        ("log bisect, all partitions", (12,), _bisect(singles, "leaderless() >= 0")),
    )
    return [
        Figure(
            name=f"{name}, one record per batch",
            value=round(count / seconds(repeat, *args, codes=codes)),
            unit="records/s",
        )
        for name, codes, args in asked
    ]


def _bisect(path: str, predicate: str) -> tuple[str, ...]:
    return "bisect", path, "--predicate", predicate


def _states(partitions: str, singles: str, repeat: int) -> list[Figure]:
    return [
        _state("log state, partitions 1,000 a batch", partitions, repeat),
        _state("log state, one record per batch", singles, repeat),
    ]


def _state(name: str, path: str, repeat: int) -> Figure:
    value = seconds(repeat, "state", "--json", path, "topic/topic-000001")
    return Figure(name=name, value=round(value, 2), unit="s", at_most=STATE_S)


def _dumps(partitions: str, singles: str, mixed: str, count: int, repeat: int) -> list[Figure]:
    def rate(path: str) -> float:
        return round(count / seconds(repeat, "dump", "--json", path))

    return [
        Figure(
            name="log dump --json, partitions",
            value=rate(partitions),
            unit="records/s",
            at_least=PARTITION_RECORDS_PER_S,
            kafka=KAFKA_DUMP,
        ),
        Figure(
            name="log dump --json, all kinds, ten per batch",
            value=rate(mixed),
            unit="records/s",
            at_least=MIXED_RECORDS_PER_S,
            kafka=KAFKA_DUMP,
        ),
        Figure(
            name="log dump --json, one record per batch",
            value=rate(singles),
            unit="records/s",
            at_least=MIXED_RECORDS_PER_S,
        ),
    ]
