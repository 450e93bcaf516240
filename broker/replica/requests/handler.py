"""Requests for partition data at a broker: which are allowed now, and which part answers.

The parts (`produces`, `fetches`, `offsets`, producer ids) own the requests that wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import assert_never

from metaquorum.broker.replica.controller_requests import ProducerIdBlocks
from metaquorum.broker.replica.disk_work import OffsetFound, PartitionRead
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.broker.replica.placement.placement import Placement
from metaquorum.broker.replica.requests.describe import describe_log_dirs
from metaquorum.broker.replica.requests.fetches import Fetches
from metaquorum.broker.replica.requests.own_logs import NewLogUser, OwnLogs
from metaquorum.broker.replica.requests.partitioned import (
    Deletes,
    Find,
    NotHosted,
    Offsets,
    Produces,
    Touched,
    absence,
    ends_of_epochs,
)
from metaquorum.broker.replica.requests.tail import Tail
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import (
    CONSUMER,
    NOT_LED,
    ActiveProducer,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    BeginVerification,
    CoordinatorRequest,
    DataRequest,
    DataResponse,
    DeleteRecordsRequest,
    DescribedProducers,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeProducersResponse,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MarkLogDirOfflineRequest,
    MarkLogDirOfflineResponse,
    OffsetForLeaderEpochRequest,
    PartitionKey,
    ProduceRequest,
    VerificationBegun,
    VerificationGuard,
    WantedDirectory,
)
from metaquorum.raft.effects import Outbox

_OF_OPERATORS = (
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    MarkLogDirOfflineRequest,
)
"""Answered in every state of the broker, from its disks and its image, as in Kafka."""

KnownAtOnce = (
    BeginVerification | DescribeProducersRequest | OffsetForLeaderEpochRequest | DescribeLogDirsRequest
)


class RequestHandler:
    """`touched` is called for each partition that changed while it handled a request. `directory_failed`
    takes a directory offline, for a reason in one line. `new_user` creates the state machines that are stored
    in this broker's own logs."""

    def __init__(
        self,
        config: ReplicaConfig,
        placement: Placement,
        brokers: KnownBrokers,
        producer_ids: ProducerIdBlocks,
        *,
        touched: Touched,
        directory_failed: Callable[[bytes, str], None],
        rng: random.Random,
        new_user: NewLogUser | None,
        out: Outbox[DataEffect],
    ) -> None:
        self._broker_id = config.broker_id
        self._placement = placement
        self._brokers = brokers
        self._producer_ids = producer_ids
        self._directory_failed = directory_failed
        self._out = out
        next_token, tail = placement.next_token, Tail(config.log_tail_cache_max_bytes)
        self.fetches = Fetches(config, self._find, placement.running, touched, tail, next_token, rng, out)
        self.produces = Produces(self._find, touched, tail, config.produce_purgatory_max_requests, out)
        self._offsets = Offsets(self._find, next_token, out)
        self._deletes = Deletes(self._find, touched, out)
        self._own_logs = OwnLogs(self._find, self.produces, next_token, out)
        self.user = None if new_user is None else new_user(self._own_logs, out)
        if self.user is not None:
            self.produces.marked = self.user.marked
        parts = (self.produces, self.fetches, self._offsets, self._deletes, producer_ids, self.user)
        self._parts = tuple(part for part in parts if part is not None)

    def handle(self, key: object, request: DataRequest, *, serving: bool, now_ms: int, wall_ms: int) -> None:
        refusal = self._refusal(request, serving)
        if refusal is not None:
            self._answer(key, refusal)
            return
        match request:
            case ProduceRequest():
                self.produces.handle(key, request, now_ms=now_ms, wall_ms=wall_ms)
            case FetchRequest():
                self.fetches.handle(key, request, now_ms=now_ms)
            case ListOffsetsRequest():
                self._offsets.handle(key, request)
            case DeleteRecordsRequest():
                self._deletes.handle(key, request, now_ms=now_ms)
            case InitProducerIdRequest():
                self._init_producer_id(key, now_ms)
            case MarkLogDirOfflineRequest():
                self._mark_offline(key, request)
            case AlterReplicaLogDirsRequest():
                self._answer(key, alter_log_dirs(self._placement, request))
            case CoordinatorRequest():
                self._ask_user(key, request, now_ms, wall_ms)
            case _:
                self._answer(key, self._known(request))

    def _known(self, request: KnownAtOnce) -> DataResponse:
        """The answer to a request that waits for nothing."""
        match request:
            case BeginVerification():
                return begin_verification(self._find, request)
            case DescribeProducersRequest():
                return describe_producers(self._find, request)
            case OffsetForLeaderEpochRequest():
                return ends_of_epochs(self._find, request)
            case DescribeLogDirsRequest():
                return describe_log_dirs(self._placement, self._broker_id, request)
            case _:
                assert_never(request)

    def _ask_user(self, key: object, request: CoordinatorRequest, now_ms: int, wall_ms: int) -> None:
        if self.user is not None:
            self.user.handle(key, request, now_ms=now_ms, wall_ms=wall_ms)
            return
        text = f"broker {self._broker_id} has no coordinators: use another broker"
        self._answer(key, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text))

    def read(self, event: PartitionRead, *, now_ms: int, wall_ms: int) -> None:
        """A log was read for one of these requests, or for this broker itself."""
        moves = self._placement.moves
        if not (moves.take_read(event, now_ms=now_ms, wall_ms=wall_ms) or self._own_logs.take_read(event)):
            self.fetches.read(event)

    def cancel(self, key: object) -> None:
        """The caller is gone."""
        for part in self._parts:
            if part.cancel(key):
                break

    def refuse_clients(self) -> None:
        """The broker has just been fenced. What clients produced is still stored and answered: it was
        accepted. Clients that wait for something to read learn at once that it is elsewhere now."""
        error = self._fenced()
        for key in (*self.fetches.refuse_clients(), *self._offsets.take_waiting()):
            self._answer(key, error)

    def found(self, event: OffsetFound) -> None:
        """A log answered a look-up of ListOffsets."""
        self._offsets.found(event)

    def directory_failed(self, directory_id: bytes) -> None:
        """Reads and look-ups in it are never reported on."""
        self.fetches.directory_failed(directory_id)
        self._own_logs.directory_failed(directory_id)
        self._offsets.directory_failed(directory_id)

    def stop(self) -> None:
        """The broker ends: every waiting request is answered."""
        text = f"broker {self._broker_id} is stopping: use another broker"
        error = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, text)
        for part in self._parts:
            for key in part.take_waiting():
                self._answer(key, error)

    def _refusal(self, request: DataRequest, serving: bool) -> ApiError | None:
        """Fenced brokers answer followers and operators (S2.20, S2.22); followers of an earlier incarnation
        are always refused (S1.12)."""
        if isinstance(request, FetchRequest) and request.replica_id > CONSUMER:
            known = self._brokers.epoch(request.replica_id)
            if known is not None and 0 <= request.replica_epoch < known:
                text = (
                    f"broker {request.replica_id} has epoch {known}, not {request.replica_epoch}: it was "
                    "restarted; fetch with the new epoch"
                )
                return ApiError(ErrorCode.STALE_BROKER_EPOCH, text)
            return None
        if isinstance(request, ListOffsetsRequest) and request.replica_id > CONSUMER:
            return None
        if serving or isinstance(request, _OF_OPERATORS):
            return None
        return self._fenced()

    def _fenced(self) -> ApiError:
        text = f"broker {self._broker_id} is fenced: use another broker, or try again later"
        return ApiError(ErrorCode.BROKER_NOT_AVAILABLE, text)

    def _init_producer_id(self, key: object, now_ms: int) -> None:
        answer = self._producer_ids.ask(key, now_ms)
        if answer is not None:
            self._answer(key, answer)

    def _mark_offline(self, key: object, request: MarkLogDirOfflineRequest) -> None:
        directories = self._placement.directories
        failed = None
        if request.directory_id is not None:
            failed = directories.get(request.directory_id)
        elif request.path is not None:
            failed = directories.named(request.path)
        if failed is None:
            known = ", ".join(directory.path for directory in directories.all)
            text = f"broker {self._broker_id} has no such log directory: it has {known}"
            self._answer(key, ApiError(ErrorCode.LOG_DIR_NOT_FOUND, text))
            return
        was_offline = failed.problem is not None
        answer = MarkLogDirOfflineResponse(directory_id=failed.directory_id, was_offline=was_offline)
        self._answer(key, answer)
        if failed.directory_id is not None:
            self._directory_failed(failed.directory_id, "an operator took it offline")

    def _find(self, key: PartitionKey) -> Partition | NotHosted:
        return self._placement.running.get(key) or absence(self._placement, self._broker_id, key)

    def _answer(self, key: object, response: DataResponse | ApiError) -> None:
        self._out.append(DataRespond(key=key, response=response))


