"""Which segment may follow another when a log is opened: offsets that are missing, repeated, or right."""

from __future__ import annotations

import random

import pytest

from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.errors import CorruptLogError
from metaquorum.storage.log.open import Examined, examine
from metaquorum.storage.log.segment import Segment, segment_name
from metaquorum.testing.faulty_disk import FaultyDisk

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
