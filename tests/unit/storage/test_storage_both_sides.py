"""Checksums that are too low and too high, counts and offsets on both sides of their bounds."""

from __future__ import annotations

import struct
import zlib

import pytest

from metaquorum.storage.batches.batch import BatchHeader, encode_batch, parse_header
from metaquorum.storage.batches.format import batch_problem, header_problems
from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.files.known_committed import decode
from metaquorum.storage.log.timed_segment import cut_aborted
from metaquorum.storage.partition.log_producers import decode_producers
from metaquorum.storage.types import LogPosition
from tests.unit.storage.test_producer_snapshot import kafkas

CRC_AT = {"batch": 17, "producers": 2}
"""Where four bytes of checksum begin."""


def wrong_checksums(data: bytes, at: int) -> list[bytes]:
    (right,) = struct.unpack_from(">I", data, at)
    wrong = {0, right - 1, right + 1, 0xFFFFFFFF} - {right}
    return [data[:at] + struct.pack(">I", each & 0xFFFFFFFF) + data[at + 4 :] for each in wrong]


def test_a_batch_with_another_checksum_is_damaged() -> None:
    data = encode_batch(base_offset=3, leader_epoch=1, timestamp_ms=1, values=[b"one", b"two"])
    assert batch_problem(data, 0) is None
    for damaged in wrong_checksums(data, CRC_AT["batch"]):
        assert batch_problem(damaged, 0) is not None


def test_a_producer_snapshot_with_another_checksum_is_damaged() -> None:
    data = kafkas((4, 2, 20, 38, 2, 136))
    assert len(decode_producers(data, "f")) == 1
    for damaged in wrong_checksums(data, CRC_AT["producers"]):
        with pytest.raises(CorruptFileError, match="CRC"):
            decode_producers(damaged, "f")


def header(count: int, last_offset_delta: int) -> BatchHeader:
    return parse_header(
        encode_batch(
            base_offset=10,
            leader_epoch=1,
            timestamp_ms=1,
            values=[b"v"],
            records_count=count,
            last_offset_delta=last_offset_delta,
        )
    )


@pytest.mark.parametrize("count", [-1, 0, 1, 2, 3, 4, 5])
def test_only_a_compacted_log_may_hold_fewer_records_than_offsets(count: int) -> None:
    """Three offsets."""
    plain = header_problems(header(count, 2), 10, 0)
    compacted = header_problems(header(count, 2), 10, 0, gaps=True)
    assert (plain == []) == (count == 3)
    assert (compacted == []) == (0 <= count <= 3)
    assert header_problems(header(count, 2), 10, 0, check_count=False) == []


@pytest.mark.parametrize("expected", [9, 10, 11])
def test_only_a_compacted_log_may_lack_offsets_before_a_batch(expected: int) -> None:
    assert (header_problems(header(3, 2), expected, 0) == []) == (expected == 10)
    assert (header_problems(header(3, 2), expected, 0, gaps=True) == []) == (expected <= 10)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"base_offset": -1}, "expected offsets from 0 up"),
        ({"last_offset_delta": -1, "records_count": 0}, "expected offsets from 0 up"),
        ({"leader_epoch": 3}, "expected leader epoch 4 or higher"),
        ({"records_count": 4}, "3 records by the last offset delta"),
        ({}, ""),
        ({"base_offset": 0}, ""),
        ({"last_offset_delta": 0, "records_count": 1}, ""),
        ({"leader_epoch": 4}, ""),
    ],
)
def test_one_wrong_number_in_a_header_is_the_one_that_is_told(
    fields: dict[str, int], says: str, gaps: bool
) -> None:
    """Also where no offset is expected, as at the beginning of a file without a name."""
    told = header_problems(header(3, 2)._replace(leader_epoch=9)._replace(**fields), None, 4, gaps=gaps)
    assert len(told) == bool(says) and says in "".join(told)


def aborted(first: int, last: int, stable: int) -> bytes:
    """An entry of Kafka's `.txnindex` (`AbortedTxn`): version, producer id, first, last and stable offset."""
    return struct.pack(">hqqqq", 0, 7, first, last, stable)


def test_an_aborted_transaction_stays_if_it_ended_before_the_cut() -> None:
    entries = [aborted(2, 8, 8), aborted(2, 9, 30), aborted(2, 10, 2), aborted(12, 14, 9)]
    assert cut_aborted(b"".join(entries), 10) == entries[0] + entries[1]
    assert cut_aborted(entries[0] + entries[1][:-1], 10) == entries[0]


def test_a_note_of_what_is_committed_with_another_checksum_does_not_count() -> None:
    def line(offset: int, change: int = 0) -> bytes:
        fields = b"0 %d 4" % offset
        return fields + b" %08x\n" % ((zlib.crc32(fields) + change) & 0xFFFFFFFF)

    assert decode(line(3) + line(5)) == LogPosition(4, 5)
    for change in (-1, 1, 0x80000000):
        assert decode(line(3) + line(5, change) + line(7)) == LogPosition(4, 3)
        with pytest.raises(CorruptFileError, match="does not say what is committed"):
            decode(line(3, change))
