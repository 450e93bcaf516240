"""Measures `log bisect` of a monotone predicate over ten million records with snapshots, and the scan.

The log is generated: brokers, then topics one by one, each followed by batches of a hundred changes of
earlier partitions, in segments of 64 MiB, with a snapshot every half a million records. The search runs as a
process of its own, including its startup, as a user runs it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import NoOpRecord, PartitionChangeRecord, PartitionRecord, TopicRecord
from metaquorum.metadata.replay import Replayer
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.storage.batches.batch import HEADER_BYTES, BatchHeader, encode_batch, iter_batches, seal_batch
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from tests.bench.bench_replay import BROKERS, DIRECTORIES, best_of, topic_id, values
from tests.bench.figures import Figure

BATCH_RECORDS = 100
SEGMENT_BYTES = 64 << 20
PARTITIONS_A_TOPIC = 50
TOPIC_EVERY = 5_000
"""Records per new topic; all others change partitions of earlier topics."""
EPOCH_EVERY = 1_000_000
"""Records of one leader epoch."""


TOPICS_A_SET = 50
"""New topics after which the changes are generated again, so that they reach the newer ones."""


def encoded(records: list[bytes]) -> tuple[bytes, int]:
    """The records section of a batch, for any base offset, and its number of records."""
    batch = encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=records)
    return batch[HEADER_BYTES:], len(records)


class Generator:
    """Writes a log whose state grows by a topic every TOPIC_EVERY records, and its snapshots."""

    def __init__(self, directory: Path, records: int, snapshot_every: int) -> None:
        self._directory = directory
        self._records = records
        self._snapshot_every = snapshot_every
        self._rng = random.Random(4)
        self._engine = Replayer()
        self._segment: BinaryIO | None = None
        self._written = 0
        self._sets: list[tuple[bytes, int]] = []
        self.offset = 0
        self.topics = 0

    def run(self) -> None:
        next_snapshot = self._snapshot_every
        self._append(encoded(list(values(0))))
        no_op = encoded([encode(NoOpRecord(), 0)])
        while self.offset < self._records:
            self._append(encoded(list(self._topic())))
            self._append(no_op)
            if self.topics % TOPICS_A_SET == 1:
                self._sets = [encoded([self._change() for _ in range(BATCH_RECORDS)]) for _ in range(20)]
            for _ in range(TOPIC_EVERY // BATCH_RECORDS):
                self._append(self._sets[self._rng.randrange(len(self._sets))])
                if self.offset >= next_snapshot:
                    self._snapshot()
                    next_snapshot += self._snapshot_every
        if self._segment is not None:
            self._segment.close()

    def _topic(self) -> Iterator[bytes]:
        uuid = topic_id(self.topics)
        yield encode(TopicRecord(f"topic-{self.topics:06d}", uuid), 0)
        for index in range(PARTITIONS_A_TOPIC):
            replicas = tuple(self._rng.sample(range(BROKERS), 3))
            places = tuple(DIRECTORIES[broker][0] for broker in replicas)
            record = PartitionRecord(
                index,
                uuid,
                replicas,
                replicas,
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=places,
            )
            yield encode(record, 1)
        self.topics += 1

    def _change(self) -> bytes:
        uuid = topic_id(self._rng.randrange(self.topics))
        isr = tuple(self._rng.sample(range(BROKERS), 2))
        index = self._rng.randrange(PARTITIONS_A_TOPIC)
        return encode(PartitionChangeRecord(index, uuid, isr=isr, leader=isr[0]), 1)

    def _append(self, records: tuple[bytes, int]) -> None:
        payload, count = records
        time_ms = 1_700_000_000_000 + self.offset
        header = BatchHeader(
            base_offset=self.offset,
            batch_length=0,
            leader_epoch=1 + self.offset // EPOCH_EVERY,
            magic=2,
            crc=0,
            attributes=0,
            last_offset_delta=count - 1,
            base_timestamp_ms=time_ms,
            max_timestamp_ms=time_ms,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            records_count=count,
        )
        data = seal_batch(header, payload)
        if self._segment is None or self._written + len(data) > SEGMENT_BYTES:
            if self._segment is not None:
                self._segment.close()
            self._segment = (self._directory / segment_name(self.offset)).open("wb")
            self._written = 0
        self._segment.write(data)
        self._written += len(data)
        for batch in iter_batches(data, expected_offset=self.offset):
            self._engine.apply_batch(batch)
        self.offset += count

    def _snapshot(self) -> None:
        image = self._engine.state().image
        position = LogPosition(image.provenance.epoch, image.provenance.offset)
        with (self._directory / snapshot_name(position)).open("wb") as file:
            for data in snapshot_batches(image, position=position):
                file.write(data)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--snapshot-every", type=int, default=500_000)
    parser.add_argument("--scan-records", type=int, default=1_000_000, help="how far the scan is measured")
    parser.add_argument("--repeat", type=int, default=2)


def run(options: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        began = time.perf_counter()
        generator = Generator(directory, options.records, options.snapshot_every)
        generator.run()
        generated_s = time.perf_counter() - began
        size = sum(path.stat().st_size for path in directory.glob("*.log"))
        wanted = generator.topics * 5 // 8 + 1
        by_state = [f"len(topics) < {wanted}", "--monotone"]
        by_epoch = [f"epoch < {1 + options.records * 5 // 8 // EPOCH_EVERY}"]
        found: dict[str, dict[str, Any]] = {}

        def search(key: str, *more: str) -> None:
            found[key] = bisect(directory, *more)

        state_s = best_of(options.repeat, lambda: search("state", *by_state))
        epoch_s = best_of(options.repeat, lambda: search("epoch", *by_epoch))
        scan_s = best_of(
            1, lambda: search("scan", "len(topics) < 1000000", "--to", str(options.scan_records))
        )
    check(found, generator.topics, wanted)
    return [
        Figure(name="records", value=generator.offset, unit="records"),
        Figure(name="size of the log", value=round(size / 2**20), unit="MiB"),
        Figure(name="generated in", value=round(generated_s, 1), unit="s"),
        Figure(name="snapshots read", value=found["state"]["snapshotsLoaded"], unit="snapshots"),
        Figure(name="batches asked one by one", value=found["state"]["batchesAsked"], unit="batches"),
        Figure(name="bisect by state, start-up included", value=round(state_s, 2), unit="s", at_most=30),
        Figure(name="bisect by epoch, start-up included", value=round(epoch_s, 2), unit="s", at_most=30),
        Figure(name="scan", value=round(options.scan_records / scan_s), unit="records/s"),
    ]


def bisect(directory: Path, predicate: str, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "metaquorum.cli", "log", "bisect", str(directory), "--json"]
    result = subprocess.run(
        [*command, "--predicate", predicate, *more], stdout=subprocess.PIPE, text=True, check=False
    )
    if result.returncode not in (0, 12):
        raise RuntimeError(f"log bisect ended with {result.returncode}")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def check(found: dict[str, dict[str, Any]], topics: int, wanted: int) -> None:
    """The answers must be right, or the times mean nothing."""
    state = found["state"]
    if state["method"] != "binary search" or state["record"]["data"]["name"] != f"topic-{wanted - 1:06d}":
        raise RuntimeError(f"wrong answer among {topics} topics: {state['method']} {state['record']}")
    if found["scan"]["turnedFalse"] or not found["epoch"]["turnedFalse"]:
        raise RuntimeError("the scan found something, or the search by epoch found nothing")
