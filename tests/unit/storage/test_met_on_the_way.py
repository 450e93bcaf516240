"""What a read, a search or a start comes upon by the way: damage is told with its file and place, what went
meanwhile is no damage, and a shortcut that leads astray is left aside."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from metaquorum.storage.batches.batch import Batches, EndMarker, encode_batch, encode_marker
from metaquorum.storage.batches.format import TRANSACTIONAL
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import CorruptLogError, DiskError
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.reader import Damage, LogReader
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.log.timed_segment import decode_aborted, encode_index, index_name
from metaquorum.storage.partition.partition_log import PartitionLog
from metaquorum.storage.partition.pooled_log import FoundRecord
from metaquorum.storage.partition.swap import finish_swaps
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.cleaner_bench import settle
from tests.unit.storage.test_partition_bounds import PLACE, batch, load, new_disk

SIZE = len(batch(0))


def hurt(disk: FaultyDisk, base: int, change: Callable[[bytes], bytes]) -> str:
    """Another content for a segment, in the same file."""
    path = join(PLACE, segment_name(base))
    file = disk.open_append(path)
    content = change(file.read_at(0, file.size()))
    file.truncate(0)
    file.append(content)
    file.close()
    return path


def filled(disk: FaultyDisk, count: int, **settings: int) -> PartitionLog:
    log = load(disk, **settings)
    for offset in range(count):
        log.append(Batches.parse(batch(offset, time=100 + offset)))
    return log


# --- damage below what is read


@pytest.mark.parametrize(
    ("change", "says", "offset"),
    [
        (lambda content: content[: 2 * SIZE], "a batch header on the way to offset 2", 0),
        (lambda content: content[: 2 * SIZE + 60], "a batch header on the way to offset 2", 0),
        (lambda content: content[: 2 * SIZE + 16] + bytes(SIZE - 16), "expected a batch .magic 0", 2),
    ],
)
def test_a_header_that_is_no_longer_there_is_told_with_its_place(
    change: Callable[[bytes], bytes], says: str, offset: int
) -> None:
    """On the way to what is read, or where that begins."""
    disk = new_disk()
    whole = SegmentedLog.open(disk, PLACE, LogConfig())
    for at in range(3):
        whole.append(Batches.parse(batch(at)))
    path = hurt(disk, 0, change)
    with pytest.raises(CorruptLogError, match=says) as raised:
        whole.read(2, 1000)
    assert (raised.value.file, raised.value.position, raised.value.offset) == (path, 2 * SIZE, offset)
    whole.close()


def test_a_read_is_told_of_the_damage_and_not_of_what_is_before_it() -> None:
    """Bytes behind the last whole batch are no batch, although there are enough for a header."""
    disk = new_disk()
    whole = SegmentedLog.open(disk, PLACE, LogConfig())
    for offset in range(3):
        whole.append(Batches.parse(batch(offset)))
    path = hurt(disk, 0, lambda content: content[: 2 * SIZE] + bytes(SIZE))
    with pytest.raises(CorruptLogError, match="magic") as raised:
        whole.read(0, 3 * SIZE - 1)
    assert (raised.value.file, raised.value.position, raised.value.offset) == (path, 2 * SIZE, 2)
    assert whole.read(0, 2 * SIZE).next_offset == 2
    whole.close()


@pytest.mark.parametrize("cut", [False, True])
def test_a_search_by_time_tells_damage_unless_the_log_was_cut_meanwhile(
    monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    disk = new_disk()
    log = filled(disk, 3, segment_bytes=10_000)
    assert log.find_offset(102, 3) == FoundRecord(2, 102, 1)
    path = hurt(disk, 0, lambda content: content[:-1] + b"x")
    read_at = type(log._timed_segments()[0].pooled).read_at

    def meanwhile(file: object, position: int, length: int) -> bytes:
        data = read_at(file, position, length)  # type: ignore[arg-type]
        if cut and length == SIZE:
            log.generation += 1
        return data

    monkeypatch.setattr(type(log._timed_segments()[0].pooled), "read_at", meanwhile)
    if cut:
        assert log.find_offset(102, 3) is None
    else:
        with pytest.raises(CorruptLogError) as raised:
            log.find_offset(102, 3)
        assert (raised.value.file, raised.value.position, raised.value.offset) == (path, 2 * SIZE, 2)
    monkeypatch.undo()
    log.close()


@pytest.mark.parametrize("use", ["producers", "time", "end"])
def test_a_segment_whose_headers_end_early_is_told(use: str) -> None:
    disk = new_disk()
    log = filled(disk, 3, segment_bytes=10_000)
    settle(log)
    log.close()
    again = load(disk, segment_bytes=10_000)
    path = hurt(disk, 0, lambda content: content[: 2 * SIZE] + b"x")
    segment = again._timed_segments()[0]
    segment.forget()
    segment.without_index_files()
    uses: dict[str, Callable[[], object]] = {
        "producers": lambda: list(segment.producer_batches(0)),
        "time": segment.newest_timestamp_ms,
        "end": lambda: again._header_at(segment, 2 * SIZE),
    }
    with pytest.raises(CorruptLogError) as raised:
        uses[use]()
    assert (raised.value.file, raised.value.position, raised.value.offset) == (path, 2 * SIZE, 0)
    again.close()


@pytest.mark.parametrize("shift", [-3, 1, 7, SIZE])
def test_a_read_that_an_index_leads_astray_holds_what_every_read_holds(shift: int) -> None:
    disk = new_disk()
    log = filled(disk, 12, segment_bytes=6 * SIZE)
    expected = {
        (start, most): log.read_range(start, 12, most * SIZE) for start in range(12) for most in (1, 2, 3, 9)
    }
    settle(log)
    log.close()
    places = [SIZE * at + shift for at in (2, 4)]
    name = join(PLACE, index_name(0, ".index"))
    file = disk.open_append(name)
    file.truncate(0)
    file.append(encode_index(0, [2, 4], places))
    file.close()
    for (start, most), data in expected.items():
        again = load(disk, segment_bytes=6 * SIZE)
        assert again.read_range(start, 12, most * SIZE) == data, (start, most)
        again.close()


# --- what went, or came, meanwhile


def test_a_segment_that_is_trimmed_before_it_is_opened_is_a_gap() -> None:
    disk = new_disk()
    for base in (0, 3):
        hurt(disk, base, lambda _, base=base: batch(base) + batch(base + 1))  # type: ignore[misc]
    tolerant, strict = LogReader(disk, PLACE, tolerant=True), LogReader(disk, PLACE)
    disk.remove(join(PLACE, segment_name(0)))
    gap, *found = list(tolerant)
    assert isinstance(gap, Damage)
    assert (gap.file, gap.reason) == (join(PLACE, segment_name(0)), "expected a segment at offset 0, found 3")
    assert [one.header.base_offset for one in found if not isinstance(one, Damage)] == [3, 4]
    with pytest.raises(CorruptLogError, match="expected a segment at offset 0, found 3"):
        list(strict)


def test_a_cleaned_segment_that_is_no_segment_takes_the_place_of_its_own_alone() -> None:
    """As if it held nothing: what is beside it stays."""
    disk = new_disk()
    for name in (segment_name(0), segment_name(1), segment_name(0) + ".swap"):
        disk.open_append(join(PLACE, name)).append(bytes(70) if "swap" in name else batch(int(name[:20])))
    assert finish_swaps(disk, PLACE, disk.list_directory(PLACE)) == [segment_name(0), segment_name(1)]
    assert read_file(disk, join(PLACE, segment_name(0))) == bytes(70)
    assert read_file(disk, join(PLACE, segment_name(1))) == batch(1)


def transaction(log: PartitionLog, *, end: bool = True, producer: int = 7) -> None:
    data = encode_batch(
        base_offset=log.end_offset,
        leader_epoch=1,
        timestamp_ms=1,
        values=[b"v"],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=log.end_offset,
        attributes=TRANSACTIONAL,
    )
    log.append(Batches.parse(data))
    if end:
        ended = EndMarker(False, 0)
        marker = bytearray(encode_marker(ended, producer_id=producer, producer_epoch=0, timestamp_ms=1))
        marker[:8] = log.end_offset.to_bytes(8, "big")
        marker[12:16] = (1).to_bytes(4, "big")
        log.append(Batches.parse(bytes(marker)))


def test_a_checkpoint_does_not_take_back_what_a_roll_wrote_of_aborted_transactions() -> None:
    disk = new_disk()
    log = load(disk, segment_bytes=500)
    transaction(log)
    log.sync()
    checkpoint = log.checkpoint()
    assert checkpoint is not None
    files = checkpoint.stage()
    while len(log.segments()) == 1:
        transaction(log)
    path = join(PLACE, index_name(0, ".txnindex"))
    rolled = read_file(disk, path)
    assert len(decode_aborted(rolled, 0, end_offset=100) or ()) > 1
    for step in checkpoint.STEPS:
        checkpoint.place(step)
    assert len(files) == 4 and read_file(disk, path) == rolled
    log.checkpointed(checkpoint)
    log.close()


@pytest.mark.parametrize("producer", [0, 1, 2**62])
@pytest.mark.parametrize("end", [False, True])
def test_a_producer_is_found_again_whatever_its_id(producer: int, end: bool) -> None:
    """The first one of a cluster has the id 0."""
    disk = new_disk()
    log = load(disk)
    transaction(log, end=end, producer=producer)
    known, aborted = log.producers.all(), list(log.producers.aborted)
    assert [one.producer_id for one in known] == [producer] and len(known[0].batches) == 1
    assert log.producers.has_open(producer, 0) != end and len(aborted) == end
    log.sync()
    log.close()
    again = load(disk)
    assert again.producers.all() == known and list(again.producers.aborted) == aborted
    again.close()


def test_a_file_is_read_while_it_is_held_and_not_synced_once_it_is_closed() -> None:
    disk = new_disk()
    log = load(disk)
    file = log._timed_segments()[0].pooled
    if file.opened is not None:
        log.pool.retire(file)
    with pytest.raises(DiskError, match="the file is not held open"):
        file.read_held(0, 1)
    file.close()
    assert log.pool.enter_to_sync(file) is None
    log.close()


def test_a_gap_is_damage_in_a_log_of_metadata() -> None:
    """Only a cleaner leaves gaps, and it cleans logs of partitions."""
    disk = FaultyDisk(random.Random(5))
    disk.make_directory(PLACE)
    hurt(disk, 0, lambda _: batch(0) + batch(5) + batch(6))
    with pytest.raises(CorruptLogError, match="expected base offset 1, found 5"):
        SegmentedLog.open(disk, PLACE)
    log = load(disk)
    assert log.end_offset == 7
    log.close()
