"""The immutable image of a cluster's metadata, its parts, and the builder that makes the next one."""

from metaquorum.metadata.image.builder import ImageBuilder
from metaquorum.metadata.image.cluster import BrokersImage
from metaquorum.metadata.image.columns import CHUNK_ROWS
from metaquorum.metadata.image.compare import PartitionChanges, PartitionKey, partition_changes
from metaquorum.metadata.image.directories import LOST, MIGRATING, UNASSIGNED
from metaquorum.metadata.image.image import (
    METADATA_VERSION,
    FeaturesImage,
    MetadataImage,
    differing_parts,
    images_equal,
)
from metaquorum.metadata.image.maps import ShardedMap
from metaquorum.metadata.image.topics import TopicsImage
from metaquorum.metadata.image.types import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    TOPIC_RESOURCE,
    Acl,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    Endpoint,
    FeatureRange,
    PartitionInfo,
    ProducerIds,
    Provenance,
    QuotaEntity,
    ScramCredential,
    TopicInfo,
    quota_sort_key,
)

__all__ = [
    "BROKER_LOGGER_RESOURCE",
    "BROKER_RESOURCE",
    "CHUNK_ROWS",
    "CLIENT_METRICS_RESOURCE",
    "LOST",
    "METADATA_VERSION",
    "MIGRATING",
    "NO_LEADER",
    "RECOVERED",
    "RECOVERING",
    "TOPIC_RESOURCE",
    "UNASSIGNED",
    "Acl",
    "BrokerRegistration",
    "BrokersImage",
    "ConfigResource",
    "ControllerRegistration",
    "DelegationToken",
    "Endpoint",
    "FeatureRange",
    "FeaturesImage",
    "ImageBuilder",
    "MetadataImage",
    "PartitionChanges",
    "PartitionInfo",
    "PartitionKey",
    "ProducerIds",
    "Provenance",
    "QuotaEntity",
    "ScramCredential",
    "ShardedMap",
    "TopicInfo",
    "TopicsImage",
    "differing_parts",
    "images_equal",
    "partition_changes",
    "quota_sort_key",
]
