"""Batches to decoded records: the short way and the general way, and what they say of bad records."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.metadata.errors import ErrorCode, RecordDecodeError, UnknownRecordError
from metaquorum.metadata.records import codec
from metaquorum.metadata.records.batches import DecodedRecord, decode_batch, decode_readable
from metaquorum.metadata.records.control import (
    LeaderChangeMessage,
    SnapshotFooterRecord,
    UnknownControlRecord,
)
from metaquorum.metadata.records.types import (
    ClientQuotaRecord,
    NoOpRecord,
    Record,
    TopicRecord,
    UnknownRecord,
)
from metaquorum.metadata.text.dump import payload_json
from metaquorum.storage.batches.batch import (
    HEADER_BYTES,
    RecordBatch,
    encode_batch,
    iter_batches,
    parse_header,
    seal_batch,
)
from metaquorum.wire.primitives import Malformed, read_uuids

U = bytes(range(16))
FUTURE = bytes.fromhex("01 7f 00 aa bb")


def _batch(values: list[bytes], keys: list[bytes] | None = None, *, is_control: bool = False) -> RecordBatch:
    data = encode_batch(
        base_offset=40,
        leader_epoch=3,
        timestamp_ms=1700,
        values=values,
        keys=keys,
        is_control=is_control,
    )
    (batch,) = iter_batches(data)
    return batch


def test_offsets_timestamps_and_versions() -> None:
    written: list[Record] = [TopicRecord("a", U), NoOpRecord(), TopicRecord("b", U)]
    batch = _batch([codec.encode(record, 0) for record in written])
    expected = tuple(DecodedRecord(40 + place, 1700, 0, record) for place, record in enumerate(written))
    assert decode_batch(batch) == expected
    assert decode_batch(batch, tolerant=True) == expected


def test_data_records_with_keys_take_the_general_way() -> None:
    batch = _batch([codec.encode(NoOpRecord(), 0)] * 2, [b"k", b"l"])
    assert decode_batch(batch) == (
        DecodedRecord(40, 1700, 0, NoOpRecord()),
        DecodedRecord(41, 1700, 0, NoOpRecord()),
    )


@pytest.mark.parametrize("keys", [None, [b"k", None]])
def test_a_record_without_a_value_is_named_by_its_offset(keys: list[bytes | None] | None) -> None:
    content = encode_batch(
        base_offset=40,
        leader_epoch=3,
        timestamp_ms=1700,
        values=[codec.encode(NoOpRecord(), 0), None],
        keys=keys,
    )
    (batch,) = iter_batches(content)
    with pytest.raises(RecordDecodeError, match=r"^offset 41: a metadata record needs a value"):
        decode_batch(batch)


@pytest.mark.parametrize(
    "framed",
    [
        {"max_timestamp_ms": 1900},
        {"timestamps": [1700, 1800, 1750]},
        {"keys": [None, b"k", None]},
        {"headers": [(), (), [(b"h", None)]]},
    ],
)
def test_the_short_way_says_of_places_and_times_what_the_records_say(framed: dict[str, Any]) -> None:
    values = [codec.encode(NoOpRecord(), 0), codec.encode(TopicRecord("a", U), 0), FUTURE]
    content = encode_batch(base_offset=40, leader_epoch=3, timestamp_ms=1700, values=values, **framed)
    (batch,) = iter_batches(content)
    expected = [
        (raw.offset, raw.timestamp_ms, *codec.decode_tolerant(raw.value or b"")) for raw in batch.records()
    ]
    assert list(decode_batch(batch, tolerant=True)) == expected
    assert list(decode_readable(batch)) == expected
    with pytest.raises(UnknownRecordError, match=r"^offset 42: "):
        decode_batch(batch)


@pytest.mark.parametrize("is_control", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_of_a_batch_with_a_record_that_is_none_the_others_are_readable(bad: int, is_control: bool) -> None:
    keys, values = [], []
    for record in (LeaderChangeMessage(1), LeaderChangeMessage(2), SnapshotFooterRecord()):
        key, value = codec.encode_control(record)
        keys.append(key)
        values.append(value if is_control else codec.encode(TopicRecord(f"t{len(keys)}", U), 0))
    values[bad] = values[bad] + b"?"
    batch = _batch(values, keys if is_control else None, is_control=is_control)
    read = codec.decode_control if is_control else lambda key, value: codec.decode(value or b"")[1]
    expected = [DecodedRecord(40 + at, 1700, 0, read(keys[at], values[at])) for at in range(3) if at != bad]
    assert list(decode_readable(batch)) == expected
    with pytest.raises(RecordDecodeError, match=rf"^offset {40 + bad}: "):
        decode_batch(batch, tolerant=True)


def test_of_a_batch_that_cannot_be_taken_apart_nothing_is_readable() -> None:
    content = encode_batch(base_offset=40, leader_epoch=3, timestamp_ms=1700, values=[FUTURE] * 3)
    (batch,) = iter_batches(seal_batch(parse_header(content), content[HEADER_BYTES:-1]))
    assert decode_readable(batch) == ()


def test_control_batches_say_the_version_of_their_message() -> None:
    pairs = [codec.encode_control(LeaderChangeMessage(1, version=v)) for v in (0, 1)]
    pairs.append(codec.encode_control(SnapshotFooterRecord()))
    batch = _batch([value for _, value in pairs], [key for key, _ in pairs], is_control=True)
    assert [(item.offset, item.version, item.record) for item in decode_batch(batch)] == [
        (40, 0, LeaderChangeMessage(1)),
        (41, 1, LeaderChangeMessage(1, version=1)),
        (42, 0, SnapshotFooterRecord()),
    ]


def test_a_record_from_the_future_stops_a_node_and_not_a_tool() -> None:
    batch = _batch([codec.encode(NoOpRecord(), 0), FUTURE])
    with pytest.raises(UnknownRecordError, match="offset 41: record has api key 127"):
        decode_batch(batch)
    unknown = decode_batch(batch, tolerant=True)[1]
    assert unknown == DecodedRecord(41, 1700, 0, UnknownRecord(127, 0, b"\xaa\xbb"))
    assert payload_json(unknown.record, unknown.version) == {
        "type": "UNKNOWN_RECORD",
        "version": 0,
        "data": {"apiKey": 127, "body": "qrs="},
    }


def test_a_control_record_from_the_future() -> None:
    batch = _batch([b"\1\2"], [b"\0\0\0\x09"], is_control=True)
    with pytest.raises(UnknownRecordError, match="offset 40: control record type 9"):
        decode_batch(batch)
    (unknown,) = decode_batch(batch, tolerant=True)
    assert unknown.record == UnknownControlRecord(9, b"\0\0\0\x09", b"\1\2")
    assert payload_json(unknown.record, 0)["data"] == {"controlType": 9, "key": "AAAACQ==", "value": "AQI="}


@pytest.mark.parametrize("tolerant", [False, True])
def test_malformed_records_are_named_by_their_offset(tolerant: bool) -> None:
    batch = _batch([codec.encode(NoOpRecord(), 0), b"\1\2\0\x05a"])
    with pytest.raises(RecordDecodeError, match="offset 41: TOPIC_RECORD"):
        decode_batch(batch, tolerant=tolerant)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity"), (1.5, 1.5)],
)
def test_numbers_that_json_does_not_have_are_text(value: float, shown: object) -> None:
    record = ClientQuotaRecord((), "producer_byte_rate", value, False)
    assert payload_json(record, 0)["data"]["value"] == shown


def test_error_codes_know_whether_to_try_again() -> None:
    assert [code.value for code in ErrorCode] == list(range(-1, 129))
    assert ErrorCode(77) is ErrorCode.STALE_BROKER_EPOCH
    assert not ErrorCode.STALE_BROKER_EPOCH.retriable
    assert ErrorCode.NOT_CONTROLLER.retriable
    assert ErrorCode.REQUEST_TIMED_OUT.retriable
    assert not ErrorCode.DUPLICATE_BROKER_REGISTRATION.retriable


@pytest.mark.parametrize("times", [[7, 9], [7, 3], [7, 3, 7], [7, 7, 6, 8, 7], [7, -70], [7, 7]])
def test_every_record_has_its_own_time(times: list[int]) -> None:
    """Also where the clock ran backwards inside the batch, whose newest time is that of its first record."""
    values = [codec.encode(NoOpRecord(), 0)] * len(times)
    (batch,) = iter_batches(
        encode_batch(base_offset=4, leader_epoch=1, timestamp_ms=7, values=values, timestamps=times)
    )
    for tolerant in (False, True):
        found = decode_batch(batch, tolerant=tolerant)
        assert [(one.offset, one.timestamp_ms) for one in found] == list(enumerate(times, 4))


@pytest.mark.parametrize("position", [0, 5, 64])
def test_an_array_has_as_many_uuids_as_there_are_bytes(position: int) -> None:
    ids = [bytes([at]) * 16 for at in range(3)]
    buf = bytes(position) + b"".join(ids)
    end = len(buf)
    assert read_uuids(buf + b"x" * 100, position, 3, end) == tuple(ids)
    for more, last in ((4, end), (3, end - 1), (4, end + 15), (1, position + 15), (1, position - 1)):
        with pytest.raises(Malformed, match="uuids does not fit"):
            read_uuids(buf + b"x" * 100, position, more, last)
