"""Replicas that move between the log directories of this broker (KIP-113), as requested by
AlterReplicaLogDirs.

Which replicas move, how many at once and how fast, and the order in which the metadata log, the disks and the
partition learn of it: the copy catches up; the new directory is reported to the controller (KIP-858); when
the image names it, the partition holds back what it accepts until the last bytes are copied and the copy has
the replica's name; from then on the replica runs there. A crash in between leaves either the replica and a
copy that continues to follow it, or two whole replicas, one of which the image names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaquorum.broker.replica.controller_requests import Assignments
from metaquorum.broker.replica.disk_work import (
    CreateReplica,
    LogAppended,
    LogCut,
    LogSettings,
    PartitionRead,
    PromoteReplica,
    ReadPartition,
    RemoveReplica,
    ReplicaLog,
    ReplicaLogTrimmed,
    ReplicaPromoted,
    TrimTo,
)
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.follower import Following
from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import FollowerStep, ReadPlan
from metaquorum.broker.replica.placement.directories import Copies, Copy, Directories, Stage
from metaquorum.broker.replica.placement.reconcile import DamagedCopies
from metaquorum.broker.replica.topic_settings import MAX_LONG
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import BROKER_RESOURCE, ConfigResource, MetadataImage, PartitionInfo
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import FetchedPartition, FetchPartition, PartitionKey
from metaquorum.metadata.settings.configs import CLUSTER_DEFAULT
from metaquorum.metadata.settings.keys import whole_number
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.storage.partition.replica_directory import may_have_future

LIMIT = "replica.alter.log.dirs.io.max.bytes.per.second"
"""A broker's dynamic configuration, as in Kafka."""

READS_MAX = 4
"""Chunks (replica.fetch.max.bytes) that are copied at the same time."""

_INCARNATION_BITS = 20
"""A partition counts its own cuts in the lower bits; each new copy begins above all others."""

PREFERRED_MAX = 10_000
"""Replicas that are not here yet for which a directory is remembered."""


