"""Entities of an image as flat fields, by path: what `diff` compares, `history` follows and tables list.

Canonical paths, one for each thing that an image holds:

    broker/3  controller/3000  topic/orders  topic/orders/7  config/topic/orders  quota/user=alice
    scram/SCRAM-SHA-256/alice  acl/<id>  token/<id>  feature/<name>  producer-ids  migration  quorum
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from metaquorum.metadata.delta import MetadataDelta
from metaquorum.metadata.image import ConfigResource, MetadataImage, QuotaEntity, quota_sort_key
from metaquorum.metadata.inspect.log.entities import is_below, own_entity
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.meanings import quota_entity, with_elr
from metaquorum.metadata.records import types as r
from metaquorum.metadata.secrets import setting_shown
from metaquorum.metadata.text.tree import (
    DEFAULT_ENTITY,
    SCRAM_MECHANISMS,
    acl_tree,
    broker_tree,
    config_kind,
    controller_tree,
    partition_tree,
    plain_number,
    plain_tree,
    quota_path,
    scram_tree,
)
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

Fields = dict[str, Any]
"""Field names and plain values (numbers, texts, lists, small dicts), as in JSON."""

NO_QUORUM = QuorumView()
_RESOURCE_TYPES = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
_QUOTA_PARTS = re.compile(",(?=(?:user|client-id|ip)=)")
"""A user's name may contain commas and equal signs, like names in certificates."""
_MECHANISMS = {name: number for number, name in SCRAM_MECHANISMS.items()}


def aliases(path: str) -> tuple[str, ...]:
    """Every name of an entity, the canonical one first: a topic's configuration is also part of the topic, a
    quota and a SCRAM credential are part of their user."""
    kind, _, rest = path.partition("/")
    if kind == "config":
        return path, rest
    if kind == "quota":
        parts = (part.partition("=") for part in _QUOTA_PARTS.split(rest))
        return path, *(f"{name}/{value}" for name, _, value in parts)
    if kind == "scram":
        return path, f"user/{rest.partition('/')[2]}"
    return (path,)


class Wanted(msgspec.Struct, frozen=True):
    """What a user asked for: everything, everything at and below a path, or one field of the entity at a
    path. `config/topic/orders/retention.ms` is one field of the entity `config/topic/orders`."""

    path: str | None = None
    field: str | None = None

    def has(self, entity: str) -> bool:
        """Whether an entity (by its canonical path) is wanted, whole or in part."""
        if self.path is None:
            return True
        if self.field is not None:
            return entity == self.path
        if any(is_below(name, self.path) for name in aliases(entity)):
            return True
        return self.key_of(entity) is not None

    @property
    def has_partitions(self) -> bool:
        """Whether a topic or one of its partitions may be wanted."""
        return self.path is None or self.path.partition("/")[0] == "topic"

    def cut(self, entity: str, fields: Fields | None) -> Fields | None:
        """The wanted fields of an entity; None if it has none of them."""
        field = None if fields is None else self.field or self.key_of(entity)
        if fields is None or field is None:
            return fields
        return {field: fields[field]} if field in fields else None

    def key_of(self, entity: str) -> str | None:
        """The one key of a resource (by its canonical path) that was asked for; None if all were."""
        if self.path is not None and self.path.startswith("config/") and entity.startswith("config/"):
            above, _, field = self.path.rpartition("/")
            if above == entity:
                return field
        return None


EVERYTHING = Wanted()


def resolved(path: str, image: MetadataImage) -> str:
    """The path with a topic's id replaced by its name, if the image has it."""
    kind, _, rest = path.partition("/")
    if kind != "topic" or not rest:
        return path
    name, slash, index = rest.partition("/")
    try:
        topic = image.topics.topic(uuid_from_text(name))
    except ValueError:
        return path
    return path if topic is None else f"topic/{topic.name}{slash}{index}"


def fields_of(image: MetadataImage, path: str, quorum: QuorumView = NO_QUORUM) -> Fields | None:
    """The fields of one entity by its canonical path; None where the image has no such entity."""
    kind, _, rest = path.partition("/")
    reader = _READERS.get(kind)
    if reader is not None:
        try:
            return reader(image, rest)
        except ValueError:  # text that is not a number or id matches nothing
            return None
    if kind == "quorum":
        return quorum.tree() if quorum.is_known else None
    return None


def _broker(image: MetadataImage, rest: str) -> Fields | None:
    found = image.brokers.get(int(rest))
    return None if found is None else broker_tree(found)


def _controller(image: MetadataImage, rest: str) -> Fields | None:
    found = image.controllers.get(int(rest))
    return None if found is None else controller_tree(found)


