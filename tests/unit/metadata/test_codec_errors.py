"""What the codec refuses, and that the text says what and where."""

from __future__ import annotations

import re
from typing import Any

import pytest

from metaquorum.metadata.errors import (
    RecordDecodeError,
    RecordEncodeError,
    UnknownRecordError,
    UnsupportedVersionError,
)
from metaquorum.metadata.records import codec
from metaquorum.metadata.records.control import KRaftVersionRecord, LeaderChangeMessage, UnknownControlRecord
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    QuotaEntity,
    Record,
    TopicRecord,
    UnknownRecord,
)

U = bytes(range(16))
ENDPOINT = BrokerEndpoint("PLAINTEXT", "host", 9092, 0)
BROKER = BrokerRecord(1, U, 7, (ENDPOINT,), rack="r1", log_dirs=(U,))
PARTITION = PartitionRecord(0, U, (1, 2, 3), (1, 2), (), (), 1, 1, 4, 5, (U, U, U), (3,), ())
CHANGE = PartitionChangeRecord(0, U, (1,), -1, (1, 2), (), (2,), 0, (U, U), (), (3,))
SAMPLES: list[tuple[Record, int]] = [
    (BROKER, 3),
    (PARTITION, 2),
    (CHANGE, 2),
    (TopicRecord("orders", U), 0),
    (ConfigRecord(2, "orders", "retention.ms", None), 0),
    (ClientQuotaRecord((QuotaEntity("user", None),), "consumer_byte_rate", 1.5, False), 0),
    (BrokerRegistrationChangeRecord(1, 7, 1, 1, (U,)), 2),
    (NoOpRecord(((100, b"x" * 200),)), 0),
]


@pytest.mark.parametrize(("record", "version"), SAMPLES, ids=[type(r).__name__ for r, _ in SAMPLES])
def test_a_record_cut_anywhere_is_refused(record: Record, version: int) -> None:
    value = codec.encode(record, version)
    assert codec.decode(value) == (version, record)
    for length in range(len(value)):
        with pytest.raises(RecordDecodeError):
            codec.decode(value[:length])
        # The bytes that are missing lie behind `end`: reading on into them must be noticed.
        with pytest.raises(RecordDecodeError):
            codec.decode(value, 0, length)


@pytest.mark.parametrize(("record", "version"), SAMPLES, ids=[type(r).__name__ for r, _ in SAMPLES])
def test_trailing_bytes_are_refused(record: Record, version: int) -> None:
    value = codec.encode(record, version)
    with pytest.raises(RecordDecodeError, match=record.type_name):
        codec.decode(value + b"\0")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "0 bytes: frame version"),
        ("00 14 00 00", "frame version 0"),
        ("02 14 00 00", "frame version 2"),
        ("01", "1 bytes: api key"),
        ("01 14 00 02 05 00 05 00", "NO_OP_RECORD.*tagged field 5 comes after tagged field 5"),
        ("01 14 00 01 05 09 00", "NO_OP_RECORD.*tagged field 5 has 9 bytes, 1 are left"),
        ("01 14 00 80 00", "varint is longer than its value needs"),
        ("01 14 00 ff ff ff ff ff", "varint is above"),
        ("01 09 00 0000", "REMOVE_TOPIC_RECORD version 0, 5 bytes: it ends inside"),
        ("01 1a 00 03 ff fe 00", "REMOVE_DELEGATION_TOKEN_RECORD.*not UTF-8"),
        ("01 1a 00 00 00", "tokenId may not be null"),
        ("01 17 00 01 00 05 03 61 62 63 64 00", "BEGIN_TRANSACTION_RECORD.*tagged field 0"),
        ("01 0e 00 ff 0f 00", "CLIENT_QUOTA_RECORD.*entity has"),
        ("01 0e 00 01 02 61 0000000000000000 02 00", "remove: a boolean is 0 or 1"),
    ],
)
def test_malformed_bytes_are_named(value: str, text: str) -> None:
    with pytest.raises(RecordDecodeError) as caught:
        codec.decode(bytes.fromhex(value))
    assert re.search(text, str(caught.value)), str(caught.value)
    assert not isinstance(caught.value, UnknownRecordError)


