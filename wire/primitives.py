"""The small functions that generated code calls: varints, lengths, tagged fields, arrays of numbers.

Kafka's primitive encodings (KIP-482: unsigned varints, compact lengths, tagged fields; before that, lengths
of two and four bytes). Readers take any buffer and may raise IndexError, struct.error or Malformed; the
callers of generated code turn all of them into one error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from metaquorum.wire.errors import Malformed

Buffer = bytes | bytearray | memoryview
Tags = tuple[tuple[int, bytes], ...]

MAX_VARINT = 2**31 - 1
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))
_SMALL = 17
_LONG = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_MAX_SHORT = 2**15 - 1
_COPY_BELOW = 1024
"""Shorter records are copied, which is cheaper than a separate chunk."""

GENERATED_CODE_CALLS = (
    *("uvarint", "read_uvarint", "read_short_length", "read_long_length", "long_length"),
    *("read_unknown_tags", "read_counted_tags", "read_tag_head", "write_tags"),
    *("read_ints", "read_uuids", "read_fixed", "SMALL_INTS", "SMALL_UUIDS"),
    *("write_ints", "write_uuids", "write_strings", "write_string", "write_bytes", "write_fixed"),
    *("write_ints_classic", "write_uuids_classic", "write_strings_classic"),
    *("write_string_classic", "write_bytes_classic", "write_fixed_classic", "add_records"),
    "Repeated",
)
"""The names of this module that generated code uses."""


class Chunks(bytearray):
    """An output that passes records on without copying: finished chunks, and the bytes after the last one."""

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[Buffer] = []

    def finish(self) -> list[Buffer]:
        """Everything written, in order."""
        if self:
            self.chunks.append(bytes(self))
            self.clear()
        return self.chunks


class Repeated(tuple[Any, ...]):
    """Structures that go into many messages: what was written of them once is kept."""

    def written(self, write: Callable[[Any, bytearray], None]) -> bytes:
        """All of them, without their number. `write` appends one."""
        kept: dict[Any, bytes] = self.__dict__
        encoded = kept.get(write)
        if encoded is None:
            out = bytearray()
            for each in self:
                write(each, out)
            encoded = kept[write] = bytes(out)
        return encoded


def add_records(out: bytearray, records: Buffer) -> None:
    """Append `records`, without copying them if `out` can hold chunks."""
    if len(records) < _COPY_BELOW or not isinstance(out, Chunks):
        out += records
    else:
        out.finish().append(records)


def read_short_length(buf: Buffer, position: int) -> tuple[int, int]:
    """(length plus one, position after it) of a two-byte length; 0 stands for null."""
    (length,) = _SHORT.unpack_from(buf, position)
    if length < -1:
        raise Malformed(f"a length is {length}")
    return length + 1, position + 2


def read_long_length(buf: Buffer, position: int) -> tuple[int, int]:
    """(length plus one, position after it) of a four-byte length; 0 stands for null."""
    (length,) = _LONG.unpack_from(buf, position)
    if length < -1:
        raise Malformed(f"a length is {length}")
    return length + 1, position + 4


def long_length(length: int) -> bytes:
    """A four-byte length."""
    return _LONG.pack(length)


def read_uvarint(buf: Buffer, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, `first`, was read at `position - 1` and indicates that more
    follow.

    Returns (value, position after it). Overlong forms are refused: no client writes them, and re-encoding
    would not preserve them.
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


def read_unknown_tags(
    buf: Buffer, position: int, count: int, end: int, most: int = MAX_VARINT
) -> tuple[Tags, int]:
    """`count` (its first byte) tagged fields of a structure that has none of its own."""
    if count > 127:
        count, position = read_uvarint(buf, position, count)
    if count > most:
        raise Malformed(f"it has {count} tagged fields, and at most {most} are read")
    return read_counted_tags(buf, position, count, end)


def read_counted_tags(buf: Buffer, position: int, count: int, end: int) -> tuple[Tags, int]:
    """`count` tagged fields of a structure that has none of its own."""
    tags: list[tuple[int, bytes]] = []
    last = -1
    for _ in range(count):
        tag, stop, position = read_tag_head(buf, position, last, end)
        tags.append((tag, bytes(buf[position:stop])))
        position, last = stop, tag
    return tuple(tags), position


def read_tag_head(buf: Buffer, position: int, last: int, end: int) -> tuple[int, int, int]:
    """(tag, where its data ends, where its data starts); tags ascend, so no tag may repeat."""
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


def write_tags(own: list[tuple[int, bytes]], unknown: Tags, defined: frozenset[int]) -> bytes:
    """A structure's tagged fields in ascending order: its own (`own`, ascending) and the unknown ones."""
    if unknown:
        own = _with_unknown(own, unknown, defined)
    parts = [uvarint(len(own))]
    for tag, data in own:
        parts += (uvarint(tag), uvarint(len(data)), data)
    return b"".join(parts)


