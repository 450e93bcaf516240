"""The rights that each API needs: with all of them it answers, without one, or beside it, it does not."""

from __future__ import annotations

import pytest

from metaquorum.listeners.rights import CHECKS
from metaquorum.metadata.settings.acls import CLUSTER_NAME, ResourceType
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.wire.table import API_BY_NAME
from tests.unit.kafka.auth.test_checks import CODES, NOBODY, OPEN, ask, image, values_in
from tests.unit.kafka.auth.test_the_right_alone import IMPLIED_BY, OPERATIONS

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TXN = ResourceType.TRANSACTIONAL_ID
Right = tuple[ResourceType, Op]

RIGHTS: dict[str, tuple[Right, ...]] = {
    "Produce": ((TXN, Op.WRITE), (TOPIC, Op.WRITE)),
    "ListOffsets": ((TOPIC, Op.DESCRIBE),),
    "DeleteRecords": ((TOPIC, Op.DELETE),),
    "DescribeProducers": ((TOPIC, Op.READ),),
    "OffsetCommit": ((GROUP, Op.READ), (TOPIC, Op.READ)),
    "OffsetDelete": ((GROUP, Op.DELETE), (TOPIC, Op.READ)),
    "DescribeGroups": ((GROUP, Op.DESCRIBE),),
    "DeleteGroups": ((GROUP, Op.DELETE),),
    **dict.fromkeys(("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"), ((GROUP, Op.READ),)),
    "AddOffsetsToTxn": ((TXN, Op.WRITE), (GROUP, Op.READ)),
    "EndTxn": ((TXN, Op.WRITE),),
    "TxnOffsetCommit": ((TXN, Op.WRITE), (GROUP, Op.READ), (TOPIC, Op.READ)),
    "CreateTopics": ((TOPIC, Op.CREATE),),
    "DeleteTopics": ((TOPIC, Op.DELETE),),
    "CreatePartitions": ((TOPIC, Op.ALTER),),
    **dict.fromkeys(
        (
            *("ElectLeaders", "AlterPartitionReassignments", "UpdateFeatures", "CreateAcls", "DeleteAcls"),
            *("AlterUserScramCredentials", "AddRaftVoter", "RemoveRaftVoter", "UnregisterBroker"),
        ),
        ((CLUSTER, Op.ALTER),),
    ),
    **dict.fromkeys(
        (
            *("ListPartitionReassignments", "DescribeLogDirs", "DescribeAcls", "DescribeQuorum"),
            "DescribeUserScramCredentials",
        ),
        ((CLUSTER, Op.DESCRIBE),),
    ),
    **dict.fromkeys(("ListConfigResources", "DescribeClientQuotas"), ((CLUSTER, Op.DESCRIBE_CONFIGS),)),
    "AlterClientQuotas": ((CLUSTER, Op.ALTER_CONFIGS),),
    **dict.fromkeys(
        (
            *("WriteTxnMarkers", "UpdateRaftVoter", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch"),
            *("FetchSnapshot", "AlterPartition", "Envelope", "BrokerRegistration", "BrokerHeartbeat"),
            *("ControllerRegistration", "AllocateProducerIds", "AssignReplicasToDirs"),
        ),
        ((CLUSTER, Op.CLUSTER_ACTION),),
    ),
}
OF_THEIR_OWN = {
    *("Metadata", "DescribeTopicPartitions", "FindCoordinator", "Fetch", "OffsetForLeaderEpoch"),
    *("ConsumerGroupHeartbeat", "OffsetFetch", "ConsumerGroupDescribe", "ListGroups", "InitProducerId"),
    *("AddPartitionsToTxn", "DescribeTransactions", "ListTransactions", "AlterReplicaLogDirs"),
    *("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "CreateDelegationToken"),
}
"""What these ask for is in test_checks.py and test_the_right_alone.py."""
BY_NAME = {"Produce": 12, "OffsetCommit": 9, "DeleteTopics": 5}
"""The last versions that name topics."""


def refusals(api: str, rights: tuple[Right, ...]) -> set[int]:
    version = BY_NAME.get(api, API_BY_NAME[api].max_version)
    acls = [(kind, CLUSTER_NAME if kind is CLUSTER else "asked", each) for kind, each in rights]
    answer, _, _ = ask(api, version, NOBODY, image(*acls))
    return {each for name, each in values_in(answer) if name.endswith("error_code")} & CODES


def test_every_api_is_in_one_of_the_tables() -> None:
    missing = {*RIGHTS, *OF_THEIR_OWN, *OPEN} ^ set(CHECKS)
    assert not missing, (
        "say which rights each API needs: in RIGHTS, or in OPEN (test_checks.py) if none, or in OF_THEIR_OWN "
        f"with a test in test_the_right_alone.py: {missing}"
    )
    assert len(RIGHTS) + len(OF_THEIR_OWN) + len(OPEN) == len(CHECKS)


@pytest.mark.parametrize("api", RIGHTS)
def test_all_the_rights_are_enough_and_no_other_right_stands_for_one(api: str) -> None:
    needed = RIGHTS[api]
    assert refusals(api, needed) == set()
    for place, (kind, operation) in enumerate(needed):
        rest = (*needed[:place], *needed[place + 1 :])
        assert refusals(api, rest)
        for other in (TOPIC, GROUP, CLUSTER, TXN):
            if other is not kind and not (api == "CreateTopics" and other is CLUSTER):
                assert refusals(api, (*rest, (other, operation))), other
        for each in set(OPERATIONS) - {operation, *IMPLIED_BY.get(operation, ())}:
            assert refusals(api, (*rest, (kind, each))), each
