"""All replicas of one broker: the inbox of partition data, and the one place that knows every part of it.

Pure. Owns who hears of what, and in which order; what a partition does is `partition`'s, where a replica may
lie is `placement`'s and `reconcile`'s, who fetches from whom `fetchers`' and `fetches`', what waits for whom
`produces`' and `offsets`'.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import assert_never

from metaquorum.broker.replica.config import ReplicaConfig
from metaquorum.broker.replica.controller_requests.assignments import Assignments
from metaquorum.broker.replica.controller_requests.calls import ControllerCall
from metaquorum.broker.replica.controller_requests.isr_changes import IsrChanges
from metaquorum.broker.replica.controller_requests.producer_ids import ProducerIds
from metaquorum.broker.replica.controller_requests.requests import ControllerTalk
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.broker.replica.events import (
    ControllerAnswered,
    DataEffect,
    DataEvent,
    DataRequestArrived,
    DataRequestCancelled,
    DataRespond,
    DirectoryFailed,
    DirectoryMeasured,
    LogAppended,
    LogCut,
    LogsSynced,
    LogTrimmed,
    OfflineDirectoriesChanged,
    OffsetFound,
    PartitionRead,
    PeerFetched,
    PeerFetchFailed,
    ReplicaCreated,
    ReplicaRemoved,
)
from metaquorum.broker.replica.fetchers import Fetchers
from metaquorum.broker.replica.found import FoundDirectory
from metaquorum.broker.replica.known_brokers import KnownBrokers
from metaquorum.broker.replica.messages import (
    CONSUMER,
    DataRequest,
    DataResponse,
    DescribeLogDirsRequest,
    FetchedPartition,
    FetchRequest,
    InitProducerIdRequest,
    ListedOffset,
    ListOffsetsRequest,
    MarkLogDirOfflineRequest,
    MarkLogDirOfflineResponse,
    PartitionKey,
    ProduceRequest,
    ProduceResult,
)
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.tail import Tail
from metaquorum.broker.replica.partition.values import Changes
from metaquorum.broker.replica.placement.placement import Placement
from metaquorum.broker.replica.requests.describe import describe_log_dirs, replica_status
from metaquorum.broker.replica.requests.fetches import Fetches
from metaquorum.broker.replica.requests.lookup import absence
from metaquorum.broker.replica.requests.offsets import Offsets
from metaquorum.broker.replica.requests.produces import Produces
from metaquorum.broker.replica.status import ReplicaStatus
from metaquorum.broker.replica.upkeep import Checkpoints, Round, retention_of
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.raft.effects import Warn
from metaquorum.raft.events import Stop
from metaquorum.raft.outbox import Outbox

_WAKES = Changes.END | Changes.HIGH_WATERMARK | Changes.ROLE


class ReplicaManager:
    """See the module. `directories`: every configured one, as it was found. `metadata_directory`: the id of
    the one that holds the metadata log too, if it is among them: without it the broker cannot go on.

    Every input returns what is to be done, in order. `tick` is due at `next_deadline_ms`.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        directories: Sequence[FoundDirectory],
        *,
        rng: random.Random,
        now_ms: int,
        metadata_directory: bytes | None = None,
    ) -> None:
        self._config = config
        self._metadata_directory = metadata_directory
        self._out = out = Outbox[DataEffect]()
        self._now_ms, self._wall_ms = now_ms, 0
        self._is_stopped = False
        self._was_serving = False
        self._partition_deadlines: Deadlines[PartitionKey] = Deadlines()
        tokens, correlation_ids = count(1), count(1)
        timeout_ms = config.controller_request_timeout_ms
        self._brokers = KnownBrokers()
        assignments = Assignments(ControllerCall(rng, timeout_ms), config.log_dir_assignment_timeout_ms)
        self._assignments = assignments
        call = ControllerCall(rng, timeout_ms)
        self._producer_ids = ProducerIds(call, config.replica_request_timeout_ms, out)
        self._fetchers = Fetchers(
            config, self._brokers.endpoint, correlation_ids.__next__, self._touched, out
        )
        tail = Tail(config.log_tail_cache_max_bytes)
        self._fetches = Fetches(config, self._find_fetched, self._touched, tail, tokens.__next__, rng, out)
        self._isr = IsrChanges(
            ControllerCall(rng, timeout_ms),
            self._running,
            self._fetches.tell_caught_up,
            config.replica_fetch_backoff_ms,
        )
        self._controller = ControllerTalk(
            config.broker_id, assignments, self._isr, self._producer_ids, correlation_ids.__next__, out
        )
        self._produces = Produces(
            self._find_produced, self._touched, tail, config.produce_purgatory_max_requests, out
        )
        self._offsets = Offsets(self._find_listed, tokens.__next__, out)
        self._placement = Placement(
            config,
            directories,
            assignments=assignments,
            fetchers=self._fetchers,
            brokers=self._brokers,
            touched=self._touched,
            stirred=self._fetches.stir,
            out=out,
        )
        self._checkpoints = Checkpoints(config, now_ms, out)
        self._rounds = (
            Round(max(1, config.replica_lag_time_max_ms // 2), now_ms, self._look_at_isr),
            Round(config.log_retention_check_interval_ms, now_ms, self._clean),
        )

    # ---- directories -----------------------------------------------------------------------------

    @property
    def good_directories(self) -> tuple[bytes, ...]:
        """Ids of the directories that can be used, sorted: what the broker registers."""
        return self._placement.directories.good_ids()

    @property
    def offline_directories(self) -> tuple[bytes, ...]:
        """Ids of bad directories, sorted, as far as they are known: what every heartbeat says."""
        return self._placement.directories.bad_ids()

    @property
    def partitions(self) -> dict[PartitionKey, Partition]:
        """Those that lead or follow now; to look at, for checks and figures."""
        return self._placement.running

    # ---- driven by the node ----------------------------------------------------------------------

    def start(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Begin. Call once, before anything else. With no usable directory: Stop (S3.3)."""
        self._note_time(now_ms, wall_ms)
        for each in self._placement.directories.bad():
            text = f"log directory {each.path} is offline: {each.problem}"
            self._out.append(Warn(message=text))
        self._stop_if_unusable()
        return self._out.take()

    def publish(
        self, image: MetadataImage, previous: MetadataImage, *, broker_epoch: int, now_ms: int, wall_ms: int
    ) -> list[DataEffect]:
        """The image moved on from `previous` (at first the empty one). Never older than the broker's own
        registration under `broker_epoch` (S1.12, S1.13)."""
        self._note_time(now_ms, wall_ms)
        anew = broker_epoch != self._controller.broker_epoch
        self._controller.broker_epoch = self._fetchers.broker_epoch = broker_epoch
        if anew:
            self._assignments.forget_told()
        if image.brokers is not previous.brokers or anew:
            self._brokers_changed(image)
        first = self._placement.image is None
        self._placement.publish(image, previous, anew=anew, now_ms=now_ms)
        if not first:
            self._placement.change_settings(image, previous, now_ms=now_ms)
        return self._finish()

    def handle(self, event: DataEvent, *, serving: bool, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Take one event. `serving` False: the broker is fenced, clients are refused with
        BROKER_NOT_AVAILABLE, and all else goes on (S2.20, S2.22)."""
        if self._is_stopped:
            return []
        self._note_time(now_ms, wall_ms)
        if not serving and self._was_serving:
            self._refuse_clients()
        self._was_serving = serving
        self._dispatch(event, serving)
        return self._finish()

    def tick(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Let time pass."""
        if self._is_stopped:
            return []
        self._note_time(now_ms, wall_ms)
        for key in self._partition_deadlines.take_due(now_ms):
            partition = self._placement.running.get(key)
            if partition is not None:
                partition.tick(now_ms=now_ms)
                self._touched(partition)
        for each in self._rounds:
            each.tick(self._placement, now_ms)
        self._checkpoints.tick(self._placement, now_ms)
        self._fetchers.tick(now_ms)
        self._fetches.tick(now_ms)
        self._isr.tick(now_ms)
        self._producer_ids.tick(now_ms)
        for unreported in self._controller.unreported(now_ms):
            self._learn(unreported)
        lost_ms = self._assignments.lost_deadline_ms()
        if lost_ms is not None and now_ms >= lost_ms:
            self._stop_untold()
        return self._finish()

    def stop(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """The broker ends in order: who waits is answered, high watermarks are written down."""
        if self._is_stopped:
            return []
        self._note_time(now_ms, wall_ms)
        self._is_stopped = True
        text = f"broker {self._config.broker_id} is stopping: use another broker"
        error = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, text)
        for part in (self._produces, self._fetches, self._offsets, self._producer_ids):
            self._out += [DataRespond(key=key, response=error) for key in part.take_waiting()]
        self._checkpoints.write(self._placement)
        return self._out.take()

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None: no timer is needed."""
        if self._is_stopped:
            return None
        if len(self._placement):
            return self._now_ms
        waits = (
            self._partition_deadlines.next_ms(),
            self._fetchers.next_deadline_ms(),
            self._fetches.next_deadline_ms(),
            self._controller.next_deadline_ms(),
            self._checkpoints.due_ms,
            *[each.due_ms for each in self._rounds],
        )
        return min(each for each in waits if each is not None)

    def status(self) -> ReplicaStatus:
        """Figures, counted when they are asked for: not for every step."""
        return replica_status(
            self._placement,
            waiting_produces=len(self._produces),
            waiting_fetches=len(self._fetches),
            fetch_sessions=len(self._fetches.sessions),
            fetchers=len(self._fetchers),
            isr_shrinks=self._isr.shrinks,
            isr_expands=self._isr.expands,
            pending_isr_changes=len(self._isr),
            unassigned=len(self._assignments),
            produced_bytes=self._produces.bytes,
            produced_records=self._produces.records,
            failed_produces=self._produces.failed,
            fetched_bytes=self._fetches.bytes,
            replicated_bytes=self._fetchers.bytes,
        )

    # ---- events ----------------------------------------------------------------------------------

    def _dispatch(self, event: DataEvent, serving: bool) -> None:  # noqa: C901, PLR0912
        now_ms = self._now_ms
        match event:
            case DataRequestArrived(key=key, request=request):
                self._request(key, request, serving)
            case LogAppended() | LogCut() | LogTrimmed():
                self._log_moved(event)
            case LogsSynced(ends=ends):
                self._synced(event.directory_id, ends)
            case PartitionRead():
                self._fetches.read(event)
            case PeerFetched(correlation_id=at, response=response):
                self._fetchers.answered(at, response, now_ms=now_ms, wall_ms=self._wall_ms)
            case PeerFetchFailed(correlation_id=at):
                self._fetchers.failed(at, now_ms=now_ms)
            case ControllerAnswered():
                self._learn(event)
            case OffsetFound():
                self._offsets.found(event)
            case DataRequestCancelled(key=key):
                for part in (self._produces, self._fetches, self._offsets, self._producer_ids):
                    if part.cancel(key):
                        break
            case ReplicaCreated():
                self._placement.created(event)
            case ReplicaRemoved():
                self._placement.removed(event)
            case DirectoryFailed(directory_id=directory_id, reason=reason):
                self._directory_failed(directory_id, reason)
            case DirectoryMeasured():
                self._placement.measured(event.directory_id, event.total_bytes, event.usable_bytes)
            case _:
                assert_never(event)

    def _request(self, key: object, request: DataRequest, serving: bool) -> None:
        now_ms = self._now_ms
        refusal = self._refusal(request, serving)
        if refusal is not None:
            self._answer(key, refusal)
            return
        match request:
            case ProduceRequest():
                self._produces.handle(key, request, now_ms=now_ms, wall_ms=self._wall_ms)
            case FetchRequest():
                self._fetches.handle(key, request, now_ms=now_ms)
            case ListOffsetsRequest():
                self._offsets.handle(key, request)
            case InitProducerIdRequest():
                self._init_producer_id(key, request)
            case DescribeLogDirsRequest():
                self._answer(key, describe_log_dirs(self._placement, self._config.broker_id, request))
            case MarkLogDirOfflineRequest():
                self._mark_offline(key, request)
            case _:
                assert_never(request)

    def _refusal(self, request: DataRequest, serving: bool) -> ApiError | None:
        """Fenced brokers answer followers and operators (S2.20, S2.22); followers of an earlier life are
        refused by anybody (S1.12)."""
        if isinstance(request, FetchRequest) and request.replica_id > CONSUMER:
            known = self._brokers.epoch(request.replica_id)
            if known is not None and 0 <= request.replica_epoch < known:
                text = (
                    f"broker {request.replica_id} has epoch {known}, not {request.replica_epoch}: it was "
                    "restarted; fetch with the new epoch"
                )
                return ApiError(ErrorCode.STALE_BROKER_EPOCH, text)
            return None
        if serving or isinstance(request, DescribeLogDirsRequest | MarkLogDirOfflineRequest):
            return None
        return self._fenced()

    def _fenced(self) -> ApiError:
        text = f"broker {self._config.broker_id} is fenced: use another broker, or try again later"
        return ApiError(ErrorCode.BROKER_NOT_AVAILABLE, text)

    def _refuse_clients(self) -> None:
        """The broker has just been fenced. What clients produced goes on to be stored and is answered: it was
        accepted; who waits for something to read hears at once that it is elsewhere now."""
        error = self._fenced()
        for key in (*self._fetches.refuse_clients(), *self._offsets.take_waiting()):
            self._answer(key, error)

    def _init_producer_id(self, key: object, request: InitProducerIdRequest) -> None:
        image = self._placement.image
        below = max(0, -1 if image is None else image.producer_ids.next_producer_id)
        answer = self._producer_ids.ask(key, request, given_below=below, now_ms=self._now_ms)
        if answer is not None:
            self._answer(key, answer)

    def _mark_offline(self, key: object, request: MarkLogDirOfflineRequest) -> None:
        directories = self._placement.directories
        found = None
        if request.directory_id is not None:
            found = directories.get(request.directory_id)
        elif request.path is not None:
            found = directories.named(request.path)
        if found is None:
            known = ", ".join(each.path for each in directories.all)
            text = f"broker {self._config.broker_id} has no such log directory: it has {known}"
            self._answer(key, ApiError(ErrorCode.LOG_DIR_NOT_FOUND, text))
            return
        was_offline = found.problem is not None
        answer = MarkLogDirOfflineResponse(directory_id=found.directory_id, was_offline=was_offline)
        self._answer(key, answer)
        if not was_offline and found.directory_id is not None:
            self._directory_failed(found.directory_id, "an operator took it offline")

    # ---- disks -----------------------------------------------------------------------------------

    def _log_moved(self, event: LogAppended | LogCut | LogTrimmed) -> None:
        partition = self._placement.partition_at(event.directory_id, event.key)
        if partition is None:
            return
        match event:
            case LogAppended():
                partition.appended(event, now_ms=self._now_ms)
            case LogCut():
                partition.cut(event, now_ms=self._now_ms)
            case LogTrimmed():
                partition.trimmed(event, now_ms=self._now_ms)
            case _:
                assert_never(event)
        self._touched(partition)

    def _synced(self, directory_id: bytes, ends: tuple[tuple[PartitionKey, int, int], ...]) -> None:
        for key, incarnation, end_offset in ends:
            partition = self._placement.partition_at(directory_id, key)
            if partition is not None:
                partition.synced(incarnation, end_offset, now_ms=self._now_ms)
                self._touched(partition)

    def _directory_failed(self, directory_id: bytes, reason: str) -> None:
        if not self._placement.directory_failed(directory_id, reason, now_ms=self._now_ms):
            return
        self._fetches.directory_failed(directory_id)
        self._offsets.directory_failed(directory_id)
        known = self._placement.directories.get(directory_id)
        path = "" if known is None else known.path
        text = f"log directory {path} is now offline: {reason}; repair it and restart the broker"
        self._out.append(Warn(message=text))
        self._out.append(OfflineDirectoriesChanged(directories=self.offline_directories))
        self._stop_if_unusable()

    def _stop_if_unusable(self) -> None:
        directories = self._placement.directories
        metadata = self._metadata_directory
        if metadata is not None and directories.is_bad(metadata):
            known = directories.get(metadata)
            problem = "" if known is None else f"{known.path} ({known.problem})"
            reason = (
                f"stopped: the directory of the metadata log is offline: {problem}; repair it and restart"
            )
            self._out.append(Stop(reason=reason, failed=True))
        elif directories.none_good:
            lines = ", ".join(f"{each.path} ({each.problem})" for each in directories.bad())
            reason = f"stopped: no log directory is online: {lines}; repair one of log.dirs and restart"
            self._out.append(Stop(reason=reason, failed=True))

    def _stop_untold(self) -> None:
        limit_ms = self._config.log_dir_assignment_timeout_ms
        reason = (
            "stopped: a log directory failed before its replicas were assigned to it, and no controller "
            f"acknowledged the loss within {limit_ms} ms (log.dir.failure.timeout.ms); check the quorum "
            "and restart"
        )
        self._out.append(Stop(reason=reason, failed=True))

    def _learn(self, event: ControllerAnswered) -> None:
        learned = self._controller.answered(event, now_ms=self._now_ms)
        for partition in learned.partitions:
            self._touched(partition)
        for key in learned.lost:
            self._placement.loss_acknowledged(key)

    # ---- partitions ------------------------------------------------------------------------------

    def _touched(self, partition: Partition) -> None:
        """Whoever a change of the partition concerns is told, now or when the event is finished."""
        changes = partition.take_changes()
        if changes:
            key = partition.key
            if changes & _WAKES:
                self._fetches.changed(key, changes)
            if Changes.HIGH_WATERMARK in changes:
                self._checkpoints.moved(partition.directory_id)
            if Changes.ISR in changes:
                self._isr.note(key)
            if Changes.POSITION in changes:
                self._fetchers.moved(key)
        due_ms = partition.next_deadline_ms()
        if due_ms is not None:
            self._partition_deadlines.arm_earlier(partition.key, due_ms)

    def _brokers_changed(self, image: MetadataImage) -> None:
        """Who may join an ISR changed, or where leaders are reached."""
        self._brokers.image = image
        self._fetchers.endpoints_changed()
        for key, partition in self._placement.running.items():
            if len(partition.isr) < len(partition.replicas):
                self._isr.note(key)

    def _look_at_isr(self, partition: Partition) -> None:
        """Followers that stopped fetching make no event: every leader is asked now and then."""
        if partition.isr:
            self._isr.note(partition.key)

    def _clean(self, partition: Partition) -> None:
        partition.expire_producers(self._wall_ms)
        self._out.append(retention_of(partition, self._wall_ms))

    def _running(self, key: PartitionKey) -> Partition | None:
        return self._placement.running.get(key)

    def _find_produced(self, key: PartitionKey) -> Partition | ProduceResult:
        found = self._placement.running.get(key)
        if found is not None:
            return found
        return absence(self._placement, self._config.broker_id, key).as_produced(key)

    def _find_fetched(self, key: PartitionKey) -> Partition | FetchedPartition:
        found = self._placement.running.get(key)
        if found is not None:
            return found
        return absence(self._placement, self._config.broker_id, key).as_fetched(key)

    def _find_listed(self, key: PartitionKey) -> Partition | ListedOffset:
        found = self._placement.running.get(key)
        if found is not None:
            return found
        return absence(self._placement, self._config.broker_id, key).as_listed(key)

    # ---- the end of every input ------------------------------------------------------------------

    def _answer(self, key: object, response: DataResponse | ApiError) -> None:
        self._out.append(DataRespond(key=key, response=response))

    def _note_time(self, now_ms: int, wall_ms: int) -> None:
        self._now_ms, self._wall_ms = now_ms, wall_ms

    def _finish(self) -> list[DataEffect]:
        """What follows from any event: reconcile further, wake who waits, send what may be sent."""
        if len(self._placement):
            self._placement.step(self._now_ms)
        self._fetches.settle(self._now_ms)
        self._controller.ask(now_ms=self._now_ms)
        self._fetchers.settle(self._now_ms)
        return self._out.take()
