"""Producers' snapshots: Kafka's bytes, our appendix, and what is no snapshot."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage.batches.batch import encode_batch, parse_header
from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.partition.log_producers import (
    ProducerSnapshots,
    decode_producers,
    encode_producers,
    parse_snapshot_name,
    snapshot_name,
)
from metaquorum.storage.partition.producers import KnownBatch, KnownProducer, ProducerTable
from metaquorum.testing.faulty_disk import FaultyDisk

MAXIMUM = 2**31 - 1


def kafkas(*entries: tuple[int, int, int, int, int, int]) -> bytes:
    """A file as `ProducerStateManager.writeSnapshot` of Kafka 3.7 lays it out: producer id and epoch, last
    sequence, last offset, offset delta, timestamp, coordinator epoch -1, no transaction."""
    body = struct.pack(">i", len(entries))
    body += b"".join(struct.pack(">qhiqiqiq", *entry, -1, -1) for entry in entries)
    return struct.pack(">hI", 1, crc32c(body)) + body


def table(batches: int = 7) -> ProducerTable:
    made, at = ProducerTable(), 0
    for number in range(batches):
        for producer_id in (4, 9):
            data = encode_batch(
                base_offset=at,
                leader_epoch=1,
                timestamp_ms=100 + at,
                values=[b"v"] * 3,
                producer_id=producer_id,
                producer_epoch=2,
                base_sequence=number * 3,
            )
            made.note(parse_header(data), seen_ms=100 + at)
            at += 3
    return made


def test_what_is_written_is_read_with_all_five_batches() -> None:
    made = table()
    again = decode_producers(encode_producers(made), "f")
    assert again == made and len(again) == 2
    known = again.get(9)
    assert known is not None and len(known.batches) == 5 and known.batches[-1].last_offset == 41


def test_kafka_finds_its_own_entries_in_ours() -> None:
    made = table()
    data = encode_producers(made)
    expected = kafkas((4, 2, 20, 38, 2, 136), (9, 2, 20, 41, 2, 139))
    assert data[6 : len(expected)] == expected[6:], "the appendix follows Kafka's last byte"
    assert struct.unpack(">hI", data[:6]) == (1, crc32c(data[6:])), "and is under the CRC"


def test_a_file_of_kafkas_gives_the_last_batch() -> None:
    read = decode_producers(kafkas((4, 2, 20, 38, 2, 136), (5, 0, -1, -1, 0, 77)), "f")
    assert read == ProducerTable(
        {
            4: KnownProducer(4, 2, (KnownBatch(18, 20, 36, 38, 136),), 136),
            5: KnownProducer(5, 0, (), 77),
        }
    )


def test_a_producer_without_a_batch_is_written_as_kafka_writes_it() -> None:
    made = ProducerTable({5: KnownProducer(5, 3, (), 77)})
    data, expected = encode_producers(made), kafkas((5, 3, -1, -1, 0, 77))
    assert data[6 : len(expected)] == expected[6:]
    assert decode_producers(data, "f") == made


def test_the_newest_of_several_snapshots() -> None:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/d")
    kept = ProducerSnapshots(disk, "/d")
    assert kept.newest is None
    kept.find(["x", snapshot_name(7), snapshot_name(30), snapshot_name(9)])
    assert kept.newest == 30
    kept.note(12)
    kept.note(12)
    assert kept.newest == 30
    kept.drop(13)
    assert kept.newest == 12
    warnings: list[str] = []
    assert kept.load(9, warnings.append) == (ProducerTable(), 9)
    assert (kept.newest, len(warnings)) == (7, 2)


def test_a_wrapped_sequence() -> None:
    read = decode_producers(kafkas((4, 0, 1, 10, 3, 0)), "f")
    known = read.get(4)
    assert known is not None and known.batches[0].first_sequence == MAXIMUM - 1


def test_names() -> None:
    assert snapshot_name(4758) == "00000000000000004758.snapshot"
    assert parse_snapshot_name("00000000000000004758.snapshot") == 4758
    for other in ("4758.snapshot", "00000000000000004758.snapshot.new", "00000000000000004758.log"):
        assert parse_snapshot_name(other) is None


def last_offset(known: KnownProducer) -> int:
    return known.batches[-1].last_offset if known.batches else -1


def test_snapshots_that_kafka_wrote_are_read(shared_data: Path) -> None:
    files = sorted(shared_data.rglob("*.snapshot"))
    assert files
    kept = 0
    for file in files:
        found = decode_producers(file.read_bytes(), str(file))
        dump = file.with_name(file.name + ".dump.txt")
        if dump.exists():
            line = r"producerId: (\d+) producerEpoch: (\d+) .* lastOffset: (-?\d+)"
            expected = sorted(tuple(map(int, each)) for each in re.findall(line, dump.read_text()))
            told = sorted((one.producer_id, one.epoch, last_offset(one)) for one in found.all())
            assert told == expected
            kept += len(told)
        elif file.parent.name == "__cluster_metadata-0":
            assert len(found) == 0  # nobody produces to a metadata log
    assert kept > 3


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_is_told(data: st.DataObject) -> None:
    whole = encode_producers(table())
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = bytearray(whole)
        damaged[at] ^= data.draw(st.integers(1, 255))
        bad = bytes(damaged)
    else:
        bad = whole[:at]
    with pytest.raises(CorruptFileError, match="recovered from the log"):
        decode_producers(bad, "some.snapshot")


def test_too_many_batches_of_one_producer() -> None:
    whole = encode_producers(table())
    at = whole.index(b"MQB\x01") + 4 + 8
    body = bytearray(whole[6:])
    body[at - 6] = 6
    with pytest.raises(CorruptFileError, match="is not a producer snapshot"):
        decode_producers(struct.pack(">hI", 1, crc32c(bytes(body))) + bytes(body), "f")
