"""The names that an expression about an image may use, and their values."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.types import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    PartitionInfo,
    TopicInfo,
)
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.invariants import Violation, check_image

SAFE_BUILTINS = (
    *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "frozenset", "hex"),
    *("int", "isinstance", "len", "list", "map", "max", "min", "range", "repr", "reversed", "round", "set"),
    *("sorted", "str", "sum", "tuple", "zip"),
)
"""Builtins that only compute."""

IMAGE_RULES = (
    *("topic-name-id-bijection", "rows-match-index", "replica-counts", "partition-indexes-dense"),
    *("partition-has-replicas", "replicas-distinct", "isr-distinct", "isr-within-replicas", "isr-not-empty"),
    *("leader-in-isr", "directories-parallel", "epochs-not-negative", "reassignment-within-replicas"),
    *("elr-outside-isr", "leader-active", "isr-active", "replicas-registered"),
    *("broker-registered-as-itself", "directories-distinct", "directories-not-reserved", "config-of-topic"),
    "feature-supported",
)


HELPERS: dict[str, str] = {
    "image": "the whole image",
    "offset": "the offset of the next record: everything before it is in the image",
    "epoch": "the leader epoch of the last record",
    "time_ms": "the time of the last batch, Unix ms",
    "quorum": "the quorum according to the control records: leader_id, epoch, voters",
    "metadata_version": "the level of metadata.version",
    "brokers": "all registrations, by id",
    "broker": "broker(3): a registration: fenced, in_controlled_shutdown, epoch, rack, directories",
    "controller": "controller(3000): a registration",
    "topics": "the names of all topics",
    "topic": "topic('orders'): its name and topic_id",
    "partitions": "partitions('orders') or partitions(): the partitions of one topic or of all",
    "partition": "partition('orders', 7): leader, isr, replicas, leader_epoch, partition_epoch, adding, ...",
    "leaderless": "leaderless(): the number of partitions without a leader",
    "config": "config('topic/orders', 'retention.ms') or config('broker/', ...): a value, None if not set",
    "feature": "feature('metadata.version'): a level, 0 if it has none",
    "violations": "violations('leader-active') or violations(): broken invariants of the image",
}
"""The names that an expression may use, with a line for the help."""


class AbsentEntity(Exception):
    """An expression referred to an entity that does not exist at this offset."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What an expression is evaluated on."""

    image: MetadataImage
    quorum: QuorumView = msgspec.field(default_factory=QuorumView)


class NameMistake(Exception):
    """Raised by a helper that was called wrongly; the text is the whole message."""


T = TypeVar("T")


def _there(value: T | None) -> T:
    if value is None:
        raise AbsentEntity
    return value


def _topic(image: MetadataImage, name: str) -> TopicInfo:
    return _there(image.topics.topic_named(name))


def _broker_of(image: MetadataImage) -> Callable[[int], BrokerRegistration]:
    return lambda broker_id: _there(image.brokers.get(broker_id))


def _controller_of(image: MetadataImage) -> Callable[[int], ControllerRegistration]:
    return lambda controller_id: _there(image.controllers.get(controller_id))


def _partition_of(image: MetadataImage) -> Callable[[str, int], PartitionInfo]:
    def partition(name: str, index: int) -> PartitionInfo:
        if not isinstance(index, int):
            raise NameMistake(f"partition({name!r}, {index!r}): the second argument is a number")
        return _there(image.topics.partition(_topic(image, name).topic_id, index))

    return partition


def _partitions_of(image: MetadataImage) -> Callable[..., list[PartitionInfo]]:
    def partitions(name: str | None = None) -> list[PartitionInfo]:
        which = image.topics.all() if name is None else [_topic(image, name)]
        return [info for one in which for info in image.topics.partitions_of(one.topic_id)]

    return partitions


def _violations_of(image: MetadataImage) -> Callable[..., list[Violation]]:
    def violations(rule: str | None = None) -> list[Violation]:
        if rule is not None and rule not in IMAGE_RULES:
            close = difflib.get_close_matches(str(rule), IMAGE_RULES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(IMAGE_RULES)}"
            raise NameMistake(f"violations({rule!r}): no such rule; {hint}")
        return [found for found in check_image(image) if rule is None or found.rule == rule]

    return violations


def _config_of(image: MetadataImage) -> Callable[[str, str], str | None]:
    kinds = {"topic": TOPIC_RESOURCE, "broker": BROKER_RESOURCE}

    def config(resource: str, key: str) -> str | None:
        kind, slash, name = resource.partition("/")
        if kind not in kinds or not slash:
            raise NameMistake(f"config({resource!r}, ...): write topic/NAME, broker/ID, or broker/ for all")
        return (image.configs.get(ConfigResource(kinds[kind], name)) or {}).get(key)

    return config


class _Brokers(dict[int, BrokerRegistration]):
    """All registrations; a missing one makes the expression undefined, as `broker(3)` does."""

    def __missing__(self, broker_id: object) -> BrokerRegistration:
        raise AbsentEntity


class _TopicNames:
    """The names of all topics: `'orders' in topics`, `len(topics)`, `for name in topics`."""

    def __init__(self, image: MetadataImage) -> None:
        self._topics = image.topics

    def __contains__(self, name: object) -> bool:
        return name in self._topics.by_name

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Any:
        return iter([topic.name for topic in self._topics.all()])


RESOLVERS: dict[str, Callable[[Subject], Any]] = {
    "image": lambda place: place.image,
    "quorum": lambda place: place.quorum,
    "metadata_version": lambda place: place.image.features.metadata_version,
    "brokers": lambda place: _Brokers(place.image.brokers.items()),
    "broker": lambda place: _broker_of(place.image),
    "controller": lambda place: _controller_of(place.image),
    "topics": lambda place: _TopicNames(place.image),
    "topic": lambda place: lambda name: _topic(place.image, name),
    "partitions": lambda place: _partitions_of(place.image),
    "partition": lambda place: _partition_of(place.image),
    "config": lambda place: _config_of(place.image),
    "feature": lambda place: place.image.features.level,
    "violations": lambda place: _violations_of(place.image),
}
