"""The last offset of every key in the dirty part of a log, in bounded memory.

Owns the bound. Keys are compared whole, or by a 256-bit digest if they are long: no two keys are confused
(Kafka keeps 128-bit digests, `SkimpyOffsetMap`). Knows keys and offsets only: `cleaning_pass` reads the
batches, and `retained` drops what a later record replaces.
"""

from __future__ import annotations

from hashlib import blake2b
from operator import ge
from typing import cast

LONG_KEY_BYTES = 64
_DIGEST_BYTES = 32
_ENTRY_BYTES = 176
"""Measured bytes per entry, without its key: the key's object, the offset's, and slots that are two thirds
full."""


class KeyOffsets:
    """Has the records up to `latest`; -1 for none. Uses `max_bytes` of memory, but holds at least one
    batch."""

    def __init__(self, max_bytes: int) -> None:
        self.latest = -1
        self._max_bytes = max_bytes
        self._bytes = 0
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def utilization(self) -> float:
        """How full it is, from 0 to 1 (above 1 with a single batch that is too large)."""
        return self._bytes / self._max_bytes

    def has_room(self, keys: list[bytes]) -> bool:
        """Whether all of these still fit if they are new. Always true while it is empty."""
        return not self._offsets or self._bytes + _cost(keys) <= self._max_bytes

    def put_all(self, keys: list[bytes], offsets: list[int]) -> None:
        """Adds these records, in the order of the log."""
        before = len(self._offsets)
        self._offsets.update(zip(keys, offsets, strict=True))
        if keys:
            self._bytes += (len(self._offsets) - before) * _cost(keys) // len(keys)

    def is_last(self, keys: list[bytes], offsets: list[int]) -> list[bool]:
        """For each of these, whether no later record of its key is known."""
        found = list(map(self._offsets.get, keys))
        if None in found:
            return [known is None or offset >= known for known, offset in zip(found, offsets, strict=True)]
        return list(map(ge, offsets, cast("list[int]", found)))


def _cost(keys: list[bytes]) -> int:
    return sum(map(len, keys)) + _ENTRY_BYTES * len(keys)


def key_names(payload: bytes, starts: list[int], lengths: list[int]) -> list[bytes]:
    """The bytes that represent the key at each place; a key is never null here."""
    names = [payload[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    if lengths and max(lengths) > LONG_KEY_BYTES:
        # One byte longer than any key that represents itself.
        pad = bytes(LONG_KEY_BYTES + 1 - _DIGEST_BYTES)
        names = [
            name if len(name) <= LONG_KEY_BYTES else blake2b(name, digest_size=_DIGEST_BYTES).digest() + pad
            for name in names
        ]
    return names
