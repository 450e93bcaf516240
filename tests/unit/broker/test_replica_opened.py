"""What a leader does with the records of a batch: opens them, refuses single ones, and packs them anew."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.broker.replica.disk_work import LogSettings
from metaquorum.broker.replica.partition.validation import (
    LightWork,
    NotLight,
    OpenedBatch,
    check_batch,
    open_batch,
    stored_batch,
)
from metaquorum.broker.replica.partition.values import BatchRefusal
from metaquorum.broker.replica.topic_settings import TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.storage.batches.batch import Batches, RecordBatch, encode_batch, seal_batch
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.encode import encode_records
from metaquorum.storage.batches.format import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Compression,
    batch_problem,
    parse_header,
)
from metaquorum.storage.batches.places import FEW_RECORDS

WALL_MS = 1_700_000_000_000
COMPACTED = TopicSettings(log=LogSettings(compacts=True))


def sent(
    count: int = 3, codec: int = 0, *, keys: list[bytes | None] | None = None, deltas: list[int] | None = None
) -> bytes:
    plain = encode_batch(
        base_offset=0,
        leader_epoch=-1,
        timestamp_ms=WALL_MS,
        values=[b"value %d" % index for index in range(count)],
        keys=keys or [b"k"] * count,
    )
    header, payload = parse_header(plain), plain[HEADER_BYTES:]
    if deltas is not None:
        payload = encode_records(
            base_timestamp_ms=0, values=[b"v"] * count, keys=[b"k"] * count, deltas=deltas
        )
    return seal_batch(header._replace(attributes=codec), pack(codec, payload))


def taken(data: bytes, settings: TopicSettings = TopicSettings()) -> OpenedBatch:  # noqa: B008
    found = check_batch(Batches.arrived(data), settings, wall_ms=WALL_MS)
    assert isinstance(found, OpenedBatch), found
    return found


def refused(data: bytes, settings: TopicSettings = TopicSettings()) -> BatchRefusal:  # noqa: B008
    found = check_batch(Batches.arrived(data), settings, wall_ms=WALL_MS)
    assert isinstance(found, BatchRefusal)
    return found


@pytest.mark.parametrize("source", Compression)
@pytest.mark.parametrize("target", [None, *Compression])
def test_a_batch_is_stored_in_the_codec_of_the_topic(source: Compression, target: Compression | None) -> None:
    data = sent(40, source)
    batch = taken(data, TopicSettings(compression=target))
    stored, (header,) = stored_batch(batch, base_offset=7, leader_epoch=2, append_time_ms=None)
    assert batch_problem(stored, 0, expected_offset=7) is None
    assert header.compression == (source if target is None else target)
    assert [one.value for one in RecordBatch(header, stored).records()] == [
        b"value %d" % at for at in range(40)
    ]
    if target in (None, source):
        assert stored[HEADER_BYTES:] == data[HEADER_BYTES:] and header.crc == parse_header(data).crc


@pytest.mark.parametrize("codec", Compression)
def test_append_time_of_a_compressed_batch(codec: Compression) -> None:
    settings = TopicSettings(log_append_time=True)
    batch = taken(sent(3, codec), settings)
    stored, (header,) = stored_batch(batch, base_offset=7, leader_epoch=2, append_time_ms=99)
    assert batch_problem(stored, 0, expected_offset=7) is None
    assert header.is_log_append_time and header.compression == codec
    assert [one.timestamp_ms for one in RecordBatch(header, stored).records()] == [99] * 3
    claimed = seal_batch(parse_header(sent())._replace(attributes=LOG_APPEND_TIME), sent()[HEADER_BYTES:])
    assert refused(claimed, settings).error is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("count", [3, FEW_RECORDS + 30])
def test_another_number_of_records_than_counted_is_refused(codec: Compression, count: int) -> None:
    for wrong in (count - 1, count + 1):
        header = parse_header(sent(count, codec))._replace(records_count=wrong, last_offset_delta=wrong - 1)
        answer = refused(seal_batch(header, sent(count, codec)[HEADER_BYTES:]))
        assert answer.error is ErrorCode.INVALID_RECORD and "cannot be read" in answer.message


@pytest.mark.parametrize("codec", [each for each in Compression if each])
def test_a_payload_that_does_not_unpack_is_refused(codec: Compression) -> None:
    data = sent(3, codec)
    answer = refused(seal_batch(parse_header(data), data[HEADER_BYTES:-6]))
    assert answer.error is ErrorCode.INVALID_RECORD and codec.name.lower() in answer.message


def test_a_compacted_topic_names_the_records_without_keys() -> None:
    keys = [b"a", None, b"", None, b"c"]
    answer = refused(sent(5, 2, keys=keys), COMPACTED)
    assert answer.error is ErrorCode.INVALID_RECORD
    assert [one.index for one in answer.records] == [1, 3] and "2 of 5 records" in answer.message
    taken(sent(5, 2, keys=keys))
    taken(sent(5, 2), COMPACTED)


def test_many_wrong_records_are_not_all_listed() -> None:
    answer = refused(sent(3_000, keys=[None] * 3_000), COMPACTED)
    assert len(answer.records) == 1_000 and "3000 of 3000" in answer.message


@pytest.mark.parametrize("codec", Compression)
@given(seed=st.integers(0, 9))
def test_wrong_offset_deltas_are_put_right(codec: Compression, seed: int) -> None:
    """Old clients number all records 0; Kafka numbers the records of compressed batches anew."""
    deltas = [random.Random(seed).choice((0, 1, 5, 700)) for _ in range(30)]
    batch = taken(sent(30, codec, deltas=deltas))
    stored, (header,) = stored_batch(batch, base_offset=4, leader_epoch=0, append_time_ms=None)
    assert batch_problem(stored, 0, expected_offset=4) is None
    assert [one.offset for one in RecordBatch(header, stored).records()] == list(range(4, 34))


def test_a_batch_too_large_in_the_codec_of_the_topic_is_refused() -> None:
    data = sent(500, Compression.ZSTD)
    settings = TopicSettings(max_message_bytes=len(data) + 10, compression=Compression.NONE)
    answer = refused(data, settings)
    assert answer.error is ErrorCode.MESSAGE_TOO_LARGE and "compression.type" in answer.message


def test_batches_of_one_request_share_what_may_be_opened_without_a_pause() -> None:
    plain = encode_records(base_timestamp_ms=0, values=[b"v" * 90], headers=[[(b"h", b"x")]])
    header = parse_header(sent(1, Compression.ZSTD))
    payload = pack(Compression.ZSTD, plain)
    for light in (LightWork(250, 99), LightWork(9_999, 5)):
        for _ in range(2):
            open_batch(header, payload, TopicSettings(), wall_ms=WALL_MS, light=light)
        with pytest.raises(NotLight):
            open_batch(header, payload, TopicSettings(), wall_ms=WALL_MS, light=light)


@given(data=st.binary(max_size=200), codec=st.integers(0, 4), count=st.integers(1, 60))
def test_no_payload_raises(data: bytes, codec: int, count: int) -> None:
    header = parse_header(sent())._replace(
        attributes=codec, records_count=count, last_offset_delta=count - 1, batch_length=49 + len(data)
    )
    assert isinstance(open_batch(header, data, COMPACTED, wall_ms=WALL_MS), OpenedBatch | BatchRefusal)
