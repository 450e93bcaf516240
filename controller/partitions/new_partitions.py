"""New partitions of new and growing topics: their replicas, and their first records (S4.12).

Owns the checks of a wanted replica list and the state of a new partition. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from metaquorum.controller.partitions.columns.creation import new_partitions
from metaquorum.controller.partitions.partition_change import default_directory
from metaquorum.controller.partitions.placement import Candidates, UsableBroker, place
from metaquorum.metadata.columnar.bulk import NewPartitionRows as PartitionsInColumns
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import PartitionRecord

Refusal = tuple[ErrorCode, str]
ReplicaLists = list[tuple[int, ...]]

REPLICATION_FACTOR_MAX = 32_767
"""Kafka's replication factor is an int16."""


class NewPartitions:
    """Places and describes new partitions on one image. `candidates` may hold new replicas; unfenced ones may
    lead and start in sync (KIP-841)."""

    def __init__(self, image: MetadataImage, candidates: Sequence[UsableBroker], rng: Random) -> None:
        self._image = image
        self._candidates = Candidates.of(candidates)
        self._rng = rng
        self._active = self._candidates.active
        self._names_directories = image.features.metadata_version >= LEVEL_DIRECTORIES
        self._directories: dict[int, bytes] = {}

    def placed(self, partitions: int, replication_factor: int) -> ReplicaLists | Refusal:
        """Replica lists chosen here, or why there are none."""
        code = ErrorCode.INVALID_REPLICATION_FACTOR
        if not 1 <= replication_factor <= REPLICATION_FACTOR_MAX:
            return (
                code,
                f"the replication factor must be from 1 to {REPLICATION_FACTOR_MAX}, not "
                f"{replication_factor}",
            )
        if not self._active:
            return code, "all brokers are fenced or shutting down: start one, and retry when it is running"
        if replication_factor > len(self._candidates):
            return (
                code,
                f"replication factor {replication_factor} needs as many brokers, but only "
                f"{len(self._candidates)} are registered and not shutting down: start more brokers, or "
                "lower the factor",
            )
        return place(self._candidates, partitions, replication_factor, self._rng)

    def given(
        self, lists: Sequence[tuple[int, ...]], *, first_index: int = 0, replication_factor: int | None = None
    ) -> ReplicaLists | Refusal:
        """The caller's own lists, or what is wrong with them. `replication_factor` None: that of the first
        list."""
        code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        for index, replicas in enumerate(lists, start=first_index):
            if not replicas:
                return code, f"partition {index} has no replicas: name at least one broker"
            if len(set(replicas)) != len(replicas):
                return code, f"partition {index} names a broker twice: name each broker once"
            factor = len(lists[0]) if replication_factor is None else replication_factor
            if len(replicas) != factor:
                text = (
                    f"partition {index} has {len(replicas)} replicas, but the partitions before it have "
                    f"{factor}: give every partition the same number"
                )
                return code, text
            unknown = [broker for broker in replicas if broker not in self._image.brokers]
            if unknown:
                return code, f"partition {index} names broker {unknown[0]}, which is not registered"
            if self._active.isdisjoint(replicas):
                return (
                    code,
                    f"every broker of partition {index} is fenced or shutting down: name one that is running",
                )
        return list(lists)

    def records(
        self, topic_id: bytes, first_index: int, lists: ReplicaLists
    ) -> Sequence[PartitionRecord | PartitionsInColumns]:
        """`record` for consecutive partitions; in columns if there are many of the usual shape."""
        together = new_partitions(
            topic_id, first_index, lists, self._active, self._directory_of, self._names_directories
        )
        if together is not None:
            return (together,)
        return [
            self.record(topic_id, index, replicas) for index, replicas in enumerate(lists, start=first_index)
        ]

    def record(self, topic_id: bytes, index: int, replicas: tuple[int, ...]) -> PartitionRecord:
        """The first state: led by the first live replica, with all live ones in sync."""
        active = self._active
        isr = (
            replicas
            if active.issuperset(replicas)
            else tuple([replica for replica in replicas if replica in active])
        )
        return PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=self._directories_of(replicas) if self._names_directories else (),
        )

    def _directories_of(self, replicas: tuple[int, ...]) -> tuple[bytes, ...]:
        return tuple([self._directory_of(replica) for replica in replicas])

    def _directory_of(self, replica: int) -> bytes:
        known = self._directories.get(replica)
        if known is None:
            known = self._directories[replica] = default_directory(self._image.brokers, replica)
        return known
