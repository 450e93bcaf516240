"""The immutable image of a cluster's metadata, its parts, and the builder that makes the next one."""

from .builder import ImageBuilder
from .cluster import BrokersImage
from .columns import CHUNK_ROWS
from .compare import PartitionChanges, PartitionKey, partition_changes
from .directories import LOST, MIGRATING, UNASSIGNED
from .image import (
    METADATA_VERSION,
    FeaturesImage,
    MetadataImage,
    describe_difference,
    differing_parts,
    images_equal,
)
from .maps import ShardedMap
from .topics import TopicsImage
from .types import (
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
    "describe_difference",
    "differing_parts",
    "images_equal",
    "partition_changes",
    "quota_sort_key",
]
