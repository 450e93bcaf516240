"""Committed records that were lost, according to the directories of several nodes.

Compares bounds, ends and epoch tables, and does not read records: `merge` compares those. A log that only
ends earlier lags, which is not a loss while the nodes run; if two nodes knew different records to be
committed, records were lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.quorum import VoterSets
from metaquorum.metadata.records.control import Voter
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.known_committed import NOTHING, WHERE, load_known_committed
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import ZERO_UUID


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One node's directory: what it knew to be committed, and what its log holds (from `start_offset`, or
    covered by a snapshot before it, to `end_offset`). `node_id` is None if no file names the node. `voters`
    is the set in force at `committed` according to this log, empty for static voters."""

    path: str
    node_id: int | None
    committed: LogPosition
    start_offset: int
    end_offset: int
    epochs: EpochTable
    directory_id: bytes | None = None
    voters: tuple[Voter, ...] = ()

    def is_voter(self, voter: Voter) -> bool:
        """Whether this is a voter's directory: by its id, and by its directory id if both are known."""
        known = ZERO_UUID not in (voter.voter_directory_id, self.directory_id or ZERO_UUID)
        is_other = known and voter.voter_directory_id != self.directory_id
        return self.node_id == voter.voter_id and not is_other

    def holds(self, position: LogPosition) -> bool:
        """Whether the record before `position`, with that epoch, is here; records that a
        snapshot covers count."""
        if position.offset > self.end_offset:
            return False
        if position.offset <= self.start_offset:
            return True
        return self.epochs.epoch_at(position.offset - 1) in (None, position.epoch)


class LostCommitted(msgspec.Struct, frozen=True, kw_only=True):
    """What the node of `path` knew to be committed below `offset` is not in `missing` (paths). If `certain`,
    that holds however the directories were copied; otherwise only if no node ran at the time."""

    path: str
    offset: int
    missing: tuple[str, ...]
    certain: bool

    def __str__(self) -> str:
        begin = "committed records were lost" if self.certain else "committed records may be lost"
        if self.missing == (self.path,):
            return (
                f"{begin}: the node of {self.path} knew everything below offset {self.offset} to be "
                "committed, but its log ends earlier or has other records: it was replaced by an older "
                f"copy or truncated; {WHERE}"
            )
        doubt = "" if self.certain else ", and all of them were stopped when this was copied"
        return (
            f"{begin}: {self.path} knew everything below offset {self.offset} to be committed, but "
            f"{', '.join(self.missing)} {'does' if len(self.missing) == 1 else 'do'} not have all of "
            f"it{doubt}: a controller's directory was replaced by an older copy or emptied; `metaquorum "
            f"log salvage` builds a new quorum from {self.path}; {WHERE}"
        )


def known_committed(log: MetadataLog) -> LogPosition:
    """What the node of a log knew to be committed. An unreadable bound counts as none."""
    if not log.is_directory:
        return NOTHING
    try:
        return load_known_committed(log.disk, log.directory)
    except StorageError:
        return NOTHING


def holding(log: MetadataLog, end_offset: int, epochs: EpochTable, sets: VoterSets | None = None) -> Holding:
    """A node's log and what is known about it; `sets` are its voter sets."""
    snapshots = [position.offset for position in log.snapshots()] if log.is_directory else []
    committed, identity = known_committed(log), log.identity
    return Holding(
        path=log.path,
        node_id=None if identity is None else identity.node_id,
        directory_id=None if identity is None else identity.directory_id,
        voters=() if sets is None else sets.at(committed.offset),
        committed=committed,
        start_offset=log.start_offset,
        end_offset=max([end_offset, *snapshots]),
        epochs=epochs,
    )


def find_losses(holdings: Sequence[Holding], voters: Collection[int] = ()) -> list[LostCommitted]:
    """What was lost, one line for each node that knows of it. `voters` are the ids of static
    voters, if known. With them, or with the voter set of its log, this also detects that no
    majority holds what was committed."""
    losses: list[LostCommitted] = []
    for holder in holdings:
        if not holder.committed.offset:
            continue
        missing = [other for other in holdings if not other.holds(holder.committed)]
        if holder in missing:
            losses.append(
                LostCommitted(
                    path=holder.path, offset=holder.committed.offset, missing=(holder.path,), certain=True
                )
            )
            continue
        against = [other for other in missing if _contradicts(holder, other)]
        if holder.voters:
            those = len(holder.voters)
            lacking = sum(any(other.is_voter(voter) for other in missing) for voter in holder.voters)
        else:
            those = len(voters)
            lacking = len({other.node_id for other in missing} & set(voters))
        if against or (those and 2 * (those - lacking) <= those):
            losses.append(
                LostCommitted(
                    path=holder.path,
                    offset=holder.committed.offset,
                    missing=tuple(other.path for other in missing),
                    certain=bool(against),
                )
            )
    return losses


def _contradicts(holding: Holding, other: Holding) -> bool:
    """Both prefixes were committed but are not of one log: `other` lacks what `holding` knew, although its
    own bound reaches as far or is in a later epoch, which begins after everything that was committed
    before."""
    return (
        other.committed.offset >= holding.committed.offset or other.committed.epoch > holding.committed.epoch
    )
