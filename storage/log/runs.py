"""Runs of plain batches, without an object per batch. `batches.walk` has checked every batch before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.format import BatchWalk, parse_header, walk_batches
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.log.reader import Damage, KnownPlaces, LogReader

MIN_BATCHES = 32
"""Shorter runs are returned batch by batch."""

MANY_RECORDS = 1_000
"""A batch with this many records is never part of a run: it is read by column on its own."""

_NOTED = 32
"""Of how many batches of a window the places may be remembered."""
_EPOCH = 12
_ATTRIBUTES = 21
_COUNT = 57
_TIMESTAMP = 35


class BatchRun(NamedTuple):
    """Whole plain batches (no control batch, no compression), checked and contiguous.

    `data` holds them and maybe more; `places` are where each starts in it and where the last one ends;
    `offsets` are the base offset of each and the offset after the last one. `position` is where `data`
    begins in `file`. `epoch` is the leader epoch of the last batch.
    """

    data: bytes
    places: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    epoch: int
    position: int
    file: str

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return int(self.offsets[0])

    @property
    def next_offset(self) -> int:
        """Offset after the last record."""
        return int(self.offsets[-1])

    @property
    def batches_count(self) -> int:
        """How many batches they are."""
        return len(self.places) - 1

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of records of every batch."""
        return np.diff(self.offsets)

    @property
    def size_bytes(self) -> int:
        """Size of all batches in bytes."""
        return int(self.places[-1] - self.places[0])

    def timestamps_ms(self) -> npt.NDArray[np.int64]:
        """The newest timestamp of every batch."""
        return numbers_at(self.data, self.places[:-1] + _TIMESTAMP, ">i8")

    def epochs(self) -> npt.NDArray[np.int64]:
        """The leader epoch of every batch."""
        return numbers_at(self.data, self.places[:-1] + _EPOCH, ">i4")

    def part(self, low: int, high: int) -> BatchRun:
        """The batches with the numbers from `low` up to but not including `high`; not empty."""
        places = self.places[low : high + 1]
        epoch = int(numbers_at(self.data, places[-2:-1] + _EPOCH, ">i4")[0])
        return self._replace(places=places, offsets=self.offsets[low : high + 1], epoch=epoch)

    def batch_of(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The batch numbers of records with these numbers, both counted from the run's beginning."""
        if len(self.offsets) == int(self.offsets[-1] - self.offsets[0]) + 1:
            return records  # one record in each
        found: npt.NDArray[np.int64] = (
            np.searchsorted(self.offsets, records + self.offsets[0], side="right") - 1
        )
        return found

    def batches(self) -> Iterator[RecordBatch]:
        """The batches one by one."""
        places = self.places.tolist()
        for start, end in pairwise(places):
            yield RecordBatch(
                parse_header(self.data, start), self.data[start:end], self.position + start, self.file
            )


def run_of(batch: RecordBatch) -> BatchRun | None:
    """A plain batch as a run of its own; None for any other batch."""
    header = batch.header
    if header.attributes or header.records_count < 1 or header.records_count != header.last_offset_delta + 1:
        return None
    places = np.array([0, len(batch.data)], dtype=np.int64)
    offsets = np.array([header.base_offset, header.next_offset], dtype=np.int64)
    return BatchRun(batch.data, places, offsets, header.leader_epoch, batch.position, batch.file)


def numbers_at(data: bytes, places: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[np.int64]:
    """The big-endian numbers at `places` of a buffer."""
    size = np.dtype(dtype).itemsize
    raw: npt.NDArray[Any] = np.ndarray(
        shape=(len(data) - size + 1,), dtype=f"V{size}", buffer=data, strides=(1,)
    )
    return raw[places].view(dtype).astype(np.int64)


def split_runs(buf: bytes, walk: BatchWalk, position: int, file: str) -> Iterator[RecordBatch | BatchRun]:
    """The batches that a walk found in `buf`, with each run of at least `MIN_BATCHES` as one value."""
    if not walk.hops:
        return
    places = np.array([*(hop[0] for hop in walk.hops), walk.end], dtype=np.int64)
    counts = numbers_at(buf, places[:-1] + _COUNT, ">i4")
    plain = np.zeros(len(walk.hops) + 2, dtype=np.int8)
    plain[1:-1] = (counts > 0) & (counts < MANY_RECORDS)
    plain[1:-1] &= numbers_at(buf, places[:-1] + _ATTRIBUTES, ">i2") == 0
    offsets = walk.hops[0][1] + np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    edges = np.flatnonzero(np.diff(plain))
    first = 0
    for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if high - low < MIN_BATCHES:
            continue
        yield from _batches(buf, places[first : low + 1], position, file)
        run = slice(low, high + 1)
        yield BatchRun(buf, places[run], offsets[run], walk.hops[high - 1][3], position, file)
        first = high
    yield from _batches(buf, places[first:], position, file)


def _batches(buf: bytes, places: npt.NDArray[np.int64], position: int, file: str) -> Iterator[RecordBatch]:
    listed = places.tolist()
    for start, end in pairwise(listed):
        yield RecordBatch(parse_header(buf, start), buf[start:end], position + start, file)


class RunReader(LogReader):
    """A tolerant reader that returns each run of plain batches as one value."""

    def __init__(
        self, disk: Disk, path: str, *, start_offset: int | None = None, places: KnownPlaces | None = None
    ) -> None:
        super().__init__(disk, path, tolerant=True, start_offset=start_offset, places=places)

    def _take_fast(self, buf: bytes, items: list[RecordBatch | Damage]) -> int:
        if self._expected is None:
            return super()._take_fast(buf, items)
        walk = walk_batches(buf, expected_offset=self._expected, min_epoch=self._epoch)
        self._note_places(walk)
        taken = cast("list[RecordBatch | BatchRun | Damage]", items)  # only `found` returns them
        for run in split_runs(buf, walk, self._position, self._name):
            if isinstance(run, BatchRun) and run.base_offset >= self._skip_below:
                self._expected, self._epoch, self._skip_below = run.next_offset, run.epoch, 0
                taken.append(run)
                continue
            for batch in run.batches() if isinstance(run, BatchRun) else (run,):
                self._give(batch, items)
        return walk.end

    def _note_places(self, walk: BatchWalk) -> None:
        if self._places is None or not self._is_linked:
            return
        for before, (position, offset, _, _) in pairwise(walk.hops[:: -(-len(walk.hops) // _NOTED) or 1]):
            self._places.remember(self._name, self._position + position, offset, before[3])
