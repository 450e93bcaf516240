"""An image as a tree: nested plain data for JSON, and text with paths for people and tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from metaquorum.metadata.image import (
    Acl,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    FeatureRange,
    MetadataImage,
    NodeEndpoint,
    PartitionInfo,
    QuotaEntity,
    ScramCredential,
    TopicInfo,
    TopicsImage,
    quota_sort_key,
)
from metaquorum.metadata.image.types import RESOURCE_KINDS
from metaquorum.metadata.meanings import quota_entity
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.types import UserScramCredentialRecord
from metaquorum.metadata.secrets import Redacted, secret_fields, setting_shown
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType, protocol_name
from metaquorum.metadata.settings.keys import MAX_INT, whole_number
from metaquorum.storage.uuids import uuid_to_text

Tree = dict[str, Any]

DEFAULT_ENTITY = "<default>"
SCRAM_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def image_tree(image: MetadataImage, *, secrets: bool = False) -> Tree:
    """The image as nested dicts, lists, strings and numbers; uuids in Kafka's text form.

    Keys are in a fixed order: the same image gives the same JSON in every process. SCRAM salts and keys are
    left out, and passwords in settings redacted, unless `secrets` is true.
    """
    provenance = image.provenance
    return {
        "provenance": {
            "offset": provenance.offset,
            "epoch": provenance.epoch,
            "timestampMs": provenance.timestamp_ms,
        },
        "feature": _features(image),
        "broker": _brokers(image),
        "controller": {str(at): controller_tree(image.controllers[at]) for at in sorted(image.controllers)},
        "topic": _topics(image),
        "config": _configs(image, secrets),
        "quota": {
            quota_path(entity): {key: plain_number(quotas[key]) for key in sorted(quotas)}
            for entity, quotas in image.quotas.items_sorted(quota_sort_key)
        },
        "producerIds": {"nextProducerId": image.producer_ids.next_producer_id},
        "acl": {uuid_to_text(at): acl_tree(acl) for at, acl in image.acls.items_sorted()},
        "scram": _scram(image, secrets),
        "delegationToken": {at: plain_tree(token) for at, token in image.delegation_tokens.items_sorted()},
    }


_PART_NAMES = {"producer-ids": "producerIds", "token": "delegationToken"}
"""Parts of the tree whose name differs from the first part of an entity's path."""


def image_branch(image: MetadataImage, path: str, *, secrets: bool = False) -> Any:
    """The branch of the image's tree at a path, without building the rest: one topic of a million is fast.

    Raises KeyError, which names the missing part.
    """
    kind, _, rest = path.strip("/").partition("/")
    name, _, below = rest.partition("/")
    if kind == "topic" and name:
        topic = image.topics.topic_named(name)
        if topic is None:
            raise KeyError(f"{name} (in {path})")
        index = whole_number(below, MAX_INT)
        if index is not None:
            partition = image.topics.partition(topic.topic_id, index)
            if partition is None:
                raise KeyError(f"{below} (in {path})")
            return partition_tree(partition)
        return subtree({name: _topic(image, topic)}, rest)
    broker_id = whole_number(name, MAX_INT)
    if kind == "broker" and broker_id is not None:
        registration = image.brokers.get(broker_id)
        if registration is None:
            raise KeyError(f"{name} (in {path})")
        return subtree(broker_tree(registration), below)
    part = _part(image, _PART_NAMES.get(kind, kind), secrets)
    if part is None:
        raise KeyError(f"{kind} (in {path})")
    return subtree(part, rest)


def _part(image: MetadataImage, kind: str, secrets: bool) -> Tree | None:
    if kind in {"topic", "broker"}:
        return _topics(image) if kind == "topic" else _brokers(image)
    return image_tree(replace(image, topics=TopicsImage()), secrets=secrets).get(kind)


def _brokers(image: MetadataImage) -> Tree:
    return {str(broker_id): broker_tree(at) for broker_id, at in image.brokers.items()}


def _features(image: MetadataImage) -> Tree:
    levels: Tree = dict(sorted(image.features.finalized.items()))
    levels["zkMigrationState"] = image.features.zk_migration_state
    return levels


def broker_tree(registration: BrokerRegistration) -> Tree:
    """One broker's registration as plain data."""
    return {
        "epoch": registration.epoch,
        "incarnationId": uuid_to_text(registration.incarnation_id),
        "fenced": registration.fenced,
        "inControlledShutdown": registration.in_controlled_shutdown,
        "isMigratingZkBroker": registration.is_migrating_zk_broker,
        "rack": registration.rack,
        "endPoints": _endpoints(registration.endpoints),
        "features": _ranges(registration.features),
        "logDirs": [uuid_to_text(directory) for directory in registration.directories],
    }


