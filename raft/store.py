"""One replica's directory: log, snapshots, quorum state and identity behind one object.

Everything goes through the Disk interface, so that the simulator runs this very code.

Threads: the loop thread makes every call, except `persist_quorum_state`, `persist_committed` and a sync
ticket's `run` (the disk thread), `write_snapshot`, `partial_snapshot` and `finish_snapshot` (one worker), and
`fill_snapshot_chunk` (any thread).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from random import Random

import msgspec
from msgspec.structs import replace

from metaquorum.raft.config import Identity, RecoveredLog, Voter
from metaquorum.raft.effects import (
    AppendLog,
    NoteCommitted,
    PersistQuorumState,
    ResetLog,
    RespondWithRecords,
    RespondWithSnapshotChunk,
    TruncateLog,
    WriteSnapshotChunk,
)
from metaquorum.raft.errors import RaftUsageError
from metaquorum.raft.events import LogTrimmed, TrimLog
from metaquorum.raft.log_view import check_log
from metaquorum.raft.messages import FetchResponse, FetchSnapshotResponse, RaftError
from metaquorum.raft.stored_voters import read_changes, read_voters, votes_in, with_voters
from metaquorum.raft.voters import (
    NEWEST_KRAFT_VERSION,
    OWN_VERSIONS,
    Endpoint,
    VoterChange,
    VoterNode,
    VotersAt,
    VoterSet,
)
from metaquorum.storage.batches.batch import NO_BATCHES, Batches, RecordBatch
from metaquorum.storage.disk.interface import (
    BackgroundSync,
    Disk,
    Lock,
    join,
    make_durable_directory,
    read_file,
)
from metaquorum.storage.errors import CorruptFileError, CorruptLogError, FileMissingError
from metaquorum.storage.files.known_committed import FILE_NAME as KNOWN_COMMITTED
from metaquorum.storage.files.known_committed import NOTHING, Known, KnownCommitted, load_known
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import OPENED_LOG_FILE as FILE_NAME
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    load_meta_properties,
    note_opened,
    store_meta_properties,
    was_opened,
)
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE_FILE
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state, store_quorum_state
from metaquorum.storage.files.snapshots import (
    BOOTSTRAP_SNAPSHOT,
    SnapshotChunk,
    SnapshotNotFoundError,
    SnapshotPositionError,
    SnapshotWriter,
    clean_abandoned,
    delete_snapshots_before,
    list_snapshots,
    parse_snapshot_name,
    read_chunk,
    snapshot_path,
)
from metaquorum.storage.log.config import METADATA_DIRECTORY, LogConfig
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.log import SegmentedLog, SegmentInfo, SyncTicket
from metaquorum.storage.log.open import Examined
from metaquorum.storage.log.recovery import load_recovery_point
from metaquorum.storage.log.segment import list_segments
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import ZERO_UUID, random_uuid

TAIL_CACHE_BYTES = 8 * 1024 * 1024
"""Newest batches kept in memory: followers and the node's own image nearly always read from these."""

LogEffect = AppendLog | TruncateLog | ResetLog | NoteCommitted | WriteSnapshotChunk | TrimLog


