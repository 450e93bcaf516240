"""The voters that a replica started with, remembered beside its log.

At kraft.version 0 the voters are configuration, and nothing in the log names them. So a changed directory id
would go unnoticed, and a voter with an emptied disk could help to elect a leader that lacks committed records
(KIP-853, "Motivation"). Owns one small file; knows no Raft state. Dynamic voters replace it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from metaquorum.raft.config import Voter
from metaquorum.storage.disk.interface import Disk, join, read_file, write_atomically
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

FILE_NAME = "configured-voters"
VERSION = 0

Remembered = dict[int, bytes | None]
"""Voter id to the directory id that was configured for it; None if it was not pinned."""


def load_voters(disk: Disk, replica_directory: str) -> Remembered | None:
    """The remembered voters; None before the first start. Raises CorruptFileError or DiskError."""
    path = join(replica_directory, FILE_NAME)
    try:
        content = read_file(disk, path)
    except FileMissingError:
        return None
    try:
        fields = json.loads(content)
        if fields["version"] != VERSION:
            raise ValueError(f"its version is {fields['version']}")
        return {
            int(voter["id"]): None if voter["directory.id"] is None else uuid_from_text(voter["directory.id"])
            for voter in fields["voters"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            path, f"cannot be read: {error}", "it names the voters of this quorum: copy it from another voter"
        ) from error


def change_of_voters(remembered: Remembered, voters: Sequence[Voter]) -> str | None:
    """How `voters` differs from the remembered ones, and what to do about it; None if no difference matters.

    Addresses may change, and a voter that was not pinned may be pinned.
    """
    configured = {voter.node_id: voter.directory_id for voter in voters}
    if set(configured) != set(remembered):
        return (
            f"controller.quorum.voters names the nodes {_ids(configured)}, but this quorum was started "
            f"with {_ids(remembered)}: voters cannot be added or removed by hand; restore the old list"
        )
    for node_id, directory_id in sorted(configured.items()):
        known = remembered[node_id]
        if known is not None and directory_id != known:
            now = "none" if directory_id is None else uuid_to_text(directory_id)
            return (
                f"controller.quorum.voters gives node {node_id} the directory id {now}, but this quorum "
                f"was started with {uuid_to_text(known)}: a voter with another disk could lose committed "
                "records; restore the old id (the node with the new disk then only observes)"
            )
    return None


def store_voters(disk: Disk, replica_directory: str, voters: Sequence[Voter]) -> None:
    """Remembers `voters`, in one durable step. Raises DiskError."""
    entries = [
        {
            "id": voter.node_id,
            "directory.id": None if voter.directory_id is None else uuid_to_text(voter.directory_id),
        }
        for voter in sorted(voters, key=lambda voter: voter.node_id)
    ]
    content = json.dumps({"version": VERSION, "voters": entries})
    write_atomically(disk, join(replica_directory, FILE_NAME), content.encode())


def remember(disk: Disk, replica_directory: str, voters: Sequence[Voter]) -> None:
    """Stores `voters` if they add to what is remembered."""
    known = load_voters(disk, replica_directory)
    if known != {voter.node_id: voter.directory_id for voter in voters}:
        store_voters(disk, replica_directory, voters)


def _ids(voters: Remembered) -> str:
    return ", ".join(str(node_id) for node_id in sorted(voters))