def controller_tree(registration: ControllerRegistration) -> Tree:
    """One controller's registration as plain data."""
    return {
        "incarnationId": uuid_to_text(registration.incarnation_id),
        "zkMigrationReady": registration.zk_migration_ready,
        "endPoints": _endpoints(registration.endpoints),
        "features": _ranges(registration.features),
    }


def _endpoints(listed: tuple[NodeEndpoint, ...]) -> Tree:
    return {
        at.name: {"host": at.host, "port": at.port, "securityProtocol": at.security_protocol} for at in listed
    }


def _ranges(listed: tuple[FeatureRange, ...]) -> Tree:
    return {at.name: [at.min_supported_version, at.max_supported_version] for at in listed}


def _topics(image: MetadataImage) -> Tree:
    return {topic.name: _topic(image, topic) for topic in image.topics.all()}


def _topic(image: MetadataImage, topic: TopicInfo) -> Tree:
    return {
        "topicId": uuid_to_text(topic.topic_id),
        "partitions": {
            str(partition.index): partition_tree(partition)
            for partition in image.topics.partitions_of(topic.topic_id)
        },
    }


_directory_text = lru_cache(maxsize=4_096)(uuid_to_text)
"""Each broker has few directories, and many partitions name them."""


def partition_tree(partition: PartitionInfo) -> Tree:
    """One partition as plain data; lists that are nearly always empty are included only if they are not."""
    tree: Tree = {
        "leader": partition.leader,
        "leaderEpoch": partition.leader_epoch,
        "partitionEpoch": partition.partition_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "directories": list(map(_directory_text, partition.directories)),
    }
    if partition.leader_recovery_state:
        tree["leaderRecoveryState"] = partition.leader_recovery_state
    rare = {
        "removingReplicas": partition.removing,
        "addingReplicas": partition.adding,
        "eligibleLeaderReplicas": partition.elr,
        "lastKnownElr": partition.last_known_elr,
    }
    tree.update((name, list(listed)) for name, listed in rare.items() if listed)
    return tree


def config_kind(resource: ConfigResource) -> str:
    """The name of a config resource's type in paths; a number for unknown types."""
    return RESOURCE_KINDS.get(resource.resource_type, f"type-{resource.resource_type}")


def _configs(image: MetadataImage, secrets: bool) -> Tree:
    tree: Tree = {}
    for resource, entries in image.configs.items_sorted():
        kind = tree.setdefault(config_kind(resource), {})
        kind[resource.name or DEFAULT_ENTITY] = {
            key: entries[key] if secrets else setting_shown(key, entries[key]) for key in sorted(entries)
        }
    return tree


def plain_number(value: float) -> int | float:
    """A quota's value as people write it: 2097152, not 2097152.0 or 2.09715e+06."""
    return int(value) if float(value).is_integer() else value


def quota_path(entity: QuotaEntity) -> str:
    """An entity as text, such as `user=alice,client-id=<default>`."""
    return ",".join(f"{kind}={DEFAULT_ENTITY if name is None else name}" for kind, name in entity)


def _scram(image: MetadataImage, secrets: bool) -> Tree:
    tree: Tree = {}
    for (mechanism, user), credential in image.scram.items_sorted():
        shown = scram_tree(credential)
        shown = {
            key: value.secret if isinstance(value, Redacted) else value
            for key, value in shown.items()
            if secrets or not isinstance(value, Redacted)
        }
        tree.setdefault(SCRAM_MECHANISMS.get(mechanism, str(mechanism)), {})[user] = shown
    return tree


def scram_tree(credential: ScramCredential) -> Tree:
    """A credential as plain data, bytes as hex; what the record's schema marks as secret is `Redacted`."""
    hidden = secret_fields(UserScramCredentialRecord)
    return {
        _camel(name): Redacted(value.hex() if isinstance(value, bytes) else str(value))
        if name in hidden
        else value
        for name in ("iterations", "salt", "stored_key", "server_key")
        for value in (getattr(credential, name),)
    }


def acl_tree(acl: Acl) -> Tree:
    """An access control entry with the protocol's words for its numbers."""
    return {
        "resourceType": protocol_name(ResourceType, acl.resource_type),
        "resourceName": acl.resource_name,
        "patternType": protocol_name(PatternType, acl.pattern_type),
        "principal": acl.principal,
        "host": acl.host,
        "operation": protocol_name(Operation, acl.operation),
        "permissionType": protocol_name(Permission, acl.permission_type),
    }