def _topic(image: MetadataImage, rest: str) -> Fields | None:
    name, _, index = rest.partition("/")
    topic = image.topics.topic_named(name)
    if topic is None:
        return None
    if not index:
        return {"topicId": uuid_to_text(topic.topic_id)}
    partition = image.topics.partition(topic.topic_id, int(index))
    return None if partition is None else partition_tree(partition)


def _config(image: MetadataImage, rest: str) -> Fields | None:
    kind, _, name = rest.partition("/")
    number = _RESOURCE_TYPES.get(kind)
    if number is None:
        number = int(kind.removeprefix("type-"))
    entries = image.configs.get(ConfigResource(number, "" if name == DEFAULT_ENTITY else name))
    return {key: setting_shown(key, entries[key]) for key in sorted(entries)} if entries else None


def _quota(image: MetadataImage, rest: str) -> Fields | None:
    entity: list[tuple[str, str | None]] = []
    for part in _QUOTA_PARTS.split(rest):
        kind, _, name = part.partition("=")
        entity.append((kind, None if name == DEFAULT_ENTITY else name))
    quotas = image.quotas.get(tuple(entity))
    return {key: plain_number(quotas[key]) for key in sorted(quotas)} if quotas else None


def _scram(image: MetadataImage, rest: str) -> Fields | None:
    mechanism, _, user = rest.partition("/")
    number = _MECHANISMS.get(mechanism)
    found = image.scram.get((int(mechanism) if number is None else number, user))
    return None if found is None else scram_tree(found)


def _acl(image: MetadataImage, rest: str) -> Fields | None:
    found = image.acls.get(uuid_from_text(rest))
    return None if found is None else acl_tree(found)


def _token(image: MetadataImage, rest: str) -> Fields | None:
    found = image.delegation_tokens.get(rest)
    return None if found is None else plain_tree(found)


def _feature(image: MetadataImage, rest: str) -> Fields | None:
    level = image.features.finalized.get(rest)
    return None if level is None else {"level": level}


def _producer_ids(image: MetadataImage, rest: str) -> Fields | None:
    following = image.producer_ids.next_producer_id
    return None if following < 0 or rest else {"nextProducerId": following}


def _migration(image: MetadataImage, rest: str) -> Fields | None:
    state = image.features.zk_migration_state
    return None if state == 0 or rest else {"zkMigrationState": state}


_READERS: dict[str, Callable[[MetadataImage, str], Fields | None]] = {
    "feature": _feature,
    "migration": _migration,
    "broker": _broker,
    "controller": _controller,
    "topic": _topic,
    "config": _config,
    "quota": _quota,
    "scram": _scram,
    "producer-ids": _producer_ids,
    "acl": _acl,
    "token": _token,
}


def entities_of(
    image: MetadataImage, quorum: QuorumView = NO_QUORUM, *, with_topics: bool = True
) -> Iterator[str]:
    """Canonical paths of everything that an image holds, in a fixed order."""
    if quorum.is_known:
        yield "quorum"
    yield from (f"feature/{name}" for name in sorted(image.features.finalized))
    if image.features.zk_migration_state:
        yield "migration"
    yield from (f"broker/{at}" for at in sorted(at for at, _ in image.brokers.items()))
    yield from (f"controller/{at}" for at in sorted(image.controllers))
    for topic in image.topics.all() if with_topics else ():
        yield f"topic/{topic.name}"
        for partition in image.topics.partitions_of(topic.topic_id):
            yield f"topic/{topic.name}/{partition.index}"
    yield from (config_path(resource) for resource, _ in image.configs.items_sorted())
    yield from (_quota_name(entity) for entity, _ in image.quotas.items_sorted(quota_sort_key))
    if image.producer_ids.next_producer_id >= 0:
        yield "producer-ids"
    yield from (f"acl/{uuid_to_text(at)}" for at, _ in image.acls.items_sorted())
    yield from (scram_path(*key) for key, _ in image.scram.items_sorted())
    yield from (f"token/{at}" for at, _ in image.delegation_tokens.items_sorted())


def entities_below(
    image: MetadataImage, wanted: Wanted, quorum: QuorumView = NO_QUORUM
) -> Iterator[tuple[str, Fields]]:
    """Wanted entities of an image with their (wanted) fields, in a fixed order."""
    for path in _candidates(image, wanted, quorum):
        if wanted.has(path):
            fields = wanted.cut(path, fields_of(image, path, quorum))
            if fields is not None:
                yield path, fields


def _candidates(image: MetadataImage, wanted: Wanted, quorum: QuorumView) -> Iterable[str]:
    """A short list if the path names one entity, so that one partition of a million is found at once."""
    if wanted.path is None:
        return entities_of(image, quorum)
    kind, _, rest = wanted.path.partition("/")
    if kind == "topic" and rest:
        name, _, index = rest.partition("/")
        topic = image.topics.topic_named(name)
        if topic is None:
            return ()
        if index:
            return (wanted.path,)
        partitions = image.topics.partitions_of(topic.topic_id)
        return (
            f"topic/{name}",
            *(f"topic/{name}/{at.index}" for at in partitions),
            f"config/topic/{name}",
        )
    if rest and kind in ("controller", "feature", "acl", "token", "quota"):
        return (wanted.path,)
    if kind == "broker" and rest:
        return (wanted.path, f"config/{wanted.path}")
    return entities_of(image, quorum)


