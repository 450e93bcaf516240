"""What a leader demands of a batch: every refusal with its code, and nothing stored."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from metaquorum.broker.replica.disk_work import AppendPartition, LogSettings
from metaquorum.broker.replica.partition.validation import (
    OpenedBatch,
    OpenedEarlier,
    check_batch,
    stored_batch,
)
from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.batches.format import (
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    batch_problem,
    parse_header,
)
from tests.unit.broker.replica_world import WALL_MS, Replica, batch, info

PLAIN = TopicSettings()
BOUNDED = TopicSettings(timestamp_before_max_ms=1_000, timestamp_after_max_ms=500)


def made(**fields: object) -> bytes:
    values = {"base_offset": 0, "leader_epoch": -1, "timestamp_ms": WALL_MS, "values": [b"a", b"b"]}
    return encode_batch(**{**values, **fields})  # type: ignore[arg-type]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


GOOD = batch(b"a", b"b")

REFUSED = {
    "empty": (b"", ErrorCode.INVALID_RECORD, "there is no record batch"),
    "cut in the header": (GOOD[:60], ErrorCode.INVALID_RECORD, "60 bytes are not a record batch"),
    "cut in a record": (
        GOOD[:-1],
        ErrorCode.INVALID_RECORD,
        f"says {len(GOOD)} bytes, but {len(GOOD) - 1} arrived",
    ),
    "absurd length": (
        GOOD[:8] + b"\xff" * 4 + GOOD[12:],
        ErrorCode.CORRUPT_MESSAGE,
        "the header says 11 bytes",
    ),
    "flipped bit": (flipped(GOOD, 70), ErrorCode.CORRUPT_MESSAGE, "its CRC is"),
    "flipped CRC": (flipped(GOOD, 18), ErrorCode.CORRUPT_MESSAGE, "send it again"),
    "format 1": (GOOD[:16] + b"\x01" + GOOD[17:], ErrorCode.INVALID_RECORD, "format 1"),
    "format 3": (GOOD[:16] + b"\x03" + GOOD[17:], ErrorCode.CORRUPT_MESSAGE, "magic is 3"),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD, "exactly one whole record batch"),
    "trailing byte": (GOOD + b"x", ErrorCode.INVALID_RECORD, "1 bytes follow"),
    "base offset": (made(base_offset=7), ErrorCode.INVALID_RECORD, "begins at offset 7"),
    "too few counted": (made(records_count=1), ErrorCode.INVALID_RECORD, "counts 1 records"),
    "last delta": (made(last_offset_delta=5), ErrorCode.INVALID_RECORD, "last offset delta is 5"),
    "negative delta": (made(last_offset_delta=-1, records_count=0), ErrorCode.INVALID_RECORD, "is -1"),
    "control": (made(attributes=CONTROL), ErrorCode.INVALID_RECORD, "control batches"),
    "transaction": (
        made(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0),
        ErrorCode.INVALID_TXN_STATE,
        "add the partition to the transaction",
    ),
    "transaction without a producer": (
        made(attributes=TRANSACTIONAL),
        ErrorCode.INVALID_RECORD,
        "has no producer id",
    ),
    "unknown attribute": (made(attributes=0x40), ErrorCode.INVALID_RECORD, "0x0040"),
    "compression 5": (made(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "compression 5"),
    "producer without epoch": (
        made(producer_id=1, producer_epoch=-1, base_sequence=0),
        ErrorCode.INVALID_RECORD,
        "epoch -1",
    ),
    "producer without sequence": (
        made(producer_id=1, producer_epoch=0, base_sequence=-1),
        ErrorCode.INVALID_RECORD,
        "sequence -1",
    ),
    "append time from a producer": (
        made(attributes=LOG_APPEND_TIME),
        ErrorCode.INVALID_TIMESTAMP,
        "append time",
    ),
    "negative time": (made(timestamp_ms=-2), ErrorCode.INVALID_TIMESTAMP, "from -2"),
    "negative newest time": (made(max_timestamp_ms=-2), ErrorCode.INVALID_TIMESTAMP, "to -2"),
}


OF_THE_BYTES = {
    "empty",
    "cut in the header",
    "cut in a record",
    "absurd length",
    "flipped bit",
    "flipped CRC",
    "format 1",
    "format 3",
    "two batches",
    "trailing byte",
}


def checked(data: bytes, settings: TopicSettings) -> OpenedBatch | BatchRefusal:
    return check_batch(Batches.arrived(data), settings, wall_ms=WALL_MS)


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_batch_is_refused_and_nothing_is_stored(name: str) -> None:
    data, code, text = REFUSED[name]
    replica = Replica()
    replica.lead(info(isr=[1]))
    replica.take()
    result = replica.send(data).result
    assert result.error is code
    assert result.message is not None and text in result.message and result.message.startswith("logs-0: ")
    assert result.base_offset == -1
    # Where the bytes were wrong, and not what they say, nothing is said of the log.
    assert result.log_start_offset == (-1 if name in OF_THE_BYTES else 0)
    assert replica.take() == []
    assert (replica.partition.end_offset, len(replica.partition.producers)) == (0, 0)


def test_size_is_judged_before_content() -> None:
    refused = checked(b"\0" * 101, TopicSettings(max_message_bytes=100))
    assert isinstance(refused, BatchRefusal)
    assert refused.error is ErrorCode.MESSAGE_TOO_LARGE
    assert "101 bytes" in refused.message and "max.message.bytes" in refused.message


def test_a_batch_of_just_the_limit_is_taken() -> None:
    assert not isinstance(
        checked(GOOD, TopicSettings(max_message_bytes=len(GOOD))),
        BatchRefusal,
    )
    refused = checked(GOOD, TopicSettings(max_message_bytes=len(GOOD) - 1))
    assert isinstance(refused, BatchRefusal) and refused.error is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("times", "wrong"),
    [
        ((WALL_MS - 1_000, WALL_MS + 500), ()),
        ((WALL_MS, WALL_MS - 1_001), (1,)),
        ((WALL_MS + 501, WALL_MS), (0,)),
        ((-1, WALL_MS), ()),
        ((-1, 5), (1,)),
    ],
)
def test_times_too_far_from_the_clock(times: tuple[int, int], wrong: tuple[int, ...]) -> None:
    data = made(timestamp_ms=times[0], max_timestamp_ms=max(times), timestamps=times)
    verdict = checked(data, BOUNDED)
    if isinstance(verdict, BatchRefusal):
        assert verdict.error is ErrorCode.INVALID_TIMESTAMP
        assert tuple(one.index for one in verdict.records) == wrong
    else:
        assert not wrong


def test_the_newest_time_of_a_batch_is_that_of_its_records() -> None:
    times = (WALL_MS, WALL_MS + 7)
    for claimed in (WALL_MS - 1, WALL_MS, WALL_MS + 9):
        data = made(timestamps=times, max_timestamp_ms=claimed)
        verdict = checked(data, PLAIN)
        assert isinstance(verdict, OpenedBatch)
        stored, (placed,) = stored_batch(verdict, base_offset=3, leader_epoch=1, append_time_ms=None)
        assert placed.max_timestamp_ms == times[1]
        assert batch_problem(stored, 0, expected_offset=3) is None


def test_a_batch_without_times_is_as_good_as_any_where_times_have_no_bound() -> None:
    assert not isinstance(checked(made(timestamp_ms=-1), PLAIN), BatchRefusal)


def test_append_time_topics_do_not_judge_times() -> None:
    settings = TopicSettings(log_append_time=True, timestamp_before_max_ms=1)
    assert not isinstance(checked(made(timestamp_ms=5), settings), BatchRefusal)


def test_placing_changes_offset_and_epoch_and_nothing_else() -> None:
    batch = checked(GOOD, PLAIN)
    assert isinstance(batch, OpenedBatch)
    stored, (placed,) = stored_batch(batch, base_offset=41, leader_epoch=6, append_time_ms=None)
    assert parse_header(stored) == placed
    assert (placed.base_offset, placed.leader_epoch) == (41, 6)
    assert stored[8:12] == GOOD[8:12] and stored[16:] == GOOD[16:]
    assert batch_problem(stored, 0, expected_offset=41, min_epoch=6) is None


def test_append_time_is_put_under_the_checksum() -> None:
    replica = Replica(settings=TopicSettings(log_append_time=True))
    replica.lead(info(isr=[1]))
    ticket = replica.send(batch(b"a", b"b", timestamp_ms=5))
    (work,) = [each for each in replica.take() if isinstance(each, AppendPartition)]
    header = parse_header(work.batches.data)
    assert header.is_log_append_time and header.max_timestamp_ms == replica.wall_ms
    assert header.base_timestamp_ms == 5
    assert crc32c(work.batches.data[CRC_START:]) == header.crc
    replica.settle()
    assert ticket.result.log_append_time_ms == replica.wall_ms


@pytest.mark.parametrize("earlier", [True, False], ids=["opened earlier", "opened now"])
@pytest.mark.parametrize("fits", [True, False])
def test_a_batch_that_fits_no_segment_is_refused(fits: bool, earlier: bool) -> None:
    settings = TopicSettings(log=LogSettings(segment_bytes=len(GOOD) if fits else len(GOOD) - 1))
    arrived = Batches.arrived(GOOD)
    outcome = OpenedBatch(arrived.headers[0], GOOD[HEADER_BYTES:], changed=False)
    opened = OpenedEarlier(settings, outcome) if earlier else None
    answer = check_batch(arrived, settings, opened=opened, wall_ms=WALL_MS)
    if fits:
        assert isinstance(answer, OpenedBatch)
    else:
        assert isinstance(answer, BatchRefusal) and answer.error is ErrorCode.RECORD_LIST_TOO_LARGE
        assert "segment.bytes" in answer.message
