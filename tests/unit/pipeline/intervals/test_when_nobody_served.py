"""Time neither available nor without leaders: nobody wrote, or the last broker was stopped in order."""

from __future__ import annotations

import pytest

from metaquorum.metadata.records import types as r
from tests.unit.pipeline.intervals.telling import (
    DAY_MS,
    ORDERS,
    START_MS,
    Line,
    alive,
    batches,
    broker,
    change,
    fence,
    leads,
    named,
    partition,
    replayed,
    tables_of,
    told,
)
from tests.unit.pipeline.intervals.test_resume import assert_same, in_runs

MINUTE = 60_000
UP: list[Line] = [
    (0, [leads(3000)]),
    (0, [broker(1, 1), broker(2, 2)]),
    (0, [alive(1, 1), alive(2, 2)]),
    (1_000, [r.TopicRecord("orders", ORDERS), partition(0, (1, 2))]),
]


def idle(since: int, until: int, step: int = 500) -> list[Line]:
    """What a quorum writes that has nothing to do."""
    return [(at, [r.NoOpRecord()]) for at in range(since, until, step)]


def day(lines: list[Line]) -> dict[str, float]:
    rows = tables_of(replayed(batches(lines)))["availability"]
    (found,) = [row for row in named("availability", [row[1:] for row in rows]) if row["scope"] == "cluster"]
    return {
        name.removesuffix("_seconds"): value for name, value in found.items() if name.endswith("_seconds")
    }


def sections(lines: list[Line], state: str) -> list[tuple[int, int, int, int]]:
    return [
        (row["from_offset"], row["from_time"] - START_MS, row["to_offset"], row["to_time"] - START_MS)
        for row in told(batches(lines), "coverage")
        if row["state"] == state
    ]


def test_a_dead_quorum_is_neither_available_nor_without_leaders() -> None:
    """Leaders stand on paper while nobody writes; nothing says whether they serve."""
    again = 26 * MINUTE
    lines = [*UP, *idle(2_000, 10_000), (again, [leads(3001)]), *idle(again + 500, again + 5_000)]
    found = day(lines)
    assert found["unobserved"] == (again - 9_500) / 1000
    assert found["observed"] == 9.5 + 4.5
    assert found["partition"] == 8.5 + 4.5 and found["leaderless"] == 0
    assert sections(lines, "unobserved") == [(23, 9_500, 23, again)]


def test_a_partition_without_a_leader_is_not_counted_for_the_silence() -> None:
    again = 10 * MINUTE
    lines = [
        *UP,
        *idle(2_000, 10_000),
        (10_000, [change(isr=(1,)), change(leader=-1), fence(1, 1)]),
        *idle(10_500, 12_000),
        *idle(again, again + 2_000),
        (again + 2_000, [alive(1, 1), change(leader=1)]),
    ]
    found = day(lines)
    assert found["leaderless"] == 1.5 + 2.0 and found["unobserved"] == (again - 11_500) / 1000
    (failover,) = told(batches(lines), "failovers")
    assert (failover["duration_ms"], failover["to_known"]) == (None, False), "nobody saw how long it took"


@pytest.mark.parametrize("step", [500, 5_000, 60_000])
def test_silence_is_measured_by_what_the_quorum_does_when_idle(step: int) -> None:
    lines = [*UP, *idle(2_000, 2_000 + 10 * step, step)]
    last = 2_000 + 9 * step
    short, long = last + 9 * step, last + max(5_000, 10 * step) + step
    assert sections([*lines, (short, [r.NoOpRecord()])], "unobserved") == []
    assert len(sections([*lines, (long, [r.NoOpRecord()])], "unobserved")) == 1


def test_a_log_without_idle_records_says_nothing_about_silence() -> None:
    lines = [*UP, (90 * MINUTE, [change(isr=(1,))]), (200 * MINUTE, [change(isr=(1, 2))])]
    assert sections(lines, "unobserved") == []
    assert day(lines)["observed"] == 200 * 60


def test_a_cluster_that_was_switched_off_in_order_lacks_no_leaders() -> None:
    leaving = r.BrokerRegistrationChangeRecord
    lines = [
        *UP,
        *idle(2_000, 10_000),
        (10_000, [leaving(2, 2, in_controlled_shutdown=1), change(isr=(1,))]),
        (10_500, [fence(2, 2)]),
        (11_000, [leaving(1, 1, in_controlled_shutdown=1), change(leader=-1)]),
        (11_500, [fence(1, 1)]),
        *idle(12_000, 20_000),
        (20_000, [broker(1, 999)]),
        (21_000, [alive(1, 999), change(leader=1)]),
        *idle(21_500, 25_000),
    ]
    found = day(lines)
    assert found["off"] == 10 and found["leaderless"] == 0 and found["under_min_isr"] == 0
    assert found["observed"] == 11 + 3.5 and found["partition"] == 10 + 3.5
    assert [(at[1], at[3]) for at in sections(lines, "off")] == [(11_000, 21_000)]
    assert [row["duration_ms"] for row in told(batches(lines), "failovers")] == [None]
    assert [row["leaderless_ms"] for row in told(batches(lines), "incidents")] == [None, 0]


def test_a_silence_of_the_quorum_is_no_time_without_a_leader() -> None:
    week_ms = 7 * DAY_MS
    lines = [
        *UP,
        *idle(2_000, 10_000),
        (10_000, [change(isr=(1,)), fence(2, 2)]),
        (11_000, [change(leader=-1), fence(1, 1)]),
        *idle(11_500, 20_000),
        (20_000 + week_ms, [broker(1, 999)]),
        *idle(20_500 + week_ms, 22_000 + week_ms),
        (22_000 + week_ms, [alive(1, 999), change(leader=1)]),
    ]
    rows = [row for row in told(batches(lines), "incidents") if row["who"] == "broker/1"]
    open_for_ms = rows[0]["to_time"] - rows[0]["from_time"]
    assert open_for_ms > week_ms
    assert rows[0]["leaderless_ms"] == 22_000 - 11_000 - 500, "from the last record before the silence on"


def test_the_last_broker_that_falls_silent_leaves_partitions_without_leaders() -> None:
    lines = [
        *UP,
        *idle(2_000, 10_000),
        (10_000, [change(isr=(1,)), fence(2, 2)]),
        (11_000, [change(leader=-1), fence(1, 1)]),
        *idle(11_500, 20_000),
    ]
    found = day(lines)
    assert found["off"] == 0 and found["leaderless"] == 8.5


def test_it_stays_off_at_the_end_of_the_log_and_through_a_second_run() -> None:
    leaving = r.BrokerRegistrationChangeRecord
    filler = idle(2_000, 2_000 + 4_200 * 500)
    at = filler[-1][0] + 500
    lines = [
        *UP,
        *filler[:2_000],
        *filler[2_000:],
        (at, [leaving(2, 2, in_controlled_shutdown=1), change(isr=(1,))]),
        (at, [leaving(1, 1, in_controlled_shutdown=1), change(leader=-1)]),
        *idle(at + 500, at + 500 * 2_500),
        (at + 30 * MINUTE, [r.NoOpRecord()]),
    ]
    made = batches(lines)
    assert_same(in_runs(made, [len(made) // 3, len(made) - 3, len(made) - 1]), made)
    assert len(sections(lines, "off")) == 1 and len(sections(lines, "unobserved")) == 1