class ReplicaStore:
    """The open directory of one replica. Create one with `open`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        identity: MetaProperties,
        log: SegmentedLog,
        lock: Lock,
        known_committed: Known,
        quorum: QuorumState | None,
        voter_ids: tuple[int, ...],
        retention: Retention,
    ) -> None:
        self.directory = directory
        self.replica_directory = log.directory
        self.identity = identity
        self.log = log
        self._disk = disk
        self._lock = lock
        self._known_committed = known_committed
        self._committed: KnownCommitted | None = None
        self._tail = TailCache(TAIL_CACHE_BYTES)
        self._incoming: SnapshotWriter | None = None
        self._stored_quorum = quorum
        self._voter_ids = voter_ids
        self._voter_changes: tuple[VoterChange, ...] = ()
        self._retention = retention

    @staticmethod
    def open(
        disk: Disk,
        metadata_directory: str,
        config: LogConfig | None = None,
        on_warning: Callable[[str], None] = lambda text: None,
        *,
        voter_ids: tuple[int, ...] = (),
        voter_changes: Sequence[VoterChange] | None = None,
        may_vote: bool = True,
        retention_bytes: int | None = None,
        retention_ms: int | None = None,
    ) -> ReplicaStore:
        """Locks and recovers the directory. `voter_changes` are the voter changes in the log after the newest
        snapshot, from a caller that has read it. Without `may_vote`, a directory that lost its log is as good
        as a new one. If `retention_*` are None, TrimLog keeps everything.

        Raises CorruptFileError, CorruptLogError or CommittedLostError (no byte was changed), DiskError or
        LogDirectoryLockedError.
        """
        identity = load_meta_properties(disk, metadata_directory)
        replica_directory = join(metadata_directory, METADATA_DIRECTORY)
        lock = disk.lock(metadata_directory)
        try:
            if may_vote:
                refuse_lost_log(
                    disk, metadata_directory, replica_directory, identity, is_static=bool(voter_ids)
                )
            quorum = load_quorum_state(disk, replica_directory)
            noted = load_known(disk, replica_directory)
            committed = noted.position
            if quorum is None and identity.node_id in voter_ids:
                refuse_forgotten_vote(disk, replica_directory, voter_ids, committed, identity, is_static=True)
            check = partial(check_committed, disk, replica_directory, committed)
            log = SegmentedLog.open(disk, replica_directory, config, on_warning, lock=lock, check=check)
            try:
                retention = Retention(max_bytes=retention_bytes, max_age_ms=retention_ms)
                store = ReplicaStore(
                    disk, metadata_directory, identity, log, lock, noted, quorum, voter_ids, retention
                )
                store._settle(on_warning)
                store._voter_changes = read_changes(disk, log, store.latest_snapshot(), voter_changes)
                if quorum is None:
                    named = votes_in(store._voter_changes, identity)
                    refuse_forgotten_vote(
                        disk, replica_directory, named, committed, identity, is_static=False
                    )
                store._committed = KnownCommitted(disk, replica_directory, noted)
                if may_vote:
                    note_opened(disk, metadata_directory, identity.directory_id or ZERO_UUID)
            except BaseException:
                log.close()
                raise
        except BaseException:
            lock.release()
            raise
        return store

    def _settle(self, on_warning: Callable[[str], None]) -> None:
        """Makes log and snapshots agree again; a crash can leave them apart."""
        for name in clean_abandoned(self._disk, self.replica_directory):
            on_warning(f"{join(self.replica_directory, name)}: left by a crash and removed")
        newest = self.latest_snapshot()
        if newest is not None and newest.offset > self.log.end_offset:
            # A snapshot was installed, and the crash came before the log was emptied for it (KIP-630).
            on_warning(
                f"{self.replica_directory}: the log ends at {self.log.end_offset}, before the snapshot's "
                f"{newest.offset}; it restarts there"
            )
            self.log.reset_to(newest)
        start = self.log.start_offset
        if start > 0 and (newest is None or newest.offset < start):
            raise CorruptLogError(
                self.replica_directory,
                0,
                start,
                f"the log starts at {start} and no snapshot reaches it",
                "copy the newest .checkpoint file from another node of the quorum",
            )

    # --- recovered state

    @property
    def raft_identity(self) -> Identity:
        """This replica's identity for its peers. Raises CorruptFileError if `meta.properties` does not
        have it."""
        identity = self.identity
        if identity.cluster_id is None or identity.node_id is None or identity.directory_id is None:
            raise CorruptFileError(
                join(self.directory, META_PROPERTIES),
                "lacks a cluster id, a node id or a directory id",
                "format the directory",
            )
        return Identity(
            cluster_id=identity.cluster_id, node_id=identity.node_id, directory_id=identity.directory_id
        )

    def recovered(self) -> RecoveredLog:
        """The state that the Raft core starts from."""
        quorum = self._stored_quorum or QuorumState()
        last_epoch = self.log.last_position.epoch
        newer = last_epoch > quorum.epoch  # the state was lost or never written: no vote of that epoch counts
        voted = None if newer else quorum.voted_id
        has_directory = voted is not None and quorum.voted_directory_id != ZERO_UUID
        return RecoveredLog(
            epoch=max(quorum.epoch, last_epoch),
            leader_id=None if newer else quorum.leader_id,
            voted_id=voted,
            voted_directory_id=quorum.voted_directory_id if has_directory else None,
            epochs=self.log.epochs.entries,
            log_start_offset=self.log.start_offset,
            log_end_offset=self.log.end_offset,
            snapshots=tuple(self.snapshots()),
            known_committed=self._known_committed.position,
            acknowledged=self._known_committed.acknowledged,
            voter_changes=self._voter_changes,
            directory=self.replica_directory,
        )

    def voters_in(self, path: str) -> VotersAt:
        """The voters that a snapshot file names. Raises CorruptLogError, BatchError or DiskError."""
        return read_voters(self._disk, path)

    def snapshots(self) -> list[LogPosition]:
        """Finished snapshots by rising end offset."""
        return list_snapshots(self._disk, self.replica_directory)

    def latest_snapshot(self) -> LogPosition | None:
        """The finished snapshot with the highest end offset."""
        snapshots = self.snapshots()
        return snapshots[-1] if snapshots else None

    def snapshot_path(self, position: LogPosition) -> str:
        """Path of the finished snapshot."""
        return snapshot_path(self.replica_directory, position)

    # --- effects, on the loop thread

    def execute(self, effect: LogEffect, *, wall_ms: int | None = None) -> LogTrimmed | None:
        """Carries out one effect on the log. TrimLog returns where the log then starts.

        `wall_ms` is the time for retention by age; without it only sizes count. Raises DiskError or another
        StorageError, after which the process must stop.
        """
        match effect:
            case AppendLog(batches=batches):
                self.log.append(batches)
                self._tail.append(batches)
            case TruncateLog(end_offset=end_offset):
                self._tail.clear()
                self.log.truncate_to(end_offset)
            case ResetLog(position=position):
                self._tail.clear()
                self.log.reset_to(position)
            case NoteCommitted(position=position):
                if effect.durably:
                    self._notes.acknowledged = effect.acknowledged
                self._notes.note(position)
            case WriteSnapshotChunk():
                self._receive(effect)
            case TrimLog(before_offset=before_offset):
                self._retention.trim(self._disk, self.log, before_offset, wall_ms=wall_ms)
                return LogTrimmed(log_start_offset=self.log.start_offset)
        return None

    def _receive(self, effect: WriteSnapshotChunk) -> None:
        writer = self._incoming
        if writer is None or writer.snapshot_id != effect.snapshot or effect.position == 0:
            if writer is not None:
                writer.close()
            writer = self._incoming = SnapshotWriter(self._disk, self.replica_directory, effect.snapshot)
        end = effect.position + len(effect.data)
        writer.receive(
            SnapshotChunk(
                snapshot_id=effect.snapshot, position=effect.position, size_bytes=end, data=effect.data
            )
        )

    # --- durability

    def persist_quorum_state(self, effect: PersistQuorumState) -> None:
        """Blocks until the state is durable. Raises DiskError, after which the process must stop."""
        state = QuorumState(
            leader_id=effect.leader_id,
            epoch=effect.epoch,
            voted_id=effect.voted_id,
            voted_directory_id=effect.voted_directory_id or ZERO_UUID,
            voters=self._voter_ids,
        )
        store_quorum_state(self._disk, self.replica_directory, state, version=effect.kraft_version)

    @property
    def _notes(self) -> KnownCommitted:
        if self._committed is None:
            raise RaftUsageError("a store takes notes between `open` and `close`")
        return self._committed

    def prepare_committed(self) -> Known:
        """The newest note, for `persist_committed` to make durable. One write at a time."""
        return self._notes.begin_write()

    def persist_committed(self, note: Known) -> None:
        """Blocks until the note is durable. Raises DiskError, after which the process must stop."""
        self._notes.write(note)

    def committed_persisted(self, note: Known) -> None:
        """Records that `persist_committed(note)` returned."""
        self._notes.end_write(note)

    def prepare_sync(self) -> SyncTicket:
        """A ticket for everything that is not durable yet; its `run` is for the disk thread."""
        return self.log.prepare_sync()

    def background_sync(self) -> BackgroundSync | None:
        """Starts a ticket's sync without a thread; None if this disk cannot. The caller closes it."""
        return self._disk.background_sync(self.replica_directory)

    def sync_completed(self, ticket: SyncTicket) -> int:
        """The synced end offset after `ticket.run()` or `ticket.end()` returned."""
        return self.log.sync_completed(ticket)

    # --- reading

    def read_log(self, from_offset: int, to_offset: int, max_bytes: int) -> Batches:
        """Whole batches in [from_offset, to_offset), at least one, at most `max_bytes` if there are more."""
        if from_offset >= to_offset:
            return NO_BATCHES
        cached = self._tail.read(from_offset, to_offset, max_bytes)
        if cached is not None:
            return cached
        return self.log.read(from_offset, max_bytes).below(to_offset)

    def fill_records(self, effect: RespondWithRecords) -> FetchResponse:
        """The response with its records, or without any if the log was trimmed since: the next fetch gets a
        snapshot's id. Raises CorruptLogError or DiskError."""
        if not isinstance(effect.response, FetchResponse):
            raise TypeError(f"records belong in a FetchResponse, not a {type(effect.response).__name__}")
        if effect.read_from < self.log.start_offset:
            return effect.response
        found = self.read_log(effect.read_from, effect.read_to, effect.max_bytes)
        return replace(effect.response, records=found.data)

    def fill_snapshot_chunk(self, effect: RespondWithSnapshotChunk) -> FetchSnapshotResponse:
        """The response with its chunk, or with an error: retention may have removed the snapshot since the
        caller learned of it. Raises DiskError."""
        if not isinstance(effect.response, FetchSnapshotResponse):
            raise TypeError(
                f"a chunk belongs in a FetchSnapshotResponse, not a {type(effect.response).__name__}"
            )
        try:
            chunk = read_chunk(
                self._disk, self.replica_directory, effect.snapshot, effect.position, effect.max_bytes
            )
        except SnapshotNotFoundError:
            return replace(effect.response, error=RaftError.SNAPSHOT_NOT_FOUND)
        except SnapshotPositionError:
            return replace(effect.response, error=RaftError.POSITION_OUT_OF_RANGE)
        return replace(
            effect.response,
            snapshot=effect.snapshot,
            size_bytes=chunk.size_bytes,
            position=effect.position,
            data=chunk.data,
        )

    # --- snapshots, on a worker

    def write_snapshot(self, position: LogPosition, batches: Iterable[bytes]) -> int:
        """Writes a snapshot, durable under its final name on return; returns its size in bytes. Raises
        DiskError."""
        writer = SnapshotWriter(self._disk, self.replica_directory, position)
        try:
            for batch in batches:
                writer.append(batch)
            size = writer.size_bytes
            writer.freeze()
        except BaseException:
            writer.close()
            raise
        return size

    def partial_snapshot(self, position: LogPosition, size_bytes: int) -> str:
        """Path of the fetched file, not yet in force. Raises FileMissingError if it is incomplete."""
        writer = self._incoming
        if writer is None or writer.snapshot_id != position or writer.size_bytes != size_bytes:
            raise FileMissingError(self.snapshot_path(position))
        return writer.path

    def finish_snapshot(self, position: LogPosition) -> None:
        """Puts the fetched snapshot in force, durably. Check its contents first."""
        if self._incoming is None or self._incoming.snapshot_id != position:
            raise FileMissingError(self.snapshot_path(position))
        self._incoming.freeze()
        self._incoming = None

    def drop_snapshot(self) -> None:
        """Deletes the fetched file because it was damaged."""
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None

    # --- closing

    def close(self, *, clean: bool = True) -> None:
        """A clean close leaves nothing for the next open to verify. Releases the lock."""
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None
        try:
            if self._committed is not None:
                self._committed.close(clean=clean)
            if clean:
                self.log.clean_close()
            else:
                self.log.close()
        finally:
            self._lock.release()


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """`max_bytes` of log and snapshots together, `max_age_ms` of a segment's newest record. None means no
    bound; if both are None, everything is kept."""

    max_bytes: int | None
    max_age_ms: int | None

    def trim(self, disk: Disk, log: SegmentedLog, before_offset: int, *, wall_ms: int | None) -> None:
        """Snapshot by snapshot, oldest first, deletes what is before a snapshot while a bound requires it.
        Ignores snapshots above `before_offset`. With `wall_ms` None, ages are ignored."""
        snapshots = list_snapshots(disk, log.directory)
        for number, base in enumerate(snapshots):
            if base.offset > before_offset:
                return
            doomed = [info for info in log.segments()[:-1] if info.end_offset <= base.offset]
            if not doomed and number == 0:
                continue
            if not self._is_too_big(disk, log) and not self._is_too_old(doomed, wall_ms):
                return
            log.delete_segments_before(base.offset)
            delete_snapshots_before(disk, log.directory, base.offset)

    def _is_too_big(self, disk: Disk, log: SegmentedLog) -> bool:
        if self.max_bytes is None:
            return False
        directory = log.directory
        snapshots = list_snapshots(disk, directory)
        size_bytes = sum(disk.file_size(snapshot_path(directory, position)) for position in snapshots)
        return log.size_bytes + size_bytes > self.max_bytes

    def _is_too_old(self, doomed: list[SegmentInfo], wall_ms: int | None) -> bool:
        if self.max_age_ms is None or wall_ms is None or not doomed:
            return False
        newest_ms = doomed[-1].last_timestamp_ms
        return newest_ms is not None and newest_ms + self.max_age_ms < wall_ms


