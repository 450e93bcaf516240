"""The metadata image: the whole state of a cluster at one offset of the log. Immutable.

Owns the parts and their comparison. Knows no records: `metadata.replay` makes images from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.image.cluster import BrokersImage
from metaquorum.metadata.image.maps import ShardedMap
from metaquorum.metadata.image.topics import TopicsImage
from metaquorum.metadata.image.types import (
    Acl,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    ProducerIds,
    Provenance,
    QuotaEntity,
    ScramCredential,
)

METADATA_VERSION = "metadata.version"
IMPLIED_METADATA_VERSION = 1
"""The level (3.0-IV1) of a log without a FeatureLevelRecord, such as logs from before Kafka 3.3."""


class FeaturesImage(msgspec.Struct, frozen=True, kw_only=True):
    """Finalized feature levels by name (never 0), and the state of a ZooKeeper migration (KIP-866)."""

    finalized: Mapping[str, int] = msgspec.field(default_factory=dict)
    zk_migration_state: int = 0

    @property
    def metadata_version(self) -> int:
        """The metadata.version level in force."""
        return self.finalized.get(METADATA_VERSION, IMPLIED_METADATA_VERSION)

    def level(self, name: str) -> int:
        """The finalized level of a feature; 0 if it has none."""
        return self.finalized.get(name, 0)


class MetadataImage(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Everything that the log says up to `provenance.offset`.

    Two images are equal if all their parts are, wherever partitions are in memory and however they were
    built; `images_equal` can leave out the provenance.
    """

    provenance: Provenance = msgspec.field(default_factory=Provenance)
    features: FeaturesImage = msgspec.field(default_factory=FeaturesImage)
    brokers: BrokersImage = msgspec.field(default_factory=lambda: BrokersImage({}, {}))
    controllers: Mapping[int, ControllerRegistration] = msgspec.field(default_factory=dict)
    topics: TopicsImage = msgspec.field(default_factory=TopicsImage)
    configs: ShardedMap[ConfigResource, dict[str, str]] = msgspec.field(default_factory=ShardedMap)
    quotas: ShardedMap[QuotaEntity, dict[str, float]] = msgspec.field(default_factory=ShardedMap)
    producer_ids: ProducerIds = msgspec.field(default_factory=ProducerIds)
    acls: ShardedMap[bytes, Acl] = msgspec.field(default_factory=ShardedMap)
    scram: ShardedMap[tuple[int, str], ScramCredential] = msgspec.field(default_factory=ShardedMap)
    delegation_tokens: ShardedMap[str, DelegationToken] = msgspec.field(default_factory=ShardedMap)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetadataImage) and images_equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def with_provenance(self, provenance: Provenance) -> MetadataImage:
        """The same content with another place in the log as its provenance."""
        return replace(self, provenance=provenance)


def images_equal(a: MetadataImage, b: MetadataImage, *, provenance: bool = True) -> bool:
    """Whether two images have the same content and, by default, the same provenance."""
    return not differing_parts(a, b, provenance=provenance)


def differing_parts(a: MetadataImage, b: MetadataImage, *, provenance: bool = True) -> list[str]:
    """Names of the parts that differ, in the order of MetadataImage's fields."""
    if a is b:
        return []
    return [
        part
        for part in MetadataImage.__struct_fields__
        if (provenance or part != "provenance") and not _same(getattr(a, part), getattr(b, part))
    ]


def _same(a: Any, b: Any) -> bool:
    return a is b or bool(a == b)
