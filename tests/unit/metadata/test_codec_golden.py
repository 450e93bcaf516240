"""The codec against bytes that Kafka 3.7 wrote, one test per record, version and variant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.records import codec
from metaquorum.metadata.records import control as control_records
from metaquorum.metadata.records import types as records
from metaquorum.metadata.records.schema import CONTROL_SCHEMAS, RECORD_SCHEMAS
from metaquorum.metadata.records.types import BrokerEndpoint
from metaquorum.metadata.text.dump import payload_json

DATA = Path(__file__).resolve().parents[2] / "data" / "records" / "kafka-3.7-records.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text("utf-8").splitlines()]
DATA_ROWS = [row for row in ROWS if row["apiKey"] is not None]
CONTROL_ROWS = [row for row in ROWS if row["apiKey"] is None]


def _id(row: dict[str, Any]) -> str:
    return f"{row['type']}-v{row['version']}-{row['variant']}"


@pytest.mark.parametrize("row", DATA_ROWS, ids=_id)
def test_record_of_kafka_is_read_shown_and_written_alike(row: dict[str, Any]) -> None:
    value = bytes.fromhex(row["valueHex"])
    version, record = codec.decode(value)
    assert version == row["version"]
    assert record.api_key == row["apiKey"]
    # Through text, so that the order of the fields counts too.
    assert json.dumps(payload_json(record, version, secrets=True)) == json.dumps(row["payload"])
    assert codec.encode(record, version) == value


@pytest.mark.parametrize("row", DATA_ROWS, ids=_id)
def test_record_is_read_from_the_middle_of_any_buffer(row: dict[str, Any]) -> None:
    value = bytes.fromhex(row["valueHex"])
    surrounded = b"\x7f" * 5 + value + b"\x01" * 40
    expected = codec.decode(value)
    assert codec.decode(surrounded, 5, 5 + len(value)) == expected
    assert codec.decode(memoryview(surrounded), 5, 5 + len(value)) == expected


@pytest.mark.parametrize("row", CONTROL_ROWS, ids=_id)
def test_control_record_of_kafka_is_read_shown_and_written_alike(row: dict[str, Any]) -> None:
    key, value = bytes.fromhex(row["keyHex"]), bytes.fromhex(row["valueHex"])
    record = codec.decode_control(key, value)
    assert record.control_type == row["controlType"]
    if row["payload"] is not None:
        assert payload_json(record, 0, secrets=True)["data"] == row["payload"]
    assert codec.encode_control(record) == (key, value)


def test_every_type_and_version_of_kafka_3_7_has_golden_bytes() -> None:
    present = {(row["apiKey"], row["version"]) for row in DATA_ROWS}
    of_kafka_4 = {(0, 4), (17, 3), (28, 0), (29, 0)}
    known = {(schema.key, version) for schema in RECORD_SCHEMAS for version in schema.versions}
    assert present == known - of_kafka_4, "list what Kafka 3.7 cannot write in of_kafka_4"
    assert {row["controlType"] for row in CONTROL_ROWS} == {2, 3, 4}
    assert [schema.key for schema in CONTROL_SCHEMAS] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("value", "record", "payload"),
    [
        ("01 1c 00 07 6f7264657273 00", records.ClearElrRecord("orders"), {"topicName": "orders"}),
        ("01 1c 00 01 00", records.ClearElrRecord(""), {"topicName": ""}),
        ("01 1d 00 00000bb8 00", records.UnregisterControllerRecord(3000), {"controllerId": 3000}),
    ],
)
def test_records_of_kafka_4_are_as_its_definitions_say(
    value: str, record: records.Record, payload: dict[str, Any]
) -> None:
    data = bytes.fromhex(value)
    assert codec.decode(data) == (0, record)
    assert codec.encode(record, 0) == data
    assert payload_json(record, 0)["data"] == payload


def test_unknown_tags_are_kept_at_every_depth() -> None:
    row = next(
        row
        for row in DATA_ROWS
        if row["type"] == "RegisterBrokerRecord"
        and row["version"] == 3
        and row["variant"] == "full-max+unknown-tags"
    )
    _, record = codec.decode(bytes.fromhex(row["valueHex"]))
    assert isinstance(record, records.BrokerRecord)
    assert [(tag, len(data)) for tag, data in record.unknown_tags] == [
        (100, 15),
        (101, 0),
        (2000, 200),
        (2147483646, len(dict(record.unknown_tags)[2147483646])),
    ]
    assert [[tag for tag, _ in item.unknown_tags] for item in record.end_points] == [[100], [100], []]


UUID_A = bytes(range(16))
UUID_B = bytes(range(16, 32))

# Kafka 3.7 has no classes for these: the bytes are spelled out after the message definitions of 3.9.
LATER_CONTROL_RECORDS = [
    (
        control_records.LeaderChangeMessage(
            version=1,
            leader_id=2,
            voters=(
                control_records.LeaderVoter(1, UUID_A),
                control_records.LeaderVoter(2, UUID_B),
            ),
            granting_voters=(control_records.LeaderVoter(2, UUID_B),),
        ),
        "00000002",
        f"0001 00000002 03 00000001{UUID_A.hex()}00 00000002{UUID_B.hex()}00 02 00000002{UUID_B.hex()}00 00",
    ),
    (control_records.KRaftVersionRecord(kraft_version=1), "00000005", "0000 0001 00"),
    (
        control_records.VotersRecord(
            voters=(
                control_records.Voter(
                    3000,
                    UUID_A,
                    (control_records.VoterEndpoint("CONTROLLER", "c0", 65535),),
                    control_records.KRaftVersionFeature(0, 1),
                ),
            )
        ),
        "00000006",
        f"0000 02 00000bb8{UUID_A.hex()} 02 0b{b'CONTROLLER'.hex()} 03{b'c0'.hex()} ffff 00"
        "0000 0001 00 00 00",
    ),
]


@pytest.mark.parametrize(
    ("record", "key", "value"), LATER_CONTROL_RECORDS, ids=["leader-change-v1", "kraft-version", "voters"]
)
def test_control_records_of_kip_853(record: control_records.ControlRecord, key: str, value: str) -> None:
    encoded = (bytes.fromhex(key), bytes.fromhex(value))
    assert codec.encode_control(record) == encoded
    assert codec.decode_control(*encoded) == record


def test_voters_are_shown_with_kafkas_field_names() -> None:
    voters = LATER_CONTROL_RECORDS[2][0]
    assert payload_json(voters, 0) == {
        "type": "KRAFT_VOTERS",
        "version": 0,
        "data": {
            "version": 0,
            "voters": [
                {
                    "voterId": 3000,
                    "voterDirectoryId": "AAECAwQFBgcICQoLDA0ODw",
                    "endpoints": [{"name": "CONTROLLER", "host": "c0", "port": 65535}],
                    "kRaftVersionFeature": {"minSupportedVersion": 0, "maxSupportedVersion": 1},
                }
            ],
        },
    }


@pytest.mark.parametrize("port", [0, 32767, 32768, 65535])
def test_ports_above_the_signed_range_survive(port: int) -> None:
    endpoint = BrokerEndpoint("PLAINTEXT", "host", port, 0)
    record = records.BrokerRecord(1, UUID_A, 7, (endpoint,))
    _, again = codec.decode(codec.encode(record, 3))
    assert again == record
    assert payload_json(again, 3)["data"]["endPoints"][0]["port"] == port
