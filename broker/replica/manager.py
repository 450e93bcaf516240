"""All replicas of one broker: the inbox of partition data, and the one place that has every part of it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import assert_never

from metaquorum.broker.channel import ControllerChannel, ControllerReported
from metaquorum.broker.replica import disk_work
from metaquorum.broker.replica.controller_requests import (
    Assignments,
    ControllerTalk,
    IsrChanges,
    Learned,
    ProducerIdBlocks,
)
from metaquorum.broker.replica.deadlines import Deadlines, earliest
from metaquorum.broker.replica.disk_work import CheckpointHighWatermarks, CompactPartition, EnforceRetention
from metaquorum.broker.replica.events import (
    DataEffect,
    DataEvent,
    DataRequestArrived,
    DataRequestCancelled,
    OfflineDirectoriesChanged,
    PeerFetched,
    PeerFetchFailed,
    UpkeepDone,
    UpkeepRequested,
)
from metaquorum.broker.replica.fetchers import Fetchers
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import Changes
from metaquorum.broker.replica.placement.directories import Copy
from metaquorum.broker.replica.placement.placement import Placement
from metaquorum.broker.replica.requests.describe import LocalReplicaStatus, replica_status
from metaquorum.broker.replica.requests.handler import KnownBrokers, RequestHandler
from metaquorum.broker.replica.requests.own_logs import NewLogUser
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.raft.events import Stop

_WAKES = Changes.END | Changes.HIGH_WATERMARK | Changes.ROLE | Changes.STORED


class ReplicaManager:
    """See the module. `directories`: every configured one, in the state in which it was found.
    `metadata_directory`: the id of the one that also holds the metadata log, if it is among them: without it
    the broker cannot continue. `new_user` creates the state machines that are stored in the logs of
    partitions that this broker leads: its coordinators.

    Every input returns its effects in order. `tick` is due at `next_deadline_ms`.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        directories: Sequence[disk_work.FoundDirectory],
        *,
        channel: ControllerChannel,
        rng: random.Random,
        now_ms: int,
        metadata_directory: bytes | None = None,
        new_user: NewLogUser | None = None,
    ) -> None:
        self._metadata_directory = metadata_directory
        self._out = out = Outbox[DataEffect]()
        self._now_ms, self._wall_ms = now_ms, 0
        self._is_stopped = False
        self._was_serving = self.gathered = False
        self._partition_deadlines: Deadlines[PartitionKey] = Deadlines()
        next_correlation_id = count(1).__next__
        timeout_ms = config.controller_request_timeout_ms
        self._brokers = KnownBrokers(config.inter_broker_listener)
        assignments = Assignments(channel.kind(timeout_ms), config.log_dir_assignment_timeout_ms)
        self._assignments = assignments
        self._producer_ids = ProducerIdBlocks(
            channel.kind(timeout_ms), config.replica_request_timeout_ms, out
        )
        self._fetchers = Fetchers(config, self._brokers.endpoint, next_correlation_id, self._touched, out)
        self._placement = Placement(
            config,
            directories,
            assignments=assignments,
            fetchers=self._fetchers,
            brokers=self._brokers,
            touched=self._touched,
            partition_changed=self._partition_changed,
            out=out,
        )
        self._requests = RequestHandler(
            config,
            self._placement,
            self._brokers,
            self._producer_ids,
            touched=self._touched,
            directory_failed=self._directory_failed,
            rng=rng,
            new_user=new_user,
            out=out,
        )
        self._user, self._fetches = self._requests.user, self._requests.fetches
        self.room = self._fetches.room
        find, report = self._placement.running.get, self._fetches.report_caught_up
        self._isr = IsrChanges(channel.kind(timeout_ms), find, report, config.replica_fetch_backoff_ms)
        self._controller = ControllerTalk(config.broker_id, assignments, self._isr, self._producer_ids, out)
        self._checkpoints = Checkpoints(config, now_ms, out)
        self._rounds = rounds(config, now_ms, self._look_at_isr, self._clean, self._compact)
        self._upkeep_is_asked = False
        self._rounds_due_ms = min(each.due_ms for each in self._rounds)
        self._timers = (self._partition_deadlines, self._fetches.timer, *self._fetchers.timers)

    # ---- directories -----------------------------------------------------------------------------

    @property
    def offline_directories(self) -> tuple[bytes, ...]:
        """Ids of failed directories known so far, sorted: every heartbeat reports them."""
        return self._placement.directories.bad_ids()

    @property
    def partitions(self) -> dict[PartitionKey, Partition]:
        """Those that lead or follow now; read only, for checks and metrics."""
        return self._placement.running

    # ---- driven by the node ----------------------------------------------------------------------

    def start(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Starts. Call once, before anything else. With no usable directory: Stop (S3.3)."""
        self._now_ms, self._wall_ms = now_ms, wall_ms
        for directory in self._placement.directories.bad():
            text = f"log directory {directory.path} is offline: {directory.problem}"
            self._out.append(Warn(message=text))
        self._stop_if_unusable()
        return self._out.take()

    def publish(
        self, image: MetadataImage, previous: MetadataImage, *, broker_epoch: int, now_ms: int, wall_ms: int
    ) -> list[DataEffect]:
        """The image moved on from `previous` (at first the empty one). It is never older than the broker's
        own registration under `broker_epoch` (S1.12, S1.13)."""
        self._now_ms, self._wall_ms = now_ms, wall_ms
        new_epoch = broker_epoch != self._controller.broker_epoch
        self._controller.broker_epoch = self._fetchers.broker_epoch = broker_epoch
        if new_epoch:
            self._assignments.clear_reported()
        if image.brokers is not previous.brokers or new_epoch:
            self._brokers_changed(image)
        for throttle in (self._fetches.throttle, self._fetchers.throttle):
            throttle.publish(image, previous)
        first = self._placement.image is None
        self._placement.publish(image, previous, new_epoch=new_epoch, now_ms=now_ms)
        if not first:
            self._placement.change_settings(image, previous, now_ms=now_ms)
        if first or image.features is not previous.features:
            self._stop_if_unusable()
        if self._user is not None:
            self._user.published(image, previous)
        return self._finish()

    def handle(self, event: DataEvent, *, serving: bool, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Handles one event. `serving` False: the broker is fenced, clients are refused with
        BROKER_NOT_AVAILABLE, and everything else continues (S2.20, S2.22)."""
        effects = self.gather(event, serving=serving, now_ms=now_ms, wall_ms=wall_ms)
        return effects + self.settle(now_ms=now_ms, wall_ms=wall_ms)

    def gather(self, event: DataEvent, *, serving: bool, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """The same, but common effects of several events wait for `settle`."""
        if self._is_stopped:
            return []
        self._now_ms, self._wall_ms, self.gathered = now_ms, wall_ms, True
        if not serving and self._was_serving:
            self._requests.refuse_clients()
        self._was_serving = serving
        self._dispatch(event, serving)
        return self._out.take()

    def settle(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """The effects of the events since the last call. Call it when no other event is waiting."""
        if self._is_stopped:
            return []
        self._now_ms, self._wall_ms = now_ms, wall_ms
        return self._finish()

    def tick(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Lets time pass."""
        if self._is_stopped:
            return []
        self._now_ms, self._wall_ms = now_ms, wall_ms
        for key in self._partition_deadlines.take_due(now_ms):
            partition = self._placement.running.get(key)
            if partition is not None:
                partition.tick(now_ms=now_ms)
                self._touched(partition)
                self._arm(partition)
        for periodic in self._rounds:
            periodic.tick(self._placement, now_ms)
        self._rounds_due_ms = min(each.due_ms for each in self._rounds)
        if self._upkeep_is_asked and not any(each.is_under_way for each in self._rounds):
            self._upkeep_is_asked = False
            self._out.append(UpkeepDone())
        self._checkpoints.tick(self._placement, now_ms)
        self._fetchers.tick(now_ms)
        self._fetches.tick(now_ms)
        self._isr.tick(now_ms)
        self._producer_ids.tick(now_ms)
        for learned in self._controller.late(now_ms):
            self._learn(learned)
        unreported = self._assignments.reason_to_stop(now_ms)
        if unreported is not None:
            self._out.append(Stop(reason=unreported, failed=True))
        return self._finish()

    def stop(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """The broker shuts down cleanly: waiting requests are answered, high watermarks are written."""
        if self._is_stopped:
            return []
        self._now_ms, self._wall_ms = now_ms, wall_ms
        self._is_stopped = True
        self._requests.stop()
        self._checkpoints.write(self._placement)
        return self._out.take()

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None if no timer is needed. Called at every step."""
        if self._is_stopped or self._placement.pending.keys:
            return None if self._is_stopped else self._now_ms
        first_ms = min(self._checkpoints.due_ms, self._rounds_due_ms)
        for timer in self._timers:
            if timer.when and (due_ms := timer.next_ms()) is not None and due_ms < first_ms:
                first_ms = due_ms
        return earliest(
            first_ms,
            self._controller.next_deadline_ms(),
            self._placement.moves.next_deadline_ms() if self._placement.moves.ready else None,
            None if self._user is None else self._user.next_deadline_ms(),
        )

    def status(self) -> LocalReplicaStatus:
        """Counted on demand: too costly for every step."""
        counted = self._requests.produces, self._fetches, self._fetchers, self._isr, self._assignments
        return replica_status(self._placement, *counted)

    # ---- events ----------------------------------------------------------------------------------

    def _dispatch(self, event: DataEvent, serving: bool) -> None:  # noqa: C901
        now_ms, wall_ms = self._now_ms, self._wall_ms
        match event:
            case DataRequestArrived(key=key, request=request):
                self._requests.handle(key, request, serving=serving, now_ms=now_ms, wall_ms=wall_ms)
            case disk_work.LogAppended() | disk_work.LogCut() | disk_work.ReplicaLogTrimmed():
                self._log_moved(event)
            case disk_work.LogsSynced():
                self._synced(event)
            case disk_work.PartitionRead():
                self._requests.read(event, now_ms=now_ms, wall_ms=wall_ms)
            case PeerFetched(correlation_id=at, response=response):
                self._fetchers.answered(at, response, now_ms=now_ms, wall_ms=wall_ms)
            case PeerFetchFailed(correlation_id=at):
                self._fetchers.failed(at, now_ms=now_ms)
            case ControllerReported():
                self._learn(self._controller.reported(event, now_ms=now_ms))
            case disk_work.OffsetFound():
                self._requests.found(event)
            case DataRequestCancelled(key=key):
                self._requests.cancel(key)
            case disk_work.ReplicaCreated() | disk_work.ReplicaPromoted() | disk_work.ReplicaRemoved():
                self._placement.replica_changed(event, now_ms=now_ms)
            case disk_work.DirectoryFailed() | disk_work.DirectoryMeasured():
                self._directory_reported(event)
            case UpkeepRequested():
                for periodic in self._rounds:
                    periodic.start_now(now_ms)
                self._rounds_due_ms, self._upkeep_is_asked = now_ms, True
            case _:
                assert_never(event)

    # ---- disks -----------------------------------------------------------------------------------

    def _log_moved(
        self, event: disk_work.LogAppended | disk_work.LogCut | disk_work.ReplicaLogTrimmed
    ) -> None:
        partition = self._placement.partition_at(event.directory_id, event.key)
        if partition is None:
            return self._placement.moves.log_moved(event)
        if isinstance(event, disk_work.LogAppended):
            partition.appended(event, now_ms=self._now_ms)
        elif isinstance(event, disk_work.LogCut):
            partition.cut(event, now_ms=self._now_ms)
        else:
            partition.trimmed(event, now_ms=self._now_ms)
        self._touched(partition)

    def _directory_reported(self, event: disk_work.DirectoryFailed | disk_work.DirectoryMeasured) -> None:
        if isinstance(event, disk_work.DirectoryFailed):
            self._directory_failed(event.directory_id, event.reason)
        else:
            self._placement.measured(event.directory_id, event.total_bytes, event.usable_bytes)

    def _synced(self, event: disk_work.LogsSynced) -> None:
        for key, incarnation, end_offset, size_bytes in event.ends:
            partition = self._placement.partition_at(event.directory_id, key)
            if partition is not None:
                partition.synced(incarnation, end_offset, size_bytes, now_ms=self._now_ms)
                self._touched(partition)

    def _directory_failed(self, directory_id: bytes, reason: str) -> None:
        if not self._placement.directory_failed(directory_id, reason, now_ms=self._now_ms):
            return
        self._requests.directory_failed(directory_id)
        known = self._placement.directories.get(directory_id)
        path = "" if known is None else known.path
        text = f"log directory {path} is now offline: {reason}; repair it and restart the broker"
        self._out.append(Warn(message=text))
        self._out.append(OfflineDirectoriesChanged(directories=self.offline_directories))
        self._stop_if_unusable()

    def _stop_if_unusable(self) -> None:
        placement = self._placement
        reason = placement.directories.reason_to_stop(self._metadata_directory) or placement.unreported()
        if reason is not None:
            self._out.append(Stop(reason=reason, failed=True))

    def _learn(self, learned: Learned) -> None:
        for partition in learned.partitions:
            self._touched(partition)
        for key in learned.lost:
            self._placement.loss_acknowledged(key)

    # ---- partitions ------------------------------------------------------------------------------

    def _touched(self, partition: Partition) -> None:
        """Notifies every part that a change of the partition concerns, now or when the event is finished."""
        changes, key = partition.take_changes(), partition.key
        if changes:
            self._placement.moves.look_again(key)
            if changes & _WAKES:
                self._fetches.changed(key, changes)
                if self._user is not None:
                    self._user.changed(partition, changes)
            if changes & Changes.HIGH_WATERMARK:
                self._checkpoints.moved(partition.directory_id)
            if changes & Changes.ISR:
                self._isr.note(key)
            if changes & Changes.POSITION:
                self._fetchers.moved(key)
            if changes & Changes.DEADLINE:
                self._arm(partition)

    def _arm(self, partition: Partition) -> None:
        if (due_ms := partition.next_deadline_ms()) is not None:
            self._partition_deadlines.arm_earlier(partition.key, due_ms)

    def _brokers_changed(self, image: MetadataImage) -> None:
        """The set of brokers that may join an ISR changed, or where leaders are reached."""
        self._brokers.moved(image)
        self._fetchers.endpoints_changed()
        for key, partition in self._placement.running.items():
            if len(partition.isr) < len(partition.replicas):
                self._isr.note(key)

    def _look_at_isr(self, partition: Partition) -> None:
        """Followers that stopped fetching cause no event, so every leader is checked now and then."""
        if partition.isr:
            self._isr.note(partition.key)

    def _clean(self, partition: Partition) -> None:
        retain(partition, self._wall_ms, self._out)

    def _compact(self, partition: Partition) -> None:
        if partition.key not in self._placement.moves:
            compact(partition, self._wall_ms, self._out)

    def _partition_changed(self, key: PartitionKey) -> None:
        self._fetches.partition_changed(key)
        if self._user is not None:
            self._user.partition_changed(key)

    # ---- the end of every input ------------------------------------------------------------------

    def _finish(self) -> list[DataEffect]:
        """Work after any event: reconcile further, wake waiting requests, send what may be sent."""
        now_ms, self.gathered = self._now_ms, False
        self._placement.step(now_ms, self._wall_ms)
        if self._user is not None:
            self._user.settle(now_ms=now_ms, wall_ms=self._wall_ms)
        if self._fetches.woken:
            self._fetches.settle(now_ms)
        self._controller.ask(now_ms=now_ms)
        if self._fetchers.ready:
            self._fetchers.settle(now_ms)
        return self._out.take()


# Periodic work on every replica: high watermarks written, old segments removed, ISRs checked, producers
# forgotten.
#
# The schedule, and that the work is done in slices: a round over all replicas is never one step.

SLICE_MAX = 200
SLICE_PAUSE_MS = 20
"""Between two slices of a round: a round takes a second on a broker with 10,000 replicas."""


class Round:
    """Work on each running partition every `interval_ms`, a slice at a time."""

    def __init__(self, interval_ms: int, now_ms: int, work: Callable[[Partition], None]) -> None:
        self._interval_ms = interval_ms
        self._work = work
        self._left: deque[PartitionKey] = deque()
        self.due_ms = now_ms + interval_ms

    @property
    def is_under_way(self) -> bool:
        """Whether a slice of it is left."""
        return bool(self._left)

    def start_now(self, now_ms: int) -> None:
        """Starts over, and is due."""
        self._left.clear()
        self.due_ms = now_ms

    def tick(self, placement: Placement, now_ms: int) -> None:
        if now_ms < self.due_ms:
            return
        if not self._left:
            self._left.extend(placement.running)
        for _ in range(min(SLICE_MAX, len(self._left))):
            partition = placement.running.get(self._left.popleft())
            if partition is not None:
                self._work(partition)
        self.due_ms = now_ms + (SLICE_PAUSE_MS if self._left else self._interval_ms)


Work = Callable[[Partition], None]


def rounds(
    config: ReplicaConfig, now_ms: int, look_at_isr: Work, clean: Work, compact: Work
) -> tuple[Round, ...]:
    """The work on every partition, as often as the broker's configuration says."""
    return (
        Round(max(1, config.replica_lag_time_max_ms // 2), now_ms, look_at_isr),
        Round(config.log_retention_check_interval_ms, now_ms, clean),
        Round(config.log_cleaner_backoff_ms, now_ms, compact),
    )


class Checkpoints:
    """The high watermarks of each directory in which one moved since they were last written."""

    def __init__(self, config: ReplicaConfig, now_ms: int, out: Outbox[DataEffect]) -> None:
        self._interval_ms = config.replica_high_watermark_checkpoint_interval_ms
        self._out = out
        self._moved: set[bytes] = set()
        self.due_ms = now_ms + self._interval_ms

    def moved(self, directory_id: bytes) -> None:
        self._moved.add(directory_id)

    def tick(self, placement: Placement, now_ms: int) -> None:
        if now_ms >= self.due_ms:
            self.due_ms = now_ms + self._interval_ms
            self.write(placement)

    def write(self, placement: Placement) -> None:
        moved = {each for each in self._moved if placement.directories.is_good(each)}
        self._moved.clear()
        if not moved:
            return
        lines: dict[bytes, list[tuple[str, int, int]]] = {each: [] for each in moved}
        for copy in placement.copies.all():
            if copy.directory_id in moved and not copy.future:
                lines[copy.directory_id].append((copy.topic, copy.key[1], _high_watermark(copy)))
        for directory_id in sorted(moved):
            marks = tuple(lines[directory_id])
            self._out.append(CheckpointHighWatermarks(directory_id=directory_id, high_watermarks=marks))


def _high_watermark(copy: Copy) -> int:
    if copy.partition is not None:
        return copy.partition.high_watermark
    return 0 if copy.log is None else copy.log.high_watermark


def retain(partition: Partition, wall_ms: int, out: Outbox[DataEffect]) -> None:
    """Forgets old producers and has the directory remove old segments."""
    partition.expire_producers(wall_ms)
    out.append(
        EnforceRetention(
            directory_id=partition.directory_id,
            key=partition.key,
            incarnation=partition.incarnation,
            below_offset=partition.high_watermark,
            wall_ms=wall_ms,
        )
    )


def compact(partition: Partition, wall_ms: int, out: Outbox[DataEffect]) -> None:
    """If the topic is compacted, lets its directory compact the log. Not while it is being copied: the
    tombstone of a key must not be removed before it is copied, after an older value of the key was."""
    if not partition.settings.log.compacts:
        return
    out.append(
        CompactPartition(
            directory_id=partition.directory_id,
            key=partition.key,
            incarnation=partition.incarnation,
            below_offset=partition.last_stable_offset,
            wall_ms=wall_ms,
        )
    )
