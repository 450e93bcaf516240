"""What each record does to an image, and which records are refused, each by its reason."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any, get_args

import msgspec
import pytest

from metaquorum.metadata.delta import diff
from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image import (
    MIGRATING,
    UNASSIGNED,
    BrokerRegistration,
    ConfigResource,
    MetadataImage,
    PartitionInfo,
    ProducerIds,
    images_equal,
)
from metaquorum.metadata.meanings import MEANINGS
from metaquorum.metadata.records import types as r
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.metadata.snapshot import partition_record

T1, T2 = b"\x01" * 16, b"\x02" * 16
D1, D2, D3 = b"\xd1" * 16, b"\xd2" * 16, b"\xd3" * 16
BROKER = r.BrokerRecord(1, b"i" * 16, 10, log_dirs=(D2, D1))
ORDERS = [
    r.TopicRecord("orders", T1),
    r.PartitionRecord(0, T1, (1, 2, 3), (1, 2), (), (), 1, 0, 4, 9, (D1, D2, D3)),
]


def run(*records: Any, state: ReplayState | None = None) -> ReplayState:
    state = ReplayState() if state is None else state
    return replay_records(state, base_offset=state.end_offset, epoch=1, timestamp_ms=1000, records=records)


def image(*records: Any) -> MetadataImage:
    return run(*records).image


def orders(*changes: r.PartitionChangeRecord) -> PartitionInfo:
    found = image(*ORDERS, *changes).topics.partition(T1, 0)
    assert found is not None
    return found


def broker(*records: Any) -> BrokerRegistration:
    return image(*records).brokers[1]


WHOLE = r.PartitionRecord(
    partition_id=0,
    topic_id=T1,
    replicas=(1, 2, 3),
    isr=(1, 2),
    removing_replicas=(3,),
    adding_replicas=(4,),
    leader=1,
    leader_recovery_state=1,
    leader_epoch=2,
    partition_epoch=5,
    directories=(D1, D2, D3),
    eligible_leader_replicas=(6,),
    last_known_elr=(7, 8),
)
NAMED: dict[str, Any] = {
    "isr": (2,),
    "leader": 2,
    "replicas": (3, 2, 1),
    "removing_replicas": (1, 2),
    "adding_replicas": (5, 6),
    "leader_recovery_state": 0,
    "directories": (D3, D1, D2),
    "eligible_leader_replicas": (1,),
    "last_known_elr": (2,),
}


@pytest.mark.parametrize("named", [(), *([name] for name in NAMED), NAMED.keys()], ids=",".join)
def test_a_change_leaves_what_it_does_not_name(named: Iterable[str]) -> None:
    """The fields of a change are those of a partition, and no two of the partition's are alike."""
    assert {"topic_id", "partition_id", "unknown_tags", *NAMED} == {
        *r.PartitionChangeRecord.__struct_fields__
    }
    change = r.PartitionChangeRecord(0, T1, **{name: NAMED[name] for name in named})
    before, after = image(ORDERS[0], WHOLE), image(ORDERS[0], WHOLE, change)
    found = partition_record(after.topics.partitions_of(T1)[0], 2)
    assert partition_record(before.topics.partitions_of(T1)[0], 2) == WHOLE
    expected = msgspec.structs.replace(
        WHOLE,
        partition_epoch=WHOLE.partition_epoch + 1,
        leader_epoch=WHOLE.leader_epoch + ("leader" in named),
        **{name: NAMED[name] for name in named},
    )
    if [*named] == ["replicas"]:
        expected = msgspec.structs.replace(expected, directories=(D3, D2, D1))  # each keeps its own
    assert found == expected


