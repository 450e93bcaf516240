"""The permissions of each API: API x resource x operation, as Kafka checks them. docs/security.md is printed
from it.

Every API of the wire has a row; one without cannot be offered. An API with an empty row is open to every
client that may connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaquorum.listeners.access.special import (
    UNREAD,
    Acks,
    AssignedTopics,
    AuthorizedOperations,
    CoordinatorsFound,
    FetchedOffsets,
    IdempotentProducers,
    MovedReplicas,
    OwnedTokens,
    StillRead,
    SubscribedTopics,
    TopicsDeleted,
    TopicsDescribed,
    TransactionsAdded,
    TransactionTopics,
    is_follower,
)
from metaquorum.listeners.access.steps import (
    CONFIGURED,
    ITEM,
    AccessStep,
    Each,
    Listed,
    RightNeeded,
    Whole,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.metadata.settings.acls import ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TXN = ResourceType.TRANSACTIONAL_ID


def _cluster(operation: Op) -> Whole:
    return Whole((RightNeeded(operation, CLUSTER),))


def _group(operation: Op) -> Whole:
    return Whole((RightNeeded(operation, GROUP, "group_id"),))


def _topics(operation: Op, items: str = "topics", results: str = "topics", **defaults: Any) -> Each:
    return Each(items, results, (RightNeeded(operation, TOPIC, ITEM),), defaults)


def _each(operation: Op, items: str, results: str) -> Each:
    """Items that all belong to the cluster."""
    return Each(items, results, (RightNeeded(operation, CLUSTER),))


_FOLLOWER = Each("topics", "responses", (RightNeeded(Op.CLUSTER_ACTION, CLUSTER),), UNREAD, when=is_follower)
_READER = Each(
    "topics",
    "responses",
    (RightNeeded(Op.READ, TOPIC, ITEM),),
    UNREAD,
    when=lambda body: not is_follower(body),
)
_NODES = _cluster(Op.CLUSTER_ACTION)

CHECKS: Mapping[str, tuple[AccessStep, ...]] = {
    # ---- every client
    "ApiVersions": (),
    "SaslHandshake": (),
    "SaslAuthenticate": (),
    # ---- the cluster as clients see it
    "Metadata": (
        AuthorizedOperations(TOPIC, "topic_authorized_operations", "topics", "name"),
        AuthorizedOperations(CLUSTER, "cluster_authorized_operations"),
        TopicsDescribed(),
    ),
    "DescribeTopicPartitions": (
        AuthorizedOperations(TOPIC, "topic_authorized_operations", "topics", "name"),
        _topics(Op.DESCRIBE),
        Listed("topics", "name", RightNeeded(Op.DESCRIBE, TOPIC, ITEM)),
    ),
    "DescribeCluster": (AuthorizedOperations(CLUSTER, "cluster_authorized_operations"),),
    "FindCoordinator": (CoordinatorsFound(),),
    # ---- records
    "Produce": (
        Acks(),
        Each(
            "topic_data",
            "responses",
            (RightNeeded(Op.WRITE, TXN, "transactional_id"), RightNeeded(Op.WRITE, TOPIC, ITEM)),
            {"base_offset": -1, "log_append_time_ms": -1, "log_start_offset": -1},
        ),
    ),
    "Fetch": (StillRead(), _FOLLOWER, _READER),
    "ListOffsets": (_topics(Op.DESCRIBE),),
    "OffsetForLeaderEpoch": (
        Each(
            "topics",
            "topics",
            (RightNeeded(Op.DESCRIBE, TOPIC, ITEM, other=RightNeeded(Op.CLUSTER_ACTION, CLUSTER)),),
        ),
    ),
    "DeleteRecords": (_topics(Op.DELETE, low_watermark=-1),),
    "DescribeProducers": (_topics(Op.READ),),
    # ---- groups
    "JoinGroup": (_group(Op.READ),),
    "SyncGroup": (_group(Op.READ),),
    "Heartbeat": (_group(Op.READ),),
    "LeaveGroup": (_group(Op.READ),),
    "ConsumerGroupHeartbeat": (_group(Op.READ), SubscribedTopics()),
    "OffsetCommit": (
        Each(
            "topics", "topics", (RightNeeded(Op.READ, GROUP, "group_id"), RightNeeded(Op.READ, TOPIC, ITEM))
        ),
    ),
    "OffsetFetch": (FetchedOffsets(),),
    "OffsetDelete": (_group(Op.DELETE), _topics(Op.READ)),
    "DescribeGroups": (
        AuthorizedOperations(GROUP, "authorized_operations", "groups", "group_id"),
        Each("groups", "groups", (RightNeeded(Op.DESCRIBE, GROUP, ITEM),)),
    ),
    "ConsumerGroupDescribe": (
        AuthorizedOperations(GROUP, "authorized_operations", "groups", "group_id"),
        Each("group_ids", "groups", (RightNeeded(Op.DESCRIBE, GROUP, ITEM),)),
        AssignedTopics(),
    ),
    "ListGroups": (
        Listed(
            "groups", "group_id", RightNeeded(Op.DESCRIBE, GROUP, ITEM), RightNeeded(Op.DESCRIBE, CLUSTER)
        ),
    ),
    "DeleteGroups": (Each("groups_names", "results", (RightNeeded(Op.DELETE, GROUP, ITEM),)),),
    # ---- transactions
    "InitProducerId": (Whole((RightNeeded(Op.WRITE, TXN, "transactional_id"),)), IdempotentProducers()),
    "AddPartitionsToTxn": (
        TransactionsAdded(),
        Each(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            (
                RightNeeded(Op.WRITE, TXN, "v3_and_below_transactional_id"),
                RightNeeded(Op.WRITE, TOPIC, ITEM),
            ),
            others=ErrorCode.OPERATION_NOT_ATTEMPTED,
        ),
    ),
    "AddOffsetsToTxn": (
        Whole((RightNeeded(Op.WRITE, TXN, "transactional_id"), RightNeeded(Op.READ, GROUP, "group_id"))),
    ),
    "EndTxn": (Whole((RightNeeded(Op.WRITE, TXN, "transactional_id"),)),),
    "TxnOffsetCommit": (
        Each(
            "topics",
            "topics",
            (
                RightNeeded(Op.WRITE, TXN, "transactional_id"),
                RightNeeded(Op.READ, GROUP, "group_id"),
                RightNeeded(Op.READ, TOPIC, ITEM),
            ),
        ),
    ),
    "DescribeTransactions": (
        TransactionTopics(),
        Each("transactional_ids", "transaction_states", (RightNeeded(Op.DESCRIBE, TXN, ITEM),)),
    ),
    "ListTransactions": (
        Listed("transaction_states", "transactional_id", RightNeeded(Op.DESCRIBE, TXN, ITEM)),
    ),
    # ---- topics and their places
    "CreateTopics": (
        Each(
            "topics",
            "topics",
            (RightNeeded(Op.CREATE, TOPIC, ITEM, other=RightNeeded(Op.CREATE, CLUSTER)),),
            {"num_partitions": -1, "replication_factor": -1},
        ),
    ),
    "DeleteTopics": (
        TopicsDeleted(),
        _topics(Op.DELETE, "topic_names", "responses"),
        _topics(Op.DELETE, "topics", "responses"),
    ),
    "CreatePartitions": (_topics(Op.ALTER, "topics", "results"),),
    "ElectLeaders": (
        Whole((RightNeeded(Op.ALTER, CLUSTER),), when=lambda body: body.topic_partitions is None),
        _each(Op.ALTER, "topic_partitions", "replica_election_results"),
    ),
    "AlterPartitionReassignments": (_cluster(Op.ALTER),),
    "ListPartitionReassignments": (_cluster(Op.DESCRIBE),),
    "AlterReplicaLogDirs": (MovedReplicas(),),
    "DescribeLogDirs": (_cluster(Op.DESCRIBE),),
    # ---- settings
    "DescribeConfigs": (
        Each("resources", "results", (RightNeeded(Op.DESCRIBE_CONFIGS, CLUSTER, CONFIGURED),)),
    ),
    "AlterConfigs": (Each("resources", "responses", (RightNeeded(Op.ALTER_CONFIGS, CLUSTER, CONFIGURED),)),),
    "IncrementalAlterConfigs": (
        Each("resources", "responses", (RightNeeded(Op.ALTER_CONFIGS, CLUSTER, CONFIGURED),)),
    ),
    "ListConfigResources": (_cluster(Op.DESCRIBE_CONFIGS),),
    "DescribeClientQuotas": (_cluster(Op.DESCRIBE_CONFIGS),),
    "AlterClientQuotas": (_each(Op.ALTER_CONFIGS, "entries", "entries"),),
    "UpdateFeatures": (_cluster(Op.ALTER),),
    # ---- access
    "DescribeAcls": (_cluster(Op.DESCRIBE),),
    "CreateAcls": (_each(Op.ALTER, "creations", "results"),),
    "DeleteAcls": (_each(Op.ALTER, "filters", "filter_results"),),
    "DescribeUserScramCredentials": (_cluster(Op.DESCRIBE),),
    "AlterUserScramCredentials": (
        _each(Op.ALTER, "deletions", "results"),
        _each(Op.ALTER, "upsertions", "results"),
    ),
    # The controller checks who owns a token, or may renew it.
    "CreateDelegationToken": (OwnedTokens(),),
    "RenewDelegationToken": (),
    "ExpireDelegationToken": (),
    "DescribeDelegationToken": (),
    # ---- nodes and the quorum
    "DescribeQuorum": (_cluster(Op.DESCRIBE),),
    "AddRaftVoter": (_cluster(Op.ALTER),),
    "RemoveRaftVoter": (_cluster(Op.ALTER),),
    "UnregisterBroker": (_cluster(Op.ALTER),),
    "WriteTxnMarkers": (_each(Op.CLUSTER_ACTION, "markers", "markers"),),
    "UpdateRaftVoter": (_NODES,),
    "Vote": (_NODES,),
    "BeginQuorumEpoch": (_NODES,),
    "EndQuorumEpoch": (_NODES,),
    "FetchSnapshot": (_NODES,),
    "AlterPartition": (_NODES,),
    "Envelope": (_NODES,),
    "BrokerRegistration": (_NODES,),
    "BrokerHeartbeat": (_NODES,),
    "ControllerRegistration": (_NODES,),
    "AllocateProducerIds": (_NODES,),
    "AssignReplicasToDirs": (_NODES,),
}

CHECKS_OF_CONTROLLERS: Mapping[str, tuple[AccessStep, ...]] = {**CHECKS, "Fetch": (_NODES,)}
"""Controllers have the metadata log only, which is for nodes."""
