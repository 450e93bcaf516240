"""A replica's directory for users of the library: created once, opened at every start.

Owns the identity in `meta.properties`. Does not know the other files: `store` does. The controllers and
brokers of a cluster are formatted elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from metaquorum.raft.config import Voter
from metaquorum.raft.store.store import ReplicaStore
from metaquorum.raft.store.stored_voters import with_voters
from metaquorum.raft.voters.history import VotersAt
from metaquorum.raft.voters.voter_set import (
    NEWEST_KRAFT_VERSION,
    OWN_VERSIONS,
    Endpoint,
    VoterNode,
    VoterSet,
)
from metaquorum.storage.disk.interface import Disk, join, make_durable_directory
from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.files.meta_properties import FILE_NAME, MetaProperties, store_meta_properties
from metaquorum.storage.files.snapshots import SnapshotWriter
from metaquorum.storage.log.log import METADATA_DIRECTORY
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import random_uuid


def create_directory(
    disk: Disk, path: str, *, cluster_id: str, node_id: int, rng: Random, endpoints: Sequence[Endpoint] = ()
) -> None:
    """Gives a new directory an identity, durably; `rng` draws its id (use random.SystemRandom()).

    With `endpoints`, this node is the first and only voter of a quorum of kraft.version 1 and listens there;
    every other node of the quorum starts as an observer and is added with AddVoterRequest. Without them,
    voters are configured, or this node will be added.

    Do this once in the life of a voter. A voter that comes back with an emptied disk has forgotten its votes
    and what it acknowledged, and must not vote under its old id. Raises CorruptFileError if the directory
    already has an identity.
    """
    file = join(path, FILE_NAME)
    if disk.exists(file):
        raise CorruptFileError(file, "exists already", "open this directory, or choose another one")
    make_durable_directory(disk, path)
    directory_id = random_uuid(rng)
    if endpoints:
        voter = VoterNode(
            node_id=node_id,
            directory_id=directory_id,
            endpoints=tuple(endpoints),
            versions=OWN_VERSIONS,
        )
        _store_first_voters(disk, join(path, METADATA_DIRECTORY), VoterSet([voter]))
    properties = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
    store_meta_properties(disk, path, properties)


def _store_first_voters(disk: Disk, replica_directory: str, voters: VoterSet) -> None:
    """Stores them as the snapshot at offset 0, which is never sent: the first leader writes them into the
    log."""
    disk.make_directory(replica_directory)
    writer = SnapshotWriter(disk, replica_directory, LogPosition(0, 0))
    for batch in with_voters([], VotersAt(NEWEST_KRAFT_VERSION, voters), timestamp_ms=0):
        writer.append(batch)
    writer.freeze()


def open_directory(disk: Disk, path: str, voters: Iterable[Voter]) -> ReplicaStore:
    """Locks and recovers a directory that `create_directory` made. Raises the errors of
    `ReplicaStore.open`."""
    return ReplicaStore.open(disk, path, voter_ids=tuple(voter.node_id for voter in voters))
