"""What a start makes of the files that an interrupted cleaning left, ours or Kafka's."""

from __future__ import annotations

import random

import pytest

from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import read_file
from metaquorum.storage.partition.swap import finish_swaps
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import PowerLossError

PLACE = "/d"


def name(base: int, suffix: str = ".log") -> str:
    return f"{base:020d}{suffix}"


def batches(base: int, end: int, size: int = 1) -> bytes:
    return b"".join(
        encode_batch(base_offset=at, leader_epoch=0, timestamp_ms=0, values=[b"v" * size])
        for at in range(base, end)
    )


def disk_with(files: dict[str, bytes]) -> FaultyDisk:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory(PLACE)
    disk.sync_directory("/")
    for each, data in files.items():
        file = disk.open_append(f"{PLACE}/{each}")
        file.append(data)
        file.sync()
        file.close()
    disk.sync_directory(PLACE)
    return disk


def finished(disk: FaultyDisk) -> dict[str, bytes]:
    """What is there afterwards, which has to be durable; nothing more is done by the start after that."""
    names = finish_swaps(disk, PLACE, disk.list_directory(PLACE))
    assert sorted(names) == sorted(disk.list_directory(PLACE))
    disk = disk.crash()
    left = disk.list_directory(PLACE)
    assert sorted(names) == sorted(left)
    assert finish_swaps(disk, PLACE, left) is left
    return {each: read_file(disk, f"{PLACE}/{each}") for each in left}


OLD = {name(base): b"old %d" % base for base in (0, 10, 20, 30)}
BESIDE = {name(base, suffix): b"old" for base in (0, 10, 20) for suffix in (".index", ".timeindex")}
TO_20, TO_21 = batches(0, 20), batches(0, 21)
LARGE = batches(0, 20, 5_000)


@pytest.mark.parametrize("data", [TO_20, LARGE], ids=["small", "larger than a window"])
@pytest.mark.parametrize("also", [(), (".index",), (".index", ".timeindex", ".txnindex")])
def test_a_whole_segment_takes_the_places_up_to_its_end(data: bytes, also: tuple[str, ...]) -> None:
    swaps = {name(0, ".log.swap"): data} | {name(0, f"{suffix}.swap"): b"new" for suffix in also}
    left = finished(disk_with({**OLD, **BESIDE, **swaps, "other": b"o"}))
    expected = {name(0): data} | {name(0, suffix): b"new" for suffix in also}
    expected |= {each: OLD[each] for each in (name(20), name(30))}
    expected |= {name(20, suffix): b"old" for suffix in (".index", ".timeindex")}
    assert left == {**expected, "other": b"o"}


def test_a_batch_that_reaches_into_a_segment_replaces_it() -> None:
    left = finished(disk_with({**OLD, name(0, ".log.swap"): TO_21}))
    assert left == {name(0): TO_21, name(30): OLD[name(30)]}


@pytest.mark.parametrize("base", [0, 10])
def test_a_segment_with_nothing_left_takes_its_own_place_alone(base: int) -> None:
    left = finished(disk_with({**OLD, name(base, ".log.swap"): b""}))
    assert left == {**OLD, name(base): b""}


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("state", [".cleaned", ".deleted"])
def test_what_was_being_written_or_removed_goes(suffix: str, state: str) -> None:
    assert finished(disk_with({**OLD, name(10, suffix + state): TO_20})) == OLD


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index_whose_log_is_not_there_to_be_swapped_goes(suffix: str) -> None:
    assert finished(disk_with({**OLD, name(10, suffix + ".swap"): b"new"})) == OLD


@pytest.mark.parametrize(("cleaned", "counts"), [(0, False), (9, False), (10, False), (11, True), (20, True)])
def test_a_swap_counts_only_below_what_was_still_being_written(cleaned: int, counts: bool) -> None:
    """Kafka splits a segment into several, and swaps none before all of them are written."""
    swap = batches(10, 20)
    left = finished(
        disk_with({**OLD, name(10, ".log.swap"): swap, name(cleaned, ".log.cleaned"): b"", "x.log.swap": b""})
    )
    assert left == {**OLD, **({name(10): swap} if counts else {}), "x.log.swap": b""}


def test_two_segments_may_be_swapped_in_at_once() -> None:
    first, second = batches(0, 10), batches(10, 30)
    left = finished(disk_with({**OLD, name(0, ".log.swap"): first, name(10, ".log.swap"): second}))
    assert left == {name(0): first, name(10): second, name(30): OLD[name(30)]}


def test_a_crash_at_any_operation_leads_to_the_same_end() -> None:
    """But for an index of what was swapped in: it may be missing, and is not an old one."""
    files = {**OLD, **BESIDE, name(0, ".log.swap"): TO_20, name(0, ".index.swap"): b"new"}
    expected = finished(disk_with(files))
    index = name(0, ".index")
    crashes = 0
    for after in range(30):
        for seed in range(12):
            disk = disk_with(files)
            disk.rng.seed(seed)
            disk.crash_after = after
            try:
                finish_swaps(disk, PLACE, disk.list_directory(PLACE))
            except PowerLossError:
                crashes += 1
            left = finished(disk.crash())
            assert left in (expected, {each: data for each, data in expected.items() if each != index})
    assert 12 * 8 < crashes < 12 * 30, "at each operation, and not at the first one alone"
