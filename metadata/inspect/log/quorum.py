"""The quorum's leader and voters by its control records, and the search for the newest of those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.voters import voter_ids, voter_set_texts
from metaquorum.metadata.records import control
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.metadata.snapshot import QuorumRecord
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS
from metaquorum.storage.log.epochs import EpochTable


class QuorumView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest election and the voter set in force at a place in the log; -1 and empty if no record has
    them.

    `offset` is that of the record that began the leader's epoch, `time_ms` its time. From kraft.version 1 on,
    `voter_set` comes from the newest KRAFT_VOTERS record (committed or not: KIP-853), before that from the
    ids in the newest election.
    """

    leader_id: int = -1
    epoch: int = -1
    offset: int = -1
    time_ms: int = -1
    kraft_version: int = 0
    voter_set: tuple[control.Voter, ...] = ()

    @property
    def voters(self) -> tuple[int, ...]:
        """Their node ids, ascending."""
        return voter_ids(self.voter_set)

    @property
    def has_leader(self) -> bool:
        """False before the first election that was read."""
        return self.offset >= 0

    @property
    def is_known(self) -> bool:
        """False if no record so far concerns the quorum."""
        return self.has_leader or bool(self.voter_set)

    def after(self, epoch: int, records: Iterable[DecodedRecord]) -> QuorumView:
        """The view after the records of a control batch of `epoch`."""
        view = self
        for decoded in records:
            match decoded.record:
                case control.LeaderChangeMessage(leader_id=leader_id, voters=voters):
                    static = tuple(
                        control.Voter(voter_id=one.voter_id, voter_directory_id=one.voter_directory_id)
                        for one in voters
                    )
                    is_dynamic = view.kraft_version > 0 and view.voter_set
                    view = replace(
                        view,
                        leader_id=leader_id,
                        epoch=epoch,
                        offset=decoded.offset,
                        time_ms=decoded.timestamp_ms,
                        voter_set=view.voter_set if is_dynamic else static or view.voter_set,
                    )
                case control.KRaftVersionRecord(kraft_version=version):
                    view = replace(view, kraft_version=version)
                case control.VotersRecord(voters=dynamic):
                    # A trimmed log may begin with only this record.
                    view = replace(view, voter_set=dynamic, kraft_version=max(view.kraft_version, 1))
        return view

    def without_leader(self) -> QuorumView:
        """What a snapshot holds: the voters without their leader."""
        return QuorumView(kraft_version=self.kraft_version, voter_set=self.voter_set)

    def snapshot_records(self) -> tuple[QuorumRecord, ...]:
        """The quorum's records of a snapshot at this place; empty at kraft.version 0."""
        if not self.kraft_version or not self.voter_set:
            return ()
        version = control.KRaftVersionRecord(kraft_version=self.kraft_version)
        return version, control.VotersRecord(voters=self.voter_set)

    def tree(self) -> dict[str, Any]:
        """As plain data: the election if one is known, `voterSet` from kraft.version 1 on."""
        election = {
            "leader": self.leader_id,
            "epoch": self.epoch,
            "sinceOffset": self.offset,
            "sinceMs": self.time_ms,
        }
        return {
            **(election if self.has_leader else {}),
            "voters": list(self.voters),
            "kraftVersion": self.kraft_version,
            **({"voterSet": voter_set_texts(self.voter_set)} if self.kraft_version > 0 else {}),
        }


def quorum_in_snapshot(snapshot: MetadataLog) -> QuorumView:
    """The quorum from the first batch of a checkpoint; empty if the batch cannot be read."""
    first = next(iter(snapshot.batches()), None)
    if not isinstance(first, RecordBatch) or not first.header.is_control:
        return QuorumView()
    return QuorumView().after(first.header.leader_epoch, decode_readable(first))


def quorum_at(log: MetadataLog, end_offset: int, walked: QuorumView | None = None) -> QuorumView:
    """The newest election below `end_offset`, with the voter set in force there. `walked` is what the walk to
    that place found: it may lack the election, which snapshots do not have, but not the voters. If None,
    there was no walk, and all records from that election on are read.

    Reads the batch that the leader-epoch table points to or, if that fails, the control batches of the
    segments, newest first. Unknown if the election is before the log's start.
    """
    if walked is not None and walked.has_leader:
        return walked
    view = _newest_election(log, end_offset, to_end=walked is None)
    if walked is not None and (walked.voter_set or not view.has_leader):
        return replace(view, kraft_version=walked.kraft_version, voter_set=walked.voter_set)
    return view


def _newest_election(log: MetadataLog, end_offset: int, *, to_end: bool) -> QuorumView:
    """With `to_end`, includes the control records from there to `end_offset`."""
    for start, end in _places(log, end_offset):
        view = QuorumView()
        for item in log.batches(start):
            if not isinstance(item, RecordBatch):
                continue
            is_over = item.header.next_offset > (end_offset if to_end and view.has_leader else end)
            if is_over:
                break
            if item.header.is_control and item.header.base_offset >= start:
                view = view.after(item.header.leader_epoch, decode_readable(item))
        if view.has_leader:
            return view
    return QuorumView()


def _places(log: MetadataLog, end_offset: int) -> Iterator[tuple[int, int]]:
    """Ranges of offsets to search, most promising first."""
    segments = [base for base in log.segments if base < end_offset]
    if not segments:
        return
    path = join(log.directory, EPOCHS)
    if log.disk.exists(path):
        try:
            entries = EpochTable.decode(read_file(log.disk, path), path).entries
        except StorageError:
            entries = ()
        starts = [start for _, start in entries if segments[0] <= start < end_offset]
        if starts:
            yield starts[-1], starts[-1] + 1
    ends = [*segments[1:], end_offset]
    high, size = len(segments), 1
    while high:  # more at once each time: to open one costs a look at all names in the directory
        low = max(0, high - size)
        yield segments[low], ends[high - 1]
        high, size = low, 2 * size
