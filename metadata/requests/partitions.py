"""Requests about partitions and their answers, as values: growth, elections, ISRs, log directories.

Shapes follow Kafka's messages of the same names; `None` means absent, ids of topics and directories are
16 bytes. A request that fails as a whole is answered with an `ApiError` instead of a response.
"""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.records.parts import LEADER_RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGrowth:
    """`count` is the number of partitions wanted in the end; `assignments` are those of the added ones."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    """KIP-195 CreatePartitions (key 37), answered with a TopicsResponse."""

    topics: tuple[TopicGrowth, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """KIP-460 ElectLeaders (key 43). `unclean` False: preferred leaders. `partitions`: (topic name, index);
    None: all that are not led as wanted."""

    unclean: bool
    partitions: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """One partition: `error` NONE and its leader now, or the refusal and its text."""

    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None
    leader: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse:
    """`more`: not all could be done in one batch; ask again for the rest."""

    results: tuple[ElectionResult, ...]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    """A member of a new ISR with the epoch at which the leader saw it (KIP-903); None: not said."""

    broker_id: int
    broker_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAlteration:
    """What a leader wants its partition's ISR to be, and the epochs that it knows."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    leader_recovery_state: int = LEADER_RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest:
    """KIP-497 AlterPartition (key 56), from the broker that leads the partitions."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[PartitionAlteration, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredPartition:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse:
    results: tuple[AlteredPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAssignment:
    """The sender's replica of a partition is in `directory_id`."""

    directory_id: bytes
    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReplicasToDirsRequest:
    """KIP-858 AssignReplicasToDirs (key 73), from the broker that holds the replicas."""

    broker_id: int
    broker_epoch: int
    assignments: tuple[ReplicaAssignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentResult:
    directory_id: bytes
    topic_id: bytes
    partition: int
    error: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReplicasToDirsResponse:
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
