"""Following a log that grows, rolls and is cut back, and the events of a live log."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.cli.log.input.follow import follow
from metaquorum.cli.log.input.source import open_reader
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.batches.batch import RecordBatch, encode_batch
from metaquorum.storage.errors import LogTruncatedError
from metaquorum.storage.log.reader import Damage


def batch(offset: int, epoch: int = 1) -> bytes:
    value = encode(NoOpRecord(), 0)
    return encode_batch(base_offset=offset, leader_epoch=epoch, timestamp_ms=offset, values=[value])


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def test_what_is_appended_is_given_once_and_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / f"{0:020d}.log", tmp_path / f"{3:020d}.log"
    append(first, batch(0))
    seen: list[int] = []

    def emit(found: RecordBatch | Damage) -> bool:
        """The writer goes on each time that something was read: also half a batch, and a new segment."""
        assert isinstance(found, RecordBatch)
        seen.append(found.header.base_offset)
        match found.header.base_offset:
            case 0:
                append(first, batch(1) + batch(2)[:40])
            case 1:
                append(first, batch(2)[40:])
                append(second, batch(3, epoch=2))
        return found.header.base_offset == 3

    reader = open_reader(str(tmp_path))
    await follow(reader, str(tmp_path), emit, interval_s=0)
    reader.close()
    assert seen == [0, 1, 2, 3]


async def test_a_single_segment_is_followed_too(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    append(path, batch(0))
    seen: list[int] = []

    def emit(found: RecordBatch | Damage) -> bool:
        assert isinstance(found, RecordBatch)
        seen.append(found.header.base_offset)
        append(path, batch(found.header.next_offset))
        return len(seen) == 5

    reader = open_reader(str(path))
    await follow(reader, str(path), emit, interval_s=0)
    reader.close()
    assert seen == [0, 1, 2, 3, 4]


async def test_a_log_that_is_cut_back_ends_the_following(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    append(path, batch(0) + batch(1))

    def emit(found: RecordBatch | Damage) -> bool:
        assert isinstance(found, RecordBatch)
        if found.header.base_offset == 1:
            path.write_bytes(batch(0))
        return False

    reader = open_reader(str(path))
    with pytest.raises(LogTruncatedError):
        await follow(reader, str(path), emit, interval_s=0)
    reader.close()
