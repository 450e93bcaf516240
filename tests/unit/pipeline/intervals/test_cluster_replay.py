"""What a made log says in the interval tables, record by record."""

from __future__ import annotations

import pytest

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import KRaftVersionRecord, Voter, VotersRecord
from metaquorum.metadata.records.types import ControllerFeature
from metaquorum.pipeline.intervals.tables import incidents
from tests.unit.pipeline.intervals.telling import (
    DAY_MS,
    DIR_A,
    DIR_B,
    DIR_C,
    ORDERS,
    PAYMENTS,
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

BASE: list[Line] = [
    (0, [leads(3000)]),  # 0
    (0, [broker(1, 1, rack="a", dirs=(DIR_A, DIR_B)), broker(2, 2, rack="b", dirs=(DIR_C,))]),  # 1, 2
    (0, [alive(1, 1), alive(2, 2)]),  # 3, 4
    (1000, [r.TopicRecord("orders", ORDERS), partition(0, (1, 2))]),  # 5, 6
]


def availability(lines: list[Line], scope: str = "cluster") -> list[dict[str, object]]:
    rows = tables_of(replayed(batches(lines)))["availability"]
    return [row for row in named("availability", [row[1:] for row in rows]) if row["scope"] == scope]


def test_a_partition_has_a_row_for_every_stretch_without_a_change() -> None:
    rows = told(batches([*BASE, (3000, [change(isr=(1,))]), (5000, [change(leader=-1)])]), "partition_states")
    assert [(row["from_offset"], row["to_offset"], row["changed"]) for row in rows] == [
        (6, 7, "created"),
        (7, 8, "isr"),
        (8, None, "leader"),
    ]
    assert [(row["leader"], row["isr"], row["leader_epoch"], row["partition_epoch"]) for row in rows] == [
        (1, (1, 2), 0, 0),
        (1, (1,), 0, 1),
        (-1, (1,), 1, 2),
    ]
    assert [row["from_time"] for row in rows] == [START_MS + 1000, START_MS + 3000, START_MS + 5000]
    assert {row["topic"] for row in rows} == {"orders"}


def test_two_changes_in_one_batch_are_one_step() -> None:
    lines = [*BASE, (3000, [change(isr=(1,)), change(isr=(1, 2))])]
    rows = told(batches(lines), "partition_states")
    assert [(row["from_offset"], row["isr"], row["partition_epoch"]) for row in rows] == [
        (6, (1, 2), 0),
        (8, (1, 2), 2),
    ]
    assert rows[1]["changed"] == "epoch"


def test_the_states_of_a_deleted_topic_end_and_its_configs_with_it() -> None:
    lines = [
        *BASE,
        (2000, [r.ConfigRecord(2, "orders", "retention.ms", "5")]),
        (3000, [r.RemoveTopicRecord(ORDERS)]),
    ]
    made = batches(lines)
    (state,) = told(made, "partition_states")
    assert (state["to_offset"], state["removed"]) == (8, True)
    (topic,) = told(made, "topics")
    assert (topic["topic"], topic["partitions"], topic["from_offset"], topic["to_offset"]) == (
        "orders",
        1,
        5,
        8,
    )
    (config,) = told(made, "configs")
    assert (config["value"], config["from_offset"], config["to_offset"]) == ("5", 7, 8)


def test_broker_sessions_say_what_began_and_ended_them() -> None:
    lines = [
        *BASE,
        (2000, [r.BrokerRegistrationChangeRecord(1, 1, in_controlled_shutdown=1)]),
        (3000, [fence(1, 1)]),
        (4000, [r.UnregisterBrokerRecord(1, 1)]),
    ]
    rows = [row for row in told(batches(lines), "broker_sessions") if row["broker_id"] == 1]
    assert [(row["state"], row["from_offset"], row["to_offset"]) for row in rows] == [
        ("fenced", 1, 3),
        ("active", 3, 7),
        ("controlled_shutdown", 7, 8),
        ("fenced", 8, 9),
    ]
    assert rows[0]["began_by"] == "REGISTER_BROKER_RECORD"
    assert rows[-1]["ended_by"] == "UNREGISTER_BROKER_RECORD"


def test_records_inside_a_transaction_count_from_its_end() -> None:
    lines = [
        *BASE,
        (2000, [r.BeginTransactionRecord("t"), change(isr=(1,))]),  # 7, 8
        (3000, [change(isr=(1, 2))]),  # 9
        (4000, [change(isr=(2,)), r.EndTransactionRecord()]),  # 10, 11
    ]
    rows = told(batches(lines), "partition_states")
    assert [(row["from_offset"], row["isr"]) for row in rows] == [(6, (1, 2)), (11, (2,))]


def test_an_aborted_transaction_leaves_nothing() -> None:
    lines = [
        *BASE,
        (2000, [r.BeginTransactionRecord("t"), change(isr=(1,)), r.AbortTransactionRecord("no")]),
        (3000, [change(isr=(2,))]),
    ]
    rows = told(batches(lines), "partition_states")
    assert [(row["from_offset"], row["isr"], row["partition_epoch"]) for row in rows] == [
        (6, (1, 2), 0),
        (10, (2,), 1),
    ]


def test_cleared_eligible_leaders_begin_another_stretch() -> None:
    lines: list[Line] = [
        *BASE,
        (1000, [r.TopicRecord("payments", PAYMENTS), partition(0, (1, 2), PAYMENTS)]),  # 7, 8
        (2000, [change(isr=(1,), eligible_leader_replicas=(2,))]),  # 9
        (2000, [change(0, PAYMENTS, isr=(1,), last_known_elr=(2,))]),  # 10
        (3000, [r.ClearElrRecord("orders")]),  # 11
        (4000, [r.ClearElrRecord("orders"), r.ClearElrRecord("nobody")]),  # 12, 13
        (5000, [r.BeginTransactionRecord("t"), r.ClearElrRecord("")]),  # 14, 15
        (5000, [r.EndTransactionRecord()]),  # 16
    ]
    outside: list[Line] = [*lines[:-2], (5000, [r.NoOpRecord(), r.NoOpRecord(), r.ClearElrRecord("")])]
    for given in (lines, outside):
        rows = told(batches(given), "partition_states")
        found = [(row["topic"], row["from_offset"], row["changed"], row["partition_epoch"]) for row in rows]
        assert sorted(found) == [
            ("orders", 6, "created", 0),
            ("orders", 9, "isr,elr", 1),
            ("orders", 11, "elr", 2),
            ("payments", 8, "created", 0),
            ("payments", 10, "isr,elr", 1),
            ("payments", 16, "elr", 2),
        ]


def test_an_unregistered_controller_has_no_levels() -> None:
    levels = (ControllerFeature("metadata.version", 1, 29),)
    registered = r.ControllerRecord(3000, ORDERS, features=levels)
    rows = told(
        batches([*BASE, (2000, [registered]), (3000, [r.UnregisterControllerRecord(3000)])]), "upgrades"
    )
    assert [(row["name"], row["level"], row["from_offset"], row["to_offset"]) for row in rows] == [
        ("controller/3000", 29, 7, 8)
    ]


def test_epochs_that_nobody_won_are_counted() -> None:
    lines: list[Line] = [(0, [leads(3000)]), (10, [r.NoOpRecord()]), (500, [leads(3001)])]
    rows = told(batches(lines, [1, 1, 4]), "quorum_epochs")
    assert [(row["epoch"], row["leader_id"], row["records"], row["skipped_epochs"]) for row in rows] == [
        (1, 3000, 2, 0),
        (4, 3001, 1, 2),
    ]
    assert (rows[0]["to_offset"], rows[1]["to_offset"]) == (2, None)


def test_a_failover_without_a_gap_and_one_with() -> None:
    lines = [
        *BASE,
        (2000, [change(isr=(2,), leader=2), fence(1, 1)]),  # 7, 8
        (5000, [change(leader=-1), fence(2, 2)]),  # 9, 10
        (9000, [change(leader=2), alive(2, 2)]),  # 11, 12
    ]
    rows = told(batches(lines), "failovers")
    assert [(row["old_leader"], row["new_leader"], row["cause"], row["duration_ms"]) for row in rows] == [
        (1, 2, "broker-fenced", 0),
        (2, 2, "broker-fenced", 4000),
    ]
    (day,) = availability(lines)
    assert (day["leaderless_seconds"], day["failovers"], day["failovers_open"]) == (4.0, 2, 0)
    assert (day["failover_ms_p50"], day["failover_ms_max"]) == (2000.0, 4000.0)
    assert day["leader_changes"] == 3


def test_a_split_fence_is_the_cause_of_the_batches_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: Line = (2000, [change(isr=(2,), leader=2)])
    (small,) = told(batches([*BASE, moved, (2400, [fence(1, 1)])]), "failovers")
    assert small["cause"] == "stopping-or-fenced", "controllers do not split a fence of one partition"
    monkeypatch.setattr(incidents, "SLICE_MIN", 1)
    (soon,) = told(batches([*BASE, moved, (2400, [fence(1, 1)])]), "failovers")
    assert soon["cause"] == "broker-fenced"
    (late,) = told(batches([*BASE, moved, (30_000, [r.NoOpRecord()]), (30_000, [fence(1, 1)])]), "failovers")
    assert late["cause"] == "stopping-or-fenced"
    for at_ms, cause in ((3_000, "broker-fenced"), (3_001, "stopping-or-fenced")):
        (found,) = told(batches([*BASE, moved, (at_ms, [fence(1, 1)])]), "failovers")
        assert found["cause"] == cause


def test_an_election_by_preference_and_a_reassignment_are_no_failovers() -> None:
    lines = [
        *BASE,
        (2000, [change(leader=2)]),
        (3000, [change(replicas=(1,), isr=(1,), leader=1, directories=(DIR_A,))]),
    ]
    assert told(batches(lines), "failovers") == []


def test_a_lost_directory_is_an_event_and_a_cause() -> None:
    lines = [
        *BASE,
        (2000, [change(isr=(2,), leader=2), r.BrokerRegistrationChangeRecord(1, 1, log_dirs=(DIR_B,))]),
        (4000, [change(directories=(DIR_B, DIR_C))]),
    ]
    made = batches(lines)
    (failover,) = told(made, "failovers")
    assert failover["cause"] == "directory-failed"
    events = [row for row in told(made, "log_dir_events") if row["offset"] > 6]
    assert [(row["event"], row["broker_id"], row["replicas"]) for row in events] == [
        ("offline", 1, 1),
        ("moved", 1, 1),
    ]
    assert events[1]["from_directory_id"] == events[0]["directory_id"]


def test_an_unclean_election_is_one_whose_leader_was_not_in_sync() -> None:
    lines = [
        *BASE,
        (2000, [change(isr=(1,))]),
        (3000, [change(leader=-1), fence(1, 1)]),
        (4000, [change(leader=2, isr=(2,), leader_recovery_state=1)]),
    ]
    made = batches(lines)
    assert [row["unclean"] for row in told(made, "partition_states")] == [False, False, False, True]
    (failover,) = told(made, "failovers")
    assert (failover["unclean"], failover["duration_ms"]) == (True, 1000)
    assert availability(lines)[0]["unclean_elections"] == 1
    assert [row["id"] for row in availability(lines, "broker") if row["unclean_elections"]] == ["2"]


def test_a_new_replica_that_completes_its_reassignment_and_leads_is_clean() -> None:
    lines = [
        *BASE,
        (1500, [broker(3, 7), alive(3, 7)]),
        (
            2000,
            [
                change(
                    replicas=(1, 2, 3),
                    adding_replicas=(3,),
                    removing_replicas=(1, 2),
                    directories=(DIR_A,) * 3,
                )
            ],
        ),
        (
            3000,
            [
                change(
                    replicas=(3,),
                    isr=(3,),
                    leader=3,
                    adding_replicas=(),
                    removing_replicas=(),
                    directories=(DIR_A,),
                )
            ],
        ),
    ]
    rows = told(batches(lines), "partition_states")
    assert rows[-1]["leader"] == 3
    assert not any(row["unclean"] for row in rows)


def test_time_below_min_isr_follows_the_configuration_and_ends_at_midnight() -> None:
    lines = [
        *BASE,
        (2000, [change(isr=(1,))]),
        (4000, [r.ConfigRecord(2, "orders", "min.insync.replicas", "2")]),
        (DAY_MS + 6000, [change(isr=(1, 2))]),
        (DAY_MS + 9000, [r.NoOpRecord()]),
    ]
    first, second = availability(lines)
    assert first["under_min_isr_seconds"] == (DAY_MS - 4000) / 1000
    assert second["under_min_isr_seconds"] == 6.0
    assert (first["isr_shrinks"], second["isr_expands"]) == (1, 1)
    assert second["partition_seconds"] == 9.0
    assert second["observed_seconds"] == 9.0
    at_fault = [row for row in availability(lines, "rack") if row["under_min_isr_seconds"]]
    assert {row["id"] for row in at_fault} == {"b"}


def test_min_isr_is_never_more_than_the_replicas() -> None:
    lines = [
        *BASE,
        (2000, [r.ConfigRecord(4, "", "min.insync.replicas", "3")]),
        (5000, [r.NoOpRecord()]),
    ]
    assert availability(lines)[0]["under_min_isr_seconds"] == 0.0


def test_three_fences_within_a_minute_are_one_storm() -> None:
    brokers = [broker(at, 10 + at) for at in range(1, 6)]
    lines: list[Line] = [
        (0, [leads(3000)]),
        (0, brokers),
        (0, [alive(at, 10 + at) for at in range(1, 6)]),
        *[(1000 * at, [fence(at, 10 + at)]) for at in range(1, 5)],
        (500_000, [fence(5, 15)]),
    ]
    (day,) = availability(lines)
    assert (day["fences"], day["fence_storms"]) == (5, 1)


def test_a_clock_that_runs_backwards_counts_no_time_twice() -> None:
    lines = [*BASE, (3000, [change(leader=-1)]), (2000, [r.NoOpRecord()]), (5000, [change(leader=1)])]
    assert availability(lines)[0]["leaderless_seconds"] == 2.0
    assert availability(lines)[0]["observed_seconds"] == 5.0


def test_refused_records_are_violations_and_the_rest_goes_on() -> None:
    lines = [*BASE, (2000, [change(7, isr=(1,))]), (3000, [change(isr=(1,))])]
    made = batches(lines)
    (refused,) = told(made, "violations")
    assert (refused["rule"], refused["severity"], refused["from_offset"]) == ("replay", "error", 7)
    assert [row["from_offset"] for row in told(made, "partition_states")] == [6, 8]


def test_a_broken_invariant_begins_and_ends_at_its_batches() -> None:
    lines = [
        *BASE,
        *[(1500, [r.NoOpRecord()] * 100) for _ in range(30)],
        (2000, [change(isr=(2,))]),  # the leader 1 is not in it
        *[(2500, [r.NoOpRecord()] * 100) for _ in range(30)],
        (3000, [change(isr=(1, 2))]),
        *[(3500, [r.NoOpRecord()] * 100) for _ in range(30)],
    ]
    rows = told(batches(lines), "violations")
    (broken,) = [row for row in rows if row["rule"] == "leader-in-isr"]
    assert (broken["where"], broken["from_offset"], broken["to_offset"]) == ("topic/orders/0", 3007, 6008)


def test_voters_change_inside_an_epoch_and_stay_behind_it() -> None:
    def voters(*ids: int) -> VotersRecord:
        return VotersRecord(tuple(Voter(one, bytes([one]) * 16) for one in ids))

    lines: list[Line] = [
        (0, [leads(3000)]),
        (10, [KRaftVersionRecord(1), voters(1, 2, 3)]),
        (20, [voters(3, 1, 2, 4)]),
        (500, [r.NoOpRecord()]),
        (510, [leads(3001)]),
        (520, [voters(1, 2)]),
    ]
    rows = told(batches(lines, [1, 1, 1, 2, 3, 3]), "quorum_epochs")
    assert [(row["epoch"], row["voters"], row["last_voters"], row["kraft_version"]) for row in rows] == [
        (1, (3000, 3001), (1, 2, 3, 4), 1),
        (2, (), (1, 2, 3, 4), 1),
        (3, (3000, 3001), (1, 2), 1),
    ]
