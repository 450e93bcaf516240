"""Committed records that were lost, as the directories of several nodes tell it.

Owns the comparison of what each node knew to be committed (its file `known-committed`) with the logs of all
of them, its own included. Pure: it is given bounds, ends and epoch tables. A log that only ends earlier lags,
which is no loss while the nodes run; two nodes that knew different records to be committed are one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.known_committed import NOTHING, WHERE, load_known_committed
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One node's directory: what it knew to be committed, and what its log holds (from `start_offset`, or
    under a snapshot before it, to `end_offset`). `node_id` None: nothing says whose it is."""

    path: str
    node_id: int | None
    known: LogPosition
    start_offset: int
    end_offset: int
    epochs: EpochTable

    def holds(self, position: LogPosition) -> bool:
        """Whether the record before `position` is here, with that epoch; what a snapshot covers is."""
        if position.offset > self.end_offset:
            return False
        if position.offset <= self.start_offset:
            return True
        return self.epochs.epoch_at(position.offset - 1) in (None, position.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommitted:
    """What the node of `path` knew to be committed below `offset` is not in `missing` (paths). `certain`:
    however the directories were copied; else only if no node ran when they were."""

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
        doubt = "" if self.certain else ", and they were all stopped when this was copied"
        return (
            f"{begin}: {self.path} knew everything below offset {self.offset} to be committed, but "
            f"{', '.join(self.missing)} {'does' if len(self.missing) == 1 else 'do'} not have all of "
            f"it{doubt}: a controller's directory was replaced by an older copy or emptied; `metaquorum "
            f"log salvage` builds a new quorum from {self.path}; {WHERE}"
        )


def known_committed(log: MetadataLog) -> LogPosition:
    """What the node of a log knew to be committed. A bound that cannot be read counts as none."""
    if not log.is_directory:
        return NOTHING
    try:
        return load_known_committed(log.disk, log.directory)
    except StorageError:
        return NOTHING


def holding(log: MetadataLog, end_offset: int, epochs: EpochTable) -> Holding:
    """A log with what is known of it."""
    snapshots = [position.offset for position in log.snapshots()] if log.is_directory else []
    return Holding(
        path=log.path,
        node_id=None if log.identity is None else log.identity.node_id,
        known=known_committed(log),
        start_offset=log.start_offset,
        end_offset=max([end_offset, *snapshots]),
        epochs=epochs,
    )


def find_losses(holdings: Sequence[Holding], voters: Collection[int] = ()) -> list[LostCommitted]:
    """What was lost, one line for each node that knows of it. `voters`: the ids of the voters, where they are
    known; with them it also shows that no majority holds what was committed."""
    found: list[LostCommitted] = []
    for one in holdings:
        if not one.known.offset:
            continue
        missing = [other for other in holdings if not other.holds(one.known)]
        if one in missing:
            found.append(
                LostCommitted(path=one.path, offset=one.known.offset, missing=(one.path,), certain=True)
            )
            continue
        against = [other for other in missing if _contradicts(one, other)]
        lacking = {other.node_id for other in missing} & set(voters)
        if against or (voters and 2 * (len(voters) - len(lacking)) <= len(voters)):
            found.append(
                LostCommitted(
                    path=one.path,
                    offset=one.known.offset,
                    missing=tuple(other.path for other in missing),
                    certain=bool(against),
                )
            )
    return found


def _contradicts(one: Holding, other: Holding) -> bool:
    """Both prefixes were committed, and they are not of one log: `other` lacks what `one` knew, although its
    own bound reaches as far, or is in a later epoch, which begins behind all that was committed before."""
    return other.known.offset >= one.known.offset or other.known.epoch > one.known.epoch