def _with_unknown(
    own: list[tuple[int, bytes]], unknown: Tags, defined: frozenset[int]
) -> list[tuple[int, bytes]]:
    for tag, data in unknown:
        if tag in defined or not 0 <= tag < MAX_VARINT:
            raise Malformed(f"unknown_tags: {tag} is a tag with a field of its own, or out of range")
        if not isinstance(data, bytes):
            raise Malformed(f"unknown_tags: the data of tag {tag} is not bytes")
    fields = sorted([*own, *unknown])
    if len({tag for tag, _ in fields}) != len(fields):
        raise Malformed("unknown_tags: a tag is repeated")
    return fields


def read_ints(buf: Buffer, position: int, count: int, end: int) -> tuple[int, ...]:
    """`count` big-endian int32."""
    if count > (end - position) >> 2:
        raise Malformed(
            f"an array of {count} int32 does not fit into the {max(end - position, 0)} bytes left"
        )
    values: tuple[int, ...] = struct.unpack_from(f">{count}i", buf, position)
    return values


def read_fixed(buf: Buffer, position: int, count: int, end: int, letter: str, width: int) -> tuple[Any, ...]:
    """`count` values of a type of `width` bytes; `letter` is its struct format."""
    if count > (end - position) // width:
        raise Malformed(
            f"an array of {count} values does not fit into the {max(end - position, 0)} bytes left"
        )
    return struct.unpack_from(f">{count}{letter}", buf, position)


def read_uuids(buf: Buffer, position: int, count: int, end: int) -> tuple[bytes, ...]:
    """`count` uuids of 16 bytes."""
    if count > (end - position) >> 4:
        raise Malformed(
            f"an array of {count} uuids does not fit into the {max(end - position, 0)} bytes left"
        )
    return tuple([bytes(buf[at : at + 16]) for at in range(position, position + 16 * count, 16)])


def _no_null(buf: Buffer, position: int) -> tuple[Any, ...]:
    raise Malformed("an array that must not be null is null")


# Indexed by the compact length as encoded (elements + 1; 0 is null): short arrays, the most common ones, are
# read by one prepared call.
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


def write_fixed(values: tuple[Any, ...], letter: str) -> bytes:
    """A compact array of a type of fixed width; `letter` is its struct format."""
    return uvarint(len(values) + 1) + struct.pack(f">{len(values)}{letter}", *values)


def write_fixed_classic(values: tuple[Any, ...], letter: str) -> bytes:
    """An array of a type of fixed width, with a four-byte length."""
    return struct.pack(f">i{len(values)}{letter}", len(values), *values)


def write_ints_classic(values: tuple[int, ...]) -> bytes:
    """An array of int32, with a four-byte length."""
    return write_fixed_classic(values, "i")


def write_uuids_classic(values: tuple[bytes, ...]) -> bytes:
    """An array of uuids, with a four-byte length."""
    return _LONG.pack(len(values)) + write_uuids(values)[len(uvarint(len(values) + 1)) :]


def write_strings_classic(values: tuple[str, ...]) -> bytes:
    """An array of strings, with lengths of four and two bytes."""
    return _LONG.pack(len(values)) + b"".join([write_string_classic(value) for value in values])


def write_string_classic(value: str) -> bytes:
    """A string, with a two-byte length."""
    data = value.encode("utf-8")
    if len(data) > _MAX_SHORT:
        raise Malformed(f"a string has {len(data)} bytes, and at most {_MAX_SHORT} fit")
    return _SHORT.pack(len(data)) + data


def write_bytes_classic(value: bytes) -> bytes:
    """Bytes, with a four-byte length."""
    return _LONG.pack(len(value)) + value
