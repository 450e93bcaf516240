"""One replica's directory: log, snapshots, quorum state and identity behind one object.

Owns the layout below a metadata directory, and the order in which it is opened. Everything goes through the
Disk interface, so that the simulator runs this very code. Knows the effects of the Raft core but no record:
loading an image from a snapshot is the driver's job.

Threads: the loop thread makes every call, except `persist_quorum_state`, `persist_committed` and a sync
ticket's `run` (the disk thread), `write_snapshot`, `partial_snapshot` and `finish_snapshot` (one worker), and
`fill_snapshot_chunk` (any thread).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from metaquorum.raft.config import Identity, RecoveredLog
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
from metaquorum.raft.messages import FetchResponse, FetchSnapshotResponse, RaftError
from metaquorum.raft.store.opening import check_committed, refuse_forgotten_vote
from metaquorum.raft.store.retention import Retention
from metaquorum.raft.store.stored_voters import read_changes, read_voters, votes_in
from metaquorum.raft.store.tail_cache import TailCache
from metaquorum.raft.voters.history import VotersAt
from metaquorum.raft.voters.records import VoterChange
from metaquorum.storage.batches.parsed import NO_BATCHES, Batches
from metaquorum.storage.disk.interface import BackgroundSync, Disk, Lock, join
from metaquorum.storage.errors import CorruptFileError, CorruptLogError, FileMissingError
from metaquorum.storage.files.known_committed import Known, KnownCommitted, load_known
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import MetaProperties, load_meta_properties
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state, store_quorum_state
from metaquorum.storage.files.snapshots import (
    SnapshotChunk,
    SnapshotNotFoundError,
    SnapshotPositionError,
    SnapshotWriter,
    clean_abandoned,
    list_snapshots,
    read_chunk,
    snapshot_path,
)
from metaquorum.storage.log.log import METADATA_DIRECTORY, LogConfig, SegmentedLog, SyncTicket
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import ZERO_UUID

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
        known: Known,
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
        self._known = known
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
        retention_bytes: int | None = None,
        retention_ms: int | None = None,
    ) -> ReplicaStore:
        """Locks and recovers the directory. `voter_changes` are the voter changes in the log after the newest
        snapshot, from a caller that has read it. If `retention_*` are None, TrimLog keeps everything.

        Raises CorruptFileError, CorruptLogError or CommittedLostError (no byte was changed), DiskError or
        LogDirectoryLockedError.
        """
        identity = load_meta_properties(disk, metadata_directory)
        replica_directory = join(metadata_directory, METADATA_DIRECTORY)
        lock = disk.lock(metadata_directory)
        try:
            quorum = load_quorum_state(disk, replica_directory)
            known = load_known(disk, replica_directory)
            committed = known.position
            if quorum is None and identity.node_id in voter_ids:
                refuse_forgotten_vote(disk, replica_directory, voter_ids, committed)
            check = partial(check_committed, disk, replica_directory, committed)
            log = SegmentedLog.open(disk, replica_directory, config, on_warning, lock=lock, check=check)
            try:
                retention = Retention(max_bytes=retention_bytes, max_age_ms=retention_ms)
                store = ReplicaStore(
                    disk, metadata_directory, identity, log, lock, known, quorum, voter_ids, retention
                )
                store._settle(on_warning)
                store._voter_changes = read_changes(disk, log, store.latest_snapshot(), voter_changes)
                if quorum is None:
                    named = votes_in(store._voter_changes, identity)
                    refuse_forgotten_vote(disk, replica_directory, named, committed)
                store._committed = KnownCommitted(disk, replica_directory, known)
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
        found = self.identity
        if found.cluster_id is None or found.node_id is None or found.directory_id is None:
            raise CorruptFileError(
                join(self.directory, META_PROPERTIES),
                "lacks a cluster id, a node id or a directory id",
                "format the directory",
            )
        return Identity(cluster_id=found.cluster_id, node_id=found.node_id, directory_id=found.directory_id)

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
            known_committed=self._known.position,
            acknowledged=self._known.acknowledged,
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

    def persist_committed(self, known: Known) -> None:
        """Blocks until the note is durable. Raises DiskError, after which the process must stop."""
        self._notes.write(known)

    def committed_persisted(self, known: Known) -> None:
        """Records that `persist_committed(known)` returned."""
        self._notes.end_write(known)

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
        """The response with its records. Raises CorruptLogError or DiskError."""
        if not isinstance(effect.response, FetchResponse):
            raise TypeError(f"records belong in a FetchResponse, not a {type(effect.response).__name__}")
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
