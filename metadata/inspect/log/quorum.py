"""The leader of the quorum, as the log's control records say it, and the search for the newest of them.

Images and snapshots hold no elections, so tools keep this beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.records import control
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS
from metaquorum.storage.log.epochs import EpochTable


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    """The newest election up to a place of the log; -1 and empty where no record said it.

    `voters` are node ids; `offset` is that of the record that began the leader's epoch, `time_ms` its time.
    """

    leader_id: int = -1
    epoch: int = -1
    offset: int = -1
    time_ms: int = -1
    voters: tuple[int, ...] = ()
    kraft_version: int = 0

    @property
    def is_known(self) -> bool:
        """False before the first election that was read."""
        return self.offset >= 0

    def after(self, epoch: int, records: Iterable[DecodedRecord]) -> QuorumView:
        """The view after the records of a control batch of `epoch`."""
        view = self
        for decoded in records:
            match decoded.record:
                case control.LeaderChangeMessage(leader_id=leader_id, voters=voters):
                    view = replace(
                        view,
                        leader_id=leader_id,
                        epoch=epoch,
                        offset=decoded.offset,
                        time_ms=decoded.timestamp_ms,
                        voters=tuple(sorted(voter.voter_id for voter in voters)) or view.voters,
                    )
                case control.KRaftVersionRecord(kraft_version=version):
                    view = replace(view, kraft_version=version)
                case control.VotersRecord(voters=voters):
                    view = replace(view, voters=tuple(sorted(voter.voter_id for voter in voters)))
        return view

    def tree(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "leader": self.leader_id,
            "epoch": self.epoch,
            "sinceOffset": self.offset,
            "sinceMs": self.time_ms,
            "voters": list(self.voters),
            "kraftVersion": self.kraft_version,
        }


def quorum_at(log: MetadataLog, end_offset: int, known: QuorumView | None = None) -> QuorumView:
    """The newest election below `end_offset`; `known` if that is one already.

    Reads the batch that the leader-epoch table points to, and where that leads nowhere the control batches of
    one segment after the other, newest first. Unknown where the election is before the log's start.
    """
    if known is not None and known.is_known:
        return known
    for start, end in _places(log, end_offset):
        view = QuorumView()
        for found in log.batches(start):
            if not isinstance(found, RecordBatch):
                continue
            if found.header.next_offset > end:
                break
            if found.header.is_control and found.header.base_offset >= start:
                view = view.after(found.header.leader_epoch, decode_readable(found))
        if view.is_known:
            return view
    return known or QuorumView()


def _places(log: MetadataLog, end_offset: int) -> Iterator[tuple[int, int]]:
    """Stretches of offsets to look through, most promising first."""
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
    yield from reversed(list(zip(segments, ends, strict=True)))
