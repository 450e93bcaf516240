"""Requests about moving replicas and their responses, as values (KIP-455, KIP-860).

Owns both, for moves between brokers; a move between directories of one broker is in `log_dirs`. Does not know
how a move ends: the active controller does.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ErrorCode


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