def test_registration_is_kept_whole_and_replaced_whole() -> None:
    first = r.BrokerRecord(
        1,
        b"i" * 16,
        10,
        (r.BrokerEndpoint("B", "h", 40000, 0), r.BrokerEndpoint("A", "h", 1, 1)),
        rack="r",
        log_dirs=(D2, D1),
    )
    found = broker(r.NoOpRecord(), first)
    assert (found.epoch, found.rack, found.fenced, found.in_controlled_shutdown) == (10, "r", True, False)
    assert [endpoint.name for endpoint in found.endpoints] == ["A", "B"]
    assert found.endpoints[1].port == 40000
    assert found.directories == (D1, D2)
    again = image(r.NoOpRecord(), first, r.NoOpRecord(), r.BrokerRecord(1, b"j" * 16, 12))
    assert again.brokers[1] == BrokerRegistration(broker_id=1, epoch=12, incarnation_id=b"j" * 16)
    assert again.brokers.registration_offset(1) == 3


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_what_a_registration_lists_is_in_one_order(order: tuple[int, ...]) -> None:
    """By name, as Kafka's snapshots list it: hosts, ports and levels fall otherwise."""
    listeners = [("A", "y", 30, 2), ("B", "z", 10, 0), ("C", "x", 20, 1)]
    ranges = [("a", 2, 3), ("b", 0, 9), ("c", 1, 5)]
    given = [listeners[at] for at in order], [ranges[at] for at in order]
    found = image(
        r.BrokerRecord(
            1,
            b"i" * 16,
            10,
            tuple(r.BrokerEndpoint(*each) for each in given[0]),
            tuple(r.BrokerFeature(*each) for each in given[1]),
            log_dirs=tuple((D1, D2, D3)[at] for at in order),
        ),
        r.ControllerRecord(
            3000,
            b"i" * 16,
            False,
            tuple(r.ControllerEndpoint(*each) for each in given[0]),
            tuple(r.ControllerFeature(*each) for each in given[1]),
        ),
    )
    assert found.brokers[1].directories == (D1, D2, D3)
    for node in (found.brokers[1], found.controllers[3000]):
        endpoints = [(at.name, at.host, at.port, at.security_protocol) for at in node.endpoints]
        levels = [(at.name, at.min_supported_version, at.max_supported_version) for at in node.features]
        assert (endpoints, levels) == (listeners, ranges)


def test_a_repeated_registration_may_keep_its_epoch() -> None:
    assert broker(BROKER, r.UnfenceBrokerRecord(1, 10), BROKER).fenced


@pytest.mark.parametrize(
    ("record", "fenced", "leaving"),
    [
        (r.UnfenceBrokerRecord(1, 10), False, False),
        (r.FenceBrokerRecord(1, 10), True, False),
        (r.BrokerRegistrationChangeRecord(1, 10, fenced=-1), False, False),
        (r.BrokerRegistrationChangeRecord(1, 10, fenced=1), True, False),
        (r.BrokerRegistrationChangeRecord(1, 10, in_controlled_shutdown=1), True, True),
        (r.BrokerRegistrationChangeRecord(1, 10), True, False),
    ],
)
def test_registration_changes(record: Any, fenced: bool, leaving: bool) -> None:
    found = broker(BROKER, record)
    assert (found.fenced, found.in_controlled_shutdown) == (fenced, leaving)
    assert found.is_active == (not fenced and not leaving)


@pytest.mark.parametrize(
    "record",
    [
        r.FenceBrokerRecord(1, 10),
        r.UnfenceBrokerRecord(1, 10),
        r.BrokerRegistrationChangeRecord(1, 10, fenced=1),
        r.BrokerRegistrationChangeRecord(1, 10, fenced=-1),
    ],
)
def test_only_a_registration_ends_a_controlled_shutdown(record: Any) -> None:
    leaving = r.BrokerRegistrationChangeRecord(1, 10, in_controlled_shutdown=1)
    assert broker(BROKER, leaving, record).in_controlled_shutdown
    assert not broker(BROKER, leaving, record, BROKER).in_controlled_shutdown


def test_directories_change_only_when_some_are_named() -> None:
    assert broker(BROKER, r.BrokerRegistrationChangeRecord(1, 10, log_dirs=(D1,))).directories == (D1,)
    assert broker(BROKER, r.BrokerRegistrationChangeRecord(1, 10, log_dirs=())).directories == (D1, D2)


def test_unregistering() -> None:
    found = image(BROKER, r.UnregisterBrokerRecord(1, 10))
    assert 1 not in found.brokers and found.brokers.registration_offset(1) is None


def test_partition_record_without_directories_is_migrating() -> None:
    found = image(
        ORDERS[0], r.PartitionRecord(3, T1, (1, 2), (1,), leader=1, leader_epoch=0, partition_epoch=0)
    )
    partition = found.topics.partition(T1, 3)
    assert partition is not None and partition.directories == (MIGRATING, MIGRATING)


def test_partition_record_for_a_known_partition_replaces_it() -> None:
    found = image(*ORDERS, r.PartitionRecord(0, T1, (5,), (5,), leader=5, leader_epoch=1, partition_epoch=2))
    partition = found.topics.partition(T1, 0)
    assert partition is not None and (partition.replicas, partition.leader_epoch) == ((5,), 1)
    assert found.topics.partition_count == 1


