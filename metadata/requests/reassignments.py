"""Requests about moving replicas and their responses, as values (KIP-455, KIP-860).

Owns both, for moves between brokers, and the list of an image's moves; moves between directories of a broker
are in `log_dirs`. Does not know how a move ends: the active controller does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.errors import ErrorCode

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage, PartitionInfo


class WantedReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas` in order, the preferred leader first; None cancels the current reassignment."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class AlterReassignmentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """AlterPartitionReassignments (key 45). `validate_only`: only report what would be refused."""

    wanted: tuple[WantedReplicas, ...]
    allow_replication_factor_change: bool = True
    validate_only: bool = False


class ReassignmentResult(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None


class AlterReassignmentsResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[ReassignmentResult, ...]


class OngoingReassignment(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose replicas are moving (ListPartitionReassignments, key 46). `waiting_for`: replicas
    that stay and are not in sync yet; the reassignment completes when there are none."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def waiting_for(self) -> tuple[int, ...]:
        return tuple([one for one in self.replicas if one not in self.removing and one not in self.isr])


def ongoing_reassignments(
    image: MetadataImage, partitions: Sequence[tuple[str, int]] | None = None
) -> Iterator[OngoingReassignment]:
    """Partitions whose replicas are moving, by topic name and index; `partitions` None: all of them."""
    topics = image.topics
    found: list[PartitionInfo] = []
    for row, fields in topics.columns.rare.items_sorted():
        if fields.adding or fields.removing:
            found.append(topics.at(row))
    wanted = None if partitions is None else frozenset(partitions)
    named = []
    for partition in found:
        info = topics.topic(partition.topic_id)
        if info is not None and (wanted is None or (info.name, partition.index) in wanted):
            named.append((info.name, partition.index, partition))
    for name, index, partition in sorted(named, key=lambda each: each[:2]):
        yield OngoingReassignment(
            topic=name,
            partition=index,
            replicas=partition.replicas,
            adding=partition.adding,
            removing=partition.removing,
            isr=partition.isr,
        )
