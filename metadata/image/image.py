"""The metadata image: the whole state of a cluster at one offset of the log. Immutable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from metaquorum.metadata.image.maps import ShardedMap
from metaquorum.metadata.image.topics import TopicsImage
from metaquorum.metadata.image.types import (
    Acl,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    ProducerIds,
    Provenance,
    QuotaEntity,
    ScramCredential,
)

# The brokers part of an image: registrations by id, and when each was written.


class BrokersImage:
    """Registered brokers by id. Immutable; iterates over ids in ascending order.

    Two images are equal if their registrations are equal: the offsets of the registration records are kept
    beside them for the caught-up rule (K10), and a snapshot does not have them.
    """

    __slots__ = ("_arrays", "_by_id", "_offsets")

    def __init__(self, by_id: dict[int, BrokerRegistration], offsets: dict[int, int]) -> None:
        self._by_id = by_id
        self._offsets = offsets
        self._arrays: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def get(self, broker_id: int) -> BrokerRegistration | None:
        return self._by_id.get(broker_id)

    def __getitem__(self, broker_id: int) -> BrokerRegistration:
        return self._by_id[broker_id]

    def __contains__(self, broker_id: object) -> bool:
        return broker_id in self._by_id

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._by_id))

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> list[tuple[int, BrokerRegistration]]:
        return sorted(self._by_id.items())

    def values(self) -> list[BrokerRegistration]:
        return [registration for _, registration in self.items()]

    def is_active(self, broker_id: int) -> bool:
        """Registered, unfenced and not shutting down."""
        registration = self._by_id.get(broker_id)
        return registration is not None and registration.is_active

    def ids(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(all ids, those of active brokers), ascending; computed once, for code that looks
        at many partitions."""
        if self._arrays is None:
            listed = self.items()
            known = np.array([at for at, _ in listed], dtype=np.int64)
            active = np.array([at for at, broker in listed if broker.is_active], dtype=np.int64)
            self._arrays = known, active
        return self._arrays

    def registration_offset(self, broker_id: int) -> int | None:
        """Offset of the broker's registration record in force; after a snapshot load, the last offset in the
        snapshot, which is no smaller. None for an unknown broker."""
        return self._offsets.get(broker_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BrokersImage) and self._by_id == other._by_id

    __hash__ = None  # type: ignore[assignment]

    def shared(self) -> tuple[dict[int, BrokerRegistration], dict[int, int]]:
        """Registrations and their records' offsets, for the builder, which copies before it writes."""
        return self._by_id, self._offsets


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


# Edits an image: many records are applied without copying, and `freeze` publishes the result.


class ImageBuilder:
    """A mutable image. Images frozen from it never change afterwards: it copies what they
    share before writing."""

    __slots__ = (
        "_brokers_base",
        "_controllers_base",
        "_features_base",
        "acls",
        "brokers",
        "configs",
        "controllers",
        "epoch",
        "finalized",
        "offset",
        "producer_ids",
        "quotas",
        "registration_offsets",
        "scram",
        "timestamp_ms",
        "tokens",
        "topics",
        "zk_migration_state",
    )

    def __init__(self, base: MetadataImage) -> None:
        self.offset = base.provenance.offset
        self.epoch = base.provenance.epoch
        self.timestamp_ms = base.provenance.timestamp_ms
        self._brokers_base: BrokersImage | None = base.brokers
        self.brokers, self.registration_offsets = base.brokers.shared()
        self._controllers_base: dict[int, ControllerRegistration] | None = dict(base.controllers)
        self.controllers = self._controllers_base
        self._features_base: FeaturesImage | None = base.features
        self.finalized: dict[str, int] = dict(base.features.finalized)
        self.zk_migration_state = base.features.zk_migration_state
        self.topics = base.topics.builder()
        self.configs = base.configs.builder()
        self.quotas = base.quotas.builder()
        self.producer_ids = base.producer_ids
        self.acls = base.acls.builder()
        self.scram = base.scram.builder()
        self.tokens = base.delegation_tokens.builder()

    def freeze(self) -> MetadataImage:
        """The current image. The builder can be used further."""
        if self._features_base is None:
            self._features_base = FeaturesImage(
                finalized=dict(self.finalized), zk_migration_state=self.zk_migration_state
            )
        if self._brokers_base is None:
            self._brokers_base = BrokersImage(self.brokers, self.registration_offsets)
        if self._controllers_base is None:
            self._controllers_base = self.controllers
        return MetadataImage(
            provenance=Provenance(self.offset, self.epoch, self.timestamp_ms),
            features=self._features_base,
            brokers=self._brokers_base,
            controllers=self._controllers_base,
            topics=self.topics.freeze(),
            configs=self.configs.freeze(),
            quotas=self.quotas.freeze(),
            producer_ids=self.producer_ids,
            acls=self.acls.freeze(),
            scram=self.scram.freeze(),
            delegation_tokens=self.tokens.freeze(),
        )

    def nodes(self) -> ImageBuilder:
        """Another builder with only the same brokers and levels."""
        features = FeaturesImage(finalized=dict(self.finalized), zk_migration_state=self.zk_migration_state)
        brokers = BrokersImage(self.brokers, self.registration_offsets)
        return ImageBuilder(MetadataImage(features=features, brokers=brokers))

    def put_broker(self, registration: BrokerRegistration) -> None:
        self._own_brokers()
        self.brokers[registration.broker_id] = registration

    def note_registration(self, broker_id: int, offset: int) -> None:
        """Notes the offset of the registration record in force (K10)."""
        self._own_brokers()
        self.registration_offsets[broker_id] = offset

    def remove_broker(self, broker_id: int) -> None:
        self._own_brokers()
        del self.brokers[broker_id]
        self.registration_offsets.pop(broker_id, None)

    def _own_brokers(self) -> None:
        if self._brokers_base is not None:
            self.brokers = dict(self.brokers)
            self.registration_offsets = dict(self.registration_offsets)
            self._brokers_base = None

    def put_controller(self, registration: ControllerRegistration) -> None:
        self._own_controllers()
        self.controllers[registration.controller_id] = registration

    def remove_controller(self, controller_id: int) -> None:
        self._own_controllers()
        del self.controllers[controller_id]

    def _own_controllers(self) -> None:
        if self._controllers_base is not None:
            self.controllers = dict(self.controllers)
            self._controllers_base = None

    def set_feature(self, name: str, level: int) -> None:
        """Finalizes a feature at `level`; 0 removes it."""
        self._features_base = None
        if level == 0:
            self.finalized.pop(name, None)
        else:
            self.finalized[name] = level

    def set_zk_migration_state(self, state: int) -> None:
        self._features_base = None
        self.zk_migration_state = state

    def set_config(self, resource: ConfigResource, name: str, value: str | None) -> None:
        """Sets one key; None removes it, and the resource with its last key."""
        entries = self.configs.get(resource)
        if value is not None:
            self.configs.put(resource, {**(entries or {}), name: value})
        elif entries is not None and name in entries:
            rest = {key: kept for key, kept in entries.items() if key != name}
            if rest:
                self.configs.put(resource, rest)
            else:
                self.configs.remove(resource)

    def set_quota(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        """Sets one quota of an entity; None removes it, and the entity with its last quota."""
        entries = self.quotas.get(entity)
        if value is not None:
            self.quotas.put(entity, {**(entries or {}), key: value})
        elif entries is not None and key in entries:
            rest = {name: kept for name, kept in entries.items() if name != key}
            if rest:
                self.quotas.put(entity, rest)
            else:
                self.quotas.remove(entity)
