"""Many new partitions of a topic at once, in columns.

Owns the column form of new partitions that are in sync from the start. Must not differ from `new_partitions`,
which defines a single one and makes all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metaquorum.metadata.columnar.bulk import NewPartitionRows
from metaquorum.metadata.columnar.encode import LONGEST_LIST
from metaquorum.metadata.columnar.rows import NewRows, topic_words

MIN_PARTITIONS = 24
"""Fewer are faster one by one."""


def new_partitions(
    topic_id: bytes,
    first_index: int,
    lists: Sequence[tuple[int, ...]],
    active: frozenset[int],
    directory_of: Callable[[int], bytes],
    names_directories: bool,
) -> NewPartitionRows | None:
    """Partitions from `first_index` on with these replicas, the first of which leads. None if there are too
    few, the lists differ in length, or a replica is not active, so that not all are in sync from the
    start."""
    width = len(lists[0]) if lists else 0
    if len(lists) < MIN_PARTITIONS or not 0 < width <= LONGEST_LIST:
        return None
    if any(len(replicas) != width for replicas in lists):
        return None
    replicas = np.array(lists, dtype=np.int32)
    brokers, place = np.unique(replicas, return_inverse=True)
    held = brokers.tolist()
    if not active.issuperset(held):
        return None
    words = topic_words([directory_of(broker_id) for broker_id in held])
    return NewPartitionRows(
        NewRows(
            topic=topic_words([topic_id])[0],
            indexes=np.arange(first_index, first_index + len(lists), dtype=np.int32),
            replicas=replicas,
            directories=words[place.reshape(replicas.shape)] if names_directories else None,
        )
    )
