"""Zig-zag variable-length integers, as record batches use them.

Owns both directions and the limit of 64 bits. Knows nothing else; the unsigned varints of Kafka's protocol
are in `wire.primitives`.

Source: Kafka's message format 2 and Protocol Buffers' sint32 / sint64 encoding. Encodings are minimal.
"""

from __future__ import annotations

from metaquorum.storage.errors import BatchError

_MAX_VARLONG_BYTES = 10
_LIMIT = 1 << 64
_CACHED = 4096


def _encode(value: int) -> bytes:
    rest = (value << 1) if value >= 0 else ((-value) << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL = tuple(_encode(value) for value in range(_CACHED))


def encode_varint(value: int) -> bytes:
    """The zig-zag encoding of a signed integer of at most 64 bits."""
    return _SMALL[value] if 0 <= value < _CACHED else _encode(value)


def decode_varint(buf: bytes | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it). Raises BatchError if the bytes run out or the number exceeds 64 bits."""
    result = 0
    shift = 0
    for index in range(position, min(position + _MAX_VARLONG_BYTES, len(buf))):
        byte = buf[index]
        result |= (byte & 0x7F) << shift
        if byte < 0x80 and result < _LIMIT:
            return (result >> 1) ^ -(result & 1), index + 1
        shift += 7
    raise BatchError(f"a variable-length integer at byte {position} of the batch does not end")
