"""The small parts that the generated codec calls: varints, tagged fields, integer arrays.

Owns Kafka's primitive encodings (KIP-482: unsigned varints, compact lengths, tagged fields); knows no record.
Readers take any buffer and may raise IndexError, struct.error or Malformed; `codec` turns all of them into
RecordDecodeError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

Buffer = bytes | memoryview
Tags = tuple[tuple[int, bytes], ...]

MAX_VARINT = 2**31 - 1
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))
_SMALL = 17


class Malformed(ValueError):
    """A reason why bytes do not parse; only `codec` sees it."""


def read_uvarint(buf: Buffer, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, `first`, was read at `position - 1` and says that more follow.

    Returns (value, position after it). Longer forms than needed are refused: no one writes them, and they
    would not survive being written again.
    """
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0:
                raise Malformed("a varint is longer than its value needs")
            if value > MAX_VARINT:
                break
            return value, position
    raise Malformed(f"a varint is above {MAX_VARINT}")


def uvarint(value: int) -> bytes:
    """An unsigned varint of 7 bits per byte, least significant first."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_unknown_tags(buf: Buffer, position: int, count: int, end: int) -> tuple[Tags, int]:
    """`count` (as its first byte) tagged fields of a structure that has none of its own."""
    if count > 127:
        count, position = read_uvarint(buf, position, count)
    tags: list[tuple[int, bytes]] = []
    last = -1
    for _ in range(count):
        tag, stop, position = read_tag_head(buf, position, last, end)
        tags.append((tag, bytes(buf[position:stop])))
        position, last = stop, tag
    return tuple(tags), position


def read_tag_head(buf: Buffer, position: int, last: int, end: int) -> tuple[int, int, int]:
    """(tag, where its data ends, where its data starts); tags ascend, so none may come twice."""
    tag = buf[position]
    position += 1
    if tag > 127:
        tag, position = read_uvarint(buf, position, tag)
    size = buf[position]
    position += 1
    if size > 127:
        size, position = read_uvarint(buf, position, size)
    stop = position + size
    if stop > end:
        raise Malformed(f"tagged field {tag} has {size} bytes, {max(end - position, 0)} are left")
    if tag <= last:
        raise Malformed(f"tagged field {tag} comes after tagged field {last}")
    return tag, stop, position


def write_tags(known: list[tuple[int, bytes]], unknown: Tags, defined: frozenset[int]) -> bytes:
    """A structure's tagged fields in ascending order: its own (`known`, ascending) and the unknown ones."""
    if unknown:
        known = _with_unknown(known, unknown, defined)
    parts = [uvarint(len(known))]
    for tag, data in known:
        parts += (uvarint(tag), uvarint(len(data)), data)
    return b"".join(parts)


def _with_unknown(
    known: list[tuple[int, bytes]], unknown: Tags, defined: frozenset[int]
) -> list[tuple[int, bytes]]:
    for tag, data in unknown:
        if tag in defined or not 0 <= tag < MAX_VARINT:
            raise Malformed(f"unknown_tags: {tag} is a tag with a field of its own, or out of range")
        if not isinstance(data, bytes):
            raise Malformed(f"unknown_tags: the data of tag {tag} is no bytes")
    fields = sorted([*known, *unknown])
    if len({tag for tag, _ in fields}) != len(fields):
        raise Malformed("unknown_tags: a tag comes twice")
    return fields


def read_ints(buf: Buffer, position: int, count: int, end: int) -> tuple[int, ...]:
    """`count` big-endian int32."""
    if count > (end - position) >> 2:
        raise Malformed(
            f"an array of {count} int32 does not fit into the {max(end - position, 0)} bytes left"
        )
    values: tuple[int, ...] = struct.unpack_from(f">{count}i", buf, position)
    return values


def read_uuids(buf: Buffer, position: int, count: int, end: int) -> tuple[bytes, ...]:
    """`count` uuids of 16 bytes."""
    if count > (end - position) >> 4:
        raise Malformed(
            f"an array of {count} uuids does not fit into the {max(end - position, 0)} bytes left"
        )
    return tuple([bytes(buf[at : at + 16]) for at in range(position, position + 16 * count, 16)])


def _no_null(buf: Buffer, position: int) -> tuple[Any, ...]:
    raise Malformed("an array that must not be null is null")


# Indexed by the compact length as it is on the wire (elements + 1; 0 is null): short arrays, the common
# ones, are read by one prepared call.
SMALL_INTS: tuple[Callable[[Buffer, int], tuple[Any, ...]], ...] = (
    _no_null,
    *(struct.Struct(f">{count}i").unpack_from for count in range(_SMALL - 1)),
)
SMALL_UUIDS: tuple[Callable[[Buffer, int], tuple[Any, ...]], ...] = (
    _no_null,
    *(struct.Struct(">" + "16s" * count).unpack_from for count in range(_SMALL - 1)),
)


# By the number of elements; the length byte comes first.
_PACK_INTS: tuple[Callable[..., bytes], ...] = tuple(
    struct.Struct(f">B{count}i").pack for count in range(_SMALL - 1)
)


def write_ints(values: tuple[int, ...]) -> bytes:
    """A compact array of int32."""
    count = len(values)
    if count < len(_PACK_INTS):
        return _PACK_INTS[count](count + 1, *values)
    return uvarint(count + 1) + struct.pack(f">{count}i", *values)


def write_uuids(values: tuple[bytes, ...]) -> bytes:
    """A compact array of uuids."""
    for value in values:
        if len(value) != 16:
            raise Malformed("a uuid has 16 bytes")
    return uvarint(len(values) + 1) + b"".join(values)


def write_strings(values: tuple[str, ...]) -> bytes:
    """A compact array of strings."""
    return uvarint(len(values) + 1) + b"".join([write_string(value) for value in values])


def write_string(value: str) -> bytes:
    """A compact string."""
    data = value.encode("utf-8")
    return uvarint(len(data) + 1) + data


def write_bytes(value: bytes) -> bytes:
    """Compact bytes."""
    return uvarint(len(value) + 1) + value
