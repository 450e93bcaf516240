"""Which batches a question needs one by one; the others are replayed in columns.

Owns the choice within runs of one-record batches (see `storage.log.runs`): idle batches, and partitions of
topics outside the question, may be passed over. Does not interpret records; anything unusual counts as
needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar import changes, partitions
from metaquorum.metadata.columnar.frames import FRAME_BYTES, Frames, gather, read_frames
from metaquorum.metadata.columnar.singles import idle_frames, read_run
from metaquorum.metadata.image import ImageBuilder
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.records.types import PartitionChangeRecord, PartitionRecord
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.batches.format import parse_header
from metaquorum.storage.batches.places import Places
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun, numbers_at

_TOPIC_KEY = 2
_INDEX_BYTES, _ID_BYTES = 4, 16
"""A partition record and a partition change begin with the partition's index and its topic's id."""
_EPOCH = 12
_LATEST = tuple(SCHEMA_BY_CLASS[one].latest_version for one in (PartitionRecord, PartitionChangeRecord))

_NONE: Places = np.empty(0, dtype=np.int64)

Bools = npt.NDArray[np.bool_]


class PassableReplay(Protocol):
    """What passing over requires of `metadata.replay.Replayer`."""

    builder: ImageBuilder

    def apply_batch(self, batch: RecordBatch) -> None: ...

    def apply_run(self, run: BatchRun) -> None: ...


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """What a question is about. Idle batches are not, unless they end at one of `stops` (offsets).

    `topics` are the names of the topics whose partitions matter, None for all. With `gap_ms`, a batch also
    counts if its time is before that of the previous batch or this much later. With `together`, partition
    changes in their usual forms are passed over many at a time, in stretches that include the idle batches
    between them.
    """

    topics: frozenset[str] | None = None
    stops: frozenset[int] = frozenset()
    gap_ms: int | None = None
    together: bool = False


class Stretch(NamedTuple):
    """Consecutive batches of a run that are not needed. `places` are their start positions in the run's data
    and the end position of the last one; `epoch` and `time_ms` are the last one's. `changes` are the numbers
    (in the stretch) of batches that change a partition, if `together` was set."""

    run: BatchRun
    low: int
    high: int
    is_idle: bool
    epoch: int
    time_ms: int
    changes: Places = _NONE

    @property
    def batches(self) -> int:
        return self.high - self.low

    @property
    def base_offset(self) -> int:
        return self.run.base_offset + self.low

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return self.run.base_offset + self.high

    def split(self, batches: int) -> tuple[Stretch, Stretch]:
        """Its first batches, and the rest."""
        middle, run = self.low + batches, self.run
        last = middle - 1
        epoch = int(numbers_at(run.data, run.places[last : last + 1] + _EPOCH, ">i4")[0])
        time_ms = int(run.timestamps_ms()[last])
        low = self._replace(high=middle, epoch=epoch, time_ms=time_ms)
        rest = self._replace(low=middle)
        cut = int(np.searchsorted(self.changes, batches))
        low = low._replace(changes=self.changes[:cut])
        return low, rest._replace(changes=self.changes[cut:] - batches)

    def part(self) -> BatchRun:
        """The batches as a run of their own."""
        run = self.run
        places = run.places[self.low : self.high + 1]
        return run._replace(places=places, base_offset=self.base_offset, epoch=self.epoch)


def pieces(
    run: BatchRun, concern: Concern, topic_id: Callable[[str], bytes | None]
) -> Iterator[RecordBatch | Stretch]:
    """The batches of a run that are needed, and the stretches between them. `topic_id` returns a topic's id
    in the state before the run."""
    frames = _frames(run)
    needed = None if frames is None else _needed(run, frames, concern, topic_id)
    if frames is None or needed is None:
        yield from run.batches()
        return
    edges = [0, *(np.flatnonzero(np.diff(needed)) + 1).tolist(), len(needed)]
    last = np.array(edges[1:], dtype=np.int64) - 1
    epochs = numbers_at(run.data, run.places[last] + _EPOCH, ">i4").tolist()
    times = run.timestamps_ms()[last].tolist()
    idle = idle_frames(frames)
    starts = run.places.tolist()
    for at, (low, high) in enumerate(pairwise(edges)):
        if not needed[low]:
            changed = np.flatnonzero(~idle[low:high])
            told = changed if concern.together else _NONE
            yield Stretch(run, low, high, not len(changed), epochs[at], times[at], told)
            continue
        for start, end in pairwise(starts[low : high + 1]):
            header = parse_header(run.data, start)
            yield RecordBatch(header, run.data[start:end], run.position + start, run.file)


def is_passed(batch: RecordBatch, concern: Concern, topic_id: Callable[[str], bytes | None]) -> bool:
    """Whether a batch of many records only concerns topics outside the question and their partitions."""
    header = batch.header
    if concern.topics is None or header.is_control or header.records_count < MIN_BATCHES:
        return False
    frames = read_frames(batch.data, header)
    if frames is None or header.next_offset in concern.stops:
        return False
    known = _other_partitions(frames, set()) | ((frames.keys == _TOPIC_KEY) & (frames.versions == 0))
    if not known.all():
        return False
    asked = [topic_id(name) for name in concern.topics]
    named = (*(one for one in asked if one), *(name.encode() for name in concern.topics))
    return not any(one in batch.data for one in named)


def pass_over(engine: PassableReplay, stretch: Stretch) -> None:
    """Applies a stretch that continues where `engine` is."""
    if stretch.is_idle:
        builder = engine.builder
        builder.offset, builder.epoch = stretch.next_offset, stretch.epoch
        builder.timestamp_ms = stretch.time_ms
    elif stretch.batches >= MIN_BATCHES:
        engine.apply_run(stretch.part())
    else:
        for batch in stretch.part().batches():
            engine.apply_batch(batch)


def _frames(run: BatchRun) -> Frames | None:
    try:
        return read_run(run)
    except IndexError:  # a record that ends before its frame does
        return None


def _needed(
    run: BatchRun, frames: Frames, concern: Concern, topic_id: Callable[[str], bytes | None]
) -> Bools | None:
    """Which batches are needed; None for all."""
    needed: Bools = ~idle_frames(frames)
    if concern.topics and (frames.keys == _TOPIC_KEY).any():
        return None  # the question may be about one of them from there on
    other: Bools = np.full(len(needed), concern.topics is None and concern.together)
    if concern.topics is not None:
        ids = (topic_id(name) for name in concern.topics)
        other = _other_partitions(frames, {one for one in ids if one is not None})
    if concern.together:
        other &= (frames.keys == changes.API_KEY) & (frames.versions <= _LATEST[1])
        other[changes.decode_changes(frames, np.flatnonzero(other))[1]] = False
    needed &= ~other
    if concern.stops:
        ends = run.base_offset + 1 + np.arange(len(needed))
        needed |= np.isin(ends, np.array(sorted(concern.stops), dtype=np.int64))
    if concern.gap_ms is not None:
        times = run.timestamps_ms()
        step = np.diff(times)
        needed[0] = True  # the batch before it is unknown here
        needed[1:] |= (step < 0) | (step > concern.gap_ms) | (times[:-1] < 0)
    return needed


def _other_partitions(frames: Frames, asked: set[bytes]) -> Bools:
    """Records about partitions of topics other than `asked`; none from a newer version."""
    named: Bools = (frames.keys == partitions.API_KEY) & (frames.versions <= _LATEST[0])
    named |= (frames.keys == changes.API_KEY) & (frames.versions <= _LATEST[1])
    named &= frames.lengths >= FRAME_BYTES + _INDEX_BYTES + _ID_BYTES
    if asked:
        at = np.flatnonzero(named)
        if len(at):
            starts = frames.starts[at] + FRAME_BYTES + _INDEX_BYTES
            ids = gather(frames, starts, _ID_BYTES, np.dtype("V16"))
            for one in asked:
                named[at[ids == np.void(one)]] = False
    return named
