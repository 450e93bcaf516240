"""Which APIs the brokers of a Kafka release offer, and up to which version.

Source: `validVersions` and `listeners` of the message definitions in the releases of Apache Kafka.
"""

from __future__ import annotations

from metaquorum.testing.errors import ClusterError

FIRST, LAST = 1, 9
"""The oldest and the newest minor release of Kafka 3 that a cluster can be."""

_HIGHEST = {
    "AddOffsetsToTxn": "3.1 3, 3.8 4",
    "AddPartitionsToTxn": "3.1 3, 3.6 4, 3.8 5",
    "AddRaftVoter": "3.9 0",
    "AlterClientQuotas": "3.1 1",
    "AlterConfigs": "3.1 2",
    "AlterPartitionReassignments": "3.1 0",
    "AlterReplicaLogDirs": "3.1 2",
    "AlterUserScramCredentials": "3.5 0",
    "ApiVersions": "3.1 3, 3.9 4",
    "ConsumerGroupDescribe": "3.8 0",
    "ConsumerGroupHeartbeat": "3.7 0",
    "CreateAcls": "3.1 2, 3.3 3",
    "CreateDelegationToken": "3.6 3",
    "CreatePartitions": "3.1 3",
    "CreateTopics": "3.1 7",
    "DeleteAcls": "3.1 2, 3.3 3",
    "DeleteGroups": "3.1 2",
    "DeleteRecords": "3.1 2",
    "DeleteTopics": "3.1 6",
    "DescribeAcls": "3.1 2, 3.3 3",
    "DescribeClientQuotas": "3.1 1",
    "DescribeCluster": "3.1 0, 3.7 1",
    "DescribeConfigs": "3.1 4",
    "DescribeDelegationToken": "3.6 3",
    "DescribeGroups": "3.1 5",
    "DescribeLogDirs": "3.1 2, 3.2 3, 3.3 4",
    "DescribeProducers": "3.1 0",
    "DescribeQuorum": "3.1 0, 3.3 1, 3.9 2",
    "DescribeTopicPartitions": "3.8 0",
    "DescribeTransactions": "3.1 0",
    "DescribeUserScramCredentials": "3.5 0",
    "ElectLeaders": "3.1 2",
    "EndTxn": "3.1 3, 3.8 4",
    "ExpireDelegationToken": "3.6 2",
    "Fetch": "3.1 13, 3.5 15, 3.7 16, 3.9 17",
    "FindCoordinator": "3.1 4, 3.8 5, 3.9 6",
    "Heartbeat": "3.1 4",
    "IncrementalAlterConfigs": "3.1 1",
    "InitProducerId": "3.1 4, 3.8 5",
    "JoinGroup": "3.1 7, 3.2 9",
    "LeaveGroup": "3.1 4, 3.2 5",
    "ListConfigResources": "3.7 0",
    "ListGroups": "3.1 4, 3.8 5",
    "ListOffsets": "3.1 7, 3.5 8, 3.9 9",
    "ListPartitionReassignments": "3.1 0",
    "ListTransactions": "3.1 0, 3.8 1",
    "Metadata": "3.1 12",
    "OffsetCommit": "3.1 8, 3.7 9",
    "OffsetDelete": "3.1 0",
    "OffsetFetch": "3.1 8, 3.7 9",
    "OffsetForLeaderEpoch": "3.1 4",
    "Produce": "3.1 9, 3.7 10, 3.8 11",
    "RemoveRaftVoter": "3.9 0",
    "RenewDelegationToken": "3.6 2",
    "SaslAuthenticate": "3.1 2",
    "SaslHandshake": "3.1 1",
    "SyncGroup": "3.1 5",
    "TxnOffsetCommit": "3.1 3, 3.8 4",
    "UnregisterBroker": "3.3 0",
    "UpdateFeatures": "3.1 0, 3.3 1",
    "WriteTxnMarkers": "3.1 1",
}
"""By API, in ascending order: since which release of Kafka 3, which highest version. An API without a row is
newer than all of them."""


def versions_of(release: str) -> dict[str, int]:
    """The highest version of each API of a release such as "3.6". Raises ClusterError."""
    major, _, minor = release.partition(".")
    if major != "3" or not minor.isdecimal() or not FIRST <= int(minor) <= LAST:
        raise ClusterError(f"version={release!r}: write a release of Kafka from 3.{FIRST} to 3.{LAST}")
    highest = {}
    for api, steps in _HIGHEST.items():
        for step in steps.split(", "):
            since, version = step.removeprefix("3.").split()
            if int(since) <= int(minor):
                highest[api] = int(version)
    return highest
