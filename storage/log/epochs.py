"""The leader-epoch table: at which offset each leader epoch begins, and where it ends.

Immutable: every change returns a new table, so a thread that writes it out needs no lock.

Source: KIP-101 (why), KIP-595 (diverging epoch and end offset), Kafka's `LeaderEpochFileCache`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from metaquorum.storage.errors import CorruptFileError, StorageError
from metaquorum.storage.files.checkpoint_text import decode_entries, encode_entries
from metaquorum.storage.types import LogPosition

FILE_NAME = "leader-epoch-checkpoint"
_ADVICE = "the table is rebuilt from the log"


class EpochTable(msgspec.Struct, frozen=True):
    """`entries` are (epoch, start offset), both strictly rising. Empty for an empty log that starts at 0."""

    entries: tuple[tuple[int, int], ...] = ()

    def append(self, epoch: int, start_offset: int) -> EpochTable:
        """Adds that `epoch` begins at `start_offset`; returns the same table if `epoch` is already last.

        Raises StorageError if epoch or offset fall. An epoch without records (the next one starts at the same
        offset) is replaced.
        """
        if not self.entries:
            return EpochTable(((epoch, start_offset),))
        last_epoch, last_start = self.entries[-1]
        if epoch == last_epoch:
            return self
        if epoch < last_epoch or start_offset < last_start:
            raise StorageError(
                f"leader epoch {epoch} at offset {start_offset} would follow epoch "
                f"{last_epoch} at {last_start}; epochs and offsets never decrease: truncate the log first"
            )
        kept = self.entries[:-1] if start_offset == last_start else self.entries
        return EpochTable((*kept, (epoch, start_offset)))

    @property
    def last_epoch(self) -> int:
        """Epoch of the last entry; 0 if there is none."""
        return self.entries[-1][0] if self.entries else 0

    @property
    def first_epoch(self) -> int | None:
        """Epoch of the first entry; None if there is none."""
        return self.entries[0][0] if self.entries else None

    def epoch_at(self, offset: int) -> int | None:
        """Leader epoch of the record at `offset` (which the caller knows to be in the log), or None."""
        if self.entries and offset >= self.entries[-1][1]:
            return self.entries[-1][0]
        index = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[index - 1][0] if index else None

    def between(self, above: int, up_to: int) -> Iterable[tuple[int, int]]:
        """The entries of epochs above `above`, up to `up_to`."""
        return (entry for entry in self.entries if above < entry[0] <= up_to)

    def end_offset_for(self, epoch: int, log_end: int) -> LogPosition | None:
        """The largest epoch not above `epoch`, and where it ends: the start of the next one, or `log_end`.

        A leader compares a fetch's (last fetched epoch, fetch offset) with this and returns it if they differ
        (KIP-595). None if `epoch` is below the first entry, which the log no longer knows (a snapshot has to
        be sent), or if the table is empty.
        """
        if self.entries and epoch >= self.entries[-1][0]:
            return LogPosition(self.entries[-1][0], log_end)
        index = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        if not index:
            return None
        end = self.entries[index][1] if index < len(self.entries) else log_end
        return LogPosition(self.entries[index - 1][0], end)

    def truncate_to(self, end_offset: int) -> EpochTable:
        """The table without the epochs that begin at or after `end_offset`."""
        if not self.entries or self.entries[-1][1] < end_offset:
            return self
        return EpochTable(tuple(entry for entry in self.entries if entry[1] < end_offset))

    def truncate_start(self, offset: int) -> EpochTable:
        """The table for a log that now starts at `offset`: the epoch that covers it is kept and starts
        there."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        if index == 0:
            return self
        return EpochTable(((self.entries[index - 1][0], offset), *self.entries[index:]))

    @staticmethod
    def reset(position: LogPosition) -> EpochTable:
        """The table of an empty log that begins after a snapshot at `position`."""
        return EpochTable(((position.epoch, position.offset),))

    def encode(self) -> bytes:
        """The content of `leader-epoch-checkpoint`: version, count, one "epoch start" line each."""
        return encode_entries(f"{epoch} {start}" for epoch, start in self.entries)

    @staticmethod
    def decode(data: bytes, file: str = FILE_NAME) -> EpochTable:
        """The table in a checkpoint file; Kafka leaves an empty file for an empty table. Raises
        CorruptFileError for any other content."""
        try:
            entries = [(int(epoch), int(start)) for epoch, start in decode_entries(data, file, _ADVICE)]
        except ValueError as error:
            raise CorruptFileError(file, f"is not a leader epoch table ({error})", _ADVICE) from None
        _check_rising(entries, file)
        return EpochTable(tuple(entries))


def _check_rising(entries: Iterable[tuple[int, int]], file: str) -> None:
    previous = (-1, -1)
    for entry in entries:
        if entry[0] <= previous[0] or entry[1] <= previous[1]:
            raise CorruptFileError(file, f"entry {entry} does not rise above {previous}", _ADVICE)
        previous = entry
