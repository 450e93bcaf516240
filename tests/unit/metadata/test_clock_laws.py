"""The clock of a log against its definition, batch by batch: jumps, places, and reading once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.inspect.log.clock import (
    JUMP_MS,
    MISLEADING_MS,
    Jump,
    LogClock,
    RunningClock,
    Stamps,
    longest_series,
)
from metaquorum.storage.batches.batch import encode_batch, iter_batches

STAMPS = st.lists(
    st.one_of(
        st.integers(0, 5),
        st.sampled_from(
            [0, 1, JUMP_MS - 1, JUMP_MS, JUMP_MS + 1, MISLEADING_MS - 1, MISLEADING_MS, 2 * MISLEADING_MS, -1]
        ),
    ),
    max_size=12,
)
BASE, SPAN = 100, 3
"""Batches of three records, from offset 100 on."""


def clock(stamps: list[int]) -> LogClock:
    bases = BASE + SPAN * np.arange(len(stamps), dtype=np.int64)
    return LogClock(bases, bases + SPAN, np.array(stamps, dtype=np.int64))


def base(at: int) -> int:
    return BASE + SPAN * at


def told(stamps: list[int]) -> tuple[list[int], list[int]]:
    """Of each batch: what time it was, and how far off its stamp is."""
    counting = [at for at, stamp in enumerate(stamps) if stamp >= 0]
    chosen = [counting[place] for place in longest_series([stamps[at] for at in counting])]
    if not chosen or all(one <= two for one, two in itertools.pairwise(stamps)):
        return list(stamps), [0] * len(stamps)
    slots, off = [], []
    for at, stamp in enumerate(stamps):
        slot = max((each for each in chosen if each <= at), default=None)
        next_one = min((each for each in chosen if each > at), default=None)
        slots.append((slot, next_one))
        before, behind = stamps[chosen[0] if slot is None else slot], stamps[chosen[-1]]
        behind = behind if next_one is None else stamps[next_one]
        is_odd = at not in chosen and stamp >= 0
        off.append(0 if not is_odd else min(stamp - before, 0) or max(stamp - behind, 0))
    times = [stamps[chosen[0] if slot is None else slot] for slot, _ in slots]
    odd = [at for at, by in enumerate(off) if by]
    groups: list[list[int]] = []
    for last, at in itertools.pairwise([-1, *odd]):
        same = last >= 0 and slots[at] == slots[last] and (off[at] > 0) == (off[last] > 0)
        if same and stamps[at] > stamps[last] - JUMP_MS:
            groups[-1].append(at)
        else:
            groups.append([at])
    for together in groups:
        by = max((off[at] for at in together), key=abs)
        slot, next_one = slots[together[0]]
        if by < 0 and slot is not None:
            by -= times[together[0] - 1] - stamps[slot]
        for at in together:
            moved = stamps[at] - by if slot is None else max(stamps[at] - by, stamps[slot])
            times[at] = moved if next_one is None else min(moved, stamps[next_one])
    return list(itertools.accumulate(times, max)), off


@given(STAMPS, st.sampled_from([0, 5, JUMP_MS, MISLEADING_MS, 3 * MISLEADING_MS]))
def test_the_time_of_a_snapshot_is_that_of_the_batch_before_its_end(stamps: list[int], stamp: int) -> None:
    """Its own timestamp, unless the clock jumps, or the batch is far from it."""
    found, (times, _) = clock(stamps), told(stamps)
    for offset in range(BASE - 1, base(len(stamps)) + 2):
        below = [time for at, time in enumerate(times) if base(at) < offset]
        if not stamps:
            expected = stamp
        elif offset > base(len(stamps)):
            expected = max(times[-1], stamp)
        else:
            expected = below[-1] if below else min(stamp, times[0])
            if not found.has_jumps and abs(expected - stamp) < JUMP_MS:
                expected = stamp
        assert found.time_below(offset, stamp) == expected


@given(STAMPS)
def test_times_and_the_ends_of_a_log(stamps: list[int]) -> None:
    found, (times, _) = clock(stamps), told(stamps)
    assert found.is_steady == (stamps == sorted(stamps))
    jumps = any(abs(time - stamp) >= JUMP_MS for time, stamp in zip(times, stamps, strict=True))
    assert found.has_jumps == jumps
    for at, stamp in enumerate(stamps):
        for offset in range(base(at), base(at) + SPAN):
            assert found.time_ms(offset, stamp) == (times[at] if jumps else stamp)
    assert found.time_ms(BASE - 1, 77) == 77
    assert found.time_ms(base(len(stamps)), 77) == (max(times[-1], 77) if jumps else 77)
    ends = (times[0], times[-1], base(len(stamps))) if stamps else (None, None, 0)
    assert (found.first_ms, found.last_ms, found.end_offset) == ends


@given(STAMPS)
def test_jumps_are_odd_batches_in_a_row_in_one_direction(stamps: list[int]) -> None:
    times, off = told(stamps)
    rows: list[list[int]] = []
    for at, by in enumerate(off):
        if abs(by) >= JUMP_MS:
            if rows and rows[-1][-1] == at - 1 and (off[at - 1] > 0) == (by > 0):
                rows[-1].append(at)
            else:
                rows.append([at])
    expected = []
    for row in rows:
        worst = max(row, key=lambda at: (abs(off[at]), -at))
        span = base(row[0]), base(row[-1]) + SPAN - 1, len(row)
        expected.append(Jump(*span, stamps[worst], times[worst], off[worst]))
    assert list(clock(stamps).jumps()) == expected


@given(STAMPS, st.sampled_from([1, 2, JUMP_MS, MISLEADING_MS]))
def test_jumps_ahead_are_where_time_goes_far_ahead(stamps: list[int], by: int) -> None:
    times, _ = told(stamps)
    expected = [
        (base(at), times[at - 1], times[at])
        for at in range(1, len(stamps))
        if times[at] - times[at - 1] >= by
    ]
    assert list(clock(stamps).jumps_ahead(by)) == expected


@given(STAMPS.filter(bool), st.sampled_from([-2, 0, 1, 2, 3, 999, 1_000, 1_001, 60_000]), st.booleans())
def test_a_time_stands_for_a_place_and_what_contradicts_it_is_told(
    stamps: list[int], asked: int, first: bool
) -> None:
    times, off = told(stamps)
    if times != sorted(times):
        return  # only where no batch has a time
    at = sum(time < asked if first else time <= asked for time in times)
    point, shown = clock(stamps).place(asked, first=first)
    assert point.offset == base(at)
    odd = [
        each
        for each, stamp in enumerate(stamps)
        if abs(off[each]) >= JUMP_MS and (each < at) == (stamp >= asked if first else stamp > asked)
    ]
    if not odd:
        assert shown is None
        return
    assert shown is not None
    assert (shown.asked, shown.offset, shown.first, shown.last) == (
        asked,
        base(at),
        base(odd[0]),
        base(odd[-1]) + SPAN - 1,
    )
    assert (shown.batches, shown.stamp_ms, shown.atomic) == (len(odd), stamps[odd[0]], "clock")
    assert ("batches from offset" in shown.text) == (len(odd) > 1)
    assert shown.tree() | {"text": ""} == {
        "askedTime": asked,
        "offset": shown.offset,
        "atomic": "clock",
        "firstOffset": shown.first,
        "lastOffset": shown.last,
        "batches": shown.batches,
        "stampedTime": shown.stamp_ms,
        "text": "",
    }


@given(STAMPS, st.booleans())
def test_who_reads_once_reads_the_clock_once_and_before_the_first_batch(
    stamps: list[int], sourced: bool
) -> None:
    expected = [clock(stamps).time_ms(base(at), stamp) for at, stamp in enumerate(stamps)]
    calls = []

    def source() -> LogClock:
        calls.append(1)
        return clock(stamps)

    running = RunningClock(source if sourced else None)
    assert not running.has_jumps
    found = [running.time_ms(base(at), stamp) for at, stamp in enumerate(stamps)]
    assert found == (expected if sourced else stamps)
    assert len(calls) == (sourced and len(stamps) > 0)
    assert running.has_jumps == (sourced and clock(stamps).has_jumps)


@given(STAMPS, st.sampled_from([1, JUMP_MS, MISLEADING_MS]), st.integers(0, 12), st.integers(0, 12))
def test_a_reader_must_look_where_the_clock_begins_or_ends_to_be_off(
    stamps: list[int], gap_ms: int, low: int, high: int
) -> None:
    times, _ = told(stamps)
    odd = [abs(time - stamp) >= JUMP_MS for time, stamp in zip(times, stamps, strict=True)]
    expected = {
        base(at) + SPAN
        for at in range(len(stamps))
        if odd[at] != (at > 0 and odd[at - 1]) or (at > 0 and times[at] - times[at - 1] > gap_ms)
    }
    if not any(odd):
        expected = set()
    running = RunningClock(lambda: clock(stamps))
    assert running.turns(0, base(len(stamps)), gap_ms) == expected
    part = {end for end in expected if base(low) < end <= base(high)}
    assert running.turns(base(low), max(base(low), base(high)), gap_ms) == part


@pytest.mark.parametrize("counts", [(1,), (2, 1, 3), ()])
def test_stamps_are_those_of_the_headers(counts: tuple[int, ...]) -> None:
    stamps, at, expected = Stamps(), 5, []
    for count in counts:
        data = encode_batch(base_offset=at, leader_epoch=0, timestamp_ms=at * 10, values=[b"v"] * count)
        (batch,) = iter_batches(data)
        stamps.take(batch)
        expected.append([at, at + count, at * 10])
        at += count
    for _ in range(2):
        columns = stamps.columns()
        assert [list(each) for each in zip(*columns, strict=True)] == expected
        assert [column.dtype for column in columns] == [np.int64] * 3
