"""Which attributes an expression about an image may use, so that it reads values and nothing else.

An attribute is refused by name before the expression runs: the names of everything that writes, reaches the
columns below an image, or belongs to code instead of data. Any other name is read, or is an error at run
time.
"""

from __future__ import annotations

from types import CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType

import numpy as np

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.chunk import Chunk
from metaquorum.metadata.image.columns import PartitionColumns
from metaquorum.metadata.image.image import BrokersImage, FeaturesImage
from metaquorum.metadata.image.maps import ShardedMap
from metaquorum.metadata.image.topics import TopicsImage
from metaquorum.metadata.image.types import (
    BrokerRegistration,
    ControllerRegistration,
    PartitionInfo,
    ProducerIds,
    Provenance,
    TopicInfo,
)
from metaquorum.metadata.inspect.checks.bounds import GROWING_METHODS
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.invariants import Violation

_READ = (
    *(MetadataImage, TopicsImage, BrokersImage, FeaturesImage, ShardedMap, ProducerIds, Provenance),
    *(BrokerRegistration, ControllerRegistration, PartitionInfo, TopicInfo, QuorumView, Violation),
    *(str, bytes, int, float, tuple, frozenset, range),
)
"""Types that expressions are about: their attributes may be read."""

_NOT_READ = (
    *(np.ndarray, np.dtype, np.generic, memoryview, bytearray, dict, list, set),
    *(PartitionColumns, Chunk, type, ModuleType, FunctionType, MethodType),
    *(GeneratorType, CodeType, FrameType),
)
"""Types below these, or met on the way. Only names that the others or `_OF_DICTS` also have can be read."""

_OF_DICTS = frozenset({"get", "items", "keys", "values"})
_INTERNAL = frozenset(
    {
        *("columns", "builder", "with_provenance", "shared", "by_id", "by_name", "by_slot", "next_slot"),
        *("row_of", "rows_of", "rows_led_by", "rows_with_isr", "rows_with_replica", "rows_without_leader"),
        *("at", "key_at", "keys_at", "replica_counts"),
    }
)
"""Attributes of the image that return or take rows of its columns."""


def _names(types: tuple[type, ...]) -> frozenset[str]:
    return frozenset(name for each in types for name in dir(each) if not name.startswith("_"))


REFUSED = (_names(_NOT_READ) - _names(_READ) - _OF_DICTS) | _INTERNAL | GROWING_METHODS


def is_refused(name: str) -> bool:
    """Whether expressions may not use an attribute of this name."""
    return name.startswith("_") or name in REFUSED
