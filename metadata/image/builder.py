"""Edits an image: many records are applied without copying, and `freeze` publishes the result.

Owns the transient state between two images. Does not know what a record means.
"""

from __future__ import annotations

from metaquorum.metadata.image.cluster import BrokersImage
from metaquorum.metadata.image.image import FeaturesImage, MetadataImage
from metaquorum.metadata.image.types import (
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    Provenance,
    QuotaEntity,
)


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
