"""Requests about moving replicas and their answers, as values (KIP-455, KIP-860)."""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ErrorCode


class WantedReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas` in the order that is wanted, the preferred leader first; None: cancel what is under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class AlterReassignmentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """AlterPartitionReassignments (key 45). `validate_only`: say what would be refused, and do nothing."""

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
