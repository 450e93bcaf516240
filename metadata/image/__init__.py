"""The immutable image of a cluster's metadata, its parts, and the builder of the next image.

Code for rows and columns is loaded on first use: a client needs only the values, and numpy takes longer to
load than such a client takes to run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from metaquorum.metadata.image.types import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    GRPC_LISTENER,
    LOST,
    MIGRATING,
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    TOPIC_RESOURCE,
    UNASSIGNED,
    Acl,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    FeatureRange,
    NodeEndpoint,
    PartitionInfo,
    ProducerIds,
    Provenance,
    QuotaEntity,
    ScramCredential,
    TopicInfo,
    quota_sort_key,
)

if TYPE_CHECKING:
    from metaquorum.metadata.image.chunk import CHUNK_ROWS
    from metaquorum.metadata.image.compare import PartitionChanges, PartitionKey, partition_changes
    from metaquorum.metadata.image.image import (
        METADATA_VERSION,
        BrokersImage,
        FeaturesImage,
        ImageBuilder,
        MetadataImage,
        differing_parts,
        images_equal,
    )
    from metaquorum.metadata.image.maps import ShardedMap
    from metaquorum.metadata.image.topics import TopicsImage

_HOMES = {
    "ImageBuilder": "image",
    "BrokersImage": "image",
    "CHUNK_ROWS": "chunk",
    "PartitionChanges": "compare",
    "PartitionKey": "compare",
    "partition_changes": "compare",
    "METADATA_VERSION": "image",
    "FeaturesImage": "image",
    "MetadataImage": "image",
    "differing_parts": "image",
    "images_equal": "image",
    "ShardedMap": "maps",
    "TopicsImage": "topics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


__all__ = [
    "BROKER_LOGGER_RESOURCE",
    "BROKER_RESOURCE",
    "CHUNK_ROWS",
    "CLIENT_METRICS_RESOURCE",
    "GROUP_RESOURCE",
    "GRPC_LISTENER",
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
    "FeatureRange",
    "FeaturesImage",
    "ImageBuilder",
    "MetadataImage",
    "NodeEndpoint",
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