HEADER_MEMORY_BYTES = 300
"""Approximate memory of a parsed header, apart from its batch's bytes."""


class TailCache:
    """The newest batches of a log, contiguous, up to a number of bytes including their headers. Knows no
    file."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bases: list[int] = []
        self._batches: list[RecordBatch] = []
        self._size = 0
        self._end_offset = 0
        self._joined: tuple[int, int, Batches] | None = None

    def append(self, batches: Batches) -> None:
        """Adds whole batches; batches that do not follow the newest one restart the cache."""
        if batches.base_offset != self._end_offset:
            self.clear()
        for batch in batches.split():
            self._bases.append(batch.header.base_offset)
            self._batches.append(batch)
        self._end_offset = batches.next_offset
        self._size += len(batches.data) + HEADER_MEMORY_BYTES * len(batches.headers)
        if self._size > self._max_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Shrinks to half at once, so that the cost is spread over many appends."""
        count = 0
        while self._size > self._max_bytes // 2:
            self._size -= len(self._batches[count].data) + HEADER_MEMORY_BYTES
            count += 1
        del self._bases[:count]
        del self._batches[:count]

    def read(self, from_offset: int, to_offset: int, max_bytes: int) -> Batches | None:
        """Like `ReplicaStore.read_log`; None if the batches are not all here."""
        if not self._bases or from_offset < self._bases[0] or from_offset >= self._end_offset:
            return None
        first = bisect_right(self._bases, from_offset) - 1
        last, size = first, len(self._batches[first].data)
        for index in range(first + 1, len(self._bases)):
            size += len(self._batches[index].data)
            if self._bases[index] >= to_offset or size > max_bytes:
                break
            last = index
        # Hundreds of brokers request the same batches at once: they all share one copy.
        low, high = self._bases[first], self._bases[last]
        if self._joined is None or self._joined[:2] != (low, high):
            self._joined = (low, high, Batches.joined(self._batches[first : last + 1]))
        return self._joined[2]

    def clear(self) -> None:
        self._bases.clear()
        self._batches.clear()
        self._joined = None
        self._size = 0