# Queries on producers of partitions: verification of transactions, and their state.


def begin_verification(find: Find, request: BeginVerification) -> VerificationBegun:
    """What coordinators must confirm before batches of transactions are sent to these partitions."""
    guards = []
    for asked in request.partitions:
        found = find(asked.key)
        if isinstance(found, Partition):
            guards.append(found.begin_verification(asked))
        else:
            guards.append(VerificationGuard(key=asked.key, guard=NOT_LED))
    return VerificationBegun(guards=tuple(guards))


def describe_producers(find: Find, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """The producers known to this broker's replicas, including followers (KIP-664)."""
    return DescribeProducersResponse(results=tuple([_described(find, key) for key in request.partitions]))


def _described(find: Find, key: PartitionKey) -> DescribedProducers:
    partition = find(key)
    if not isinstance(partition, Partition):
        return DescribedProducers(key=key, error=partition.error, message=partition.message)
    if partition.role is ReplicaRole.IDLE:
        text = f"{partition.topic}-{key[1]}: this broker has no replica of the partition: ask its leader"
        return DescribedProducers(key=key, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message=text)
    producers = [
        ActiveProducer(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.batches[-1].last_sequence if producer.batches else -1,
            last_timestamp_ms=producer.seen_ms,
            coordinator_epoch=producer.coordinator_epoch,
            open_from=producer.open_from,
        )
        for producer in partition.producers.all()
    ]
    return DescribedProducers(key=key, producers=tuple(producers))


# AlterReplicaLogDirs: replicas are named by topic, and need not be here yet.


def alter_log_dirs(placement: Placement, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """The result for each replica; those that move have not arrived yet when this is answered."""
    return AlterReplicaLogDirsResponse(errors=tuple(_ask(placement, each) for each in request.wanted))


def _ask(placement: Placement, wanted: WantedDirectory) -> ErrorCode:
    topics = None if placement.image is None else placement.image.topics
    topic = None if topics is None else topics.topic_named(wanted.topic)
    info = None if topics is None or topic is None else topics.partition(topic.topic_id, wanted.partition)
    settings = placement.settings_of(wanted.topic).log
    return placement.moves.ask(wanted.path, wanted.topic, wanted.partition, info, settings)


# Other brokers by the newest image: which may join an ISR, and where a leader is reached.
# A partition never remembers an answer.


class KnownBrokers:
    """`image` None: nothing is known yet. `listener`: the listener through which brokers follow."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._epochs: dict[int, int] = {}
        self.image: MetadataImage | None = None

    def moved(self, image: MetadataImage) -> None:
        """The brokers of the image changed."""
        self.image = image
        self._epochs = {each.broker_id: each.epoch for each in image.brokers.values()}

    def epoch(self, broker_id: int) -> int | None:
        return self._epochs.get(broker_id)

    def may_join_isr(self, broker_id: int) -> bool:
        return self.image is not None and self.image.brokers.is_active(broker_id)

    def rack(self, broker_id: int) -> str | None:
        known = None if self.image is None else self.image.brokers.get(broker_id)
        return None if known is None else known.rack

    def endpoint(self, broker_id: int) -> tuple[str, int] | None:
        """(host, port) at which followers reach it; None if it is not registered, or not with this
        listener."""
        known = None if self.image is None else self.image.brokers.get(broker_id)
        at = None if known is None else known.endpoint(self._listener)
        return None if at is None else (at.host, at.port)
