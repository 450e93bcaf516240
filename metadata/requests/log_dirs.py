"""Moving replicas between the log directories of a broker (KIP-113), as values.

Owns the requests to a broker. Does not report a move to the active controller: AssignReplicasToDirs, in
`partitions`, does.
"""

from __future__ import annotations

import msgspec

from metaquorum.metadata.errors import ErrorCode


class WantedDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """The directory that the receiving broker should keep a replica in, whether the replica
    exists yet or not."""

    path: str
    topic: str
    partition: int


class AlterReplicaLogDirsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """AlterReplicaLogDirs (key 34)."""

    wanted: tuple[WantedDirectory, ...]


class AlterReplicaLogDirsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each replica, in the order of the request."""

    errors: tuple[ErrorCode, ...]
