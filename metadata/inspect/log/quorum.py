"""The quorum's leader and voters by its control records, and the search for the newest of those."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.records import control
from metaquorum.metadata.records.batches import DecodedRecord, decode_readable
from metaquorum.metadata.records.control import Voter, VotersRecord
from metaquorum.metadata.snapshot import QuorumRecord
from metaquorum.metadata.text.addresses import address_text, listener_text
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.uuids import ZERO_UUID, uuid_to_text

# Voter sets (KIP-853) as the tools show them: plain data, and the changes of one record in words.
#
# A voter is one of `metadata.records.control`; a voter of a static quorum has no endpoints and usually no
# directory id.


def voter_ids(voters: Sequence[Voter]) -> tuple[int, ...]:
    """Node ids, ascending."""
    return tuple(sorted(voter.voter_id for voter in voters))


def voter_set_texts(voters: Sequence[Voter]) -> list[str]:
    """As plain data, by ascending id: `id@host:port:directory-id`, as `storage format` takes them, plus what
    that form lacks: further listeners, and a range of kraft.version other than 0-1."""
    return [_text(voter) for voter in sorted(voters, key=lambda voter: voter.voter_id)]


def _text(voter: Voter) -> str:
    first, more = (
        voter.endpoints[:1],
        [listener_text(at.name, at.host, at.port) for at in voter.endpoints[1:]],
    )
    if _range(voter) != "0-1":
        more.append(f"kraft.version {_range(voter)}")
    where = "".join(f"{address_text(at.host, at.port)}:" for at in first)
    beyond = f" ({', '.join(more)})" if more else ""
    return f"{voter.voter_id}@{where}{uuid_to_text(voter.voter_directory_id)}{beyond}"


def ids_text(voters: Sequence[Voter]) -> str:
    """`1,2,3`."""
    return ",".join(map(str, voter_ids(voters)))


def changes_text(before: Sequence[Voter] | None, after: Sequence[Voter]) -> str:
    """The changes by a record that holds the whole set: `added 4 at ...; removed 3 ...`. "" if there are
    none, or if the set before is unknown (None)."""
    if before is None:
        return ""
    old = {voter.voter_id: voter for voter in before}
    new = {voter.voter_id: voter for voter in after}
    changes = [f"added {_whole(new[one])}" for one in sorted(new.keys() - old.keys())]
    changes += [f"removed {_named(old[one])}" for one in sorted(old.keys() - new.keys())]
    for one in sorted(old.keys() & new.keys()):
        changes += _updates(old[one], new[one])
    return "; ".join(changes)


def _whole(voter: Voter) -> str:
    where = ", ".join(address_text(at.host, at.port) for at in voter.endpoints)
    return f"{_named(voter)}{f' at {where}' if where else ''}"


def _named(voter: Voter) -> str:
    if voter.voter_directory_id == ZERO_UUID:
        return str(voter.voter_id)
    return f"{voter.voter_id} (directory {uuid_to_text(voter.voter_directory_id)})"


def _updates(old: Voter, new: Voter) -> list[str]:
    changes = []
    if old.voter_directory_id not in (new.voter_directory_id, ZERO_UUID):
        changes.append(
            f"{old.voter_id} has another directory, {uuid_to_text(new.voter_directory_id)} instead of"
            f" {uuid_to_text(old.voter_directory_id)}"
        )
    if old.endpoints and old.endpoints != new.endpoints:
        now, was = ([listener_text(at.name, at.host, at.port) for at in one.endpoints] for one in (new, old))
        changes.append(f"{new.voter_id} is at {', '.join(now) or 'no address'}, before at {', '.join(was)}")
    if old.endpoints and _range(old) != _range(new):
        changes.append(f"{new.voter_id} supports kraft.version {_range(new)}, before {_range(old)}")
    return changes


def _range(voter: Voter) -> str:
    supported = voter.kraft_version_feature
    return f"{supported.min_supported_version}-{supported.max_supported_version}"


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


# The voter sets of one log (KIP-853): which was in force where, by its control records and snapshots.


class VoterSets:
    """Each set is in force from after its record on; there is none at kraft.version 0."""

    def __init__(self, log: MetadataLog) -> None:
        """Starts with the voter sets in the snapshots beside the log."""
        self._sets: dict[int, tuple[Voter, ...]] = {}
        for position in log.snapshots() if log.is_directory else ():
            found = quorum_in_snapshot(log.snapshot(position))
            if found.kraft_version and found.voter_set:
                self._sets[position.offset] = found.voter_set
        self._of_snapshots = frozenset(self._sets)

    def take(self, batch: RecordBatch) -> None:
        """Takes the next batch of the log."""
        if not batch.header.is_control:
            return
        for decoded in decode_readable(batch):
            if isinstance(decoded.record, VotersRecord):
                self._sets[decoded.offset + 1] = decoded.record.voters

    def at(self, end_offset: int) -> tuple[Voter, ...]:
        """The set in force for the records below `end_offset`; empty if the log does not have it."""
        places = sorted(self._sets)
        found = bisect_right(places, end_offset)
        return self._sets[places[found - 1]] if found else ()

    def undone_from(self, offset: int) -> tuple[str, ...]:
        """The voter sets lost if the log is truncated to `offset`, in words, newest last."""
        lines, before = [], self.at(offset)
        for end_offset in sorted(self._sets):
            if end_offset <= offset or end_offset in self._of_snapshots:
                continue
            changed = changes_text(before or None, self._sets[end_offset])
            how = f" ({changed})" if changed else ""
            lines.append(f"the voter set {ids_text(self._sets[end_offset])} of offset {end_offset - 1}{how}")
            before = self._sets[end_offset]
        return tuple(lines)
