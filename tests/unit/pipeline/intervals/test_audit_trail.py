"""Who changed what: the rows of `audit_trail`, and the actors of other tables; a log that does not say it."""

from __future__ import annotations

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.pipeline.intervals import ClusterReplay
from metaquorum.pipeline.intervals.audit_trail import NAMED_MAX
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


def test_actors_of_topics_settings_and_sessions() -> None:
    given = log()
    assert [row["actor"] for row in told(given, "topics")] == ["User:alice"]
    assert [(row["value"], row["actor"]) for row in told(given, "configs")] == [
        ("1", "User:bob"),
        ("2", None),
    ]
    sessions = [(row["state"], row["actor"]) for row in told(given, "broker_sessions")]
    assert sessions == [("fenced", "User:b1"), ("active", None), ("fenced", "session-expired")]


def test_a_log_without_causes_has_no_rows_and_no_actors() -> None:
    plain: list[Line] = [
        (at, [one for one in records if not isinstance(one, r.NoOpRecord)]) for at, records in LINES
    ]
    given = log([line for line in plain if line[1]])
    assert told(given, "audit_trail") == []
    for table in ("topics", "configs", "broker_sessions"):
        assert {row["actor"] for row in told(given, table)} == {None}


def test_causes_change_nothing_else() -> None:
    """The tables of a log with causes are those of the log without, but for offsets and actors."""
    bare: list[Line] = [
        (at, [r.NoOpRecord() if isinstance(one, r.NoOpRecord) else one for one in records])
        for at, records in LINES
    ]
    for table, rows in tables_of(feed(ClusterReplay("made", log_end=99), log(bare))).items():
        if table not in ("audit_trail", "topics", "configs", "broker_sessions"):
            assert rows == tables_of(feed(ClusterReplay("made", log_end=99), log()))[table], table


def test_many_things_of_one_batch_are_named_up_to_a_bound() -> None:
    records = [r.ConfigRecord(2, f"t{at}", "retention.ms", "1") for at in range(NAMED_MAX * 2)]
    (row,) = told(log([(0, [cause_record(BOB), *records])]), "audit_trail")
    assert len(row["entities"]) == NAMED_MAX and row["records"] == NAMED_MAX * 2


def test_a_topic_whose_name_is_not_known_is_told_by_its_id() -> None:
    (row,) = told(log([(0, [cause_record(BOB), r.RemoveTopicRecord(PAYMENTS)])]), "audit_trail")
    assert row["entities"] == ("topic/EBESExQVFhcYGRobHB0eHw",)
