"""The APIs that the active controller answers: versions, and the handler of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from metaquorum.listeners.forwarded import access, cluster, configs, nodes, partitions, tokens, topics
from metaquorum.listeners.forwarded.call import Call
from metaquorum.listeners.slices import Level
from metaquorum.wire.table import API_BY_NAME

DEFAULT_TIMEOUT_MS = 30_000
"""The timeout of requests without one."""


class Forwarded(msgspec.Struct, frozen=True):
    """One API. `handle` returns the response to a request's body. `strict_from`: from this version on,
    requests over the quota of changes are refused, which older clients would not understand (KIP-599).
    `things`: the lists of the request that are bounded (`too_many`), each with what its items list; an array
    without its place there costs next to nothing."""

    min_version: int
    max_version: int
    handle: Callable[[Any, Call], Awaitable[Any]]
    strict_from: int = 0
    things: tuple[tuple[Level, ...], ...] = ()


_CONFIGS: Level = ("configs", "")
_PARTITIONS: Level = ("partitions", "partitions")

FORWARDED: dict[str, Forwarded] = {
    "CreateTopics": Forwarded(
        0, 7, topics.create_topics, strict_from=6, things=((("topics", "topics"), _CONFIGS),)
    ),
    "DeleteTopics": Forwarded(
        0,
        6,
        topics.delete_topics,
        strict_from=5,
        things=((("topics", "responses"),), (("topic_names", "responses"),)),
    ),
    "CreatePartitions": Forwarded(
        0, 3, topics.create_partitions, strict_from=3, things=((("topics", "results"),),)
    ),
    "AlterConfigs": Forwarded(0, 2, configs.alter_configs, things=((("resources", "responses"), _CONFIGS),)),
    "IncrementalAlterConfigs": Forwarded(
        0, 1, configs.incremental_alter_configs, things=((("resources", "responses"), _CONFIGS),)
    ),
    "ElectLeaders": Forwarded(
        0,
        2,
        partitions.elect_leaders,
        things=((("topic_partitions", "replica_election_results"), ("partitions", "partition_result")),),
    ),
    "AlterPartitionReassignments": Forwarded(
        0, 1, partitions.alter_partition_reassignments, things=((("topics", "responses"), _PARTITIONS),)
    ),
    "ListPartitionReassignments": Forwarded(0, 0, partitions.list_partition_reassignments),
    "DescribeQuorum": Forwarded(0, 2, cluster.describe_quorum, things=((("topics", "topics"), _PARTITIONS),)),
    "UpdateFeatures": Forwarded(0, 2, cluster.update_features, things=((("feature_updates", "results"),),)),
    "UnregisterBroker": Forwarded(0, 0, cluster.unregister_broker),
    "CreateAcls": Forwarded(0, 3, access.create_acls, things=((("creations", "results"),),)),
    "DeleteAcls": Forwarded(0, 3, access.delete_acls, things=((("filters", "filter_results"),),)),
    "AlterUserScramCredentials": Forwarded(
        0,
        0,
        access.alter_user_scram_credentials,
        things=((("deletions", "results"),), (("upsertions", "results"),)),
    ),
    "AlterClientQuotas": Forwarded(
        0, 1, access.alter_client_quotas, things=((("entries", "entries"), ("ops", "")),)
    ),
    "CreateDelegationToken": Forwarded(0, 3, tokens.create_delegation_token),
    "RenewDelegationToken": Forwarded(0, 2, tokens.renew_delegation_token),
    "ExpireDelegationToken": Forwarded(0, 2, tokens.expire_delegation_token),
    "DescribeDelegationToken": Forwarded(0, 3, tokens.describe_delegation_token),
}
FORWARDED_BY_KEY = {API_BY_NAME[name].key: each for name, each in FORWARDED.items()}

ASKED_BY_NODES: dict[str, Forwarded] = {
    "BrokerRegistration": Forwarded(0, 4, nodes.broker_registration),
    "BrokerHeartbeat": Forwarded(0, 1, nodes.broker_heartbeat),
    "AlterPartition": Forwarded(0, 3, nodes.alter_partition),
    "AllocateProducerIds": Forwarded(0, 0, nodes.allocate_producer_ids),
    "AssignReplicasToDirs": Forwarded(0, 0, nodes.assign_replicas_to_dirs),
    "ControllerRegistration": Forwarded(0, 0, nodes.controller_registration),
}
"""What nodes ask for themselves, in the versions of Kafka 3.7 to 4.0. They are not forwarded."""

VOTER_CHANGES: dict[str, Forwarded] = {
    "AddRaftVoter": Forwarded(0, 1, cluster.add_raft_voter),
    "RemoveRaftVoter": Forwarded(0, 0, cluster.remove_raft_voter),
}
"""What tools ask controllers themselves (KIP-853); brokers do not forward it."""


def timeout_ms(body: Any) -> int:
    """The timeout of a request; the default if it has none, or one that is not positive."""
    asked = getattr(body, "timeout_ms", DEFAULT_TIMEOUT_MS)
    return asked if asked > 0 else DEFAULT_TIMEOUT_MS