def test_any_change_raises_the_partition_epoch_only() -> None:
    found = orders(r.PartitionChangeRecord(0, T1, isr=(1, 2, 3)))
    assert (found.isr, found.leader, found.leader_epoch, found.partition_epoch) == ((1, 2, 3), 1, 4, 10)


@pytest.mark.parametrize("leader", [2, 1, -1])
def test_naming_a_leader_raises_the_leader_epoch_even_for_the_same_leader(leader: int) -> None:
    found = orders(r.PartitionChangeRecord(0, T1, leader=leader))
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (leader, 5, 10)


def test_new_replicas_keep_the_directories_of_those_that_stay() -> None:
    found = orders(r.PartitionChangeRecord(0, T1, replicas=(3, 4, 1), adding_replicas=(4,)))
    assert found.directories == (D3, UNASSIGNED, D1)
    assert found.adding == (4,)
    assert found.directory_of(4) == UNASSIGNED and found.directory_of(9) is None
    assert orders(r.PartitionChangeRecord(0, T1, replicas=(3, 4), directories=(D1, D2))).directories == (
        D1,
        D2,
    )
    assert orders(r.PartitionChangeRecord(0, T1, directories=())).directories == (D1, D2, D3)


def test_lists_of_a_reassignment_and_of_eligible_leaders_come_and_go() -> None:
    there = r.PartitionChangeRecord(
        0,
        T1,
        removing_replicas=(3,),
        eligible_leader_replicas=(3,),
        last_known_elr=(2,),
        leader_recovery_state=1,
    )
    found = orders(there)
    assert (found.removing, found.elr, found.last_known_elr) == ((3,), (3,), (2,))
    assert found.leader_recovery_state == 1
    back = r.PartitionChangeRecord(
        0, T1, removing_replicas=(), eligible_leader_replicas=(), last_known_elr=(), leader_recovery_state=0
    )
    after = orders(there, back)
    assert (after.removing, after.elr, after.last_known_elr, after.leader_recovery_state) == ((), (), (), 0)
    assert len(image(*ORDERS, there, back).topics.columns.rare) == 0


ELIGIBLE = [
    r.TopicRecord("paid", T2),
    r.PartitionRecord(0, T2, (1, 2), (1,), leader=1, partition_epoch=1, last_known_elr=(2,)),
    *ORDERS,
    r.PartitionRecord(1, T1, (1, 2), (1,), (), (), 1, 0, 4, 20, (D1, D2), (2,)),
    r.PartitionRecord(2, T1, (1, 2), (1,), (2,), (), 1, 0, 4, 30, (D1, D2)),
]


@pytest.mark.parametrize(
    ("name", "cleared"), [("orders", {(T1, 1)}), ("paid", {(T2, 0)}), ("", {(T1, 1), (T2, 0)})]
)
def test_clearing_changes_the_partitions_that_have_something_to_clear(name: str, cleared: set[Any]) -> None:
    """Each by what Kafka makes of it: a change of the partition, so its partition epoch rises."""
    before, after = image(*ELIGIBLE), image(*ELIGIBLE, r.ClearElrRecord(name))
    assert {*diff(before, after).partitions.changed} == cleared
    for topic_id, index in [(T1, 0), (T1, 1), (T1, 2), (T2, 0)]:
        was, now = (one.topics.partition(topic_id, index) for one in (before, after))
        assert was is not None
        raised = (topic_id, index) in cleared
        expected = msgspec.structs.replace(was, partition_epoch=was.partition_epoch + raised)
        assert now == (msgspec.structs.replace(expected, elr=(), last_known_elr=()) if raised else was)


def test_a_controller_is_unregistered_and_registers_again() -> None:
    first, second = r.ControllerRecord(3000, b"c" * 16), r.ControllerRecord(3001, b"d" * 16)
    before, after = image(first, second), image(first, second, r.UnregisterControllerRecord(3000))
    assert [*after.controllers] == [3001] and [*before.controllers] == [3000, 3001]
    assert diff(before, after).controllers.removed == (3000,)
    again = image(first, second, r.UnregisterControllerRecord(3000), first)
    assert images_equal(again, before, provenance=False)


