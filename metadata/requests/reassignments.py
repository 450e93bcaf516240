"""Requests about moving replicas and their answers, as values (KIP-455, KIP-860)."""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedReplicas:
    """`replicas` in the order that is wanted, the preferred leader first; None: cancel what is under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignmentsRequest:
    """AlterPartitionReassignments (key 45). `validate_only`: say what would be refused, and do nothing."""

    wanted: tuple[WantedReplicas, ...]
    allow_replication_factor_change: bool = True
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentResult:
    topic: str
    partition: int
    error: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignmentsResponse:
    results: tuple[ReassignmentResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingReassignment:
    """A partition whose replicas are moving (ListPartitionReassignments, key 46). `waiting_for`: replicas
    that stay and are not in sync yet; it ends when there are none."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def waiting_for(self) -> tuple[int, ...]:
        return tuple([one for one in self.replicas if one not in self.removing and one not in self.isr])
