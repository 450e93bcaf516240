"""Requests about partitions and their responses, as values: growth, elections, ISRs, log directories.

They follow Kafka's messages of the same names; `None` means absent, ids of topics and directories are 16
bytes. A request that fails as a whole is answered with an `ApiError` instead of a response.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.records.types import LEADER_RECOVERED

if TYPE_CHECKING:
    from metaquorum.metadata.image import MetadataImage, PartitionInfo


class TopicGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """`count` is the new total number of partitions; `assignments` are those of the added ones."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-195 CreatePartitions (key 37), answered with a TopicsResponse."""

    topics: tuple[TopicGrowth, ...]
    validate_only: bool = False


class ElectLeadersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-460 ElectLeaders (key 43). `unclean` False: preferred leaders. `partitions`: (topic name, index);
    None: all partitions that need the election."""

    unclean: bool
    partitions: tuple[tuple[str, int], ...] | None = None


class ElectionResult(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: `error` NONE and its current leader, or the refusal and its text."""

    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None
    leader: int | None = None


class ElectLeadersResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`more`: not all fit into one batch; repeat the request for the rest."""

    results: tuple[ElectionResult, ...]
    more: bool = False


class IsrMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a new ISR with the broker epoch seen by the leader (KIP-903); None if not given."""

    broker_id: int
    broker_epoch: int | None = None


class PartitionAlteration(msgspec.Struct, frozen=True, kw_only=True):
    """The ISR that a leader wants for its partition, and the epochs that it knows."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    leader_recovery_state: int = LEADER_RECOVERED


class AlterPartitionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-497 AlterPartition (key 56), from the broker that leads the partitions."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[PartitionAlteration, ...]


class AlteredPartition(msgspec.Struct, frozen=True, kw_only=True):
    """`error` NONE: the partition after the request; otherwise only the refusal and its text."""

    topic_id: bytes
    partition: int
    error: ErrorCode
    message: str | None = None
    leader: int | None = None
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = LEADER_RECOVERED


class AlterPartitionResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[AlteredPartition, ...]


class ReplicaAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's replica of a partition is in `directory_id`."""

    directory_id: bytes
    topic_id: bytes
    partition: int


class AssignReplicasToDirsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-858 AssignReplicasToDirs (key 73), from the broker that holds the replicas."""

    broker_id: int
    broker_epoch: int
    assignments: tuple[ReplicaAssignment, ...]


class AssignmentResult(msgspec.Struct, frozen=True, kw_only=True):
    directory_id: bytes
    topic_id: bytes
    partition: int
    error: ErrorCode
    message: str | None = None


class AssignReplicasToDirsResponse(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[AssignmentResult, ...]


PartitionsRequest = (
    CreatePartitionsRequest | ElectLeadersRequest | AlterPartitionRequest | AssignReplicasToDirsRequest
)
PartitionsResponse = ElectLeadersResponse | AlterPartitionResponse | AssignReplicasToDirsResponse


# Requests about moving replicas and their responses, as values (KIP-455, KIP-860).


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
    ongoing: list[PartitionInfo] = []
    for row, fields in topics.columns.rare.items_sorted():
        if fields.adding or fields.removing:
            ongoing.append(topics.at(row))
    wanted = None if partitions is None else frozenset(partitions)
    named = []
    for partition in ongoing:
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
