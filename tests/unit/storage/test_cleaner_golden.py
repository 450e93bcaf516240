"""Directories as they were before Kafka 3.7 cleaned them, cleaned here: what is left is what Kafka left."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from metaquorum.broker.replica.store.parts import DirectorySync
from metaquorum.storage.batches.batch import RecordBatch, parse_header
from metaquorum.storage.batches.format import DELETE_HORIZON, HEADER_BYTES
from metaquorum.storage.cleaner.cleaning import Cleaning, segment_facts
from metaquorum.storage.cleaner.plan import CleanerSettings, plan_cleaning
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import parent_of, read_file
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.segment import list_segments, segment_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.testing.faulty_disk import FaultyDisk

ROOT = "kafka-3.7-wire/compaction"
ROUNDS = ["0-before", "1-after-first-pass", "2-after-second-pass", "3-after-third-pass"]
TOPICS = ["k-plain", "k-codecs", "k-tomb", "k-txn"]
SETTINGS = CleanerSettings(min_dirty_ratio=0.01, delete_retention_ms=6_000)
CONFIG = LogConfig(segment_bytes=1_200, index_interval_bytes=100)
PLACE = "/d/t-0"
_BEGUN = re.compile(r"\[([-0-9]+ [:0-9]+),(\d+)\] INFO Cleaner 0: Beginning cleaning of log (\S+) ")
_DONE = re.compile(r"cleaned log (\S+) \(dirty section = \[(\d+), (\d+)\]\)")

pytestmark = pytest.mark.shared_data


def batches_of(path: Path) -> list[bytes]:
    """Every batch of one segment."""
    data, found = path.read_bytes(), []
    while data:
        size = parse_header(data).size_bytes
        found.append(data[:size])
        data = data[size:]
    return found


def passes(root: Path, topic: str) -> list[tuple[int, int, int]]:
    """(begun in ms, first dirty offset, end) of each pass that is logged."""
    found, begun = [], 0
    for line in (root / "cleaner-log-lines.txt").read_text().splitlines():
        if (match := _BEGUN.match(line)) and match[3] == f"{topic}-0":
            second = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            begun = int(second.timestamp()) * 1000 + int(match[2])
        elif (match := _DONE.search(line)) and match[1] == f"{topic}-0":
            found.append((begun, int(match[2]), int(match[3])))
    return found


def loaded(files: dict[str, bytes]) -> tuple[FaultyDisk, PartitionLog]:
    """A log of these files, all of it below its recovery point."""
    disk = FaultyDisk(random.Random(1))
    for place in ("/d", PLACE):
        disk.make_directory(place)
        disk.sync_directory(parent_of(place))
    for name, data in files.items():
        file = disk.open_append(f"{PLACE}/{name}")
        file.append(data)
        file.sync()
    disk.sync_directory(PLACE)
    system = disk.file_system("/d")
    log = PartitionLog.load(disk, PLACE, CONFIG, FilePool(disk, 3), system, lambda text: None)
    log.sync()
    checkpoint = log.checkpoint(indexes=True)
    if checkpoint is not None:
        DirectorySync("/d", system, tickets=[], checkpoints=[checkpoint]).run()
        log.checkpointed(checkpoint)
    return disk, log


def cleaned(log: PartitionLog, first_dirty: int, end: int, now_ms: int) -> int:
    """One pass; where the dirty part begins now."""
    facts = segment_facts(log)
    plan = plan_cleaning(facts, first_dirty=first_dirty, stable_to=end, settings=SETTINGS, now_ms=now_ms)
    assert plan is not None
    cleaning = Cleaning(log, plan, SETTINGS, now_ms=now_ms, key_bytes=1 << 20)
    while cleaning.result is None:
        for _ in cleaning.pieces():
            pass
        if cleaning.staged is not None:
            cleaning.swap()
    return cleaning.result.cleaned_to


def now_of(expected: list[bytes], begun_ms: int) -> int:
    """When the pass began, to the millisecond: what it wrote says it better than the log line before it."""
    headers = [parse_header(one) for one in expected]
    horizons = [one.base_timestamp_ms - 6_000 for one in headers if one.attributes & DELETE_HORIZON]
    near = [each for each in horizons if abs(each - begun_ms) < 100]
    return near[0] if near else begun_ms


def shown(batch: bytes) -> object:
    """A batch without what another compressor's bytes change."""
    header = parse_header(batch)
    fixed = header._replace(crc=0, batch_length=0) if header.compression else header
    return fixed, RecordBatch(header, batch).records() if header.compression else batch[HEADER_BYTES:]


@pytest.mark.parametrize("topic", TOPICS)
def test_the_first_pass_leaves_the_same_files(shared_data: Path, topic: str) -> None:
    before, after = (shared_data / ROOT / name / f"{topic}-0" for name in ROUNDS[:2])
    files = {path.name: path.read_bytes() for path in before.iterdir() if not path.name.endswith(".dump.txt")}
    disk, log = loaded(files)
    (begun, first_dirty, end) = passes(shared_data / ROOT, topic)[0]
    expected = {path.name: batches_of(path) for path in sorted(after.glob("*.log"))}
    now_ms = now_of([one for some in expected.values() for one in some], begun)
    assert cleaned(log, first_dirty, end, now_ms) == end
    assert [segment_name(base) for base in list_segments(disk, PLACE)] == list(expected)
    for base in list_segments(disk, PLACE):
        name = segment_name(base)
        data = read_file(disk, f"{PLACE}/{name}")
        found = []
        while data:
            found.append(data[: parse_header(data).size_bytes])
            data = data[parse_header(data).size_bytes :]
        assert list(map(shown, found)) == list(map(shown, expected[name])), name
        aborted = f"{base:020d}.txnindex"
        assert disk.exists(f"{PLACE}/{aborted}") == ((after / aborted).exists()), aborted
        if disk.exists(f"{PLACE}/{aborted}"):
            assert read_file(disk, f"{PLACE}/{aborted}") == (after / aborted).read_bytes()
    log.close()


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_later_pass_leaves_the_same_batches(shared_data: Path, topic: str, number: int) -> None:
    """What was produced between two rounds and cleaned away at once is recorded nowhere. Of every key of it a
    later record is there, so a log without it is cleaned to the same batches."""
    before, after = (shared_data / ROOT / name / f"{topic}-0" for name in ROUNDS[number - 1 : number + 1])
    expected = [one for path in sorted(after.glob("*.log")) for one in batches_of(path)]
    known = [one for path in sorted(before.glob("*.log")) for one in batches_of(path)]
    known_to = parse_header(known[-1]).next_offset
    begun, first_dirty, end = passes(shared_data / ROOT, topic)[number - 1]
    fresh = [one for one in expected if parse_header(one).base_offset >= known_to]
    files: dict[str, bytes] = {}
    name = segment_name(0)
    for one in known + fresh:
        base = parse_header(one).base_offset
        if base in (first_dirty, end) or (base > first_dirty and name < segment_name(first_dirty)):
            name = segment_name(max(first_dirty, end if base >= end else 0))
        if base >= end:
            name = segment_name(end)
        files[name] = files.get(name, b"") + one
    _, log = loaded(files)
    cleaned(log, first_dirty, end, now_of(expected, begun))
    data = log.read_range(0, log.end_offset, 1 << 20)
    found = []
    while data:
        found.append(data[: parse_header(data).size_bytes])
        data = data[parse_header(data).size_bytes :]
    assert list(map(shown, found)) == list(map(shown, expected))
    log.close()
