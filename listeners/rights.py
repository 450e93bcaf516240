"""The permissions of each API: API x resource x operation, as Kafka checks them. `python -m` with this module
prints them (docs/security.md).

What the active controller answers declares its own beside the handler, what the image alone answers in
`DESCRIBED`. Every API of the wire has a row; one without cannot be offered. An API with an empty row is open
to every client that may connect.
"""

from __future__ import annotations

from collections.abc import Mapping

from metaquorum.listeners.access.special import (
    UNREAD,
    Acks,
    AssignedTopics,
    AuthorizedOperations,
    CoordinatorsFound,
    FetchedOffsets,
    IdempotentProducers,
    MovedReplicas,
    StillRead,
    SubscribedTopics,
    TopicsDescribed,
    TransactionsAdded,
    TransactionTopics,
    is_follower,
)
from metaquorum.listeners.access.steps import (
    CLUSTER,
    CONFIGURED,
    ITEM,
    TOPIC,
    AccessStep,
    Each,
    Listed,
    RightNeeded,
    Whole,
    each_of_cluster,
    each_topic,
    on_cluster,
)
from metaquorum.listeners.forwarded.describe import DESCRIBED
from metaquorum.listeners.forwarded.table import ANSWERED
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.metadata.settings.acls import ResourceType
from metaquorum.platforms import end_without_reader

GROUP, TXN = ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID


def _group(operation: Op) -> Whole:
    return Whole((RightNeeded(operation, GROUP, "group_id"),))


_FOLLOWER = Each("topics", "responses", (RightNeeded(Op.CLUSTER_ACTION, CLUSTER),), UNREAD, when=is_follower)
_READER = Each(
    "topics",
    "responses",
    (RightNeeded(Op.READ, TOPIC, ITEM),),
    UNREAD,
    when=lambda body: not is_follower(body),
)
_NODES = on_cluster(Op.CLUSTER_ACTION)

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
        each_topic(Op.DESCRIBE),
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
    "ListOffsets": (each_topic(Op.DESCRIBE),),
    "OffsetForLeaderEpoch": (
        Each(
            "topics",
            "topics",
            (RightNeeded(Op.DESCRIBE, TOPIC, ITEM, other=RightNeeded(Op.CLUSTER_ACTION, CLUSTER)),),
        ),
    ),
    "DeleteRecords": (each_topic(Op.DELETE, low_watermark=-1),),
    "DescribeProducers": (each_topic(Op.READ),),
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
    "OffsetDelete": (_group(Op.DELETE), each_topic(Op.READ)),
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
    # ---- where replicas are
    "AlterReplicaLogDirs": (MovedReplicas(),),
    "DescribeLogDirs": (on_cluster(Op.DESCRIBE),),
    # ---- nodes and the quorum
    "WriteTxnMarkers": (each_of_cluster(Op.CLUSTER_ACTION, "markers", "markers"),),
    "UpdateRaftVoter": (_NODES,),
    "Vote": (_NODES,),
    "BeginQuorumEpoch": (_NODES,),
    "EndQuorumEpoch": (_NODES,),
    "FetchSnapshot": (_NODES,),
    "Envelope": (_NODES,),
    **{name: each.rights for name, each in (DESCRIBED | ANSWERED).items()},
}

CHECKS_OF_CONTROLLERS: Mapping[str, tuple[AccessStep, ...]] = {
    **CHECKS,
    "Fetch": (_NODES,),
    "DescribeCluster": (on_cluster(Op.ALTER), *CHECKS["DescribeCluster"]),
}
"""Controllers have the metadata log only, which is for nodes, and are described only to those who may change
the cluster, as in Kafka."""

_OPEN = "nothing"


def checks_table() -> str:
    """The rows: the permission, and the APIs that need it."""
    by_need: dict[str, list[str]] = {}
    for api, steps in CHECKS.items():
        by_need.setdefault(_needs(steps), []).append(api)
    rows = ["| needed | by |", "|---|---|"]
    rows += [f"| {needs} | {', '.join(apis)} |" for needs, apis in by_need.items()]
    return "\n".join(rows) + "\n"


def _needs(steps: tuple[AccessStep, ...]) -> str:
    parts = dict.fromkeys(part for step in steps for part in [*map(_check, step.checks), step.also] if part)
    return "; ".join(parts) or _OPEN


def _check(check: RightNeeded) -> str:
    operation = check.operation.name.title().replace("_", "")
    if check.source == CONFIGURED:
        return f"{operation} on the configured topic or group, else on the cluster"
    text = f"{operation} on the {check.resource.name.lower().replace('_', ' ')}"
    return text if check.other is None else f"{text}, or {_check(check.other)}"


if __name__ == "__main__":
    end_without_reader()
    print(checks_table(), end="")
