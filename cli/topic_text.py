"""Topics as Kafka's `kafka-topics --describe` prints them, and as JSON. Pure text from an image."""

from __future__ import annotations

from typing import Any

from metadata.image import MetadataImage
from metadata.image.types import NO_LEADER, TOPIC_RESOURCE, ConfigResource, PartitionInfo, TopicInfo
from storage.uuids import uuid_to_text


def topic_configs(image: MetadataImage, name: str) -> dict[str, str]:
    return dict(image.configs.get(ConfigResource(TOPIC_RESOURCE, name)) or {})


def offline_replicas(image: MetadataImage, partition: PartitionInfo) -> list[int]:
    """Replicas on brokers that are fenced or not registered."""
    return [node for node in partition.replicas if (found := image.brokers.get(node)) is None or found.fenced]


def describe_text(image: MetadataImage, topic: TopicInfo) -> str:
    """One line for the topic, one for each partition, as Kafka's tool has them, and offline replicas last."""
    partitions = image.topics.partitions_of(topic.topic_id)
    configs = ",".join(f"{key}={value}" for key, value in topic_configs(image, topic.name).items())
    factor = len(partitions[0].replicas) if partitions else 0
    lines = [
        f"Topic: {topic.name}\tTopicId: {uuid_to_text(topic.topic_id)}\tPartitionCount: {len(partitions)}"
        f"\tReplicationFactor: {factor}\tConfigs: {configs}"
    ]
    lines += [_partition_text(image, topic.name, partition) for partition in partitions]
    return "\n".join(lines)


def _partition_text(image: MetadataImage, name: str, partition: PartitionInfo) -> str:
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
    offline = offline_replicas(image, partition)
    if offline:
        parts.append(f"Offline: {_ids(offline)}")
    return "\t" + "\t".join(parts)


def describe_json(image: MetadataImage, topic: TopicInfo) -> dict[str, Any]:
    partitions = image.topics.partitions_of(topic.topic_id)
    return {
        "name": topic.name,
        "topicId": uuid_to_text(topic.topic_id),
        "partitionCount": len(partitions),
        "replicationFactor": len(partitions[0].replicas) if partitions else 0,
        "configs": topic_configs(image, topic.name),
        "partitions": [
            {
                "partition": partition.index,
                "leader": None if partition.leader == NO_LEADER else partition.leader,
                "leaderEpoch": partition.leader_epoch,
                "partitionEpoch": partition.partition_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "addingReplicas": list(partition.adding),
                "removingReplicas": list(partition.removing),
                "directories": [uuid_to_text(directory) for directory in partition.directories],
                "offlineReplicas": offline_replicas(image, partition),
            }
            for partition in partitions
        ],
    }


def _ids(nodes: tuple[int, ...] | list[int]) -> str:
    return ",".join(str(node) for node in nodes)
