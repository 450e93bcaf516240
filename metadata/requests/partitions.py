"""Requests about partitions and their answers, as values: growth, elections, ISRs, log directories.

Shapes follow Kafka's messages of the same names; `None` means absent, ids of topics and directories are
16 bytes. A request that fails as a whole is answered with an `ApiError` instead of a response.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.records.parts import LEADER_RECOVERED


class TopicGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """`count` is the number of partitions wanted in the end; `assignments` are those of the added ones."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-195 CreatePartitions (key 37), answered with a TopicsResponse."""

    topics: tuple[TopicGrowth, ...]
    validate_only: bool = False


class ElectLeadersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-460 ElectLeaders (key 43). `unclean` False: preferred leaders. `partitions`: (topic name, index);
    None: all that are not led as wanted."""

    unclean: bool
    partitions: tuple[tuple[str, int], ...] | None = None


class ElectionResult(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: `error` NONE and its leader now, or the refusal and its text."""

    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None
    leader: int | None = None


class ElectLeadersResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`more`: not all could be done in one batch; ask again for the rest."""

    results: tuple[ElectionResult, ...]
    more: bool = False


class IsrMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a new ISR with the epoch at which the leader saw it (KIP-903); None: not said."""

    broker_id: int
    broker_epoch: int | None = None


class PartitionAlteration(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader wants its partition's ISR to be, and the epochs that it knows."""

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
    """`error` NONE: the partition as it is after the request; else only the refusal and its text."""

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
PARTITIONS_REQUESTS = (
    CreatePartitionsRequest,
    ElectLeadersRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
)
PartitionsResponse = ElectLeadersResponse | AlterPartitionResponse | AssignReplicasToDirsResponse
