"""Decisions at their edges: the first partition of the image, and what an answer says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from metaquorum.controller.active.active import ActiveController
from metaquorum.controller.active.outcome import Outcome
from metaquorum.controller.active.state import ActiveState
from metaquorum.controller.brokers.brokers import broker_state
from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.controller.partitions.alter_partition import decide_alter_partition
from metaquorum.controller.partitions.rules import min_isr, rules_of
from metaquorum.controller.partitions.topics import Allowance, decide_delete_topics
from metaquorum.controller.result import ControllerResult
from metaquorum.controller.settings.access import decide_create_acls, decide_delete_acls
from metaquorum.controller.settings.settings import decide_alter_configs, decide_alter_quotas
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, BrokersImage, ConfigResource, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import ConfigRecord, FeatureLevelRecord, PartitionRecord, TopicRecord
from metaquorum.metadata.requests.common import DeleteTopicsRequest
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignmentResult,
    AssignReplicasToDirsResponse,
    IsrMember,
    PartitionAlteration,
)
from metaquorum.metadata.requests.settings import (
    AlterConfigsRequest,
    AlterQuotasRequest,
    ConfigChange,
    ConfigOp,
    CreateAclsRequest,
    DeleteAclsRequest,
    OpKind,
    QuotaChange,
    QuotaOp,
)
from metaquorum.metadata.settings.acls import AclFilter
from tests.unit.controller.node_quorum import image_of
from tests.unit.controller.test_broker_decisions import TOPIC, broker, partition

OTHER = b"o" * 16
LEVEL = FeatureLevelRecord("metadata.version", 23)
ELR = FeatureLevelRecord("eligible.leader.replicas.version", 1)


def replace_record(record: PartitionRecord, **fields: object) -> PartitionRecord:
    return msgspec.structs.replace(record, **fields)


def cluster(*records: object) -> MetadataImage:
    return image_of(*(broker(at) for at in (1, 2, 3)), TopicRecord("t", TOPIC), *records, level=23)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("wanted", "replicas", "expected"),
    [(None, 3, 1), ("1", 3, 1), ("2", 3, 2), ("3", 3, 3), ("4", 3, 3), ("2", 1, 1), ("0", 3, 1), ("x", 3, 1)],
)
def test_min_isr_is_at_most_the_replication_factor_in_every_row_of_the_image(
    wanted: str | None, replicas: int, expected: int, first: bool
) -> None:
    """The topic whose partition is the very first of the image, and one behind it."""
    brokers = tuple(range(1, replicas + 1))
    topics: list[object] = [TopicRecord("t", TOPIC), partition(0, brokers, brokers, 1)]
    others: list[object] = [
        TopicRecord("o", OTHER),
        PartitionRecord(0, OTHER, (1, 2), (1, 2), leader=1, leader_epoch=0, partition_epoch=0),
    ]
    config = [] if wanted is None else [ConfigRecord(2, "t", "min.insync.replicas", wanted)]
    listed = [*topics, *others] if first else [*others, *topics]
    image = image_of(*(broker(at) for at in (1, 2, 3)), *listed, *config)
    assert min_isr(image, TOPIC) == expected
    assert min_isr(image, OTHER) == 1
    assert min_isr(image, b"?" * 16) == 1


@pytest.mark.parametrize(("before", "wanted", "after"), [(1, 0, 0), (1, 1, 1), (0, 0, 0)])
def test_the_answer_to_a_change_of_an_isr_says_all_of_it(before: int, wanted: int, after: int) -> None:
    held = replace_record(partition(0, (1, 2, 3), (1,), 1), leader_recovery_state=before, leader_epoch=4)
    lies_in = tuple(broker(at).log_dirs[0] for at in (1, 2, 3))
    image = cluster(replace_record(held, partition_epoch=7, directories=lies_in))
    asked = (1,) if wanted else (1, 2)
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=10,
        partitions=(
            PartitionAlteration(
                topic_id=TOPIC,
                partition=0,
                leader_epoch=4,
                partition_epoch=7,
                isr=tuple(IsrMember(broker_id=at, broker_epoch=10) for at in asked),
                leader_recovery_state=wanted,
            ),
        ),
    )
    result = decide_alter_partition(image, request, rules_of(image, image.brokers.is_active))
    assert isinstance(result.response, AlterPartitionResponse)
    (said,) = result.response.results
    assert said.error is ErrorCode.NONE, said
    assert (said.topic_id, said.partition, said.isr) == (TOPIC, 0, asked)
    assert (said.leader, said.leader_epoch, said.leader_recovery_state) == (1, 4, after)
    assert said.partition_epoch == 7 + len(result.records)


# ---- a request writes at most so many records, and exactly so many it may ---------------------------

ACLS = [
    Acl(
        resource_type=2,
        resource_name=f"t{at}",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    for at in range(4)
]
TOPICS = [TopicRecord(f"t{at}", bytes([at + 1]) * 16) for at in range(4)]


def _set(name: str) -> ConfigOp:
    return ConfigOp(kind=OpKind.SET, name=name, value="5")


def _quotas(count: int, config: ControllerConfig) -> ControllerResult:
    changes = tuple(
        QuotaChange(entity=(("user", f"u{at}"),), ops=(QuotaOp(key="producer_byte_rate", value=1000.0),))
        for at in range(count)
    )
    return decide_alter_quotas(cluster(), AlterQuotasRequest(changes=changes), config)


def _configs(count: int, config: ControllerConfig) -> ControllerResult:
    changes = tuple(
        ConfigChange(resource=ConfigResource(2, f"t{at}"), ops=(_set("retention.ms"),)) for at in range(count)
    )
    request = AlterConfigsRequest(changes=changes)
    return decide_alter_configs(cluster(*TOPICS), request, config, voters=frozenset())


def _acls(count: int, config: ControllerConfig) -> ControllerResult:
    ids = iter(range(1, 9))
    request = CreateAclsRequest(acls=tuple(ACLS[:count]))
    return decide_create_acls(cluster(), request, config, new_id=lambda: bytes([next(ids)]) * 16)


def _removed_topics(count: int, config: ControllerConfig) -> ControllerResult:
    request = DeleteTopicsRequest(topics=tuple(topic.name for topic in TOPICS[:count]))
    return decide_delete_topics(cluster(*TOPICS), request, config, Allowance())


@pytest.mark.parametrize("decide", [_quotas, _configs, _acls, _removed_topics])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_request_writes_up_to_its_limit_and_nothing_above(
    decide: Callable[[int, ControllerConfig], ControllerResult], count: int
) -> None:
    result = decide(count, ControllerConfig(cluster_id="c", node_id=0, records_per_request_max=3))
    assert len(result.records) == (count if count <= 3 else 0)
    errors = [each.error for each in result.response.results]
    assert errors == [ErrorCode.NONE if count <= 3 else ErrorCode.POLICY_VIOLATION] * count
    # What is refused for its size waits for no commit: it says nothing of the image.
    assert result.depends_on_image == (count <= 3)


@pytest.mark.parametrize(("most", "removed"), [(4, 4), (3, 0)])
def test_a_filter_removes_up_to_the_limit_of_entries_and_nothing_above(most: int, removed: int) -> None:
    created = _acls(4, ControllerConfig(cluster_id="c", node_id=0))
    config = ControllerConfig(cluster_id="c", node_id=0, records_per_request_max=most)
    result = decide_delete_acls(cluster(*created.records), DeleteAclsRequest(filters=(AclFilter(),)), config)
    assert len(result.records) == removed


@pytest.mark.parametrize(
    ("name", "fits"),
    [("0", True), ("2147483647", True), ("2147483648", False), ("-1", False), ("01", False), ("x", False)],
)
def test_configurations_are_of_brokers_with_possible_ids(name: str, fits: bool) -> None:
    """A broker may be configured before it is known; its id is a number of 31 bits."""
    change = ConfigChange(resource=ConfigResource(4, name), ops=(_set("log.retention.ms"),))
    voters = frozenset({0, 2**31 - 1})
    result = decide_alter_configs(
        cluster(),
        AlterConfigsRequest(changes=(change,)),
        ControllerConfig(cluster_id="c", node_id=0),
        voters=voters,
    )
    assert bool(result.records) == fits
    (said,) = result.response.results
    assert said.error is (ErrorCode.NONE if fits else ErrorCode.INVALID_REQUEST)


# ---- small memories -------------------------------------------------------------------------------


def test_a_broker_that_is_forgotten_is_being_fenced_no_more() -> None:
    sessions = Sessions(9_000, 30_000)
    sessions.put(1, sessions.fresh(5, 0))
    sessions.put(2, sessions.fresh(5, 0))
    sessions.fencing[1] = 5
    sessions.fencing[2] = 5
    sessions.recreated[(TOPIC, 0, 1)] = b"d" * 16
    sessions.recreated[(TOPIC, 0, 2)] = b"d" * 16
    sessions.forget(1)
    assert sessions.get(1) is None
    assert set(sessions.fencing) == {2}
    assert set(sessions.recreated) == {(TOPIC, 0, 2)}


# ---- what only the active controller knows ----------------------------------------------------------


STATES = {
    (None, False): "UNREGISTERED",
    ("fenced", False): "FENCED",
    ("fenced", True): "SHUTDOWN",
    ("leaving", False): "CONTROLLED_SHUTDOWN",
    ("active", False): "ACTIVE",
}


@pytest.mark.parametrize("should_shut_down", [False, True])
@pytest.mark.parametrize("fencing", [False, True])
@pytest.mark.parametrize("logged", [None, "fenced", "leaving", "active"])
def test_the_state_of_a_broker(logged: str | None, fencing: bool, should_shut_down: bool) -> None:
    """One that is being fenced is fenced; one that was told to stop is down from then on."""
    registration = SimpleNamespace(fenced=logged == "fenced", in_controlled_shutdown=logged == "leaving")
    brokers = cast(BrokersImage, {3: registration} if logged else {})
    counts = "fenced" if logged and fencing else logged
    wanted = STATES[counts, should_shut_down and counts == "fenced"]
    assert broker_state(brokers, 3, fencing=fencing, should_shut_down=should_shut_down).name == wanted
    assert broker_state(brokers, 4, fencing=fencing, should_shut_down=should_shut_down).name == "UNREGISTERED"


def test_a_broker_that_is_being_fenced_may_not_lead() -> None:
    image = SimpleNamespace(brokers=SimpleNamespace(is_active={1, 2}.__contains__))
    for fencing, leaders in (({}, [1, 2]), ({2: 5}, [1]), ({3: 5}, [1, 2]), ({1: 5, 2: 5}, [])):
        state = cast(ActiveState, SimpleNamespace(image=image, sessions=SimpleNamespace(fencing=fencing)))
        assert [broker_id for broker_id in (1, 2, 3) if ActiveState.may_lead(state)(broker_id)] == leaders


OLD, NEW = b"o" * 16, b"n" * 16
WAITS = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def assigned(*results: tuple[int, bytes, ErrorCode], known: dict[int, bytes], named: bool = True) -> Outcome:
    """What becomes of results (partition, directory, error) of broker 1."""
    topic = SimpleNamespace(name="orders") if named else None
    state = SimpleNamespace(
        sessions=SimpleNamespace(recreated={(TOPIC, at, 1): directory for at, directory in known.items()}),
        image=SimpleNamespace(topics=SimpleNamespace(topic=lambda topic_id: topic)),
    )
    response = AssignReplicasToDirsResponse(
        results=tuple(
            AssignmentResult(
                directory_id=directory, topic_id=TOPIC, partition=at, error=error, message=f"why {at}"
            )
            for at, directory, error in results
        )
    )
    active = cast(ActiveController, SimpleNamespace(_state=state))
    return ActiveController._assigned(active, 7, 1, ControllerResult(response=response))


@pytest.mark.parametrize(
    ("results", "known", "changed", "told"),
    [
        ([], {}, {}, None),
        ([(0, NEW, ErrorCode.NONE)], {}, {}, None),
        ([(0, NEW, WAITS)], {}, {0: NEW}, 0),
        ([(0, NEW, WAITS)], {0: NEW}, {}, None),
        ([(0, NEW, WAITS)], {0: OLD}, {0: NEW}, 0),
        ([(0, NEW, ErrorCode.NONE)], {0: OLD}, {0: None}, None),
        ([(0, NEW, ErrorCode.NONE), (0, NEW, WAITS)], {0: OLD}, {0: NEW}, 0),
        ([(0, NEW, WAITS), (0, NEW, ErrorCode.NONE)], {}, {0: None}, 0),
        ([(0, NEW, ErrorCode.NONE), (1, NEW, WAITS), (2, OLD, WAITS)], {}, {1: NEW, 2: OLD}, 1),
        ([(0, NEW, WAITS), (1, NEW, WAITS)], {0: NEW, 1: OLD}, {1: NEW}, 1),
    ],
)
def test_a_replica_that_waits_for_an_unclean_election_is_remembered_until_it_is_settled(
    results: list[tuple[int, bytes, ErrorCode]],
    known: dict[int, bytes],
    changed: dict[int, bytes | None],
    told: int | None,
) -> None:
    for named in (True, False):
        outcome = assigned(*results, known=known, named=named)
        assert dict(outcome.recreated) == {(TOPIC, at, 1): directory for at, directory in changed.items()}
        name = "orders" if named else TOPIC.hex()
        words = () if told is None else (f"{name}-{told} ", f"has no leader: why {told}")
        assert len(outcome.warnings) == bool(words)
        assert all(word in outcome.warnings[0] for word in words)
        (answer,) = outcome.answers
        assert answer.key == 7 and isinstance(answer.response, AssignReplicasToDirsResponse)
