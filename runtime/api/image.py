"""Brokers, topics and partitions of an image, between values and protobuf, both directions."""

from __future__ import annotations

from metaquorum.metadata.image.types import (
    NO_LEADER,
    BrokerRegistration,
    Endpoint,
    FeatureRange,
    PartitionInfo,
)
from metaquorum.proto import metadata_pb2 as pb


def broker_to_pb(broker: BrokerRegistration) -> pb.Broker:
    return pb.Broker(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        incarnation_id=broker.incarnation_id,
        endpoints=[
            pb.Endpoint(
                name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
            )
            for each in broker.endpoints
        ],
        features=[
            pb.Feature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in broker.features
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        directories=broker.directories,
    )


def broker_from_pb(broker: pb.Broker) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker.broker_id,
        epoch=broker.broker_epoch,
        incarnation_id=broker.incarnation_id,
        endpoints=tuple(
            Endpoint(name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol)
            for each in broker.endpoints
        ),
        features=tuple(
            FeatureRange(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in broker.features
        ),
        rack=broker.rack if broker.HasField("rack") else None,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        directories=tuple(broker.directories),
    )


def partition_to_pb(partition: PartitionInfo) -> pb.Partition:
    return pb.Partition(
        index=partition.index,
        leader=None if partition.leader == NO_LEADER else partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        leader_recovery_state=partition.leader_recovery_state,
        replicas=partition.replicas,
        isr=partition.isr,
        adding=partition.adding,
        removing=partition.removing,
        directories=partition.directories,
        elr=partition.elr,
        last_known_elr=partition.last_known_elr,
    )


def partition_from_pb(topic_id: bytes, partition: pb.Partition) -> PartitionInfo:
    return PartitionInfo(
        topic_id=topic_id,
        index=partition.index,
        replicas=tuple(partition.replicas),
        isr=tuple(partition.isr),
        leader=partition.leader if partition.HasField("leader") else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        leader_recovery_state=partition.leader_recovery_state,
        directories=tuple(partition.directories),
        removing=tuple(partition.removing),
        adding=tuple(partition.adding),
        elr=tuple(partition.elr),
        last_known_elr=tuple(partition.last_known_elr),
    )
