"""Which voters are in force at which offset of one log: configured ones, then those that its records name.

Owns that the newest record in the log counts, committed or not, and that a truncation undoes it (KIP-853).
Does not know roles or the bytes of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from metaquorum.raft.voters.records import VoterChange
from metaquorum.raft.voters.voter_set import VoterSet
from metaquorum.storage.log.epochs import EpochTable

EntryT = TypeVar("EntryT")

CONFIGURED = -1
"""The offset of voters that no record of the log names: configured ones, or those of the checkpoint that
formatting wrote (its records count as offset -1)."""


class VotersAt(msgspec.Struct, frozen=True):
    """The level of kraft.version and the voters that a log names up to some offset (None if it names
    none). A snapshot that ends there carries them."""

    kraft_version: int = 0
    voters: VoterSet | None = None


CONFIGURED_VOTERS = VotersAt()
"""The value for a log or snapshot that names neither."""


class VoterHistory:
    """The voter sets of one log from its newest snapshot on, by offset. `configured` is in force while the
    log names no voters."""

    newest: VoterSet
    """The voters in force, whose majorities count. An attribute, like the next two, because they are read
    dozens of times per input and change only with a record."""
    newest_offset: int | None
    """Offset of the record of the newest set; None if configured voters are in force."""
    kraft_version: int
    """The level that the newest record sets."""

    def __init__(self, configured: VoterSet, changes: Iterable[VoterChange] = ()) -> None:
        self._configured = configured
        self._levels: list[tuple[int, int]] = [(CONFIGURED, 0)]
        self._sets: tuple[tuple[int, VoterSet], ...] = ()
        self.note_all(changes)

    @property
    def previous(self) -> VoterSet:
        """The voters that a truncation of the newest record would restore."""
        return self._sets[-2][1] if len(self._sets) > 1 else self._configured

    def _changed(self) -> None:
        self.newest_offset, self.newest = self._sets[-1] if self._sets else (None, self._configured)
        self.kraft_version = self._levels[-1][1]

    def note_all(self, changes: Iterable[VoterChange]) -> None:
        """Adds the changes of records that were appended."""
        for change in changes:
            if change.kraft_version is not None:
                self._levels.append((change.offset, change.kraft_version))
            if change.voters is not None:
                self._sets = (*self._sets, (change.offset, change.voters))
        self._changed()

    def truncate(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: changes at or above it are undone."""
        self._levels = [entry for entry in self._levels if entry[0] < end_offset]
        self._sets = tuple([entry for entry in self._sets if entry[0] < end_offset])
        self._changed()

    def trim(self, end_offset: int) -> None:
        """Lookups below `end_offset` will not come again: only the set in force there is kept of what is
        below it, and the newest set does not change."""
        self._levels = _from_newest_below(self._levels, end_offset)
        self._sets = tuple(_from_newest_below(self._sets, end_offset))

    def reset(self, end_offset: int, said: VotersAt) -> None:
        """The log restarts after a snapshot that ends at `end_offset` and carries `said`."""
        self._levels = [(end_offset - 1, said.kraft_version)]
        self._sets = () if said.voters is None else ((end_offset - 1, said.voters),)
        self._changed()

    def at(self, end_offset: int) -> VotersAt:
        """What the log below `end_offset` names; not for offsets below the last `trim` or `reset`."""
        level = [level for offset, level in self._levels if offset < end_offset]
        sets = [voters for offset, voters in self._sets if offset < end_offset]
        return VotersAt(level[-1] if level else 0, sets[-1] if sets else None)

    def is_salvaged(self, offset: int, epochs: EpochTable) -> bool:
        """True if `log salvage` wrote the set at `offset`: the record of kraft.version is before it, where
        an epoch begins. A leader begins its epoch with a LeaderChange."""
        begins = any(start_offset == offset - 1 for _, start_offset in epochs.entries)
        return begins and any(at == offset - 1 for at, _ in self._levels)

    @property
    def entries(self) -> tuple[tuple[int, VoterSet], ...]:
        """The offset of each set that the log still names, in order; the same object while nothing
        changes."""
        return self._sets


def _from_newest_below(entries: Sequence[tuple[int, EntryT]], end_offset: int) -> list[tuple[int, EntryT]]:
    kept = sum(1 for offset, _ in entries if offset < end_offset)
    return [*entries[max(0, kept - 1) :]]
