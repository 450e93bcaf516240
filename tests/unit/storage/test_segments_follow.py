"""Which segment may follow another when a log is opened: offsets that are missing, repeated, or right."""

from __future__ import annotations

import random

import pytest

from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.errors import CorruptLogError, LogFailedError
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.open import Examined, examine
from metaquorum.storage.log.recovery import RecoveryPoint, store_recovery_point
from metaquorum.storage.log.segment import Segment, segment_name
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.journal import Journal
from tests.unit.storage.test_what_returned_is_durable import tree

RECORDS = 3
"""Batches of one record in each segment that is not empty."""


NO_TAILS: dict[int, bytes] = {}


def one(offset: int) -> bytes:
    return encode_batch(base_offset=offset, leader_epoch=1, timestamp_ms=1, values=[b"v"])


def examined(
    bases: list[int], *, last_is_empty: bool = False, gaps: bool = False, tails: dict[int, bytes] = NO_TAILS
) -> Examined:
    """`tails`: all that is in some segments, by base offset."""
    disk = FaultyDisk(random.Random(5))
    disk.make_directory("/log")
    for base in bases:
        file = disk.open_append(join("/log", segment_name(base)))
        if base in tails:
            file.append(tails[base])
        elif not (last_is_empty and base == bases[-1]):
            for offset in range(base, base + RECORDS):
                file.append(one(offset))
        file.close()
    return examine(disk, "/log", None, bases, lambda base: Segment(disk, "/log", base), gaps=gaps)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("before", [[0], [0, 3], [5], [5, 8, 11]])
@pytest.mark.parametrize("distance", [-2, -1, 0, 1, 2, 2**31 - 1, 2**31, 2**33])
def test_a_segment_follows_where_the_one_before_ends(before: list[int], distance: int, gaps: bool) -> None:
    """Behind a gap only in a compacted log, and in none if it repeats offsets."""
    end = before[-1] + RECORDS
    bases = [*before, end + distance]
    follows = distance == 0 or (gaps and distance > 0)

    found = examined(bases, last_is_empty=True, gaps=gaps)
    if follows:
        assert (found.torn, found.end_offset) == (None, end + distance)
    else:  # nothing is lost: the empty file goes
        assert found.torn is not None
        last_but_one = found.segments[-2]
        assert (found.torn.segment, found.torn.position) == (last_but_one, last_but_one.size)
        assert found.end_offset == end

    if follows:
        found = examined(bases, last_is_empty=False, gaps=gaps)
        assert (found.torn, found.end_offset) == (None, end + distance + RECORDS)
    else:  # records would be lost
        with pytest.raises(CorruptLogError, match="expected the log to continue here") as raised:
            examined(bases, last_is_empty=False, gaps=gaps)
        assert raised.value.file == join("/log", segment_name(before[-1]))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("behind", [[3], [3, 6], [4], [2, 5]])
def test_a_tail_is_cut_where_it_tore_whatever_is_behind_it(behind: list[int], gaps: bool) -> None:
    torn = one(0) + one(1)[:-1]
    empty = dict.fromkeys(behind, b"")
    found = examined([0, *behind], gaps=gaps, tails={0: torn, **empty})
    assert found.torn is not None
    assert (found.torn.segment.base_offset, found.torn.position) == (0, len(one(0)))
    assert found.end_offset == 1


# --- what opening changes, and in which order

DIRECTORY = "/data/log"


def put(disk: Disk, contents: dict[int, bytes]) -> None:
    for base, content in contents.items():
        file = disk.open_append(join(DIRECTORY, segment_name(base)))
        file.append(content)
        file.close()


def pointed(disk: Disk, start: int, end: int, size: int) -> None:
    point = RecoveryPoint(offset=end, segment=start, position=size, start_offset=start, start_epoch=1)
    store_recovery_point(disk, DIRECTORY, point)


NEEDS_REPAIR: dict[str, tuple[dict[int, bytes], int | None, list[str]]] = {
    "a torn tail": ({0: one(0) + one(1)[:-1]}, None, ["truncate 0"]),
    "segments behind it": (
        {0: one(0) + b"torn", 3: b"", 6: b"", 9: b""},
        None,
        ["remove 9", "remove 6", "remove 3", "truncate 0"],
    ),
    "a trim that was cut short": (
        {0: one(0), 1: one(1), 2: one(2), 3: one(3)},
        3,
        ["remove 0", "remove 1", "remove 2"],
    ),
}


@pytest.mark.parametrize("what", NEEDS_REPAIR)
def test_segments_that_opening_takes_away_go_from_the_end_that_the_log_does_not_keep(what: str) -> None:
    """Each durably before the next, so that a loss of power between leaves no gap."""
    contents, start, wanted = NEEDS_REPAIR[what]
    disk = Journal(DIRECTORY)
    disk.make_directory(DIRECTORY)
    put(disk, contents)
    if start is not None:
        pointed(disk, start, start + 1, len(one(start)))
    disk.told()
    log = SegmentedLog.open(disk, DIRECTORY)
    told = disk.told()
    log.close()
    changes = [at for at, step in enumerate(told) if step.startswith(("remove ", "truncate "))]
    assert [told[at] for at in changes] == wanted
    assert all(told[at + 1] == "sync_directory ." for at in changes if told[at].startswith("remove"))


@pytest.mark.parametrize("what", NEEDS_REPAIR)
def test_what_a_check_refuses_stays_as_it_was(what: str) -> None:
    """To the last byte, and given back: the next one may open it."""
    contents, start, _ = NEEDS_REPAIR[what]
    disk = FaultyDisk(random.Random(5))
    for path in ("/data", DIRECTORY):
        disk.make_directory(path)
    put(disk, contents)
    if start is not None:
        pointed(disk, start, start + 1, len(one(start)))
    before = tree(disk)
    seen: list[int] = []

    def refuse(found: Examined) -> None:
        seen.append(found.end_offset)
        raise LogFailedError(DIRECTORY)

    with pytest.raises(LogFailedError):
        SegmentedLog.open(disk, DIRECTORY, check=refuse)
    assert tree(disk) == before
    log = SegmentedLog.open(disk, DIRECTORY)
    assert seen == [log.end_offset]
    log.close()
