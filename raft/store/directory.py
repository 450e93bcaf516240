"""A replica's directory for users of the library: made once, opened at every start.

Owns the identity in `meta.properties`. `store` says what else is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from metaquorum.raft.config import Voter
from metaquorum.raft.store.store import ReplicaStore
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.files.meta_properties import FILE_NAME, MetaProperties, store_meta_properties
from metaquorum.storage.uuids import random_uuid


def create_directory(disk: Disk, path: str, *, cluster_id: str, node_id: int, rng: Random) -> None:
    """Gives a new directory an identity, durably; `rng` draws its id (use random.SystemRandom()).

    Do this once in the life of a voter. One that comes back with an emptied disk has forgotten its votes and
    what it acknowledged, and must not vote under its old id. Raises CorruptFileError where an identity is.
    """
    file = join(path, FILE_NAME)
    if disk.exists(file):
        raise CorruptFileError(file, "exists already", "open this directory, or choose another one")
    disk.make_directory(path)
    properties = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=random_uuid(rng))
    store_meta_properties(disk, path, properties)


def open_directory(disk: Disk, path: str, voters: Iterable[Voter]) -> ReplicaStore:
    """Locks and recovers a directory that `create_directory` made. Raises as `ReplicaStore.open`."""
    return ReplicaStore.open(disk, path, voter_ids=tuple(voter.node_id for voter in voters))