class Moves:
    """`look` queues a partition for another look."""

    def __init__(
        self,
        config: ReplicaConfig,
        directories: Directories,
        copies: Copies,
        damaged: DamagedCopies,
        running: Mapping[PartitionKey, Partition],
        *,
        assignments: Assignments,
        next_token: Callable[[], int],
        look: Callable[[PartitionKey], None],
        out: Outbox[DataEffect],
    ) -> None:
        self._config = config
        self._directories = directories
        self._copies = copies
        self._damaged = damaged
        self._running = running
        self._assignments = assignments
        self._next_token = next_token
        self._look = look
        self._out = out
        self.under_way: dict[PartitionKey, ReplicaMove] = {}
        self.ready: dict[PartitionKey, None] = {}
        self._reads: dict[int, ReplicaMove] = {}
        self._leaving: dict[int, Copy] = {}
        self._preferred: dict[tuple[str, int], bytes] = {}
        self._serial = 0
        self._free_ms = 0
        self._bytes_per_second = MAX_LONG

    def __contains__(self, key: object) -> bool:
        return key in self.under_way

    # ---- requests ----------------------------------------------------------------------------

    def ask(
        self, path: str, topic: str, index: int, info: PartitionInfo | None, settings: LogSettings
    ) -> ErrorCode:
        """Moves a replica to the directory at `path`; if it is already there, a move in progress ends. The
        answers are Kafka's."""
        wanted = self._directories.named(path)
        if not may_have_future(topic, index):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if wanted is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if wanted.problem is not None or wanted.directory_id is None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = None if info is None else self._running.get((info.topic_id, info.index))
        if partition is None:
            return self._not_here(topic, index, info, wanted.directory_id)
        return self._start(partition, wanted.directory_id, settings)

    def _not_here(self, topic: str, index: int, info: PartitionInfo | None, directory_id: bytes) -> ErrorCode:
        """When the replica arrives, it is created there."""
        at = None if info is None else info.directory_of(self._config.broker_id)
        if at is not None and self._directories.is_bad(at):
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._preferred.pop((topic, index), None)
        self._preferred[topic, index] = directory_id
        if len(self._preferred) > PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else ErrorCode.REPLICA_NOT_AVAILABLE

    def _start(self, partition: Partition, directory_id: bytes, settings: LogSettings) -> ErrorCode:
        key, move = partition.key, self.under_way.get(partition.key)
        if any(each.directory_id == directory_id for each in self._copies.futures_of(key)):
            return ErrorCode.NONE
        if move is not None and move.is_promoting:
            return ErrorCode.REPLICA_NOT_AVAILABLE  # it will be there in a moment
        if directory_id == partition.directory_id:
            self.cancel(key, "its move was cancelled")
            return ErrorCode.NONE
        if self._directories.any_bad:
            return ErrorCode.KAFKA_STORAGE_ERROR  # another copy may be in there
        if self._copies.at(directory_id, key) is not None:
            return ErrorCode.REPLICA_NOT_AVAILABLE  # an earlier one is being removed
        if (text := self.name_taken(directory_id, partition.topic, key[1])) is not None:
            self._out.append(Warn(message=f"replica {partition.topic}-{key[1]} is not moved: {text}"))
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.cancel(key, "it is being moved to another directory")
        self.create(key, partition.topic, directory_id, settings, future=True)
        return ErrorCode.NONE

    def name_taken(self, directory_id: bytes, topic: str, index: int) -> str | None:
        """Why a replica cannot have its name in a directory: that of another topic differs only in case, and
        the file system ignores it. None if it can."""
        directory, copy = self._directories.get(directory_id), self._copies.named(directory_id, topic, index)
        if directory is None or not directory.ignores_case:
            return None
        taken = (
            self._damaged.named(directory_id, topic, index, self._directories) if copy is None else copy.topic
        )
        if taken is None or taken == topic:
            return None
        return (
            f"the file system of {directory.path} ignores case, and {taken}-{index} is there; delete one of"
            f" the topics, or move {taken}-{index} to a log directory that distinguishes case"
        )

    def create(
        self,
        key: PartitionKey,
        topic: str,
        directory_id: bytes,
        settings: LogSettings,
        *,
        future: bool = False,
    ) -> None:
        """Makes a copy, which is a replica unless it is `future`."""
        self._serial += 1
        copy = Copy(key, topic, directory_id, self._serial << _INCARNATION_BITS, None, future=future)
        self._copies.add(copy)
        self._out.append(
            CreateReplica(
                directory_id=directory_id,
                key=key,
                incarnation=copy.incarnation,
                topic=topic,
                settings=settings,
                future=future,
            )
        )

    def take_preferred(self, topic: str, index: int) -> bytes | None:
        """The directory requested for a replica before it was here, if it can be used."""
        place = self._preferred.pop((topic, index), None)
        return place if place is not None and self._directories.is_good(place) else None

    def cancel(self, key: PartitionKey, reason: str) -> None:
        """Removes its unfinished copies, and what is in progress with them."""
        for copy in self._copies.futures_of(key):
            self.remove(copy, reason)
            self._look(key)

    def remove(self, copy: Copy, reason: str) -> None:
        """A copy that no longer runs, or never did."""
        move = self.under_way.get(copy.key)
        if move is not None and move.copy is copy:
            copy.incarnation = move.incarnation
            self._end(move)
        self._copies.leave(copy)
        self._send_removal(copy, reason)

    def _send_removal(self, copy: Copy, reason: str) -> None:
        self._out.append(
            RemoveReplica(
                directory_id=copy.directory_id, key=copy.key, incarnation=copy.incarnation_now, reason=reason
            )
        )

    def _end(self, move: ReplicaMove) -> None:
        self.under_way.pop(move.key, None)
        self.ready.pop(move.key, None)
        partition = move.source.partition
        if partition is not None and partition.is_held:
            partition.release()

    # ---- what to move, by the image ----------------------------------------------------------

    def limit(self, image: MetadataImage) -> None:
        """How fast all of them together may be copied. A new limit applies at once."""
        own = ConfigResource(BROKER_RESOURCE, str(self._config.broker_id))
        found = {**(image.configs.get(CLUSTER_DEFAULT) or {}), **(image.configs.get(own) or {})}.get(LIMIT)
        number = None if found is None else whole_number(found, MAX_LONG)
        limit = MAX_LONG if number is None else number
        if limit != self._bytes_per_second:
            self._bytes_per_second, self._free_ms = limit, 0

    def target(self, key: PartitionKey, assigned: bytes | None) -> bytes | None:
        """The directory of the copy that will become the replica. Only one is kept: the one that the log
        names, or the one that has most."""
        futures = self._copies.futures_of(key)
        if not futures:
            return None
        best = max(futures, key=lambda each: (each.directory_id == assigned, each.rank))
        for copy in futures:
            if copy is not best:
                self.remove(copy, "the replica is being moved to another directory")
        return best.directory_id

    def runs(self, source: Copy, *, leaves: bool) -> None:
        """The replica runs in `source`; `leaves`: it may move."""
        futures = self._copies.futures_of(source.key)
        if not futures or futures[0].stage is not Stage.OPEN:
            return
        move = self.under_way.get(source.key)
        if move is None or move.source is not source or move.copy is not futures[0]:
            move = self.under_way[source.key] = ReplicaMove(self._config, source, futures[0], self._out)
        move.leaves = leaves
        self.ready[source.key] = None

    def end_of(self, copy: Copy) -> int:
        """The end of a copy that is being made."""
        move = self.under_way.get(copy.key)
        if move is not None and move.copy is copy:
            return move.end_offset
        return 0 if copy.log is None else copy.log.end_offset

    def size_of(self, copy: Copy) -> int:
        move = self.under_way.get(copy.key)
        return move.size_bytes if move is not None and move.copy is copy else copy.size_bytes

    def problem_of(self, key: PartitionKey, directory_id: bytes) -> str | None:
        """Why the copy in the directory is not a replica; None if it is not an unfinished copy."""
        copy = self._copies.at(directory_id, key)
        if copy is None or not copy.future:
            return None
        known = self._directories.get(directory_id)
        path = "" if known is None else known.path
        return (
            f"{copy.topic}-{key[1]} was being moved to {path} when its directory failed: "
            "repair that directory and restart this broker"
        )

    # ---- step by step ------------------------------------------------------------------------

    def look_again(self, key: PartitionKey) -> None:
        """Its log, or the copy, changed."""
        if key in self.under_way:
            self.ready[key] = None

    def settle(self, *, now_ms: int, wall_ms: int) -> None:
        """Does what can be done."""
        while self._can_read() and now_ms >= self._free_ms:
            key = next(iter(self.ready))
            del self.ready[key]
            self._advance(self.under_way[key], wall_ms)

    def next_deadline_ms(self) -> int | None:
        """When `settle` has something to do without an event."""
        return self._free_ms if self.ready and self._can_read() else None

    def _can_read(self) -> bool:
        return bool(self.ready) and len(self._reads) < READS_MAX and self._bytes_per_second > 0

    def _advance(self, move: ReplicaMove, wall_ms: int) -> None:
        partition = self._running.get(move.key)
        if partition is None or partition is not move.source.partition or move.waits:
            return
        if partition.is_cutting:
            return  # its end is that of the log before; once it is cut, the copy is, too
        plan = move.next_plan(partition, wall_ms=wall_ms)
        if move.problem is not None:
            self._give_up(move)
            return
        if plan is None:
            return
        if not partition.is_held and (plan.is_empty or move.is_near):
            if move.leaves:
                partition.hold()
            else:
                self._assignments.want(move.key, move.copy.directory_id)
        if not plan.is_empty:
            token = self._next_token()
            self._reads[token] = move
            move.read(partition, plan, token)
        elif partition.is_held and plan.from_offset == partition.given_end:
            move.problem = self.name_taken(move.copy.directory_id, move.copy.topic, move.key[1])
            if move.problem is not None:
                self._give_up(move)
                return
            namesake = self._copies.named(move.copy.directory_id, move.copy.topic, move.key[1])
            if namesake is not None:
                self.remove(namesake, "its topic was deleted, and a new topic has its name")
            self._copies.promote(move.copy)
            move.promote(partition)

    def _give_up(self, move: ReplicaMove) -> None:
        text = f"{move.copy.topic}-{move.key[1]} is not moved to another directory: {move.problem}"
        self._out.append(Warn(message=text))
        self.remove(move.copy, "its move failed")
        self._look(move.key)

    # ---- what the disks did ------------------------------------------------------------------

    def take_read(self, event: PartitionRead, *, now_ms: int, wall_ms: int) -> bool:
        """Whether the report is on one of these reads."""
        left = self._leaving.pop(event.token, None)
        if left is not None:
            self._send_removal(left, "the replica is now in another directory")
            return True
        move = self._reads.pop(event.token, None)
        if move is None:
            return False
        if self.under_way.get(move.key) is move:
            move.take_read(event, wall_ms=wall_ms)
            if move.problem is not None:
                self._give_up(move)
            self.look_again(move.key)
            took_ms = len(event.data or b"") * 1000 // max(1, self._bytes_per_second)
            self._free_ms = max(self._free_ms, now_ms) + took_ms
        return True

    def log_moved(self, event: LogAppended | LogCut | ReplicaLogTrimmed) -> None:
        move = self.under_way.get(event.key)
        if move is not None and move.copy.directory_id == event.directory_id:
            move.log_moved(event)
            self.look_again(event.key)

    def promoted(self, event: ReplicaPromoted, *, now_ms: int) -> bool:
        """The copy is now an ordinary replica. Returns whether what ran continues there."""
        copy = self._copies.at(event.directory_id, event.key)
        if copy is None or not copy.future or copy.stage is Stage.REMOVING:
            return False
        copy.future, copy.log, copy.incarnation = False, event.log, event.incarnation
        self._look(event.key)
        move = self.under_way.pop(event.key, None)
        self.ready.pop(event.key, None)
        partition = None if move is None else move.source.partition
        if move is None or partition is None or not partition.is_held:
            return False
        source = move.source
        source.incarnation = partition.incarnation
        source.partition, copy.partition = None, partition
        partition.move(copy.directory_id, event.incarnation, now_ms=now_ms)
        self._leave(source)
        return True

    def _leave(self, source: Copy) -> None:
        """It is removed once the reads from it are done."""
        self._copies.leave(source)
        token = self._next_token()
        self._leaving[token] = source
        self._out.append(
            ReadPartition(
                token=token,
                directory_id=source.directory_id,
                key=source.key,
                incarnation=source.incarnation,
                from_offset=0,
                to_offset=0,
                max_bytes=0,
            )
        )

    def directory_failed(self, directory_id: bytes) -> None:
        """Its reads are never reported on, and moves from or to it end."""
        for token, move in list(self._reads.items()):
            if move.source.directory_id == directory_id:
                del self._reads[token]
        for token, copy in list(self._leaving.items()):
            if copy.directory_id == directory_id:
                del self._leaving[token]
        for move in list(self.under_way.values()):
            if directory_id == move.copy.directory_id:
                self._end(move)
            elif directory_id == move.source.directory_id:
                del self.under_way[move.key]
                self.ready.pop(move.key, None)


