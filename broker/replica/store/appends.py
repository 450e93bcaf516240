"""Appends that wait together for a log directory: consecutive ones to one replica become one write.

Owns how much is joined. Knows no log: what an append means is the store's.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from metaquorum.broker.replica.disk_work import AppendPartition
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.parsed import Batches

JOINED_MAX_BYTES = 64 * 1024
"""A larger write gains nothing, and segments end where they would without it."""


def joined(works: Iterable[AppendPartition]) -> list[AppendPartition]:
    """The same batches in fewer appends, in order per replica."""
    open_by_key: dict[PartitionKey, list[AppendPartition]] = {}
    sizes: dict[PartitionKey, int] = {}
    groups: list[list[AppendPartition]] = []
    for work in works:
        key, size = work.key, len(work.batches.data)
        group = open_by_key.get(key)
        if (
            group is None
            or sizes[key] + size > JOINED_MAX_BYTES
            or (group[-1].incarnation, group[-1].sync) != (work.incarnation, work.sync)
        ):
            group = open_by_key[key] = []
            groups.append(group)
            sizes[key] = 0
        group.append(work)
        sizes[key] += size
    return [each[0] if len(each) == 1 else _one(each) for each in groups]


def _one(works: list[AppendPartition]) -> AppendPartition:
    data = b"".join([work.batches.data for work in works])
    headers = tuple([header for work in works for header in work.batches.headers])
    return replace(works[0], batches=Batches(data, headers))