def test_removing_a_topic_removes_partitions_and_configs_and_frees_the_name() -> None:
    found = image(
        *ORDERS, r.ConfigRecord(2, "orders", "a", "1"), r.RemoveTopicRecord(T1), r.TopicRecord("orders", T2)
    )
    assert found.topics.topic(T1) is None and found.topics.partition(T1, 0) is None
    assert found.topics.partition_count == 0
    assert found.configs.get(ConfigResource(2, "orders")) is None
    topic = found.topics.topic_named("orders")
    assert topic is not None and topic.topic_id == T2


def test_config_values_are_set_and_removed() -> None:
    resource = ConfigResource(4, "1")
    set_two = [
        r.ConfigRecord(4, "1", "a", "1"),
        r.ConfigRecord(4, "1", "b", "2"),
        r.ConfigRecord(4, "1", "a", "3"),
    ]
    assert image(*set_two).configs.get(resource) == {"a": "3", "b": "2"}
    assert image(*set_two, r.ConfigRecord(4, "1", "a", None)).configs.get(resource) == {"b": "2"}
    gone = image(*set_two, r.ConfigRecord(4, "1", "a", None), r.ConfigRecord(4, "1", "b", None))
    assert gone.configs.get(resource) is None
    assert images_equal(gone, MetadataImage(), provenance=False)


def test_features_quotas_producer_ids_and_controllers() -> None:
    entity = (r.QuotaEntity("user", "bob"), r.QuotaEntity("client-id", None))
    found = image(
        r.FeatureLevelRecord("metadata.version", 19),
        r.FeatureLevelRecord("f", 2),
        r.FeatureLevelRecord("f", 0),
        r.ZkMigrationStateRecord(3),
        r.ClientQuotaRecord(entity, "rate", 5.5, False),
        r.ClientQuotaRecord(entity, "other", 1.0, False),
        r.ClientQuotaRecord(entity[::-1], "other", 0.0, True),
        r.ProducerIdsRecord(1, 2, 1000),
        r.ControllerRecord(3000, b"c" * 16, True),
    )
    assert found.features.metadata_version == 19 and found.features.level("f") == 0
    assert found.features.zk_migration_state == 3
    assert found.quotas.get((("client-id", None), ("user", "bob"))) == {"rate": 5.5}
    assert found.producer_ids == ProducerIds(1000)
    assert found.controllers[3000].zk_migration_ready


def test_acls_credentials_and_tokens() -> None:
    acl = r.AccessControlEntryRecord(T1, 2, "t", 3, "User:a", "*", 3, 3)
    scram = r.UserScramCredentialRecord("bob", 1, b"s", b"k", b"v", 4096)
    token = r.DelegationTokenRecord("o", "r", ("x",), 1, 2, 3, "id")
    found = image(acl, scram, token)
    assert found.acls[T1].principal == "User:a"
    assert found.scram[1, "bob"].iterations == 4096
    assert found.delegation_tokens["id"].renewers == ("x",)
    gone = image(
        acl,
        scram,
        token,
        r.RemoveAccessControlEntryRecord(T1),
        r.RemoveUserScramCredentialRecord("bob", 1),
        r.RemoveDelegationTokenRecord("id"),
        r.RemoveDelegationTokenRecord("id"),
    )
    assert images_equal(gone, MetadataImage(), provenance=False)


def test_every_record_has_a_meaning() -> None:
    markers = {
        r.BeginTransactionRecord,
        r.EndTransactionRecord,
        r.AbortTransactionRecord,
    }  # the replayer's own
    missing = {each.__name__ for each in MEANINGS.keys() ^ ({*get_args(r.Record)} - markers)}
    assert not missing, f"MEANINGS (metadata/meanings.py) needs a function for each type: {missing}"