def test_an_array_that_claims_more_than_there_is_costs_nothing() -> None:
    head = codec.encode(PartitionRecord(0, U), 0)[: 3 + 20]
    for count in (b"\xff\xff\xff\x7f", b"\xff\x01", b"\x20"):
        with pytest.raises(RecordDecodeError, match="PARTITION_RECORD"):
            codec.decode(head + count + bytes(30))


@pytest.mark.parametrize(
    ("value", "api_key", "version", "body"),
    [
        ("01 1e 00 aabb", 30, 0, "aabb"),
        ("01 06 00", 6, 0, ""),
        ("01 03 03 00", 3, 3, "00"),
        ("01 c8 01 07 01", 200, 7, "01"),
        ("01 14 80 01 01", 20, 128, "01"),
    ],
)
def test_types_and_versions_from_the_future(value: str, api_key: int, version: int, body: str) -> None:
    data = bytes.fromhex(value)
    with pytest.raises(UnknownRecordError, match="newer") as caught:
        codec.decode(data)
    assert (caught.value.api_key, caught.value.version) == (api_key, version)
    unknown = UnknownRecord(api_key, version, bytes.fromhex(body))
    assert codec.decode_tolerant(b"??" + data + b"??", 2, 2 + len(data)) == (version, unknown)


def test_tolerance_ends_at_malformed_records() -> None:
    with pytest.raises(RecordDecodeError):
        codec.decode_tolerant(bytes.fromhex("01 09 00 0000"))
    assert codec.decode_tolerant(codec.encode(BROKER, 3)) == (3, BROKER)


# The 19 cases in which Kafka 3.7 throws: (record, version, the field in Python's name).
UNSUPPORTED: list[tuple[Record, int, str]] = [
    *((BrokerRecord(1, U, 7, is_migrating_zk_broker=True), v, "is_migrating_zk_broker") for v in (0, 1)),
    (BrokerRecord(1, U, 7, in_controlled_shutdown=True), 0, "in_controlled_shutdown"),
    *((BrokerRecord(1, U, 7, log_dirs=(U,)), v, "log_dirs") for v in (0, 1, 2)),
    (PartitionRecord(0, U, directories=(U,)), 0, "directories"),
    *((PartitionRecord(0, U, eligible_leader_replicas=()), v, "eligible_leader_replicas") for v in (0, 1)),
    *((PartitionRecord(0, U, last_known_elr=(1,)), v, "last_known_elr") for v in (0, 1)),
    (PartitionChangeRecord(0, U, directories=()), 0, "directories"),
    *(
        (PartitionChangeRecord(0, U, eligible_leader_replicas=(1,)), v, "eligible_leader_replicas")
        for v in (0, 1)
    ),
    *((PartitionChangeRecord(0, U, last_known_elr=()), v, "last_known_elr") for v in (0, 1)),
    (BrokerRegistrationChangeRecord(1, 7, in_controlled_shutdown=1), 0, "in_controlled_shutdown"),
    *((BrokerRegistrationChangeRecord(1, 7, log_dirs=(U,)), v, "log_dirs") for v in (0, 1)),
]


def test_the_unsupported_cases_are_all_there() -> None:
    assert len(UNSUPPORTED) == 19


@pytest.mark.parametrize(("record", "version", "field"), UNSUPPORTED)
def test_a_field_that_the_version_cannot_carry(record: Record, version: int, field: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"version {version} cannot carry {field}"):
        codec.encode(record, version)
    latest = 3 if isinstance(record, BrokerRecord) else 2
    assert codec.decode(codec.encode(record, latest)) == (latest, record)


