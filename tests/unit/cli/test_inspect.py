"""What a record is about, for every type, and the story that batches tell."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from metaquorum.metadata.inspect.changes.changes import ChangeFeed
from metaquorum.metadata.inspect.entities.targets import EntityTarget, parse_target
from metaquorum.metadata.inspect.log.entities import KINDS, EntityNamer, entity_problem, is_below
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.schema import CONTROL_SCHEMAS, RECORD_SCHEMAS
from metaquorum.metadata.records.types import FENCED, NO_LEADER, QuotaEntity
from metaquorum.storage.uuids import uuid_to_text
from tests.e2e.processes import ENVIRONMENT, running

REPOSITORY = Path(__file__).resolve().parents[3]
SEGMENT = REPOSITORY / "tests" / "data" / "kafka-3.7-upgrade" / "00000000000000000000.log"
ID = bytes(range(16))
TEXT = uuid_to_text(ID)
NOTHING = {"NO_OP_RECORD", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"}

CASES: list[tuple[object, tuple[str, ...]]] = [
    (r.BrokerRecord(3, ID, 9), ("broker/3",)),
    (r.UnregisterBrokerRecord(3, 9), ("broker/3",)),
    (r.TopicRecord("orders", ID), ("topic/orders", f"topic/{TEXT}")),
    (r.PartitionRecord(7, ID), ("topic/orders/7", f"topic/{TEXT}/7")),
    (r.PartitionChangeRecord(7, ID), ("topic/orders/7", f"topic/{TEXT}/7")),
    (r.RemoveTopicRecord(ID), ("topic/orders", f"topic/{TEXT}")),
    (
        r.ConfigRecord(2, "orders", "retention.ms", "1"),
        ("topic/orders", "config/topic/orders/retention.ms"),
    ),
    (r.ConfigRecord(4, "", "x", None), ("broker/<default>", "config/broker/<default>/x")),
    (r.ConfigRecord(99, "n", "x", "y"), ("99/n", "config/99/n/x")),
    (r.FenceBrokerRecord(3, 9), ("broker/3",)),
    (r.UnfenceBrokerRecord(3, 9), ("broker/3",)),
    (r.DelegationTokenRecord("o", "r", (), 1, 2, 3, "t1"), ("token/t1",)),
    (r.RemoveDelegationTokenRecord("t1"), ("token/t1",)),
    (r.UserScramCredentialRecord("alice", 1, b"", b"", b"", 1), ("user/alice", "scram/SCRAM-SHA-256/alice")),
    (r.RemoveUserScramCredentialRecord("alice", 2), ("user/alice", "scram/SCRAM-SHA-512/alice")),
    (r.FeatureLevelRecord("metadata.version", 19), ("feature/metadata.version",)),
    (
        r.ClientQuotaRecord((QuotaEntity("user", "a"), QuotaEntity("client-id", None)), "k", 1.0, False),
        ("client-id/<default>", "user/a", "quota/client-id=<default>,user=a"),
    ),
    (r.ProducerIdsRecord(3, 9, 1000), ("producer-ids", "broker/3")),
    (r.BrokerRegistrationChangeRecord(3, 9, fenced=FENCED), ("broker/3",)),
    (r.AccessControlEntryRecord(ID, 2, "x", 3, "User:a", "*", 2, 3), (f"acl/{TEXT}",)),
    (r.RemoveAccessControlEntryRecord(ID), (f"acl/{TEXT}",)),
    (r.NoOpRecord(), ()),
    (r.ZkMigrationStateRecord(0), ("migration",)),
    (r.BeginTransactionRecord("t"), ("transaction",)),
    (r.EndTransactionRecord(), ("transaction",)),
    (r.AbortTransactionRecord(), ("transaction",)),
    (r.ControllerRecord(3000), ("controller/3000",)),
    (r.UnregisterControllerRecord(3000), ("controller/3000",)),
    (r.ClearElrRecord("orders"), ("topic/orders",)),
    (r.ClearElrRecord(""), ("topic",)),
    (control.LeaderChangeMessage(3000), ("quorum", "controller/3000")),
    (control.KRaftVersionRecord(1), ("quorum",)),
    (control.VotersRecord(), ("quorum",)),
    (control.SnapshotHeaderRecord(0), ()),
    (control.SnapshotFooterRecord(), ()),
]


def test_every_record_type_is_about_what_it_names() -> None:
    namer = EntityNamer({ID: "orders"})
    for record, expected in CASES:
        assert namer.entities(record) == expected, record
    covered = {getattr(record, "type_name") for record, _ in CASES}  # noqa: B009 -- any record class
    missing = {schema.type_name for schema in (*RECORD_SCHEMAS, *CONTROL_SCHEMAS)} ^ covered
    assert not missing, f"CASES needs a record of each type, with its paths: {missing}"
    assert {getattr(record, "type_name") for record, paths in CASES if not paths} == NOTHING  # noqa: B009


def test_what_records_are_about_can_be_asked_for() -> None:
    kinds = {path.partition("/")[0] for _, paths in CASES for path in paths} - {"99"}
    assert kinds <= set(KINDS), f"KINDS (metadata/inspect/log/entities.py) lacks {kinds - set(KINDS)}"


@pytest.mark.parametrize("record", [record for record, _ in CASES], ids=lambda one: type(one).__name__)
def test_a_record_about_something_from_before_the_log_is_no_fault(record: object) -> None:
    refused = ChangeFeed(is_known=False).batch(1, 1, [(10, record)]).refused
    assert not refused, f"_is_stranger (metadata/inspect/changes/changes.py) does not know it: {refused[0]}"


def test_a_topic_is_known_by_id_until_its_name_was_seen() -> None:
    namer = EntityNamer()
    assert namer.entities(r.PartitionRecord(0, ID)) == (f"topic/{TEXT}/0",)
    namer.entities(r.TopicRecord("orders", ID))
    assert namer.entities(r.PartitionRecord(0, ID))[0] == "topic/orders/0"


@pytest.mark.parametrize(
    ("entity", "wanted", "below"),
    [
        ("topic/orders/7", "topic/orders/7", True),
        ("topic/orders/7", "topic/orders", True),
        ("topic/orders/7", "topic", True),
        ("topic/orders/70", "topic/orders/7", False),
        ("topic/orders-2", "topic/orders", False),
        ("broker/30", "broker/3", False),
    ],
)
def test_a_path_stands_for_what_is_below_it(entity: str, wanted: str, below: bool) -> None:
    assert is_below(entity, wanted) is below


def test_every_kind_can_be_asked_for() -> None:
    assert all(entity_problem(kind) is None and entity_problem(f"{kind}/x") is None for kind in KINDS)
    assert entity_problem("brokers/3") is not None
    assert entity_problem("broker/") is not None


def test_the_page_names_every_kind_of_entity() -> None:
    page = (REPOSITORY / "docs" / "log-tools.md").read_text(encoding="utf-8")
    said = page.partition("An `--entity` includes")[2].partition("\n\n")[0]
    named = re.findall(r"`([^`-][^`]*)`", said)
    missing = {path.partition("/")[0] for path in named} ^ set(KINDS)
    assert not missing, f"docs/log-tools.md, in what an --entity includes, lacks {missing}"
    assert [path for path in named if entity_problem(path) is not None] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_of_any_kind_is_a_kind_or_a_name(kind: str) -> None:
    assert parse_target(kind) == EntityTarget(entity=kind)
    assert parse_target(f"{kind}/x") == EntityTarget(entity=f"{kind}/x")
    with pytest.raises(ValueError, match="ends in a slash"):
        parse_target(f"{kind}/")


def test_moves_of_one_batch_are_one_event_each_way() -> None:
    timeline = Timeline()
    timeline.batch(3, 40, [(9, r.BrokerRecord(1, ID, 9, fenced=False))])
    topic: list[object] = [r.TopicRecord("orders", ID)]
    partitions = [r.PartitionRecord(index, ID, (1, 2), (1, 2), leader=1) for index in range(5)]
    created = timeline.batch(3, 50, enumerate([*topic, *partitions], 10))
    assert [(event.offset, event.kind, event.text) for event in created] == [
        (10, "topic created", "orders, 5 partitions")
    ]
    changes: list[object] = [r.PartitionChangeRecord(index, ID, leader=2) for index in range(4)]
    changes.append(r.PartitionChangeRecord(4, ID, leader=NO_LEADER))
    changes.append(r.BrokerRegistrationChangeRecord(1, 9, fenced=FENCED))
    told = timeline.batch(4, 60, enumerate(changes, 20))
    assert [(event.offset, event.entity, event.text) for event in told] == [
        (20, "broker/2", "orders-0, orders-1, orders-2 and 1 more: 1 -> 2"),
        (24, "broker/1", "orders-4: 1 -> none"),
        (
            25,
            "broker/1",
            "broker 1 (was unfenced); the log does not show which: it sent no heartbeat in time, or it could "
            "not continue (metaquorum)",
        ),
        (25, "broker/1", "no broker is unfenced: broker 1 was the last"),
    ]
    assert {(event.epoch, event.time_ms) for event in told} == {(4, 60)}


def test_a_leader_that_stays_is_no_event() -> None:
    timeline = Timeline()
    timeline.batch(
        1, 1, [(0, r.TopicRecord("orders", ID)), (1, r.PartitionRecord(0, ID, (1,), (1,), leader=1))]
    )
    assert timeline.batch(1, 2, [(2, r.PartitionChangeRecord(0, ID, leader=1))]) == []


def test_the_shell_completes_commands() -> None:
    asked = {"_METAQUORUM_COMPLETE": "bash_complete", "COMP_WORDS": "metaquorum lo", "COMP_CWORD": "1"}
    with running(text=True, env={**ENVIRONMENT, **asked}) as process:
        output, _ = process.communicate()
    assert sorted(line.split(",")[1] for line in output.splitlines()) == ["local", "log", "log-dirs"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    with running("log", "dump", *[SEGMENT] * 20, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("       0  2026-11-21")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_ctrl_c_ends_a_follower_without_a_word() -> None:
    with running("log", "dump", "--follow", SEGMENT, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.startswith("     260"):
                break
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == ""
        assert process.wait() == 130
