"""The changes between two images: one diff for code that reconciles after a publish, and for tools.

Takes time in proportion to what the two do not share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from metaquorum.metadata.image import (
    ConfigResource,
    MetadataImage,
    PartitionChanges,
    QuotaEntity,
    ShardedMap,
    TopicInfo,
    TopicsImage,
    partition_changes,
    quota_sort_key,
)

K = TypeVar("K")


class KeyChanges(msgspec.Struct, Generic[K], frozen=True, kw_only=True):
    """Sorted keys of one part of the image: only in the new one, only in the old one, with another value."""

    added: tuple[K, ...] = ()
    removed: tuple[K, ...] = ()
    changed: tuple[K, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


class MetadataDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The difference from `old` to `new`. A topic that was deleted and recreated under the same name is in
    both `topics_removed` and `topics_added`: its id differs."""

    old: MetadataImage
    new: MetadataImage
    features: KeyChanges[str]
    zk_migration_state_changed: bool
    brokers: KeyChanges[int]
    controllers: KeyChanges[int]
    topics_added: tuple[TopicInfo, ...]
    topics_removed: tuple[TopicInfo, ...]
    partitions: PartitionChanges
    configs: KeyChanges[ConfigResource]
    quotas: KeyChanges[QuotaEntity]
    producer_ids_changed: bool
    acls: KeyChanges[bytes]
    scram: KeyChanges[tuple[int, str]]
    delegation_tokens: KeyChanges[str]

    @property
    def is_empty(self) -> bool:
        """True if only the provenance changed."""
        keyed = (
            *(self.features, self.brokers, self.controllers, self.partitions, self.configs),
            *(self.quotas, self.acls, self.scram, self.delegation_tokens),
        )
        return all(part.is_empty for part in keyed) and not (
            self.topics_added
            or self.topics_removed
            or self.zk_migration_state_changed
            or self.producer_ids_changed
        )


def diff(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """The changes from `old` to `new`; the two need not be related."""
    added, removed = _topic_changes(old.topics, new.topics)
    return MetadataDelta(
        old=old,
        new=new,
        features=_of_dicts(old.features.finalized, new.features.finalized),
        zk_migration_state_changed=old.features.zk_migration_state != new.features.zk_migration_state,
        brokers=_of_dicts(dict(old.brokers.items()), dict(new.brokers.items()))
        if old.brokers is not new.brokers
        else KeyChanges(),
        controllers=_of_dicts(old.controllers, new.controllers),
        topics_added=added,
        topics_removed=removed,
        partitions=partition_changes(old.topics, new.topics),
        configs=_of_maps(old.configs, new.configs),
        quotas=_of_maps(old.quotas, new.quotas, quota_sort_key),
        producer_ids_changed=old.producer_ids != new.producer_ids,
        acls=_of_maps(old.acls, new.acls),
        scram=_of_maps(old.scram, new.scram),
        delegation_tokens=_of_maps(old.delegation_tokens, new.delegation_tokens),
    )


def _of_dicts(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> KeyChanges[Any]:
    if old is new:
        return KeyChanges()
    return KeyChanges(
        added=tuple(sorted(key for key in new if key not in old)),
        removed=tuple(sorted(key for key in old if key not in new)),
        changed=tuple(sorted(key for key in new if key in old and old[key] != new[key])),
    )


def _of_maps(old: ShardedMap[Any, Any], new: ShardedMap[Any, Any], key: Any = None) -> KeyChanges[Any]:
    if old is new:
        return KeyChanges()
    added, removed, changed = [], [], []
    for name in sorted(set(old.changed_keys(new)), key=key):
        if name not in old:
            added.append(name)
        elif name not in new:
            removed.append(name)
        else:
            changed.append(name)
    return KeyChanges(added=tuple(added), removed=tuple(removed), changed=tuple(changed))


def _topic_changes(old: TopicsImage, new: TopicsImage) -> tuple[tuple[TopicInfo, ...], tuple[TopicInfo, ...]]:
    if old.by_name is new.by_name:
        return (), ()
    added, removed = [], []
    for name in sorted(set(old.by_name.changed_keys(new.by_name))):
        before, after = old.topic_named(name), new.topic_named(name)
        if before is not None:
            removed.append(before)
        if after is not None:
            added.append(after)
    return tuple(added), tuple(removed)
