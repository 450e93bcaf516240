"""Finds the partitions that name a broker, chunk by chunk, and remembers which chunks need no second look.

Owns the memory between the slices of one piece of work. Does not decide what changes in a row: `elections`
and `slices` do. Chunks are copy-on-write: as long as a chunk is the same object, the findings in it are
valid, whatever changed elsewhere between two slices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.chunk import (
    CHUNK_SHIFT,
    FLAGS,
    LEADER,
    LISTS,
    RARE_FLAG,
    TOPIC,
    Chunk,
    RowArray,
)
from metaquorum.metadata.image.types import NO_LEADER

Local = npt.NDArray[np.int64]
Find = Callable[[Chunk], Local]


CHUNKS_PER_SLICE_MAX = 200
"""Chunks with rows to change that one slice looks at: each of them is copied when it is changed, so for a
broker with few partitions in every chunk of a large image a chunk costs as much as for one with many."""


class Scan:
    """Rows of `find`, in ascending order. `settled` chunks are skipped until they change."""

    __slots__ = ("_find", "_settled")

    def __init__(self, find: Find) -> None:
        self._find = find
        self._settled: dict[int, Chunk] = {}

    def rows(self, image: MetadataImage, at_most: int) -> tuple[RowArray, bool]:
        """Rows of whole chunks until there are more than `at_most`, or until a slice has enough chunks to
        copy, and whether all chunks were looked at."""
        found: list[Local] = []
        count = 0
        settled = self._settled
        for at, chunk in enumerate(image.topics.columns.chunks):
            if settled.get(at) is chunk:
                continue
            local = self._find(chunk)
            if not local.size:
                settled[at] = chunk
                continue
            found.append(local + (at << CHUNK_SHIFT))
            count += local.size
            if count > at_most or len(found) == CHUNKS_PER_SLICE_MAX:
                return np.concatenate(found), False
        return (np.concatenate(found) if found else np.empty(0, dtype=np.int64)), True

    def settle(self, image: MetadataImage, rows: RowArray) -> None:
        """Nothing is due for the rows that were found in the chunks of `rows`."""
        chunks = image.topics.columns.chunks
        for at in np.unique(rows >> CHUNK_SHIFT).tolist():
            self._settled[at] = chunks[at]


def naming(broker_id: int) -> Find:
    """Partitions that the broker leads or is in sync with."""

    def find(chunk: Chunk) -> Local:
        data = chunk.data
        hits = np.bitwise_or.reduce(data[chunk.isr_start :] == broker_id, axis=0)
        hits |= data[LEADER] == broker_id
        found: Local = hits.nonzero()[0]
        return found

    return find


def counting_on(broker_id: int) -> Find:
    """As `naming`, and partitions that may keep the broker as an eligible leader: a superset."""
    named = naming(broker_id)

    def find(chunk: Chunk) -> Local:
        data = chunk.data
        held = (data[LISTS : LISTS + chunk.replica_width] == broker_id).any(axis=0)
        found: Local = np.union1d(named(chunk), np.flatnonzero(held & _has_rare(chunk)))
        return found

    return find


def lying_in(image: MetadataImage, broker_id: int, directories: Collection[bytes]) -> Find:
    """Partitions that the broker leads or is in sync with, and whose replica it has in one of the
    directories. `image` has the codes of directories: this image and later ones."""
    named, table = naming(broker_id), image.topics.columns.directories

    def find(chunk: Chunk) -> Local:
        codes = [code for code in map(table.find, directories) if code is not None]
        data, width = chunk.data, chunk.replica_width
        mine = data[LISTS : LISTS + width] == broker_id
        inside = (mine & np.isin(data[LISTS + width : LISTS + 2 * width], codes)).any(axis=0)
        found: Local = np.intersect1d(named(chunk), np.flatnonzero(inside), assume_unique=True)
        return found

    return find


def listing_rare(chunk: Chunk) -> Local:
    """Partitions with lists that are empty for nearly every partition: those being reassigned, and those with
    eligible leader replicas."""
    found: Local = np.flatnonzero(_has_rare(chunk))
    return found


def _has_rare(chunk: Chunk) -> npt.NDArray[np.bool_]:
    has: npt.NDArray[np.bool_] = (chunk.data[TOPIC] >= 0) & (chunk.data[FLAGS] & RARE_FLAG != 0)
    return has


def leaderless(broker_id: int | None) -> Find:
    """Partitions without a leader; with `broker_id`, only those with a replica on it."""

    def find(chunk: Chunk) -> Local:
        data = chunk.data
        lost = (data[LEADER] == NO_LEADER) & (data[TOPIC] >= 0)
        found: Local = np.flatnonzero(lost)
        if broker_id is None or not found.size:
            return found
        held: Local = found[(data[LISTS : LISTS + chunk.replica_width, found] == broker_id).any(axis=0)]
        return held

    return find


def not_preferred(chunk: Chunk) -> Local:
    """Partitions that are not led by their first replica, including leaderless ones."""
    data = chunk.data
    found: Local = np.flatnonzero((data[TOPIC] >= 0) & (data[LEADER] != data[LISTS]))
    return found