@pytest.mark.parametrize("version", [-1, 5, 127])
def test_versions_that_do_not_exist_are_not_written(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"BrokerRecord has no version {version}; write 0 to 4"):
        codec.encode(BROKER, version)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (FeatureLevelRecord("f", 40000), "feature_level is 40000, not a number from -32768 to 32767"),
        (TopicRecord("t", U[:4]), "uuid has 16 bytes"),
        (TopicRecord(None, U), "name may not be None"),  # type: ignore[arg-type]
        (TopicRecord("\ud800", U), "surrogates not allowed"),
        (BrokerRecord(1, U, 7, (BrokerEndpoint("n", "h", 65536, 0),)), "end_points port is 65536"),
        (BrokerRecord(1, U, 7, (BrokerEndpoint("n", "h", -1, 0),)), "end_points port is -1"),
        (PartitionRecord(0, U, replicas=(2**31,)), "replicas is 2147483648"),
        (PartitionRecord(0, U, directories=(U, b"")), "uuid has 16 bytes"),
        (PartitionRecord(0, U, replicas=None), "replicas may not be None"),  # type: ignore[arg-type]
        (NoOpRecord(((5, b""), (5, b""))), "a tag is repeated"),
        (BrokerRecord(1, U, 7, unknown_tags=((0, b""),)), "0 is a tag with a field of its own"),
        (NoOpRecord(((2**31 - 1, b""),)), "out of range"),
    ],
)
def test_values_that_fit_no_field_are_named(record: Record, text: str) -> None:
    version = 3 if isinstance(record, BrokerRecord) else 1 if isinstance(record, PartitionRecord) else 0
    with pytest.raises(RecordEncodeError) as caught:
        codec.encode(record, version)
    assert text in str(caught.value)
    assert type(record).__name__ in str(caught.value)
    assert not isinstance(caught.value, UnsupportedVersionError)


def test_unknown_tags_stand_in_one_order_with_the_known_ones() -> None:
    # Tag 2 is LastKnownElr from version 2 on; to version 1 it is a stranger between others.
    record = PartitionRecord(0, U, leader_recovery_state=1, unknown_tags=((7, b"b"), (2, b"\x01")))
    value = codec.encode(record, 1)
    assert value.endswith(bytes.fromhex("03 00 01 01 02 01 01 07 01 62"))
    _, again = codec.decode(value)
    assert again.unknown_tags == ((2, b"\x01"), (7, b"b"))


def test_what_kafka_4_3_writes_of_brokers_is_read_and_its_cordoned_directories_are_kept() -> None:
    registered = BrokerRecord(1, U, 7, unknown_tags=((1, b"\x02" + U),))
    assert codec.decode(codec.encode(registered, 4)) == (4, registered)
    changed = BrokerRegistrationChangeRecord(1, 7, unknown_tags=((3, b"\x01"),))
    assert codec.decode(bytes.fromhex("01 11 03 00000001 0000000000000007 01 03 01 01")) == (3, changed)


def test_sentinels_of_the_wire_are_none_here() -> None:
    unchanged = PartitionChangeRecord(0, U)
    explicit = bytes.fromhex("01 05 00 00000000") + U + bytes.fromhex("02 01 04 fffffffe 05 01 ff")
    assert codec.decode(explicit) == (0, unchanged)
    assert codec.decode(codec.encode(PartitionChangeRecord(0, U, leader=-1), 0))[1].leader == -1  # type: ignore[union-attr]
    assert codec.encode(unchanged, 0).endswith(U + b"\0")


@pytest.mark.parametrize("bad", [None, b"", b"\0\0\0", b"\0\0\0\2\0"])
def test_control_keys_of_a_wrong_size(bad: bytes | None) -> None:
    with pytest.raises(RecordDecodeError, match="key of 4 bytes"):
        codec.decode_control(bad, b"\0\0\0")


@pytest.mark.parametrize("key", ["00000000", "00000001", "00000007", "00010002", "0000ffff"])
def test_control_types_from_elsewhere(key: str) -> None:
    with pytest.raises(UnknownRecordError):
        codec.decode_control(bytes.fromhex(key), b"\0\0\0")
    unknown = codec.decode_control_tolerant(bytes.fromhex(key), b"\0\0\0")
    assert isinstance(unknown, UnknownControlRecord)
    assert (unknown.key, unknown.value) == (bytes.fromhex(key), b"\0\0\0")


@pytest.mark.parametrize("record", [LeaderChangeMessage(1), KRaftVersionRecord(1)])
def test_control_records_cut_or_continued(record: Any) -> None:
    key, value = codec.encode_control(record)
    for wrong in (*(value[:length] for length in range(len(value))), value + b"\0"):
        with pytest.raises(RecordDecodeError, match=record.type_name):
            codec.decode_control(key, wrong)


def test_each_encoder_takes_its_own_kind_only() -> None:
    with pytest.raises(RecordEncodeError, match="KRaftVersionRecord is not a metadata record"):
        codec.encode(KRaftVersionRecord(1), 0)  # type: ignore[arg-type]
    with pytest.raises(RecordEncodeError, match="NoOpRecord is not a control record"):
        codec.encode_control(NoOpRecord())  # type: ignore[arg-type]