def config_path(resource: ConfigResource) -> str:
    """`config/topic/orders`; the configuration of all brokers is `config/broker/<default>`."""
    return f"config/{config_kind(resource)}/{resource.name or DEFAULT_ENTITY}"


def scram_path(mechanism: int, user: str) -> str:
    """`scram/SCRAM-SHA-256/alice`."""
    return f"scram/{SCRAM_MECHANISMS.get(mechanism, mechanism)}/{user}"


def _quota_name(entity: QuotaEntity) -> str:
    return f"quota/{quota_path(entity)}"


def changed_paths(delta: MetadataDelta) -> Iterator[str]:
    """Canonical paths of what differs between the two images of a delta; may repeat."""
    for part, kind in (
        (delta.features, "feature"),
        (delta.brokers, "broker"),
        (delta.controllers, "controller"),
    ):
        yield from (f"{kind}/{key}" for key in (*part.removed, *part.changed, *part.added))
    if delta.zk_migration_state_changed:
        yield "migration"
    if delta.producer_ids_changed:
        yield "producer-ids"
    yield from (f"topic/{topic.name}" for topic in (*delta.topics_removed, *delta.topics_added))
    for image, keys in (
        (delta.old, (*delta.partitions.removed, *delta.partitions.changed)),
        (delta.new, delta.partitions.added),
    ):
        for topic_id, index in keys:
            topic = image.topics.topic(topic_id)
            if topic is not None:
                yield f"topic/{topic.name}/{index}"
    yield from _changed_others(delta)


def _changed_others(delta: MetadataDelta) -> Iterator[str]:
    configs, quotas, acls = delta.configs, delta.quotas, delta.acls
    yield from (config_path(key) for key in (*configs.removed, *configs.changed, *configs.added))
    yield from (_quota_name(key) for key in (*quotas.removed, *quotas.changed, *quotas.added))
    yield from (f"acl/{uuid_to_text(key)}" for key in (*acls.removed, *acls.changed, *acls.added))
    yield from (scram_path(*key) for key in (*delta.scram.removed, *delta.scram.changed, *delta.scram.added))
    tokens = delta.delegation_tokens
    yield from (f"token/{key}" for key in (*tokens.removed, *tokens.changed, *tokens.added))


def touched(record: object, before: MetadataImage, after: MetadataImage) -> tuple[str, ...]:
    """Canonical paths of the entities that a record may have changed. For a topic's removal, the topic alone
    represents its partitions and configuration (see `falls_with`). `before` and `after` are the newest images
    around its batch; they have the topics' names."""
    match record:
        case (
            r.PartitionChangeRecord(topic_id=topic_id, partition_id=index)
            | r.PartitionRecord(topic_id=topic_id, partition_id=index)
        ):
            name = _topic_name(topic_id, before, after)
            return () if name is None else (f"topic/{name}/{index}",)
        case r.TopicRecord(name=name):
            return (f"topic/{name}",)
        case r.RemoveTopicRecord(topic_id=topic_id):
            name = _topic_name(topic_id, before, after)
            return () if name is None else (f"topic/{name}",)
        case r.ClearElrRecord(topic_name=name):
            cleared = with_elr(before.topics, name)
            names = [(_topic_name(at.topic_id, before, after), at.index) for at in cleared]
            return tuple(f"topic/{at}/{index}" for at, index in names) or ((f"topic/{name}",) if name else ())
        case r.ConfigRecord():
            return (config_path(ConfigResource(record.resource_type, record.resource_name)),)
        case r.ClientQuotaRecord():
            return (_quota_name(quota_entity(record)),)
        case r.UserScramCredentialRecord() | r.RemoveUserScramCredentialRecord():
            return (scram_path(record.mechanism, record.name),)
    return own_entity(record)


def _topic_name(topic_id: bytes, before: MetadataImage, after: MetadataImage) -> str | None:
    topic = after.topics.topic(topic_id) or before.topics.topic(topic_id)
    return None if topic is None else topic.name


def falls_with(record: object, topic_path: str, images: Iterable[MetadataImage]) -> Iterator[str]:
    """For a topic's removal: the paths of its partitions and configuration."""
    if not isinstance(record, r.RemoveTopicRecord):
        return
    name = topic_path.partition("/")[2]
    yield f"config/topic/{name}"
    for image in images:
        for partition in image.topics.partitions_of(record.topic_id):
            yield f"{topic_path}/{partition.index}"
