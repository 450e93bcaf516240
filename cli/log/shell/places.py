"""An image as a tree of directories: what `ls` lists and where `cd` can go.

Paths are those of `metadata.inspect.entities.views`, below a root.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from metaquorum.metadata.image import MetadataImage, quota_sort_key
from metaquorum.metadata.inspect.entities.diff import sort_key
from metaquorum.metadata.inspect.entities.views import Fields, config_path, fields_of, scram_path
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.text.tree import quota_path
from metaquorum.storage.uuids import uuid_to_text

KINDS = (
    "quorum",
    "feature",
    "broker",
    "controller",
    "topic",
    "config",
    "quota",
    "producer-ids",
    "acl",
    "scram",
    "token",
    "migration",
)


class Places(msgspec.Struct, frozen=True):
    """The tree of one image. The root is the empty path."""

    image: MetadataImage
    quorum: QuorumView

    def fields(self, path: str) -> Fields | None:
        """The fields of the entity at `path`. None: not an entity, but maybe a directory."""
        return fields_of(self.image, path, self.quorum) if path else None

    def children(self, path: str) -> list[str]:
        """The sorted names below `path`; empty if there are none or no such path."""
        kind, _, rest = path.partition("/")
        if not kind:
            return [one for one in KINDS if self.children(one) or self.fields(one) is not None]
        if kind == "topic":
            return self._topic_children(rest)
        if kind in ("config", "scram"):
            known = (one.removeprefix(f"{path}/") for one in self._flat(kind) if one.startswith(f"{path}/"))
            nested = kind == rest or not rest
            return _ordered({one.partition("/")[0] if nested else one for one in known})
        return [] if rest else self._names(kind)

    def exists(self, path: str) -> bool:
        """Whether there is an entity or a directory."""
        return not path or self.fields(path) is not None or bool(self.children(path))

    def _topic_children(self, rest: str) -> list[str]:
        if not rest:
            return [topic.name for topic in self.image.topics.all()]
        topic = self.image.topics.topic_named(rest)
        if topic is None:
            return []
        return [str(partition.index) for partition in self.image.topics.partitions_of(topic.topic_id)]

    def _names(self, kind: str) -> list[str]:
        image = self.image
        match kind:
            case "feature":
                return sorted(image.features.finalized)
            case "broker":
                return _ordered(str(at) for at, _ in image.brokers.items())
            case "controller":
                return _ordered(str(at) for at in image.controllers)
            case "quota":
                return [quota_path(entity) for entity, _ in image.quotas.items_sorted(quota_sort_key)]
            case "acl":
                return [uuid_to_text(at) for at, _ in image.acls.items_sorted()]
            case "token":
                return [at for at, _ in image.delegation_tokens.items_sorted()]
        return []

    def _flat(self, kind: str) -> Iterable[str]:
        if kind == "config":
            return (config_path(resource) for resource, _ in self.image.configs.items_sorted())
        return (scram_path(*key) for key, _ in self.image.scram.items_sorted())


def _ordered(names: Iterable[str]) -> list[str]:
    return sorted(names, key=sort_key)


def resolve(here: str, text: str) -> str:
    """The path that `text` means from `here`: absolute if it starts with a slash; `..` is
    the parent, as in any shell."""
    parts = [] if text.startswith("/") else [part for part in here.split("/") if part]
    for part in text.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
