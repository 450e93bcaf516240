"""Ids for log directories that were formatted before Kafka 3.7 and have none (KIP-858).

Owns the writing of a missing `directory.id` before a node opens its directories, as Kafka does since 3.7.
Other problems of a directory are reported where it is opened. Does not know logs or configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    load_meta_properties,
    store_meta_properties,
)
from metaquorum.storage.uuids import random_uuid, uuid_to_text


def add_missing_ids(
    disk: Disk, own: MetaProperties, paths: Iterable[str], rng: Random, tell: Callable[[str], None]
) -> None:
    """Writes an id drawn from `rng` into each directory of the node and cluster of `own` that has none.
    Does not change a directory that belongs to another node or cluster, is in use, or cannot be read or
    written."""
    for path in paths:
        found = identity_of(disk, path)
        if found is None or found.directory_id is not None:
            continue
        if (found.node_id, found.cluster_id) == (own.node_id, own.cluster_id):
            tell(_add(disk, path, found, random_uuid(rng)))


def identity_of(disk: Disk, path: str) -> MetaProperties | None:
    """The contents of meta.properties; None if it cannot be read."""
    try:
        return load_meta_properties(disk, path)
    except StorageError:
        return None


def _add(disk: Disk, path: str, found: MetaProperties, new_id: bytes) -> str:
    try:
        lock = disk.lock(path)
        try:
            store_meta_properties(
                disk,
                path,
                MetaProperties(cluster_id=found.cluster_id, node_id=found.node_id, directory_id=new_id),
            )
        finally:
            lock.release()
    except StorageError as error:
        return f"{path} has no directory.id, and it cannot be written: {error}"
    return f"{path} was formatted without a directory.id; it is now {uuid_to_text(new_id)}"
