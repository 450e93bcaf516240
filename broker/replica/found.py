"""What a start finds in a log directory.

Owns these values. Does not look: `store.open` does. What becomes of a replica is decided in `placement`.
"""

from __future__ import annotations

import msgspec

from metaquorum.broker.replica.disk_work import FoundReplica
from metaquorum.metadata.requests.data import PartitionKey


class DamagedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica in a good directory whose log is damaged: it is not open, and nothing in it was changed.
    `problem` names file and place."""

    key: PartitionKey
    topic: str
    problem: str
    size_bytes: int


class FoundDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A configured directory. `problem` None: good. `directory_id` None: it could not be read. A directory
    that fails while it is opened has its problem here and no replicas."""

    path: str
    directory_id: bytes | None
    replicas: tuple[FoundReplica, ...] = ()
    damaged: tuple[DamagedReplica, ...] = ()
    problem: str | None = None
    total_bytes: int = -1
    usable_bytes: int = -1
