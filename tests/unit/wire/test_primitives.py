"""Kafka's primitive encodings byte by byte, at every bound and one past it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from metaquorum.wire import primitives as wire
from metaquorum.wire.errors import Malformed
from metaquorum.wire.table import API_BY_NAME, response_type

VARINTS = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16383, "ff7f"),
    (16384, "808001"),
    (2097151, "ffff7f"),
    (2097152, "80808001"),
    (268435455, "ffffff7f"),
    (268435456, "8080808001"),
    (2**31 - 1, "ffffffff07"),
]


@pytest.mark.parametrize(("value", "octets"), VARINTS)
def test_varints(value: int, octets: str) -> None:
    data = bytes.fromhex(octets)
    assert wire.uvarint(value) == data
    if len(data) > 1:
        assert wire.read_uvarint(b"?" + data + b"?", 2, data[0]) == (value, 1 + len(data))


def test_a_negative_number_has_no_unsigned_varint() -> None:
    with pytest.raises(ValueError, match="range"):
        wire.uvarint(-1)


@pytest.mark.parametrize("octets", ["8000", "808000", "8080808008", "ffffffff0f", "808080808001"])
def test_varints_that_are_too_long_or_too_large(octets: str) -> None:
    data = bytes.fromhex(octets)
    with pytest.raises(Malformed):
        wire.read_uvarint(data, 1, data[0])


@pytest.mark.parametrize(("read", "width"), [(wire.read_short_length, 2), (wire.read_long_length, 4)])
def test_lengths_of_fixed_width(read: Callable[[bytes, int], tuple[int, int]], width: int) -> None:
    for length in (-1, 0, 1, 300, 2**15 - 1):
        data = b"??" + length.to_bytes(width, "big", signed=True)
        assert read(data, 2) == (length + 1, 2 + width)
    for length in (-2, -300):
        with pytest.raises(Malformed, match=str(length)):
            read(length.to_bytes(width, "big", signed=True), 0)
    assert wire.long_length(-1) == b"\xff" * 4 and wire.long_length(7) == b"\0\0\0\7"


# ---- tagged fields -------------------------------------------------------------------------------


def test_tagged_fields_are_written_in_order_of_their_tags() -> None:
    assert wire.write_tags([], (), frozenset()) == b"\0"
    assert wire.write_tags([(1, b"a"), (4, b"")], (), frozenset({1, 4})) == bytes.fromhex("02 0101 61 0400")
    own = [(2, b"own")]
    written = wire.write_tags(own, ((300, b"x"), (0, b"y" * 200)), frozenset({2}))
    assert written == b"\3" + b"\0\xc8\1" + b"y" * 200 + b"\2\3own" + b"\xac\2\1x"
    read, end = wire.read_unknown_tags(written + b"?", 1, written[0], len(written))
    assert read == ((0, b"y" * 200), (2, b"own"), (300, b"x")) and end == len(written)


@pytest.mark.parametrize(
    ("unknown", "says"),
    [
        (((2, b""),), "has|own"),  # a tag that the structure knows
        (((-1, b""),), "out of range"),
        (((wire.MAX_VARINT, b""),), "out of range"),
        (((3, "text"),), "not bytes"),
        (((3, None),), "not bytes"),
        (((3, b"a"), (3, b"b")), "is repeated"),
    ],
)
def test_unknown_tags_that_cannot_be_written(unknown: tuple[tuple[int, bytes], ...], says: str) -> None:
    with pytest.raises(Malformed, match=says):
        wire.write_tags([(1, b"")], unknown, frozenset({1, 2}))


def test_the_highest_tag_can_be_written() -> None:
    tag = wire.MAX_VARINT - 1
    written = wire.write_tags([], ((tag, b"z"),), frozenset())
    assert wire.read_unknown_tags(written, 1, 1, len(written)) == (((tag, b"z"),), len(written))


@pytest.mark.parametrize(
    ("octets", "end", "found"),
    [
        ("01 02 6162", 4, (1, 4, 2)),
        ("01 02 6162", 3, "2 bytes, 1 are left"),
        ("01 02 6162", 1, "2 bytes, 0 are left"),
        ("00 00", 2, "after tagged field 0"),
        ("01 00", 2, (1, 2, 2)),
        ("8101 00", 3, (129, 3, 3)),
        ("05 8101" + "00" * 129, 132, (5, 132, 3)),
        ("05 8101" + "00" * 129, 131, "129 bytes, 128 are left"),
    ],
)
def test_the_head_of_a_tagged_field(octets: str, end: int, found: tuple[int, int, int] | str) -> None:
    data = bytes.fromhex(octets)
    if isinstance(found, str):
        with pytest.raises(Malformed, match=found):
            wire.read_tag_head(data, 0, 0, end)
    else:
        assert wire.read_tag_head(data, 0, 0, end) == found


def test_more_tagged_fields_than_one_byte_counts() -> None:
    fields = tuple((tag, bytes((tag % 7,))) for tag in range(200))
    written = wire.write_tags([], fields, frozenset())
    assert wire.read_unknown_tags(written, 1, written[0], len(written)) == (fields, len(written))


# ---- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 126, 127, 300])
def test_arrays_of_numbers_and_uuids(count: int) -> None:
    numbers = tuple((-1) ** at * at for at in range(count))
    plain = struct.pack(f">{count}i", *numbers)
    written = wire.write_ints(numbers)
    assert written == wire.uvarint(count + 1) + plain == wire.write_fixed(numbers, "i")
    assert wire.write_ints_classic(numbers) == wire.long_length(count) + plain
    data = b"??" + plain
    assert wire.read_ints(data, 2, count, len(data)) == numbers
    assert wire.read_fixed(data, 2, count, len(data), "i", 4) == numbers
    ids = tuple(bytes((at % 256,)) * 16 for at in range(count))
    assert wire.write_uuids(ids) == wire.uvarint(count + 1) + b"".join(ids)
    assert wire.write_uuids_classic(ids) == wire.long_length(count) + b"".join(ids)
    data_ids = b"?" + b"".join(ids)
    assert wire.read_uuids(data_ids, 1, count, len(data_ids)) == ids
    if count:
        for short in (1, 3):
            with pytest.raises(Malformed, match="does not fit"):
                wire.read_ints(data, 2, count, len(data) - short)
            with pytest.raises(Malformed, match="does not fit"):
                wire.read_fixed(data, 2, count, len(data) - short, "i", 4)
            with pytest.raises(Malformed, match="does not fit"):
                wire.read_uuids(data_ids, 1, count, len(data_ids) - short)
    if count < len(wire.SMALL_INTS) - 1:
        assert wire.SMALL_INTS[count + 1](data, 2) == numbers
        assert wire.SMALL_UUIDS[count + 1](data_ids, 1) == ids


def test_arrays_that_must_not_be_null() -> None:
    for small in (wire.SMALL_INTS, wire.SMALL_UUIDS):
        with pytest.raises(Malformed, match="null"):
            small[0](b"", 0)


def test_strings_and_bytes() -> None:
    text = "Größe" * 30
    data = text.encode()
    assert wire.write_string("") == b"\1" and wire.write_bytes(b"") == b"\1"
    assert wire.write_string(text) == wire.uvarint(len(data) + 1) + data == wire.write_bytes(data)
    assert wire.write_string_classic(text) == len(data).to_bytes(2, "big") + data
    assert wire.write_bytes_classic(data) == len(data).to_bytes(4, "big") + data
    assert wire.write_strings(("a", "", "bc")) == b"\4\2a\1\3bc"
    assert wire.write_strings_classic(("a", "bc")) == b"\0\0\0\2\0\1a\0\2bc"
    assert len(wire.write_string_classic("x" * (2**15 - 1))) == 2**15 + 1
    with pytest.raises(Malformed):
        wire.write_string_classic("x" * 2**15)
    for write in (wire.write_uuids, wire.write_uuids_classic):
        for length in (15, 17):
            with pytest.raises(Malformed, match="16 bytes"):
                write((b"1" * 16, b"1" * length))


@pytest.mark.parametrize(("size", "is_chunk"), [(1023, False), (1024, True), (5000, True)])
def test_records_are_a_chunk_of_their_own_where_they_are_long(size: int, is_chunk: bool) -> None:
    records = bytes(size)
    out = wire.Chunks()
    out += b"before"
    wire.add_records(out, records)
    out += b"after"
    chunks = out.finish()
    assert b"".join(chunks) == b"before" + records + b"after"
    assert any(chunk is records for chunk in chunks) == is_chunk and out == b""
    plain = bytearray(b"before")
    wire.add_records(plain, records)
    assert plain == b"before" + records


def test_repeated_structures_are_written_once_for_each_form() -> None:
    kind = response_type(API_BY_NAME["CreateTopics"].key)
    entry, topic = kind.cls.CreatableTopicConfigs, kind.cls.CreatableTopicResult
    configs = wire.Repeated(entry(name=name, value=None, config_source=5) for name in "abc")

    def frames(version: int, given: Any) -> tuple[bytes, bytes]:
        body = kind.cls(topics=(topic(name="t", num_partitions=1, configs=given),))
        write, twice = kind.writer(version), bytearray()
        write(body, twice)
        once = len(twice)
        write(body, twice)
        return bytes(twice[:once]), bytes(twice[once:])

    for version in (5, 7):
        plain = frames(version, tuple(configs))
        assert plain[0] == plain[1] == frames(version, configs)[0] == frames(version, configs)[1]
    calls = []

    def write(item: Any, out: bytearray) -> None:
        calls.append(item)
        out += b"x"

    assert [configs.written(write), configs.written(write)] == [b"xxx", b"xxx"]
    assert calls == list(configs)
