"""What a directory must hold before a replica may start from it.

Owns the two refusals: for lost committed records, and for a vote that may be forgotten. Changes no byte and
does not know the order of opening: `store` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.raft.state.log_view import check_log
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.errors import CorruptFileError
from metaquorum.storage.files.known_committed import NOTHING
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE_FILE
from metaquorum.storage.files.snapshots import list_snapshots
from metaquorum.storage.log.open import Examined
from metaquorum.storage.types import LogPosition


def check_committed(disk: Disk, replica_directory: str, known: LogPosition, found: Examined) -> None:
    """Checks that what was known to be committed is still here, in the log or covered by a snapshot.
    Raises CommittedLostError."""
    snapshots = [position.offset for position in list_snapshots(disk, replica_directory)]
    check_log(
        replica_directory,
        known=known,
        start_offset=found.segments[0].base_offset if found.segments else 0,
        end_offset=max([found.end_offset, *snapshots]),
        epochs=found.epochs,
    )


def refuse_forgotten_vote(
    disk: Disk, replica_directory: str, voter_ids: Sequence[int], known: LogPosition
) -> None:
    """Refuses a voter that has a log but no quorum state: it has voted or followed, and could vote twice in
    one epoch.

    The only voter of a quorum writes its first records while its quorum state is still being written. If it
    stops before that is done, nothing is committed, and no other node has its vote or a record. Raises
    CorruptFileError.
    """
    first_start = len(voter_ids) == 1 and known == NOTHING
    if not voter_ids or first_start or not disk.exists(replica_directory):
        return
    for name in disk.list_directory(replica_directory):
        if name.endswith(".log") and disk.file_size(join(replica_directory, name)) > 0:
            raise CorruptFileError(
                join(replica_directory, QUORUM_STATE_FILE),
                f"is absent beside the log {name}",
                "a vote that it gave may be lost: move the directory away and reformat it without "
                "--new-cluster; the controller then only observes (see 'Damaged or lost' in "
                "docs/operations.md)",
            )
