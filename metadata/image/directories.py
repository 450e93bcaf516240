"""Codes for log directory ids: a uuid of 16 bytes becomes a small integer in the partition columns.

It only grows, and a code never changes its meaning, so images of one lineage may share it although they are
immutable.
"""

from __future__ import annotations

import hashlib
import operator
import threading
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image.types import LOST, MIGRATING, UNASSIGNED, BrokerRegistration
from metaquorum.storage.uuids import UUID_BYTES

IntArray = npt.NDArray[np.int32]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = -1
_SLOTS_PER_ID = 8


class DirectoryTable:
    """Interns directory ids. Safe to use from several threads; reads take no lock."""

    __slots__ = ("_codes", "_ids", "_index", "_lock")

    def __init__(self) -> None:
        self._ids: list[bytes] = []
        self._codes: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._index: _HashIndex | None = None
        for reserved in (MIGRATING, UNASSIGNED, LOST):
            self.code(reserved)

    def __len__(self) -> int:
        return len(self._ids)

    def code(self, directory_id: bytes) -> int:
        """The code of `directory_id` (16 bytes); a new code for a new id."""
        code = self._codes.get(directory_id)
        if code is not None:
            return code
        with self._lock:
            code = self._codes.get(directory_id)
            if code is None:
                code = len(self._ids)
                self._ids.append(directory_id)
                self._codes[directory_id] = code
            return code

    def find(self, directory_id: bytes) -> int | None:
        """The code of `directory_id`, or None if it has none."""
        return self._codes.get(directory_id)

    def ids(self, codes: list[int]) -> tuple[bytes, ...]:
        known = self._ids
        return tuple([known[code] for code in codes])

    def id_words(self) -> npt.NDArray[np.uint64]:
        """All ids by code, shape (codes, 2), as native-endian views of their 8-byte halves."""
        return np.frombuffer(b"".join(self._ids), dtype=np.uint64).reshape(-1, 2)

    def codes_of(self, words: npt.NDArray[np.uint64]) -> IntArray:
        """Codes for many ids at once.

        `words` has shape (n, 2): the ids' bytes viewed as two native 64-bit words. New ids get codes in order
        of first appearance.
        """
        index = self._index
        if index is None or index.size != len(self._ids):
            index = self._index = _HashIndex(self.id_words())
        codes = index.find(words)
        missing = np.flatnonzero(codes < 0)
        if missing.size:
            raw = np.ascontiguousarray(words[missing]).tobytes()
            codes[missing] = [self.code(raw[at : at + 16]) for at in range(0, len(raw), 16)]
        return codes

    def agrees_with(self, other: DirectoryTable) -> bool:
        """Whether every code that both tables have means the same id in both."""
        return self is other or all(map(operator.eq, self._ids, other._ids))

    def translation_from(self, other: DirectoryTable) -> IntArray:
        """For each code of `other`, this table's code; -2 if this table does not have the id."""
        return np.array([self._codes.get(known, -2) for known in list(other._ids)], dtype=np.int32)


class _HashIndex:
    """An open-addressed hash table in numpy arrays: looks up many ids without a Python object each."""

    __slots__ = ("_mask", "_shift", "_slots", "_words", "size")

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self.size = len(words)
        bits = max(10, int(self.size * _SLOTS_PER_ID - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        self._mask = np.int64((1 << bits) - 1)
        # An extra row represents "empty slot": it is compared like any other and filtered by code.
        self._words = np.concatenate([words, np.zeros((1, 2), np.uint64)])
        slots = np.full(1 << bits, _EMPTY, dtype=np.int32)
        homes = self._home(words).tolist()
        mask = int(self._mask)
        for code, home in enumerate(homes):
            slot = home
            while slots[slot] != _EMPTY:
                slot = (slot + 1) & mask
            slots[slot] = code
        self._slots = slots

    def _home(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        mixed = (words[:, 0] ^ (words[:, 1] * _MULTIPLIER)) * _MULTIPLIER
        return (mixed >> self._shift).astype(np.int64)

    def find(self, words: npt.NDArray[np.uint64]) -> IntArray:
        """Codes of `words` (n, 2); -1 if unknown."""
        home = self._home(words)
        codes: IntArray = self._slots[home]
        wrong = self._mismatch(codes, words)
        while wrong.size:
            home_left = (home[wrong] + 1) & self._mask
            home[wrong] = home_left
            found: Any = self._slots[home_left]
            codes[wrong] = found
            still = self._mismatch(found, words[wrong])
            wrong = wrong[still]
        return codes

    def _mismatch(self, codes: IntArray, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        candidates = self._words[codes]
        differs = (candidates[:, 0] != words[:, 0]) | (candidates[:, 1] != words[:, 1])
        return np.flatnonzero(differs & (codes != _EMPTY))


# The directory ids of replicas whose logs cannot be read although their directories are good.
# The log records a replica's directory (KIP-858), and has no other way to say that one replica of a good
# directory is offline. Such a replica is therefore assigned to an id that no broker has as a directory,
# derived from the directory's own id. Every reader of the log, Kafka's controller included, treats it as
# offline. There are two such ids, because a controller must distinguish a replica that came back with its
# data from one that starts over empty. See docs/adr/0013-damaged-replicas.md. A third one is for a replica
# that may be in an offline directory and was never recorded in any, because of an older metadata.version.


def damaged_in(directory: bytes) -> bytes:
    """The id for a replica in `directory`, whole or not, that cannot be read now and may come back."""
    return _derived(directory, b"damaged")


def given_up_in(directory: bytes) -> bytes:
    """The id for a replica whose data in `directory` no longer counts: it starts over."""
    return _derived(directory, b"given up")


NOT_FOUND = hashlib.sha256(b"a replica that was not found").digest()[:UUID_BYTES]
"""The id for a replica whose directory was never recorded, and which may be in one that is offline. If its
data comes back, it is `damaged_in` the directory that has it, and then there."""


def is_mark(registration: BrokerRegistration | None, directory_id: bytes) -> bool:
    """Whether `directory_id` is one of these ids, derived from a directory that the broker has registered."""
    if registration is None or directory_id in registration.directories:
        return False
    return any(directory_id in (damaged_in(each), given_up_in(each)) for each in registration.directories)


@lru_cache(maxsize=4096)
def _derived(directory: bytes, word: bytes) -> bytes:
    return hashlib.sha256(directory + word).digest()[:UUID_BYTES]