# What a directory must hold before a replica may start from it. Nothing here changes a byte.


def check_committed(disk: Disk, replica_directory: str, committed: LogPosition, log: Examined) -> None:
    """Checks that what was known to be committed is still here, in the log or covered by a snapshot.
    Raises CommittedLostError."""
    snapshots = [position.offset for position in list_snapshots(disk, replica_directory)]
    check_log(
        replica_directory,
        committed=committed,
        start_offset=log.segments[0].base_offset if log.segments else 0,
        end_offset=max([log.end_offset, *snapshots]),
        epochs=log.epochs,
    )


def refuse_lost_log(
    disk: Disk, directory: str, replica_directory: str, identity: MetaProperties, *, is_static: bool
) -> None:
    """Refuses a node that may vote if its log was opened before and is gone: the votes that it gave and the
    records that it acknowledged went with it. Raises CorruptFileError."""
    if not was_opened(disk, directory, identity.directory_id or ZERO_UUID):
        return
    if disk.exists(replica_directory) and (
        list_segments(disk, replica_directory) or load_recovery_point(disk, replica_directory)
    ):
        return  # the log itself finishes an interrupted reset, and refuses to open without its segments
    remedy = _replacing(identity, is_static=is_static)
    raise CorruptFileError(
        replica_directory,
        f"has no log, but this controller has opened one there ({FILE_NAME} in {directory} says so), and its "
        "votes and what it acknowledged are lost with it",
        f"put the log back if it was moved, never an older copy; else {remedy}",
    )


