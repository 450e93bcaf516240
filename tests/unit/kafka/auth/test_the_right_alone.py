"""A check that has a step of its own asks for one right: no other operation, and none on another resource."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.wire.messages import (
    AddPartitionsToTxnRequest,
    AlterReplicaLogDirsRequest,
    ConsumerGroupHeartbeatRequest,
    CreateDelegationTokenRequest,
    DescribeConfigsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    OffsetFetchRequest,
)
from metaquorum.wire.table import API_BY_NAME, response_type
from tests.unit.kafka.auth.test_checks import rights_of, run, values_in

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TXN, USER = ResourceType.TRANSACTIONAL_ID, ResourceType.USER
Op = Operation
IMPLIED_BY = {
    Op.DESCRIBE: {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER},
    Op.DESCRIBE_CONFIGS: {Op.ALTER_CONFIGS},
}
RESOURCES = [each for each in ResourceType if each is not ResourceType.ANY]
OPERATIONS = [each for each in Operation if each not in (Op.ANY, Op.ALL)]


def resource(kind: int) -> DescribeConfigsRequest:
    one = DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name="x")
    return DescribeConfigsRequest(resources=(one,))


def directories() -> AlterReplicaLogDirsRequest:
    kinds = AlterReplicaLogDirsRequest
    topic = kinds.AlterReplicaLogDirTopic(name="x", partitions=(0,))
    return AlterReplicaLogDirsRequest(dirs=(kinds.AlterReplicaLogDir(path="/x", topics=(topic,)),))


def offsets() -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=(OffsetFetchRequest.OffsetFetchRequestGroup(group_id="x", topics=()),))


def fetched(replica_id: int) -> FetchRequest:
    part = FetchRequest.FetchPartition(partition=0)
    topic = FetchRequest.FetchTopic(topic="x", partitions=(part,))
    return FetchRequest(replica_id=replica_id, topics=(topic,))


SECOND = CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name="x")
CASES: list[tuple[str, int, Any, ResourceType, str, Operation, int]] = [
    *[
        (api, version, body, kind, "x", Op.DESCRIBE, code)
        for api, type_, kind, code in (("FindCoordinator", 0, GROUP, 30), ("FindCoordinator", 1, TXN, 53))
        for version, body in (
            (3, FindCoordinatorRequest(key_type=type_, key="x")),
            (6, FindCoordinatorRequest(key_type=type_, coordinator_keys=("x",))),
        )
    ],
    (
        "FindCoordinator",
        6,
        FindCoordinatorRequest(key_type=2, coordinator_keys=("x",)),
        CLUSTER,
        CLUSTER_NAME,
        Op.CLUSTER_ACTION,
        31,
    ),
    ("CreateDelegationToken", 3, SECOND, USER, "User:x", Op.CREATE_TOKENS, 65),
    ("InitProducerId", 5, InitProducerIdRequest(transactional_id="x"), TXN, "x", Op.WRITE, 53),
    ("AddPartitionsToTxn", 4, AddPartitionsToTxnRequest(), CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION, 31),
    ("AlterReplicaLogDirs", 2, directories(), CLUSTER, CLUSTER_NAME, Op.ALTER, 31),
    ("ConsumerGroupHeartbeat", 1, ConsumerGroupHeartbeatRequest(group_id="x"), GROUP, "x", Op.READ, 30),
    ("OffsetFetch", 9, offsets(), GROUP, "x", Op.DESCRIBE, 30),
    ("DescribeConfigs", 4, resource(2), TOPIC, "x", Op.DESCRIBE_CONFIGS, 29),
    ("DescribeConfigs", 4, resource(32), GROUP, "x", Op.DESCRIBE_CONFIGS, 30),
    ("DescribeConfigs", 4, resource(4), CLUSTER, CLUSTER_NAME, Op.DESCRIBE_CONFIGS, 31),
    (
        "Metadata",
        13,
        MetadataRequest(topics=(MetadataRequest.MetadataRequestTopic(name="x"),)),
        TOPIC,
        "x",
        Op.DESCRIBE,
        29,
    ),
    ("Fetch", 12, fetched(-1), TOPIC, "x", Op.READ, 29),
    ("Fetch", 12, fetched(0), CLUSTER, CLUSTER_NAME, Op.CLUSTER_ACTION, 31),
]


@pytest.mark.parametrize(
    ("api", "version", "body", "kind", "name", "operation", "code"),
    CASES,
    ids=[f"{each[0]}-{each[1]}-{each[3].name}" for each in CASES],
)
def test_one_right_is_enough_and_no_other_one_is(
    api: str, version: int, body: Any, kind: ResourceType, name: str, operation: Operation, code: int
) -> None:
    def codes(*acl: Any) -> set[int]:
        empty = response_type(API_BY_NAME[api].key).cls()
        answer, _ = run(api, version, body, rights_of(*acl), empty)
        return {each for field, each in [("", answer), *values_in(answer)] if field == "error_code"}

    assert code in codes()
    enough = {operation} | IMPLIED_BY.get(operation, set())
    for each in OPERATIONS:
        assert (code in codes((kind, name, each))) == (each not in enough), each
    for other in RESOURCES:
        for called in {name, "x", CLUSTER_NAME}:
            if (other, called) != (kind, name):
                assert code in codes((other, called, operation)), (other, called)
