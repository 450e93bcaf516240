"""Replays a run of batches as if they were one batch. Anything unusual is left to the caller."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import BARRIER, CLASS_OF_KEY, Engine, apply_places
from metaquorum.metadata.columnar.partition_records import (
    FRAME_BYTES,
    Frames,
    frames_at,
    lengths_at,
    varint_widths,
)
from metaquorum.storage.batches.batch import HEADER_BYTES, RecordBatch, parse_header
from metaquorum.storage.batches.places import Places
from metaquorum.storage.log.runs import MIN_BATCHES, BatchRun

NO_OP = 20
_NO_OP_BYTES = 4


class RunEngine(Engine, Protocol):
    """What replaying runs requires of `metadata.replay.Replayer`."""

    def apply_batch(self, batch: RecordBatch) -> None: ...


def apply_run(engine: RunEngine, run: BatchRun) -> None:
    """Applies every batch of `run`, in columns where their records allow it."""
    frames = read_run(run)
    if frames is None:
        if run.batches_count >= 2 * MIN_BATCHES:
            middle = run.batches_count // 2
            apply_run(engine, run.part(0, middle))
            apply_run(engine, run.part(middle, run.batches_count))
        else:
            for batch in run.batches():
                engine.apply_batch(batch)
        return
    barriers = np.flatnonzero(CLASS_OF_KEY[frames.keys] == BARRIER)
    alone = np.unique(run.batch_of(barriers)).tolist()
    busy = np.flatnonzero(~idle_frames(frames))
    low = 0
    for high in (*alone, run.batches_count):
        if low < high:
            _apply_part(engine, run, (low, high), frames, busy)
        if high < run.batches_count:
            engine.apply_batch(next(run.part(high, high + 1).batches()))
        low = high + 1


def _apply_part(
    engine: RunEngine, run: BatchRun, batches: tuple[int, int], frames: Frames, busy: Places
) -> None:
    """Applies consecutive batches. `busy` are the numbers of the records that are not idle."""
    _, high = batches
    first, last = (int(run.offsets[at]) - run.base_offset for at in batches)
    header = parse_header(run.data, int(run.places[high - 1]))
    records = busy[np.searchsorted(busy, first) : np.searchsorted(busy, last)]
    apply_places(engine, frames, header._replace(base_offset=run.base_offset), records)
    builder = engine.builder
    builder.offset, builder.epoch = int(run.offsets[high]), header.leader_epoch
    builder.timestamp_ms = header.max_timestamp_ms


def idle_frames(frames: Frames) -> npt.NDArray[np.bool_]:
    """Which records are NoOps in the form that every controller writes."""
    idle: npt.NDArray[np.bool_] = (frames.keys == NO_OP) & (frames.versions == 0)
    idle &= frames.lengths == _NO_OP_BYTES
    idle &= frames.octets[frames.starts + FRAME_BYTES] == 0
    return idle


def read_run(run: BatchRun) -> Frames | None:
    """The frame of every record; None if one has a key, headers, a time other than its batch's, numbers that
    a record of a metadata log does not have, or ends before its frame does."""
    try:
        return _frames(run)
    except IndexError:
        return None


def _frames(run: BatchRun) -> Frames | None:
    octets = np.frombuffer(run.data, dtype=np.uint8)
    firsts, counts = run.places[:-1] + HEADER_BYTES, run.counts
    if len(counts) == int(counts.sum()):
        records, ends = firsts, run.places[1:]
        deltas = np.zeros(len(records), dtype=np.int64)
    else:
        starts = _record_starts(run.data, firsts.tolist(), counts.tolist(), run.places[1:].tolist())
        if starts is None:
            return None
        records = np.array(starts, dtype=np.int64)
        last = np.cumsum(counts) - 1
        ends = np.append(records[1:], run.places[-1])
        ends[last] = run.places[1:]
        deltas = np.arange(len(records), dtype=np.int64) - np.repeat(last + 1 - counts, counts)
    frames = frames_at(run.data, octets, records, ends, deltas)
    if frames is None or (frames.lengths < FRAME_BYTES + 1).any():
        return None
    widths = varint_widths(octets, records)
    is_whole = (lengths_at(octets, records, widths) == ends - records - widths).all()
    return frames if is_whole else None


def _record_starts(data: bytes, firsts: list[int], counts: list[int], ends: list[int]) -> list[int] | None:
    """Where every record of some batches begins; None if those of one do not fill it exactly."""
    starts: list[int] = []
    add = starts.append
    for first, count, end in zip(firsts, counts, ends, strict=True):
        position = first
        for _ in range(count):
            if position >= end:
                return None
            add(position)
            size = data[position]
            if size < 0x80:
                position += 1 + (size >> 1)
                continue
            second = data[position + 1]
            if second < 0x80:
                position += 2 + ((size & 0x7F | second << 7) >> 1)
            else:
                position += 3 + ((size & 0x7F | (second & 0x7F) << 7 | data[position + 2] << 14) >> 1)
        if position != end:
            return None
    return starts