REFUSED = [
    ([BROKER], r.UnfenceBrokerRecord(1, 9), "epoch 9 of broker 1, but epoch 10 is registered"),
    ([BROKER], r.FenceBrokerRecord(1, 11), "epoch 11 of broker 1"),
    ([BROKER], r.BrokerRegistrationChangeRecord(1, 9, fenced=1), "epoch 9"),
    ([BROKER], r.BrokerRegistrationChangeRecord(1, 10, fenced=2), "fenced is 2"),
    (
        [BROKER],
        r.BrokerRegistrationChangeRecord(1, 10, in_controlled_shutdown=-1),
        "in_controlled_shutdown is -1",
    ),
    ([BROKER], r.UnregisterBrokerRecord(1, 9), "epoch 9"),
    ([], r.FenceBrokerRecord(1, 10), "broker 1 is not registered"),
    ([], r.UnregisterBrokerRecord(1, 10), "broker 1 is not registered"),
    (ORDERS, r.TopicRecord("orders", T2), "named orders already exists"),
    (ORDERS, r.TopicRecord("other", T1), "already exists"),
    ([], r.RemoveTopicRecord(T1), "no topic has the id AQEBAQEBAQEBAQEBAQEBAQ"),
    ([], r.PartitionRecord(0, T1, (1,), (1,)), "no topic has the id"),
    (ORDERS, r.PartitionRecord(1, T1, (1, 2), (1,), directories=(D1,)), "1 directories for 2 replicas"),
    (ORDERS, r.PartitionRecord(-1, T1, (1,), (1,)), "index -1 is negative"),
    (ORDERS, r.PartitionRecord(1, T1, (1,), (1,), leader_recovery_state=7), "recovery state 7"),
    ([], r.PartitionChangeRecord(0, T1), "no topic has the id"),
    (ORDERS, r.PartitionChangeRecord(7, T1), "orders has no partition 7"),
    (ORDERS, r.PartitionChangeRecord(0, T1, directories=(D1,)), "1 directories for 3 replicas"),
    (ORDERS, r.PartitionChangeRecord(0, T1, leader_recovery_state=2), "recovery state 2"),
    ([], r.FeatureLevelRecord("metadata.version", 0), "cannot have level 0"),
    ([], r.ZkMigrationStateRecord(9), "state 9"),
    ([r.ProducerIdsRecord(1, 1, 1000)], r.ProducerIdsRecord(1, 1, 1000), "1000 is not above 1000"),
    ([], r.RemoveAccessControlEntryRecord(T1), "no access control entry"),
    ([], r.RemoveUserScramCredentialRecord("bob", 2), "no credential of mechanism 2"),
    ([], r.EndTransactionRecord(), "no transaction is open"),
    ([], r.AbortTransactionRecord(), "no transaction is open"),
    ([r.BeginTransactionRecord("a")], r.BeginTransactionRecord("b"), "began at offset 0 is still open"),
    ([], r.UnknownRecord(99, 0, b""), "cannot apply this record"),
]


@pytest.mark.parametrize(("before", "record", "reason"), REFUSED, ids=lambda at: type(at).__name__)
def test_refused_records_name_offset_and_reason_and_leave_no_trace(
    before: list[Any], record: Any, reason: str
) -> None:
    state = run(*before)
    with pytest.raises(ReplayError) as caught:
        run(record, state=state)
    assert caught.value.offset == len(before)
    assert caught.value.record == record
    assert reason in caught.value.reason
    assert f"offset {len(before)}: {type(record).__name__}" in str(caught.value)
    untouched = run(*before)
    assert images_equal(state.newest, untouched.newest)


def test_a_batch_must_start_where_the_state_ends() -> None:
    with pytest.raises(ReplayError, match="starts at offset 5, but replay has only reached 0"):
        replay_records(ReplayState(), base_offset=5, epoch=1, timestamp_ms=1, records=[r.NoOpRecord()])


def test_provenance_follows_the_last_batch() -> None:
    state = run(r.NoOpRecord(), r.NoOpRecord())
    assert (state.image.provenance.offset, state.image.provenance.epoch) == (2, 1)
    assert state.image.provenance.timestamp_ms == 1000


def test_an_open_transaction_hides_its_inside_and_its_offsets() -> None:
    state = run(r.TopicRecord("a", T1), r.BeginTransactionRecord("tx"), r.TopicRecord("b", T2))
    assert state.image.provenance.offset == 1
    assert [topic.name for topic in state.image.topics.all()] == ["a"]
    assert state.transaction is not None and state.transaction.name == "tx"
    assert state.transaction.begin_offset == 1 and state.end_offset == 3
    assert [topic.name for topic in state.newest.topics.all()] == ["a", "b"]
    ended = run(r.EndTransactionRecord(), state=state)
    assert [topic.name for topic in ended.image.topics.all()] == ["a", "b"]
    assert ended.image.provenance.offset == 4
    aborted = run(r.AbortTransactionRecord("why"), r.TopicRecord("c", T2), state=state)
    assert [topic.name for topic in aborted.image.topics.all()] == ["a", "c"]
    assert aborted.image.provenance.offset == 5 and aborted.transaction is None