def _replacing(identity: MetaProperties, *, is_static: bool) -> str:
    how = (
        "without --new-cluster; the controller then only observes"
        if is_static
        else "with --no-initial-controllers, start the controller, which then only observes, and run "
        f"`metaquorum quorum replace-voter {identity.node_id}`"
    )
    return f"move the directory away, format it again {how} (see 'Damaged or lost' in docs/operations.md)"


def refuse_forgotten_vote(
    disk: Disk,
    replica_directory: str,
    voter_ids: Sequence[int],
    committed: LogPosition,
    identity: MetaProperties,
    *,
    is_static: bool,
) -> None:
    """Refuses a voter that has a log but no quorum state: it has voted or followed, and could vote twice in
    one epoch.

    The only voter of a quorum writes its first records while its quorum state is still being written. If it
    stops before that is done, nothing is committed, as its file about that says, and no other node has its
    vote or a record. Raises CorruptFileError.
    """
    if not voter_ids or not disk.exists(replica_directory):
        return
    noted = disk.exists(join(replica_directory, KNOWN_COMMITTED))
    if len(voter_ids) == 1 and committed == NOTHING and noted:
        return
    beside = _history(disk, replica_directory)
    if beside is not None:
        raise CorruptFileError(
            join(replica_directory, QUORUM_STATE_FILE),
            f"is absent beside {beside}",
            "a vote that it gave may be lost: put the file back if it was moved, never an older copy; else "
            + _replacing(identity, is_static=is_static),
        )


