"""Transactions in a partition's log: Kafka's own files, and every way to find again what they say."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from metaquorum.storage.batches.batch import EndMarker, encode_marker, iter_batches, parse_header, read_marker
from metaquorum.storage.disk.file_pool import FilePool
from metaquorum.storage.disk.interface import parent_of
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.timed_segment import decode_aborted, encode_aborted
from metaquorum.storage.partition.log_producers import decode_producers, snapshot_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.producers import AbortedTransaction, AbortedTransactions, ProducerTable
from metaquorum.testing.faulty_disk import FaultyDisk

GOLDEN = "kafka-3.7-wire/logs/broker-0-after-clean-shutdown/d2/idx-txn-0"
PLACE = "/d/t-0"
_ENTRY = re.compile(
    r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
)
_PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: "
    r"OptionalLong(?:\[(\d+)\]|\.empty)"
)


def said(golden: Path, pattern: str) -> list[AbortedTransaction]:
    texts = [path.read_text() for path in sorted(golden.glob(pattern))]
    return [
        AbortedTransaction(*map(int, found.groups())) for text in texts for found in _ENTRY.finditer(text)
    ]


def copied(golden: Path, *, without: tuple[str, ...] = ()) -> FaultyDisk:
    disk = FaultyDisk(random.Random(1))
    for place in ("/d", PLACE):
        disk.make_directory(place)
        disk.sync_directory(parent_of(place))
    for path in golden.iterdir():
        if not path.name.endswith((".dump.txt", *without)):
            file = disk.open_append(f"{PLACE}/{path.name}")
            file.append(path.read_bytes())
    return disk


def load(disk: FaultyDisk, warnings: list[str] | None = None) -> PartitionLog:
    told = [] if warnings is None else warnings
    pool, files = FilePool(disk, 8), disk.file_system("/d")
    return PartitionLog.load(disk, PLACE, LogConfig(), pool, files, told.append)


def keep(log: PartitionLog) -> None:
    """Writes down all that the next start needs."""
    checkpoint = log.checkpoint(indexes=True)
    assert checkpoint is not None
    for file in checkpoint.stage():
        file.close()
    for step in checkpoint.STEPS:
        checkpoint.place(step)
    log.close()


@pytest.mark.parametrize("without", [(), (".txnindex",), (".snapshot",), (".txnindex", ".snapshot")])
def test_kafkas_log_gives_what_kafkas_tools_print(shared_data: Path, without: tuple[str, ...]) -> None:
    """From its index files, and from the log alone."""
    golden = shared_data / GOLDEN
    log = load(copied(golden, without=without))
    expected = said(golden, "*.txnindex.dump.txt")
    assert len(expected) >= 4 and list(log.producers.aborted) == expected
    newest = max(golden.glob("*.snapshot.dump.txt")).read_text()
    for found in _PRODUCER.finditer(newest):
        producer_id, epoch, coordinator, first = found.groups()
        known = log.producers.get(int(producer_id))
        assert known is not None
        assert (known.epoch, known.coordinator_epoch) == (int(epoch), int(coordinator))
        assert known.open_from == (-1 if first is None else int(first))
    assert log.producers.open_from == 63


def test_kafkas_index_files_are_written_again_byte_by_byte(shared_data: Path) -> None:
    for path in (shared_data / GOLDEN).glob("*.txnindex"):
        base = int(path.stem)
        entries = decode_aborted(path.read_bytes(), base, end_offset=base + 100)
        assert entries and encode_aborted(entries) == path.read_bytes()


def test_every_snapshot_of_kafkas_is_what_a_replay_gives(shared_data: Path) -> None:
    golden = shared_data / GOLDEN
    replayed = ProducerTable()
    for path in sorted(golden.glob("*.log")):
        snapshot = golden / snapshot_name(int(path.stem))
        if snapshot.exists():
            stored = decode_producers(snapshot.read_bytes(), str(snapshot))
            for one in stored.all():
                mine = replayed.get(one.producer_id)
                assert mine is not None
                assert (mine.coordinator_epoch, mine.open_from) == (one.coordinator_epoch, one.open_from)
        for batch in iter_batches(path.read_bytes()):
            marker = read_marker(batch.header, batch.data)
            replayed.note(batch.header, seen_ms=0, marker=marker)


def test_a_garbled_index_file_is_rebuilt_once(shared_data: Path) -> None:
    golden = shared_data / GOLDEN
    disk = copied(golden)
    log = load(disk)
    keep(log)
    path = f"{PLACE}/00000000000000000031.txnindex"
    file = disk.open_append(path)
    assert file.size() == 68
    file.truncate(50)
    warnings: list[str] = []
    log = load(disk, warnings)
    assert list(log.producers.aborted) == said(golden, "*.txnindex.dump.txt")
    assert sum("txnindex" in line for line in warnings) == 1
    keep(log)
    assert disk.file_size(path) == 68
    warnings.clear()
    load(disk, warnings)
    assert not warnings


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_read_as_it_was_written(committed: bool) -> None:
    marker = EndMarker(committed, 17)
    data = encode_marker(marker, producer_id=5, producer_epoch=2, timestamp_ms=9)
    header = parse_header(data)
    assert (
        header.is_control
        and header.is_transactional
        and (header.producer_id, header.producer_epoch) == (5, 2)
    )
    assert read_marker(header, data) == marker


def test_kafkas_markers_have_the_same_bytes(shared_data: Path) -> None:
    count = 0
    for path in sorted((shared_data / GOLDEN).glob("*.log")):
        for batch in iter_batches(path.read_bytes()):
            marker = read_marker(batch.header, batch.data)
            if marker is not None:
                again = encode_marker(
                    marker,
                    producer_id=batch.header.producer_id,
                    producer_epoch=batch.header.producer_epoch,
                    timestamp_ms=batch.header.base_timestamp_ms,
                )
                assert again[16:] == batch.data[16:], "all but offset, length and leader epoch"
                count += 1
    assert count > 5


def test_who_is_aborted_in_a_range() -> None:
    """Entries are looked at up to the first one that had nothing undecided before it."""
    kept = AbortedTransactions(
        [AbortedTransaction(1, 0, 5, 2), AbortedTransaction(2, 2, 8, 9), AbortedTransaction(3, 10, 12, 13)]
    )
    assert [one.producer_id for one in kept.overlapping(0, 20)] == [1, 2, 3]
    assert [one.producer_id for one in kept.overlapping(6, 9)] == [2]
    assert [one.producer_id for one in kept.overlapping(0, 2)] == [1]
    last = max(one.last_offset for one in kept)
    assert [kept.ends_above(each) for each in (0, last, last + 1)] == [True, True, False]
    assert not AbortedTransactions().ends_above(0)
    assert kept.overlapping(13, 20) == []
    kept.trim(6)
    kept.cut(12)
    assert [one.producer_id for one in kept] == [2]
