"""Who changed what: the rows of `audit_trail`, and the actors of other tables; a log that does not say it."""

from __future__ import annotations

import pytest

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.pipeline.intervals import ClusterReplay
from metaquorum.pipeline.intervals.tables.settings import NAMED_MAX
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.batches.batch import RecordBatch
from tests.unit.pipeline.intervals.telling import (
    ORDERS,
    PAYMENTS,
    START_MS,
    Line,
    alive,
    batches,
    broker,
    change,
    feed,
    leads,
    partition,
    tables_of,
    told,
)

ALICE = BatchCause("CreateTopics", None, "User:alice", "app", "10.0.0.7", 2)
BOB = BatchCause("IncrementalAlterConfigs", None, "User:bob", None, "10.0.0.8")
EXPIRED = BatchCause(rule="session-expired")
LINES: list[Line] = [
    (0, [leads(3000)]),
    (1, [r.FeatureLevelRecord("metadata.version", 19)]),
    (2, [cause_record(BatchCause("BrokerRegistration", None, "User:b1")), broker(1, 3)]),
    (3, [alive(1, 3)]),
    (4, [cause_record(ALICE), r.TopicRecord("orders", ORDERS), *[partition(at, (1,)) for at in range(3)]]),
    (5, [cause_record(BOB), r.ConfigRecord(2, "orders", "retention.ms", "1")]),
    (6, [r.ConfigRecord(2, "orders", "retention.ms", "2")]),
    (7, [r.NoOpRecord()]),
    (8, [cause_record(EXPIRED), change(0, leader=-1), r.FenceBrokerRecord(1, 3)]),
    (9, [cause_record(BatchCause("DeleteTopics", None, "User:eve\n")), r.RemoveTopicRecord(ORDERS)]),
    (10, [cause_record(BatchCause("UpdateFeatures", None, "User:root")), r.FeatureLevelRecord("f", 1)]),
]


def log(lines: list[Line] = LINES) -> list[RecordBatch]:
    return batches(lines)


def test_a_row_for_each_batch_that_says_its_cause() -> None:
    rows = told(log(), "audit_trail")
    assert [(row["offset"], row["last_offset"], row["entities"], row["records"]) for row in rows] == [
        (2, 3, ("broker/1",), 1),
        (5, 9, ("topic/orders",), 4),
        (10, 11, ("topic/orders", "config/topic/orders/retention.ms"), 1),
        (14, 16, ("topic/orders", "broker/1"), 2),
        (17, 18, ("topic/orders",), 1),
        (19, 20, ("feature/f",), 1),
    ]
    assert rows[1] == {
        "offset": 5,
        "time": START_MS + 4,
        "epoch": 1,
        "last_offset": 9,
        "request": "CreateTopics",
        "rule": None,
        "principal": "User:alice",
        "client_id": "app",
        "address": "10.0.0.7",
        "forwarded_by": 2,
        "entities": ("topic/orders",),
        "types": ("TOPIC_RECORD", "PARTITION_RECORD"),
        "records": 4,
    }
    assert (rows[3]["rule"], rows[3]["principal"]) == ("session-expired", None)
    assert rows[4]["principal"] == "User:eve\n"


OF_RAFT = ("quorum_epochs", "voter_sets")
"""What control records make, which have no cause."""
CAUSED = [name for name, table in TABLES.items() if "actor" in table.column_names]


def test_every_table_of_states_has_actors() -> None:
    states = {name for name, table in TABLES.items() if "from_known" in table.column_names}
    assert states - set(CAUSED) == set(OF_RAFT)


@pytest.mark.parametrize("table", CAUSED)
def test_a_row_names_who_made_the_state(table: str) -> None:
    """The actor of a row is that of the batch at its `from_offset`; some row of each table has one."""
    given = log()
    batches_with = {row["offset"]: row["principal"] or row["rule"] for row in told(given, "audit_trail")}
    rows = told(given, table)
    for row in rows:
        begun = max(at.header.base_offset for at in given if at.header.base_offset <= row["from_offset"])
        assert row["actor"] == batches_with.get(begun), row
    assert any(row["actor"] for row in rows), f"the log makes no row of {table} that someone asked for"


def test_a_log_without_causes_has_no_rows_and_no_actors() -> None:
    plain: list[Line] = [
        (at, [one for one in records if not isinstance(one, r.NoOpRecord)]) for at, records in LINES
    ]
    given = log([line for line in plain if line[1]])
    assert told(given, "audit_trail") == []
    for table in CAUSED:
        assert {row["actor"] for row in told(given, table)} == {None}


def test_causes_change_nothing_else() -> None:
    """The tables of a log with causes are those of the log without, but for offsets and actors."""
    bare: list[Line] = [
        (at, [r.NoOpRecord() if isinstance(one, r.NoOpRecord) else one for one in records])
        for at, records in LINES
    ]
    for table, rows in tables_of(feed(ClusterReplay("made", log_end=99), log(bare))).items():
        if table != "audit_trail":
            caused = tables_of(feed(ClusterReplay("made", log_end=99), log()))[table]
            told_of = -1 if table in CAUSED else None
            # Only the cause says that a session ended so soon.
            named = [
                tuple("session-expired" if one == "fenced-early" else one for one in row) for row in rows
            ]
            assert [row[:told_of] for row in named] == [row[:told_of] for row in caused], table


def test_many_things_of_one_batch_are_named_up_to_a_bound() -> None:
    records = [r.ConfigRecord(2, f"t{at}", "retention.ms", "1") for at in range(NAMED_MAX * 2)]
    (row,) = told(log([(0, [cause_record(BOB), *records])]), "audit_trail")
    assert len(row["entities"]) == NAMED_MAX and row["records"] == NAMED_MAX * 2


def test_a_topic_whose_name_is_not_known_is_told_by_its_id() -> None:
    (row,) = told(log([(0, [cause_record(BOB), r.RemoveTopicRecord(PAYMENTS)])]), "audit_trail")
    assert row["entities"] == ("topic/EBESExQVFhcYGRobHB0eHw",)