def _history(disk: Disk, replica_directory: str) -> str | None:
    """A file that only a node of a quorum with a leader has; None if there is none."""
    for name in disk.list_directory(replica_directory):
        if name.endswith(".log") and disk.file_size(join(replica_directory, name)) > 0:
            return f"the log {name}"
        position = parse_snapshot_name(name)
        if position is not None and position != BOOTSTRAP_SNAPSHOT:
            return f"the snapshot {name}"
    with suppress(FileMissingError, CorruptFileError):
        if EpochTable.decode(read_file(disk, join(replica_directory, EPOCHS_FILE))).entries:
            return f"epochs in {EPOCHS_FILE}"
    return None


# The directory of a user of the library: created once, opened at every start. The controllers and brokers
# of a cluster are formatted elsewhere.


def create_directory(
    disk: Disk, path: str, *, cluster_id: str, node_id: int, rng: Random, endpoints: Sequence[Endpoint] = ()
) -> None:
    """Gives a new directory an identity, durably; `rng` draws its id (use random.SystemRandom()).

    With `endpoints`, this node is the first and only voter of a quorum of kraft.version 1 and listens there;
    every other node of the quorum starts as an observer and is added with AddVoterRequest. Without them,
    voters are configured, or this node will be added.

    Do this once in the life of a voter. A voter that comes back with an emptied disk has forgotten its votes
    and what it acknowledged, and must not vote under its old id. Raises CorruptFileError if the directory
    already has an identity.
    """
    file = join(path, META_PROPERTIES)
    if disk.exists(file):
        raise CorruptFileError(file, "exists already", "open this directory, or choose another one")
    make_durable_directory(disk, path)
    directory_id = random_uuid(rng)
    if endpoints:
        voter = VoterNode(
            node_id=node_id,
            directory_id=directory_id,
            endpoints=tuple(endpoints),
            versions=OWN_VERSIONS,
        )
        _store_first_voters(disk, join(path, METADATA_DIRECTORY), VoterSet([voter]))
    properties = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
    store_meta_properties(disk, path, properties)


def _store_first_voters(disk: Disk, replica_directory: str, voters: VoterSet) -> None:
    """Stores them as the snapshot at offset 0, which is never sent: the first leader writes them into the
    log."""
    disk.make_directory(replica_directory)
    writer = SnapshotWriter(disk, replica_directory, LogPosition(0, 0))
    for batch in with_voters([], VotersAt(NEWEST_KRAFT_VERSION, voters), timestamp_ms=0):
        writer.append(batch)
    writer.freeze()


def open_directory(disk: Disk, path: str, voters: Iterable[Voter]) -> ReplicaStore:
    """Locks and recovers a directory that `create_directory` made. Raises the errors of
    `ReplicaStore.open`."""
    return ReplicaStore.open(disk, path, voter_ids=tuple(voter.node_id for voter in voters))