def plain_tree(struct: Any) -> Tree:
    """A value of the image (an ACL, a token) as plain data, its fields under their names in camelCase."""
    return {
        _camel(name): list(value) if isinstance(value, tuple) else value
        for name in struct.__struct_fields__
        for value in (getattr(struct, name),)
    }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def render_tree(tree: Tree, *, prefix: str = "") -> str:
    """Text with one line per leaf, `path: value`, and one line for each empty branch."""
    lines: list[str] = []
    _render(prefix.rstrip("/"), tree, lines)
    return "\n".join(lines)


def _render(path: str, node: Any, lines: list[str]) -> None:
    if isinstance(node, dict) and node:
        if all(not isinstance(child, dict) for child in node.values()):
            lines.append(f"{path}: " + " ".join(f"{key}={_text(child)}" for key, child in node.items()))
            return
        for key, child in node.items():
            below = "" if key == "partitions" else key
            _render(f"{path}/{below}".rstrip("/") if path else below, child, lines)
        return
    if not isinstance(node, dict):
        lines.append(f"{path}: {_text(node)}")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    return str(value)


def subtree(tree: Tree, path: str) -> Any:
    """The branch at a path such as `topic/orders/7`. Raises KeyError, which names the missing part."""
    node: Any = tree
    for part in filter(None, path.split("/")):
        if isinstance(node, dict) and part not in node and part in node.get("partitions", {}):
            node = node["partitions"]
        if not isinstance(node, dict) or part not in node:
            raise KeyError(f"{part} (in {path})")
        node = node[part]
    return node


# An image as JSON in pieces: the text of the tree of `tree.image_tree`, without building it whole.
# Memory is that of one piece.

Encoder = Callable[[Any], str]
"""Compact JSON of plain data."""

_ROWS_AT_ONCE = 4096


def image_json(image: MetadataImage, encode: Encoder, *, secrets: bool = False) -> Iterator[str]:
    """`encode(image_tree(image))` in pieces."""
    separator = "{"
    for name, part in image_tree(replace(image, topics=TopicsImage()), secrets=secrets).items():
        yield f"{separator}{encode(name)}:"
        separator = ","
        if name == "topic":
            yield from topics_json(image, encode)
        else:
            yield encode(part)
    yield "}"


def topics_json(image: MetadataImage, encode: Encoder) -> Iterator[str]:
    """The same for the branch of all topics."""
    separator = "{"
    for topic in image.topics.all():
        yield f"{separator}{encode(topic.name)}:"
        separator = ","
        yield from _topic_json(image.topics, topic, encode)
    yield "}" if separator == "," else "{}"


def _topic_json(topics: TopicsImage, topic: TopicInfo, encode: Encoder) -> Iterator[str]:
    yield f'{{"topicId":{encode(uuid_to_text(topic.topic_id))},"partitions":{{'
    rows = topics.rows_of(topic.topic_id)
    separator = ""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        made = []
        for row in rows[start : start + _ROWS_AT_ONCE].tolist():
            partition = topics.at(row)
            made.append(f'"{partition.index}":{encode(partition_tree(partition))}')
        yield separator + ",".join(made)
        separator = ","
    yield "}}"


# Settings, quotas, ACLs and credentials in words.


def quota_who(record: r.ClientQuotaRecord) -> str:
    """The whole entity: `client-id=app,user=alice`, `user=<default>`."""
    return quota_path(quota_entity(record))


def quota_text(record: r.ClientQuotaRecord) -> str:
    """`client-id=app,user=alice: producer_byte_rate=2097152`."""
    what = f"{record.key} removed" if record.remove else f"{record.key}={plain_number(record.value)}"
    return f"{quota_who(record)}: {what}"


def acl_text(acl: r.AccessControlEntryRecord | Acl) -> str:
    """`ALLOW READ on TOPIC orders (LITERAL) to User:alice from host *`."""
    what = f"{protocol_name(Permission, acl.permission_type)} {protocol_name(Operation, acl.operation)}"
    pattern = f"{acl.resource_name} ({protocol_name(PatternType, acl.pattern_type)})"
    where = f"{protocol_name(ResourceType, acl.resource_type)} {pattern}"
    return f"{what} on {where} to {acl.principal} from host {acl.host}"


def scram_text(record: r.UserScramCredentialRecord | r.RemoveUserScramCredentialRecord) -> str:
    """`alice: SCRAM-SHA-256`."""
    return f"{record.name}: {SCRAM_MECHANISMS.get(record.mechanism, record.mechanism)}"