# One replica on its way to another log directory of its broker (KIP-113): a copy that follows the local
# log.


class ReplicaMove:
    """From the copy `source`, which is the replica, to `copy`. `leaves`: the metadata log names the new
    directory. `is_near`: the last chunk reached the end of the log at that time. `problem`: why it must
    end."""

    def __init__(self, config: ReplicaConfig, source: Copy, copy: Copy, out: Outbox[DataEffect]) -> None:
        self.source = source
        self.copy = copy
        self.leaves = False
        self.is_near = False
        self.is_promoting = False
        self.problem: str | None = None
        self._out = out
        self._read: tuple[FetchPartition, ReadPlan, int] | None = None
        self._log = LocalLog(
            key=copy.key,
            topic=copy.topic,
            directory_id=copy.directory_id,
            incarnation=copy.incarnation,
            log=copy.log or ReplicaLog(),
            counts_synced=False,
            out=out,
        )
        self._following = Following(config, self._log, leader=config.broker_id, epoch=-1)

    @property
    def key(self) -> PartitionKey:
        return self.copy.key

    @property
    def end_offset(self) -> int:
        return self._log.end

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def incarnation(self) -> int:
        return self._log.incarnation

    @property
    def waits(self) -> bool:
        """Whether it waits for a read, or for its directory."""
        return self._read is not None or self.is_promoting or self._following.position() is None

    def next_plan(self, partition: Partition, *, wall_ms: int) -> ReadPlan | None:
        """The next read, which may be empty. None if the copy is being cut first, or cannot continue."""
        self._following.epoch = max(partition.leader_epoch, partition.epochs.last_epoch)
        position = self._following.position()
        if position is None:
            return None
        found = partition.copied(position)
        if isinstance(found, ReadPlan):
            return found
        self._take(found, position, wall_ms)
        return None

    def read(self, partition: Partition, plan: ReadPlan, token: int) -> None:
        position = self._following.position()
        if position is None:
            return
        self._read = (position, plan, partition.incarnation)
        self._out.append(
            ReadPartition(
                token=token,
                directory_id=partition.directory_id,
                key=self.key,
                incarnation=partition.incarnation,
                from_offset=plan.from_offset,
                to_offset=plan.to_offset,
                max_bytes=plan.max_bytes,
            )
        )

    def take_read(self, event: PartitionRead, *, wall_ms: int) -> None:
        """The data counts unless the log was cut meanwhile."""
        read, self._read = self._read, None
        partition = self.source.partition
        if event.problem is not None:
            self.problem = event.problem
        if read is None or partition is None or event.data is None or read[2] != partition.incarnation:
            return
        position, plan, _ = read
        part = FetchedPartition(
            key=self.key,
            high_watermark=plan.high_watermark,
            log_start_offset=plan.log_start_offset,
            records=event.data,
        )
        self._take(part, position, wall_ms)
        self.is_near = self._log.end >= plan.to_offset

    def _take(self, part: FetchedPartition, position: FetchPartition, wall_ms: int) -> None:
        outcome = self._following.take(part, position, wall_ms=wall_ms)
        if outcome.step is FollowerStep.BACK_OFF:
            self.problem = outcome.message

    def log_moved(self, event: LogAppended | LogCut | ReplicaLogTrimmed) -> None:
        """The copy's directory changed its log."""
        if isinstance(event, LogAppended):
            self._log.appended(event)
        elif isinstance(event, LogCut):
            self._log.was_cut(event)
        else:
            self._log.trimmed(event)

    def promote(self, partition: Partition) -> None:
        """Everything that the replica's directory was given is in the copy. What was deleted stays
        deleted."""
        self.is_promoting = True
        where = (self.copy.directory_id, self.key, self.incarnation)
        self._out.append(
            TrimTo(
                directory_id=where[0], key=where[1], incarnation=where[2], start_offset=partition.start_offset
            )
        )
        self._out.append(PromoteReplica(directory_id=where[0], key=where[1], incarnation=where[2]))
