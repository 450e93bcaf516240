"""Topics as Kafka's `kafka-topics --describe` prints them, and as JSON.

Owns the lines and keys. Knows values only, and no replicas in log directories (`cli.admin.log_dirs`).
"""

from __future__ import annotations

from typing import Any

from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.runtime.kafka.admin.topics import DescribedPartition, DescribedTopic
from metaquorum.storage.uuids import uuid_to_text


def replication_factor(topic: DescribedTopic) -> int:
    return len(topic.partitions[0].replicas) if topic.partitions else 0


def topic_id_text(topic: DescribedTopic) -> str | None:
    return None if topic.topic_id is None else uuid_to_text(topic.topic_id)


def describe_text(topic: DescribedTopic) -> str:
    """One line for the topic and one per partition, as Kafka prints them, with
    offline replicas at the end."""
    configs = ",".join(f"{key}={value}" for key, value in topic.configs.items())
    lines = [
        f"Topic: {topic.name}\tTopicId: {topic_id_text(topic)}"
        f"\tPartitionCount: {len(topic.partitions)}\tReplicationFactor: {replication_factor(topic)}"
        f"\tConfigs: {configs}"
    ]
    lines += [_partition_text(topic.name, partition) for partition in topic.partitions]
    return "\n".join(lines)


def _partition_text(name: str, partition: DescribedPartition) -> str:
    leader = "none" if partition.leader == NO_LEADER else str(partition.leader)
    parts = [
        f"Topic: {name}",
        f"Partition: {partition.index}",
        f"Leader: {leader}",
        f"Replicas: {_ids(partition.replicas)}",
        f"Isr: {_ids(partition.isr)}",
    ]
    if partition.adding or partition.removing:
        parts += [
            f"Adding Replicas: {_ids(partition.adding)}",
            f"Removing Replicas: {_ids(partition.removing)}",
        ]
    if partition.elr:
        parts.append(f"Elr: {_ids(partition.elr)}")
    if partition.last_known_elr:
        parts.append(f"LastKnownElr: {_ids(partition.last_known_elr)}")
    if partition.offline:
        parts.append(f"Offline: {_ids(partition.offline)}")
    return "\t" + "\t".join(parts)


def describe_json(topic: DescribedTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topicId": topic_id_text(topic),
        "partitionCount": len(topic.partitions),
        "replicationFactor": replication_factor(topic),
        "configs": dict(topic.configs),
        "partitions": [
            {
                "partition": partition.index,
                "leader": None if partition.leader == NO_LEADER else partition.leader,
                "leaderEpoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "eligibleLeaderReplicas": list(partition.elr),
                "lastKnownElr": list(partition.last_known_elr),
                "addingReplicas": list(partition.adding),
                "removingReplicas": list(partition.removing),
                "offlineReplicas": list(partition.offline),
            }
            for partition in topic.partitions
        ],
    }


def _ids(nodes: tuple[int, ...] | list[int]) -> str:
    return ",".join(str(node) for node in nodes)
