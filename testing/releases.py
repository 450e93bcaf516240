"""Which APIs the brokers of a Kafka release offer, and up to which version.

Source: `validVersions` and `listeners` of the message definitions in the releases of Apache Kafka.
"""

from __future__ import annotations

from metaquorum.testing.errors import ClusterError

FIRST, LAST = 1, 9
"""The oldest and the newest minor release of Kafka 3 that a cluster can be."""

_HIGHEST: dict[str, tuple[tuple[int, int], ...]] = {
    "AddOffsetsToTxn": (
        (1, 3),
        (8, 4),
    ),
    "AddPartitionsToTxn": (
        (1, 3),
        (6, 4),
        (8, 5),
    ),
    "AddRaftVoter": ((9, 0),),
    "AlterClientQuotas": ((1, 1),),
    "AlterConfigs": ((1, 2),),
    "AlterPartitionReassignments": ((1, 0),),
    "AlterReplicaLogDirs": ((1, 2),),
    "AlterUserScramCredentials": ((5, 0),),
    "ApiVersions": (
        (1, 3),
        (9, 4),
    ),
    "ConsumerGroupDescribe": ((8, 0),),
    "ConsumerGroupHeartbeat": ((7, 0),),
    "CreateAcls": (
        (1, 2),
        (3, 3),
    ),
    "CreateDelegationToken": ((6, 3),),
    "CreatePartitions": ((1, 3),),
    "CreateTopics": ((1, 7),),
    "DeleteAcls": (
        (1, 2),
        (3, 3),
    ),
    "DeleteGroups": ((1, 2),),
    "DeleteRecords": ((1, 2),),
    "DeleteTopics": ((1, 6),),
    "DescribeAcls": (
        (1, 2),
        (3, 3),
    ),
    "DescribeClientQuotas": ((1, 1),),
    "DescribeCluster": (
        (1, 0),
        (7, 1),
    ),
    "DescribeConfigs": ((1, 4),),
    "DescribeDelegationToken": ((6, 3),),
    "DescribeGroups": ((1, 5),),
    "DescribeLogDirs": (
        (1, 2),
        (2, 3),
        (3, 4),
    ),
    "DescribeProducers": ((1, 0),),
    "DescribeQuorum": (
        (1, 0),
        (3, 1),
        (9, 2),
    ),
    "DescribeTopicPartitions": ((8, 0),),
    "DescribeTransactions": ((1, 0),),
    "DescribeUserScramCredentials": ((5, 0),),
    "ElectLeaders": ((1, 2),),
    "EndTxn": (
        (1, 3),
        (8, 4),
    ),
    "ExpireDelegationToken": ((6, 2),),
    "Fetch": (
        (1, 13),
        (5, 15),
        (7, 16),
        (9, 17),
    ),
    "FindCoordinator": (
        (1, 4),
        (8, 5),
        (9, 6),
    ),
    "Heartbeat": ((1, 4),),
    "IncrementalAlterConfigs": ((1, 1),),
    "InitProducerId": (
        (1, 4),
        (8, 5),
    ),
    "JoinGroup": (
        (1, 7),
        (2, 9),
    ),
    "LeaveGroup": (
        (1, 4),
        (2, 5),
    ),
    "ListConfigResources": ((7, 0),),
    "ListGroups": (
        (1, 4),
        (8, 5),
    ),
    "ListOffsets": (
        (1, 7),
        (5, 8),
        (9, 9),
    ),
    "ListPartitionReassignments": ((1, 0),),
    "ListTransactions": (
        (1, 0),
        (8, 1),
    ),
    "Metadata": ((1, 12),),
    "OffsetCommit": (
        (1, 8),
        (7, 9),
    ),
    "OffsetDelete": ((1, 0),),
    "OffsetFetch": (
        (1, 8),
        (7, 9),
    ),
    "OffsetForLeaderEpoch": ((1, 4),),
    "Produce": (
        (1, 9),
        (7, 10),
        (8, 11),
    ),
    "RemoveRaftVoter": ((9, 0),),
    "RenewDelegationToken": ((6, 2),),
    "SaslAuthenticate": ((1, 2),),
    "SaslHandshake": ((1, 1),),
    "SyncGroup": ((1, 5),),
    "TxnOffsetCommit": (
        (1, 3),
        (8, 4),
    ),
    "UnregisterBroker": ((3, 0),),
    "UpdateFeatures": (
        (1, 0),
        (3, 1),
    ),
    "WriteTxnMarkers": ((1, 1),),
}
"""By API, in ascending order: since which minor release of Kafka 3, which highest version."""


def versions_of(release: str) -> dict[str, int]:
    """The highest version of each API of a release such as "3.6". Raises ClusterError."""
    major, _, minor = release.partition(".")
    if major != "3" or not minor.isdecimal() or not FIRST <= int(minor) <= LAST:
        raise ClusterError(f"version={release!r}: write a release of Kafka from 3.{FIRST} to 3.{LAST}")
    highest = {
        api: max((since, version) for since, version in steps if since <= int(minor))[1]
        for api, steps in _HIGHEST.items()
        if steps[0][0] <= int(minor)
    }
    return highest
