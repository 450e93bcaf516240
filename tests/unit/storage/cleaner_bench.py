"""Compacted logs on a disk in memory: made from a seed, cleaned, and read back record by record."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from metaquorum.broker.replica.store.parts import DirectorySync
from metaquorum.storage.batches.batch import (
    Batches,
    EndMarker,
    RecordBatch,
    encode_batch,
    encode_marker,
    parse_header,
    seal_batch,
)
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.format import HEADER_BYTES, TRANSACTIONAL
from metaquorum.storage.cleaner.cleaning import Cleaning, segment_facts
from metaquorum.storage.cleaner.plan import CleanerSettings, first_dirty_offset, plan_cleaning
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import parent_of
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.testing.faulty_disk import FaultyDisk

PLACE = "/d/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
SETTINGS = CleanerSettings(min_dirty_ratio=0.0, delete_retention_ms=1_000)
START_MS = 1_700_000_000_000
Headers = tuple[tuple[bytes, bytes | None], ...]


class Told(NamedTuple):
    """A record as a consumer sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def make_disk(seed: int) -> FaultyDisk:
    disk = FaultyDisk(random.Random(seed))
    for place in ("/d", PLACE):
        disk.make_directory(place)
        disk.sync_directory(parent_of(place))
    return disk


def load(disk: FaultyDisk) -> PartitionLog:
    return PartitionLog.load(disk, PLACE, CONFIG, FilePool(disk, 3), disk.file_system("/d"))


def settle(log: PartitionLog) -> None:
    """Everything is below the recovery point."""
    log.sync()
    checkpoint = log.checkpoint()
    if checkpoint is not None:
        DirectorySync("/d", log._file_system, tickets=[], checkpoints=[checkpoint]).run()
        log.checkpointed(checkpoint)


def clean(log: PartitionLog, cleaned_to: int | None, now_ms: int, *, key_bytes: int = 1 << 20) -> int | None:
    """A pass, if one is due; where the dirty part begins now."""
    start = first_dirty_offset(cleaned_to, log.start_offset, log.end_offset)
    open_from = log.producers.open_from
    stable = log.end_offset if open_from is None else open_from
    plan = plan_cleaning(
        segment_facts(log), first_dirty=start, stable_to=stable, settings=SETTINGS, now_ms=now_ms
    )
    if plan is None:
        return cleaned_to
    cleaning = Cleaning(log, plan, SETTINGS, now_ms=now_ms, key_bytes=key_bytes)
    while cleaning.result is None:
        for _ in cleaning.pieces():
            pass
        if cleaning.staged is not None:
            cleaning.swap()
    return cleaning.result.cleaned_to


def told(log: PartitionLog) -> list[Told]:
    """Every record that is no marker, in the order of the log."""
    data = log.read_range(log.start_offset, log.end_offset, 1 << 24) if log.end_offset else b""
    found = []
    while data:
        header = parse_header(data)
        if not header.is_control:
            for one in RecordBatch(header, data[: header.size_bytes]).records():
                found.append(Told(one.offset, one.timestamp_ms, one.key, one.value, one.headers))
        data = data[header.size_bytes :]
    return found


@dataclass
class Writer:
    """Appends batches that a seed chooses: codecs, tombstones, idempotent and transactional producers."""

    log: PartitionLog
    rng: random.Random
    now_ms: int = START_MS
    records: list[Told] = field(default_factory=list)
    open: dict[int, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    sequences: dict[int, int] = field(default_factory=dict)

    def write(self, batches: int, *, keys: int = 6, transactions: bool = True) -> None:
        for _ in range(batches):
            kind = self.rng.random()
            if transactions and kind < 0.15 and self.open:
                self.end(self.rng.choice(sorted(self.open)), committed=self.rng.random() < 0.5)
            else:
                producer = self.rng.choice((-1, -1, 7, 8)) if transactions else self.rng.choice((-1, 3))
                self.batch(producer, keys, transactional=producer >= 7)
            self.now_ms += self.rng.randrange(1, 50)

    def batch(self, producer: int, keys: int, *, transactional: bool = False) -> None:
        rng, base = self.rng, self.log.end_offset
        count = rng.randrange(1, 5)
        names = [b"k%d" % rng.randrange(keys) * rng.choice((1, 1, 40)) for _ in range(count)]
        values = [None if rng.random() < 0.2 else b"v" * rng.randrange(20) for _ in range(count)]
        times = [self.now_ms + rng.randrange(-5, 5) for _ in range(count)]
        headers: list[Headers] = [[(b"h", None)] * (rng.random() < 0.2) for _ in names]
        codec = rng.choice((0, 0, 1, 2, 3, 4))
        plain = encode_batch(
            base_offset=base,
            leader_epoch=1,
            timestamp_ms=times[0],
            max_timestamp_ms=max(times),
            values=values,
            keys=names,
            timestamps=times,
            headers=headers,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=self.sequences.get(producer, 0) if producer >= 0 else -1,
            attributes=TRANSACTIONAL if transactional else 0,
        )
        header = parse_header(plain)
        header = header._replace(attributes=header.attributes | codec)
        self.log.append(Batches.sealed(seal_batch(header, pack(codec, plain[HEADER_BYTES:]))))
        self.sequences[producer] = self.sequences.get(producer, 0) + count
        if transactional:
            self.open.setdefault(producer, []).extend(range(base, base + count))
        for index, row in enumerate(zip(times, names, values, headers, strict=True)):
            self.records.append(Told(base + index, *row[:3], tuple(row[3])))

    def end(self, producer: int, *, committed: bool) -> None:
        offsets = self.open.pop(producer)
        if not committed:
            self.aborted.update(offsets)
        data = encode_marker(
            EndMarker(committed, 0), producer_id=producer, producer_epoch=0, timestamp_ms=self.now_ms
        )
        header = parse_header(data)._replace(base_offset=self.log.end_offset, leader_epoch=1)
        self.log.append(Batches.sealed(seal_batch(header, data[HEADER_BYTES:])))

    def last(self) -> dict[bytes, Told]:
        """The newest record of every key that is not of an aborted transaction, or of an open one."""
        undecided = {each for some in self.open.values() for each in some}
        found: dict[bytes, Told] = {}
        for one in self.records:
            if one.key is not None and one.offset not in self.aborted and one.offset not in undecided:
                found[one.key] = one
        return found


def check(writer: Writer, log: PartitionLog) -> None:
    """Offsets never move and order is kept; the last value of a key is there; nothing is new."""
    found = told(log)
    written = {one.offset: one for one in writer.records}
    assert [one.offset for one in found] == sorted({one.offset for one in found})
    assert all(written[one.offset] == one for one in found)
    there = {one.offset for one in found}
    for one in writer.last().values():
        assert one.value is None or one.offset in there, one
    undecided = {each for some in writer.open.values() for each in some}
    assert undecided <= there
