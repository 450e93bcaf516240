"""Clocks that jump: what time it was, ranges of time, sums of time, and that each tool says so."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.inspect.log.clock import JUMP_MS, LogClock, clock_of
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.log.points import utc_text
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.cli.running import run_log as run
from tests.unit.metadata.made_logs import make_node, write

ID = bytes(range(16))
T0 = 1_795_000_000_000
SIX_YEARS = 6 * 365 * 86_400_000


def clock(stamps: list[int]) -> LogClock:
    places = np.arange(len(stamps), dtype=np.int64)
    return LogClock(places, places + 1, np.array(stamps, dtype=np.int64))


def times(stamps: list[int]) -> list[int]:
    """In seconds: less than JUMP_MS is not corrected."""
    stamps_ms = [1000 * stamp if stamp >= 0 else stamp for stamp in stamps]
    found = clock(stamps_ms)
    return [found.time_ms(at, stamp) // 1000 for at, stamp in enumerate(stamps_ms)]


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([1, 2, 2, 3], [1, 2, 2, 3]),
        ([10, 11, 9999, 12, 13], [10, 11, 12, 12, 13]),  # one ahead
        ([10, 11, 85, 82, 83, 84], [10, 11, 82, 82, 83, 84]),  # behind a pause, set back by a little
        ([10, 11, 1, 12, 13], [10, 11, 11, 12, 13]),  # one behind
        ([9999, 10, 11, 12], [10, 10, 11, 12]),  # the first one
        ([10, 11, 12, 9999], [10, 11, 12, 9999]),  # the last one: nothing says that it is wrong
        ([10, 11, 9997, 9998, 9999, 12, 13, 14, 15], [10, 11, 11, 11, 12, 12, 13, 14, 15]),  # a stretch
        ([10, 9951, 9971, 9991, 90, 91, 92], [10, 50, 70, 90, 90, 91, 92]),  # it keeps its own pace
        ([9951, 9971, 9991, 90, 91, 92, 93], [50, 70, 90, 90, 91, 92, 93]),  # also where the log begins
        ([50, 60, 70, 80, 10, 30, 40], [50, 60, 70, 80, 80, 100, 110]),  # and where it ends
        ([50, 60, 70, 80, 40, 45, 20, 22], [50, 60, 70, 80, 80, 85, 85, 87]),  # set back twice
        ([50, 60, 70, 80, 40, 45, 20, 22, 82], [50, 60, 70, 80, 80, 82, 82, 82, 82]),  # and right again
        ([10, -1, 11, -1, 12], [10, 10, 11, 11, 12]),  # batches without a time
        ([0, 1, 1000, 1001, 1002], [0, 1, 1000, 1001, 1002]),  # set right for good
        ([], []),
        ([5], [5]),
    ],
)
def test_the_longest_series_that_never_falls_counts(stamps: list[int], expected: list[int]) -> None:
    assert times(stamps) == expected


@given(st.lists(st.integers(0, 12), max_size=9))
def test_it_is_the_longest_and_what_it_makes_never_falls(stamps: list[int]) -> None:
    found = times(stamps)
    assert found == sorted(found)
    longest = max(
        (len(part) for size in range(len(stamps) + 1) for part in itertools.combinations(stamps, size)
         if list(part) == sorted(part)), default=0,
    )  # fmt: skip
    assert sum(a == b for a, b in zip(found, stamps, strict=True)) >= longest


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30).map(sorted), st.integers(-5, 55), st.booleans())
def test_a_place_is_where_it_would_be_without_the_odd_batch(
    stamps: list[int], asked: int, first: bool
) -> None:
    """One batch six years ahead or behind, anywhere inside, moves no other place."""
    at = random.Random(asked).randrange(len(stamps))
    odd = [*stamps[:at], stamps[at] + SIX_YEARS, *stamps[at:], stamps[-1], stamps[-1]]
    point, _ = clock(odd).place(asked, first=first)
    plain, _ = clock([*stamps[: at + 1], *stamps[at:], stamps[-1], stamps[-1]]).place(asked, first=first)
    assert point == plain


def partition(index: int, **more: Any) -> r.PartitionRecord:
    return r.PartitionRecord(index, ID, (1, 2), (1, 2), leader=1, leader_epoch=0, partition_epoch=0, **more)


RECORDS: list[list[object]] = [
    [r.FeatureLevelRecord("metadata.version", 19)],  # 0
    [r.BrokerRecord(1, ID, 1, fenced=False)],  # 1
    [r.BrokerRecord(2, ID, 2, fenced=False)],  # 2
    [r.TopicRecord("t", ID), partition(0)],  # 3 and 4
    [r.NoOpRecord()],  # 5
    [r.PartitionChangeRecord(0, ID, leader=-1)],  # 6
    [r.NoOpRecord()],  # 7
    [r.NoOpRecord()],  # 8
    [r.PartitionChangeRecord(0, ID, leader=2)],  # 9
    [r.ConfigRecord(2, "t", "retention.ms", "1")],  # 10
    [r.NoOpRecord()],  # 11
    [r.NoOpRecord()],  # 12
]
SECONDS = list(range(12))


def node(home: Path, stamps: list[int]) -> Path:
    """A node whose batches are stamped so, in seconds behind T0."""
    made, base = [], 0
    for stamp, records in zip(stamps, RECORDS, strict=True):
        values = [encode(one, 0) for one in records]  # type: ignore[arg-type]
        made.append(
            encode_batch(base_offset=base, leader_epoch=1, timestamp_ms=T0 + 1000 * stamp, values=values)
        )
        base += len(records)
    disk = PosixDisk()
    given = make_node(disk, home=str(home))
    write(disk, join(given.log.directory, "00000000000000000000.log"), b"".join(made))
    return home


def with_stamp(at: int, stamp: int) -> list[int]:
    return [stamp if place == at else second for place, second in enumerate(SECONDS)]


AHEAD, BEHIND = SIX_YEARS // 1000, -SIX_YEARS // 1000
JUMPS = {
    "one ahead": with_stamp(6, AHEAD),
    "one behind": with_stamp(6, BEHIND),
    "at the loss": with_stamp(5, AHEAD),
    "at the end of it": with_stamp(8, AHEAD),
    "behind at the end of it": with_stamp(8, BEHIND),
    "a stretch": [*SECONDS[:6], AHEAD, AHEAD + 1, *SECONDS[8:]],
}


def at(second: float) -> str:
    return f"@{T0 + int(1000 * second)}"


@pytest.mark.parametrize("stamps", JUMPS.values(), ids=JUMPS)
def test_a_range_of_time_is_the_same_with_and_without_a_jump(tmp_path: Path, stamps: list[int]) -> None:
    plain, odd = node(tmp_path / "plain", SECONDS), node(tmp_path / "odd", stamps)
    bounds = (at(1.5), at(10.5))

    def shown(home: Path, *arguments: object) -> list[tuple[int, str]]:
        lines = [json.loads(line) for line in run("timeline", home, "--json", *arguments).stdout.splitlines()]
        return [
            (line["offset"], line["kind"]) for line in lines if line["kind"] not in ("clock jumped", "limits")
        ]

    wanted = shown(plain, "--from", bounds[0], "--to", bounds[1])
    assert (10, "config changed") in wanted and (9, "leader changed") in wanted
    assert shown(odd, "--from", bounds[0], "--to", bounds[1]) == wanted
    dumped = [
        [json.loads(line)["offset"] for line in run(
            "dump", home, "--json", "--from-time", bounds[0], "--to-time", bounds[1]).stdout.splitlines()
         if "offset" in line and "shownAs" not in line]
        for home in (plain, odd)
    ]  # fmt: skip
    assert dumped[0] == dumped[1] == list(range(2, 12))
    for command in (
        ("state", "--at", at(9.5), "topic/t"),
        ("history", "topic/t/0"),
        ("history", "topic/t/0", "--to", at(9.5)),
    ):  # fmt: skip
        lines = [run(command[0], home, *command[1:]).stdout for home in (plain, odd)]
        assert _offsets(lines[0]) == _offsets(lines[1]), command
    for home in (plain, odd):
        assert run("why", home, "topic/t/0.leader", "--at", at(9.5), "--json").stdout.count('"value":2') == 1
        assert (
            run("bisect", home, "--predicate", "len(topics) == 0", "--to", at(9.5)).stdout.count("offset 3")
            >= 1
        )


def _offsets(text: str) -> list[str]:
    """Without times: those of an odd batch are shown as they are stamped."""
    return [word for word in text.split() if not word.startswith(("20", "19"))]


@pytest.mark.parametrize("stamps", JUMPS.values(), ids=JUMPS)
def test_sums_of_time_do_not_count_the_jump(tmp_path: Path, stamps: list[int]) -> None:
    home = node(tmp_path / "odd", stamps)
    told = list(events(open_log(PosixDisk(), str(home)), pytest.fail))
    again = next(event for event in told if event.offset == 9 and event.kind == "leader changed")
    assert "without a leader" in again.text and " d " not in again.text and " h " not in again.text, again
    assert not [event for event in told if event.kind == "gap in time"]
    jumps = [event for event in told if event.kind == "clock jumped"]
    assert [event.severity for event in jumps] == ["warning"] and " d " in jumps[0].text
    assert all(abs(event.time_ms - T0) < 60_000 for event in told), "no event is six years off"
    text = run("summary", home).stdout
    assert " d " not in text.split("leaderless")[-1].splitlines()[0]


def test_a_time_in_a_log_that_jumps_is_told_to_be_taken_for_an_offset(tmp_path: Path) -> None:
    home = node(tmp_path / "odd", JUMPS["one ahead"])
    for command in ("state", "timeline", "history", "why", "diff", "bisect", "dump"):
        arguments: dict[str, tuple[object, ...]] = {
            "state": (home, "--at", at(9.5)),
            "timeline": (home, "--to", at(9.5)),
            "history": (home, "--to", at(9.5)),
            "why": (home, "topic/t/0", "--at", at(9.5)),
            "diff": (home, at(2), at(9.5)),
            "bisect": (home, "--check", "all-led", "--to", at(9.5)),
            "dump": (home, "--to-time", at(9.5)),
        }
        text = run(command, *arguments[command])
        assert "clock of the log jumps: offset 7 counts by its position" in text.stderr, (
            command,
            text.output,
        )
        assert utc_text(T0 + SIX_YEARS) in text.stderr and "is taken as offset 11" in text.stderr
        told = run(command, *arguments[command], "--json")
        places = next(
            found["shownAs"] for found in map(json.loads, told.stdout.splitlines()) if "shownAs" in found
        )
        assert (places[-1]["atomic"], places[-1]["askedTime"], places[-1]["firstOffset"]) == (
            "clock", T0 + 9_500, 7
        )  # fmt: skip


def test_a_time_before_and_behind_a_log_that_jumps(tmp_path: Path) -> None:
    home = node(tmp_path / "odd", JUMPS["one ahead"])
    early = run("state", home, "--at", at(-1))
    assert early.exit_code == 1 and "begins at" in early.stderr
    assert run("state", home, "--at", at(99), "--json").exit_code == 0
    assert run("timeline", home, "--from", at(-1), "--json").stdout.count('"kind"') > 5


def test_a_log_whose_stamps_never_fall_is_read_once_until_it_grows(tmp_path: Path) -> None:
    home = node(tmp_path / "plain", SECONDS)
    log = open_log(PosixDisk(), str(home))
    assert clock_of(log).is_steady and clock_of(log) is clock_of(log)
    assert list(clock_of(log).jumps()) == []
    assert "jumps" not in run("state", home, "--at", at(9.5)).stderr
    more = encode_batch(base_offset=clock_of(log).end_offset, leader_epoch=1, timestamp_ms=T0, values=[b"v"])
    before, file = clock_of(log), PosixDisk().open_append(join(log.directory, "00000000000000000000.log"))
    file.append(more)
    file.close()
    assert clock_of(log).end_offset == before.end_offset + 1, "a log that grew is read again"


def test_small_differences_between_two_nodes_clocks_are_no_jump(tmp_path: Path) -> None:
    found = clock([0, 1000, 2000, 2000 - (JUMP_MS - 1), 3000])
    assert not found.is_steady and list(found.jumps()) == []


def test_jumps_have_places_and_sizes() -> None:
    stamps = [0, 10, 20, SIX_YEARS, SIX_YEARS + 5, 30, 40, 50, 30 - SIX_YEARS, 60, 70]
    found = list(clock([stamp + T0 for stamp in stamps]).jumps())
    assert [(one.first, one.last, one.batches) for one in found] == [(3, 4, 2), (8, 8, 1)]
    assert found[0].off_ms > SIX_YEARS - 100 and found[1].off_ms < -SIX_YEARS + 100
