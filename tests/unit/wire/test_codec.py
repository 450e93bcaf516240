"""What the codec says about bytes and values that do not fit, and the table it comes from."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

import metaquorum.wire.messages as all_messages
from metaquorum.wire import codec
from metaquorum.wire.embedded import consumer_subscription, subscribed_topics
from metaquorum.wire.errors import DecodeError, EncodeError, UnknownApiError, UnsupportedFieldError
from metaquorum.wire.explain import misfit
from metaquorum.wire.generator import compile_writer
from metaquorum.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    ProduceRequest,
)
from metaquorum.wire.primitives import Chunks
from metaquorum.wire.schema import INT_RANGES, ZERO, Field, StructSchema
from metaquorum.wire.stubs import stub_text
from metaquorum.wire.table import APIS, read_messages, request_type, response_type

HEADER = codec.RequestHeader(api_key=1, version=13, correlation_id=9, client_id="me")


def fetch(**fields: Any) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=1, fetch_offset=5, partition_max_bytes=10)
    topic = FetchRequest.FetchTopic(topic_id=bytes(range(16)), partitions=(partition,))
    return FetchRequest(topics=(topic,), **fields)


def frame_of(body: Any, header: codec.RequestHeader = HEADER) -> bytes:
    return b"".join(codec.encode_request(header, body))


def test_malformed_bytes_are_named_by_field_and_position() -> None:
    frame = bytearray(frame_of(fetch()))
    assert codec.decode_request(frame).body == fetch()
    start = frame.index(bytes(range(16)))
    frame[start + 16] = 0  # the array of partitions
    with pytest.raises(DecodeError) as caught:
        codec.decode_request(bytes(frame))
    where = f"Topics[0].Partitions at byte {start + 16}: it may not be null"
    assert str(caught.value) == f"FetchRequest version 13: {where}"


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        (1, "tagged fields at byte 92: it has 1 bytes, and 0 are left"),
        (30, "Topics[0].Partitions at byte 55: 1 elements do not fit into the 7 bytes left"),
        (82, "header: the client id ends 1 bytes after the end"),
        (84, "header: it ends too early"),
        (86, "a frame of 7 bytes ends inside the header of its request"),
    ],
)
def test_short_frames_name_the_field_that_is_cut(cut: int, text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        codec.decode_request(frame_of(fetch())[:-cut])
    assert text in str(caught.value)


def test_unknown_apis_and_versions_say_what_the_header_said() -> None:
    frame = frame_of(ApiVersionsRequest(), codec.RequestHeader(18, 3, 77, "me"))
    with pytest.raises(UnknownApiError, match="API 18 version 99: ApiVersions has versions 0 to 4") as caught:
        codec.decode_request(frame[:2] + b"\0\x63" + frame[4:])
    assert (caught.value.api_key, caught.value.version, caught.value.correlation_id) == (18, 99, 77)
    with pytest.raises(UnknownApiError, match="API 999 version 3: the key is unknown"):
        codec.decode_request(b"\3\xe7" + frame[2:])


def test_bytes_after_a_request_are_counted_and_ignored() -> None:
    frame = frame_of(fetch())
    request = codec.decode_request(frame + b"\0\0\0")
    assert (request.body, request.end) == (fetch(), len(frame))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (fetch(max_wait_ms=2**31), "max_wait_ms is 2147483648, not a number from -2147483648 to 2147483647"),
        (fetch(rack_id=None), "rack_id may not be None"),
        (fetch(cluster_id=3), "cluster_id is 3, not text"),
        (
            FetchRequest(topics=(FetchRequest.FetchTopic(topic_id=b"x"),)),
            "topics topic_id has 1 bytes: a uuid",
        ),
        (FetchRequest(topics=(7,)), "topics is 7, not a FetchTopic"),  # type: ignore[arg-type]
        (MetadataRequest(), "MetadataRequest is not a FetchRequest"),
    ],
)
def test_values_that_fit_no_field_are_named(body: Any, text: str) -> None:
    with pytest.raises(EncodeError) as caught:
        codec.encode_request(HEADER, body)
    assert text in str(caught.value)


_PACKED = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q"}


@pytest.mark.parametrize("kind", INT_RANGES)
@pytest.mark.parametrize("is_array", [False, True])
def test_a_number_fits_its_field_where_its_bytes_can_hold_it(kind: str, is_array: bool) -> None:
    field = Field(name="n", kafka_name="N", type=f"[]{kind}" if is_array else kind, default=0, nullable=False)
    low, high = INT_RANGES[kind]
    for number in (low - 1, low, 0, high, high + 1):
        try:
            struct.pack(f">{_PACKED[kind]}", number)
        except struct.error:
            why = f"is {number}, not a number from {low} to {high}"
        else:
            why = None
        assert misfit(field, (number,) if is_array else number) == why
    assert misfit(field, ("1",) if is_array else "1") is not None


def test_a_field_that_the_version_lacks_is_refused_unless_it_may_be_left_out() -> None:
    replica = FetchRequest.ReplicaState(replica_id=3)
    with pytest.raises(UnsupportedFieldError, match=r"cannot carry replica_state \(since version 15\)"):
        codec.encode_request(HEADER, fetch(replica_state=replica))
    old = codec.RequestHeader(api_key=1, version=15, correlation_id=9)
    with pytest.raises(UnsupportedFieldError, match=r"cannot carry replica_id \(until 14\)"):
        codec.encode_request(old, fetch(replica_id=3))
    oldest = codec.RequestHeader(api_key=1, version=2, correlation_id=9)
    assert codec.decode_request(frame_of(fetch(max_bytes=5), oldest)).body.max_bytes == 2**31 - 1
    with pytest.raises(UnsupportedFieldError, match="has no tagged fields"):
        codec.encode_request(oldest, fetch(unknown_tags=((3, b""),)))
    with pytest.raises(EncodeError, match="FetchRequest has no version 99; write 0 to 18"):
        codec.encode_request(codec.RequestHeader(1, 99, 1), fetch())


def test_records_are_never_copied() -> None:
    records = bytes(5000)
    part = FetchResponse.PartitionData(partition_index=0, records=records)
    body = FetchResponse(responses=(FetchResponse.FetchableTopicResponse(partitions=(part,)),))
    chunks = codec.encode_response(1, 13, 1, body)
    assert any(chunk is records for chunk in chunks)
    frame = b"".join(chunks)
    read = codec.decode_response(1, 13, frame).body.responses[0].partitions[0].records
    assert isinstance(read, memoryview)
    assert read.obj is frame


def test_an_answer_to_an_unknown_version_of_api_versions_is_read_in_version_0() -> None:
    kept = ApiVersionsResponse.ApiVersion(api_key=18, max_version=3)
    body = ApiVersionsResponse(error_code=35, api_keys=(kept,))
    frame = b"".join(codec.encode_response(18, 0, 5, body))
    for asked in (1, 4, 99):
        response = codec.decode_response(18, asked, frame)
        assert (response.version, response.body) == (0, body)


def test_a_structure_may_be_null() -> None:
    for cursor in (None, DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=3)):
        body = DescribeTopicPartitionsRequest(cursor=cursor)
        frame = frame_of(body, codec.RequestHeader(75, 0, 1))
        assert codec.decode_request(frame).body == body


def test_strings_of_old_versions_have_at_most_two_bytes_of_length() -> None:
    body = ProduceRequest(transactional_id="x" * 40_000)
    assert codec.decode_request(frame_of(body, codec.RequestHeader(0, 9, 1))).body == body
    with pytest.raises(EncodeError, match="a string has 40000 bytes, and at most 32767 fit"):
        codec.encode_request(codec.RequestHeader(0, 8, 1), body)


def structures(schema: StructSchema) -> list[StructSchema]:
    inner = [found for field in schema.fields if field.struct for found in structures(field.struct)]
    return [schema, *inner]


def smallest(schema: StructSchema, version: int) -> Any:
    """The structure with nothing in it."""
    values: dict[str, Any] = {}
    for field in schema.fields_at(version):
        is_inside = field.type == "struct" and field.struct is not None and not field.nullable_at(version)
        inner = smallest(field.struct, version) if is_inside and field.struct else None
        values[field.name] = () if field.is_array else ZERO.get(field.type, inner)
    return schema.cls(**values)


def test_the_smallest_element_of_an_array_has_the_size_that_decoders_expect() -> None:
    """That bounds what a length can make a decoder allocate, and must refuse nothing that can be sent."""
    for key, api in APIS.items():
        for kind in (request_type(key), response_type(key)):
            elements = [
                field.struct
                for schema in structures(kind.schema)
                for field in schema.fields
                if field.is_array and field.struct
            ]
            for version in api.versions:
                for schema in elements:
                    out, is_flexible = Chunks(), api.is_flexible(version)
                    compile_writer(schema, version, is_flexible)(smallest(schema, version), out)
                    expected = sum(map(len, out.finish()))
                    assert schema.min_size(version, is_flexible) == expected, (schema.name, version)


def test_the_types_of_the_messages_are_those_of_the_table() -> None:
    stub = Path(all_messages.__file__).with_suffix(".pyi")
    assert stub.read_text("utf-8") == stub_text(), "python -m metaquorum.wire.stubs > wire/messages.pyi"


def test_there_is_no_message_of_another_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'FetchRecord'"):
        _ = all_messages.FetchRecord  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'LeaderAndIsrRequest'"):
        _ = all_messages.LeaderAndIsrRequest  # type: ignore[attr-defined]


def _own_tags(schema: StructSchema) -> set[int]:
    found = {field.tag for field in schema.fields if field.tag is not None and field.tag >= 10_000}
    inner = (_own_tags(field.struct) for field in schema.fields if field.struct is not None)
    return found.union(*inner)


def test_fields_of_ours_are_only_in_answers_whose_request_can_ask_for_them() -> None:
    """A client that does not pass over tagged fields must not meet them unasked."""
    asked = {key for key, api in APIS.items() if _own_tags(read_messages(api)[0])}
    answered = {key for key, api in APIS.items() if _own_tags(read_messages(api)[1])}
    assert answered <= asked
    assert answered


# What a coordinator reads of a consumer's subscription: as leniently as Kafka, no more than version 0.


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


TOPICS = struct.pack(">i", 2) + text("t") + text("u")
USER_DATA = struct.pack(">i", 3) + b"abc"
NO_USER_DATA = struct.pack(">i", -1)
OWNED = struct.pack(">i", 1) + text("t") + struct.pack(">ii", 1, 0)
WHOLE = (USER_DATA + OWNED, struct.pack(">i", 7), text("rack"))
BODIES = {
    "the topics alone": (TOPICS, False),
    "cut off in the user data": (TOPICS + USER_DATA[:-1], False),
    "to the user data": (TOPICS + USER_DATA, True),
    "no user data": (TOPICS + NO_USER_DATA, True),
    "cut off in what is owned": (TOPICS + USER_DATA + OWNED[:-3], True),
    "to what is owned": (TOPICS + WHOLE[0], True),
    "to the generation": (TOPICS + b"".join(WHOLE[:2]), True),
    "whole": (TOPICS + b"".join(WHOLE), True),
    "of a later version": (TOPICS + b"".join(WHOLE) + b"what later versions add", True),
    "nonsense after the user data": (TOPICS + USER_DATA + b"\x7f\xff\xff\xff!", True),
}


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 32767])
@pytest.mark.parametrize("name", BODIES)
def test_topics_are_read_whatever_version_is_declared(name: str, version: int) -> None:
    body, is_read = BODIES[name]
    data = struct.pack(">h", version) + body
    assert subscribed_topics(data) == (("t", "u") if is_read else None)


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff" + TOPICS + USER_DATA])
def test_what_is_no_subscription_has_no_topics(data: bytes) -> None:
    assert subscribed_topics(data) is None


def test_whoever_needs_the_rest_reads_the_declared_version() -> None:
    assert consumer_subscription(b"\0\1" + TOPICS + USER_DATA) is None
    found = consumer_subscription(b"\0\3" + TOPICS + b"".join(WHOLE))
    assert found is not None and (found.value.generation_id, found.value.rack_id) == (7, "rack")
