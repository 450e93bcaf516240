"""The voters that a directory names: in the control records at the front of its newest snapshot and in its
log (KIP-853), or in a small file of those that the replica started with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from metaquorum.raft.config import Voter
from metaquorum.raft.voters import (
    CONFIGURED,
    VoterChange,
    VotersAt,
    encode_control_batch,
    kraft_version_record,
    voter_changes,
    voters_record,
)
from metaquorum.storage.batches.batch import Batches, iter_batches, parse_header, seal_batch
from metaquorum.storage.batches.format import HEADER_BYTES
from metaquorum.storage.disk.interface import Disk, join, read_file, write_atomically
from metaquorum.storage.errors import CorruptFileError, FileMissingError
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

READ_BYTES = 8 * 1024 * 1024
"""How much of the log each read returns."""


def read_changes(
    disk: Disk,
    log: SegmentedLog,
    newest: LogPosition | None,
    log_changes: Sequence[VoterChange] | None = None,
) -> tuple[VoterChange, ...]:
    """The voter changes of the newest snapshot and of the log after it, in order. `log_changes` are those of
    the log, from a caller that has read it; if None, they are read here. Raises the errors of
    `read_voters`."""
    changes, offset = [], log.start_offset
    if newest is not None:
        said = read_voters(disk, snapshot_path(log.directory, newest))
        changes, offset = changes_at(newest.offset, said), max(offset, newest.offset)
    if log_changes is not None:
        return (*changes, *(change for change in log_changes if offset <= change.offset < log.end_offset))
    while offset < log.end_offset:
        batches = log.read(offset, READ_BYTES)
        changes += [change for change in voter_changes(batches) if change.offset >= offset]
        offset = batches.next_offset
    return tuple(changes)


def votes_in(changes: Sequence[VoterChange], identity: MetaProperties) -> tuple[int, ...]:
    """The ids of the newest set if this directory votes in it."""
    sets = [change.voters for change in changes if change.voters is not None]
    if not sets or identity.node_id is None or identity.directory_id is None:
        return ()
    return tuple(sets[-1]) if sets[-1].is_voter(identity.node_id, identity.directory_id) else ()


def read_voters(disk: Disk, path: str) -> VotersAt:
    """The voters that the snapshot file names. Raises CorruptLogError or BatchError if the first batches
    of the file cannot be read, and DiskError."""
    level, voters = 0, None
    for change in voter_changes(_front(disk, path)):
        level = level if change.kraft_version is None else change.kraft_version
        voters = change.voters or voters
    return VotersAt(level, voters)


def _front(disk: Disk, path: str) -> Batches:
    """The control batches at the beginning of the file."""
    file = disk.open_read(path)
    try:
        end, size = 0, file.size()
        while end + HEADER_BYTES <= size:
            header = parse_header(file.read_at(end, HEADER_BYTES), 0)
            if not header.is_control or header.size_bytes < HEADER_BYTES:
                break
            end += header.size_bytes
        data = file.read_at(0, min(end, size))
    finally:
        file.close()
    return Batches.parse(data, file=path)


def changes_at(end_offset: int, said: VotersAt) -> list[VoterChange]:
    """The same voters as changes of a log that ends there: those of formatting are before offset 0."""
    offset = max(CONFIGURED, end_offset - 1)
    changes = []
    if said.kraft_version:
        changes.append(VoterChange(offset=offset, kraft_version=said.kraft_version))
    if said.voters is not None:
        changes.append(VoterChange(offset=offset, voters=said.voters))
    return changes


def with_voters(batches: Iterable[bytes], said: VotersAt, *, timestamp_ms: int) -> Iterator[bytes]:
    """A state's batches with the voters in front of them; their offsets move up accordingly."""
    if said.voters is None:
        yield from batches
        return
    records = [kraft_version_record(said.kraft_version), voters_record(said.voters)]
    yield encode_control_batch(records, base_offset=0, epoch=0, timestamp_ms=timestamp_ms)
    for data in batches:
        for batch in iter_batches(data):
            header = batch.header._replace(base_offset=batch.header.base_offset + len(records))
            yield seal_batch(header, batch.data[HEADER_BYTES:])


# At kraft.version 0 the voters are configuration, and nothing in the log names them. So a changed
# directory id would go unnoticed, and a voter with an emptied disk could help to elect a leader that
# lacks committed records (KIP-853, "Motivation"). Dynamic voters replace this file.

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
        remembered_voter = remembered[node_id]
        if remembered_voter is not None and directory_id != remembered_voter:
            now = "none" if directory_id is None else uuid_to_text(directory_id)
            return (
                f"controller.quorum.voters gives node {node_id} the directory id {now}, but this quorum "
                f"was started with {uuid_to_text(remembered_voter)}: a voter with another disk could lose "
                "committed records; restore the old id (the node with the new disk then only observes)"
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
