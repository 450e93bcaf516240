"""Batches that are read as one window: their records are where they are in each, and odd ones stay out."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from metaquorum.metadata.columnar.partition_records import Frames, read_frames
from metaquorum.metadata.columnar.runs import read_run
from metaquorum.metadata.columnar.windows import BatchWindow, read_window, windows
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import ConfigRecord
from metaquorum.storage.batches.batch import RecordBatch, batch_record_spans, encode_batch, iter_batches
from metaquorum.storage.batches.format import walk_batches
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.runs import BatchRun, split_runs


def made(counts: list[int], **odd: dict[str, object]) -> list[RecordBatch]:
    """Batches with so many records; `odd`: arguments for the batch with a number, as in _2."""
    rng, offset, found = random.Random(len(counts)), 0, []
    for number, count in enumerate(counts):
        values = [encode(ConfigRecord(2, "t", "k", "v" * rng.choice((0, 7, 7, 90))), 0) for _ in range(count)]
        more = {"last_offset_delta": count - 1, **odd.get(f"_{number}", {})}
        data = encode_batch(
            base_offset=offset,
            leader_epoch=1,
            timestamp_ms=5 + number,
            values=values,
            **more,  # type: ignore[arg-type]
        )
        found += list(iter_batches(data))
        offset += count
    return found


def spans(batch: RecordBatch) -> list[bytes]:
    return [batch.data[start:end] for start, end in batch_record_spans(batch)]


def values_of(window: BatchWindow) -> list[bytes]:
    return values_in(window.frames)


def values_in(frames: Frames) -> list[bytes]:
    places = zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True)
    return [frames.data[start : start + length] for start, length in places]


@pytest.mark.parametrize("counts", [[1], [1, 1, 1], [3, 63, 64, 65, 1, 200], [2, 399, 400, 401, 8193, 5]])
def test_values_offsets_and_parts_are_those_of_the_batches(counts: list[int]) -> None:
    batches = made(counts)
    window = read_window(batches)
    assert window is not None
    assert values_of(window) == [value for batch in batches for value in spans(batch)]
    assert window.offsets().tolist() == list(range(sum(counts)))
    assert window.each(range(len(counts))).tolist() == [at for at, n in enumerate(counts) for _ in range(n)]
    assert window.extent == (sum(counts), 5 + len(counts) - 1)
    assert window.batches_of(np.arange(sum(counts))) == window.each(range(len(counts))).tolist()
    for low in range(len(counts)):
        part = window.part(low, len(counts))
        assert values_of(part) == [value for batch in batches[low:] for value in spans(batch)]
        assert part.offsets().tolist() == list(range(sum(counts[:low]), sum(counts)))


@pytest.mark.parametrize(
    "odd",
    [
        {"keys": [b"key", None, None]},
        {"timestamps": [7, 9, 7]},
        {"timestamps": [7, 5, 7]},
        {"headers": [(), [(b"h", b"v")], ()]},
    ],
)
def test_what_is_odd_comes_by_itself_in_its_place(odd: dict[str, object]) -> None:
    batches = made([3, 3, 3, 3, 3], _2=odd)
    found: list[object] = []
    for item in windows(["before", *batches, "after"]):
        if isinstance(item, BatchWindow):
            found += [at.header.base_offset for at in item.batches]
            assert batches[2].header.base_offset not in found[-len(item.batches) :]
        else:
            found.append(item.header.base_offset if isinstance(item, RecordBatch) else item)
    assert found == ["before", 0, 3, 6, 9, 12, "after"]


EDGES = (*range(50, 70), *range(120, 140), *range(8_180, 8_270), *range(16_370, 16_400))
"""Lengths of values: about where a length takes two and three bytes, and where the middle of three is 0."""


@pytest.mark.parametrize("sizes", [EDGES, [2**20 - 40], [2**20]], ids=["edges", "three bytes", "four bytes"])
def test_records_of_every_length_are_where_they_end(sizes: Sequence[int]) -> None:
    """In one batch, in batches that are read as a window, and in a run of batches with one record each."""
    values = [b"\x01\x14\x00".ljust(size, b"\x7f") for size in sizes]
    whole = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=values)
    each = b"".join(
        encode_batch(base_offset=at, leader_epoch=1, timestamp_ms=5, values=[value])
        for at, value in enumerate(values)
    )
    (batch,) = iter_batches(whole)
    windows_read = [read_window([batch]), read_window(list(iter_batches(each)))]
    walk = walk_batches(each, expected_offset=0, min_epoch=0)
    runs = [one for one in split_runs(each, walk, 0, "file") if isinstance(one, BatchRun)]
    assert len(runs) == (sizes is EDGES)
    read = [
        read_frames(batch.data, batch.header),
        *(None if window is None else window.frames for window in windows_read),
        *map(read_run, runs),
    ]
    for frames in read:
        assert (frames is None) == (sizes == [2**20])
        assert frames is None or values_in(frames) == values


def test_a_gap_and_a_limit_end_a_window() -> None:
    batches = made([5] * 10)
    gap = [*batches[:3], *batches[4:]]
    assert [len(at.batches) for at in windows(gap) if isinstance(at, BatchWindow)] == [3, 6]
    assert [len(at.batches) for at in windows(batches, 15) if isinstance(at, BatchWindow)] == [3, 3, 3, 1]


def test_a_damaged_byte_never_gives_other_values() -> None:
    batches = made([4, 30, 2])
    for place in range(61, len(batches[1].data)):
        for flip in (0x01, 0x80, 0x81):
            data = bytearray(batches[1].data)
            data[place] ^= flip
            damaged = batches[1]._replace(data=bytes(data))
            window = read_window([batches[0], damaged, batches[2]])
            try:
                expected = spans(damaged)
            except BatchError:
                expected = None
            if window is not None:
                assert expected is not None, (place, flip)
                assert values_of(window) == [*spans(batches[0]), *expected, *spans(batches[2])]
