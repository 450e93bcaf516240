"""Moving replicas between the log directories of a broker (KIP-113), as values."""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedDirectory:
    """Where a replica is to lie on the broker that is asked, whether it is there yet or not."""

    path: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirsRequest:
    """AlterReplicaLogDirs (key 34)."""

    wanted: tuple[WantedDirectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirsResponse:
    """What became of each one, in the order of the request."""

    errors: tuple[ErrorCode, ...]
