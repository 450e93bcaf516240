"""Requests that ask several partitions, each of which may answer later: one response for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from metaquorum.broker.replica.disk_work import FindOffset, OffsetFound
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import NEVER_MS, FindPlan, ProduceTicket, Reader, Ticket
from metaquorum.broker.replica.placement.placement import Placement
from metaquorum.broker.replica.requests.tail import Tail
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import NO_LEADER
from metaquorum.metadata.requests import data as data_requests
from metaquorum.raft.effects import Outbox
from metaquorum.storage.batches.batch import EndMarker, marked_headers
from metaquorum.storage.batches.format import BatchHeader

Result = TypeVar("Result")


class _Part(Protocol):
    """One partition that a request names."""

    @property
    def key(self) -> data_requests.PartitionKey: ...


Part = TypeVar("Part", bound=_Part)


class _Waiting(Generic[Result]):
    """A request with partitions that have not answered yet."""

    __slots__ = ("deadline_ms", "key", "left", "results", "tickets")

    def __init__(self, key: object, count: int, deadline_ms: int) -> None:
        self.key = key
        self.deadline_ms = deadline_ms
        self.left = count
        self.results: list[Result | None] = [None] * count
        self.tickets: list[tuple[Partition, PartTicket[Result]]] = []

    def settle(self, index: int, result: Result) -> None:
        """A partition's first result counts."""
        if self.results[index] is None:
            self.results[index] = result
            self.left -= 1


class PartTicket(Generic[Result]):
    """One partition of a request that waits (`values.Ticket`)."""

    __slots__ = ("_index", "_requests", "_waiting")

    def __init__(self, requests: PartitionedRequests[Result], waiting: _Waiting[Result], index: int) -> None:
        self._requests = requests
        self._waiting = waiting
        self._index = index

    @property
    def deadline_ms(self) -> int:
        return self._waiting.deadline_ms

    def complete(self, result: Result) -> None:
        self._waiting.settle(self._index, result)
        self._requests.settled(self._waiting)


class PartitionedRequests(Generic[Result]):
    """The requests of one kind, at most `most` at a time; `what` names them in the refusal of another."""

    def __init__(self, find: Find, out: Outbox[DataEffect], most: int, what: str) -> None:
        self._find = find
        self._out = out
        self._most = most
        self._what = what
        self._waiting: dict[object, _Waiting[Result]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @abstractmethod
    def _response(self, results: tuple[Result, ...]) -> data_requests.DataResponse: ...

    def _begin(
        self,
        key: object,
        parts: Sequence[Part],
        ask: Callable[[Partition, Part, Ticket[Result]], Result | None],
        absent: Callable[[NotHosted, data_requests.PartitionKey], Result],
        *,
        deadline_ms: int = NEVER_MS,
    ) -> None:
        """Refused if too many wait. `ask` returns the result of a partition that is here, or None if its
        ticket takes it later; `absent` is the result of one that is not here."""
        if len(self._waiting) >= self._most:
            text = f"{self._most} {self._what} are already waiting: nothing was done; try again later"
            error = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
            self._out.append(DataRespond(key=key, response=error))
            return
        waiting: _Waiting[Result] = _Waiting(key, len(parts), deadline_ms)
        for number, part in enumerate(parts):
            partition = self._find(part.key)
            if isinstance(partition, NotHosted):
                waiting.settle(number, absent(partition, part.key))
                continue
            ticket = PartTicket(self, waiting, number)
            result = ask(partition, part, ticket)
            if result is None:
                waiting.tickets.append((partition, ticket))
            else:
                waiting.settle(number, result)
        self._waiting[key] = waiting
        self.settled(waiting)

    def settled(self, waiting: _Waiting[Result]) -> None:
        """Responds if nothing is left to wait for, and the caller still waits."""
        if waiting.left == 0 and self._waiting.pop(waiting.key, None) is not None:
            results = tuple([result for result in waiting.results if result is not None])
            self._out.append(DataRespond(key=waiting.key, response=self._response(results)))

    def cancel(self, key: object) -> bool:
        """The caller is gone; what the partitions have begun continues."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return False
        for partition, ticket in waiting.tickets:
            partition.cancel(ticket)
        return True

    def take_waiting(self) -> list[object]:
        """Removes and returns all waiting requests."""
        keys = list(self._waiting)
        for key in keys:
            self.cancel(key)
        return keys


# The answer to a request for a partition that does not run on this broker, and which broker leads it
# instead.


class NotHosted(msgspec.Struct, frozen=True):
    """Why a partition cannot serve requests here."""

    error: ErrorCode
    message: str
    leader: int | None = None
    leader_epoch: int = -1

    def as_produced(self, key: data_requests.PartitionKey) -> data_requests.ProduceResult:
        return data_requests.ProduceResult(
            key=key,
            error=self.error,
            message=self.message,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
        )

    def as_deleted(self, key: data_requests.PartitionKey) -> data_requests.DeletedRecords:
        return data_requests.DeletedRecords(key=key, error=self.error, message=self.message)

    def as_fetched(self, key: data_requests.PartitionKey) -> data_requests.FetchedPartition:
        return data_requests.FetchedPartition(
            key=key,
            error=self.error,
            message=self.message,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
        )

    def as_listed(self, key: data_requests.PartitionKey) -> data_requests.ListedOffset:
        return data_requests.ListedOffset(
            key=key,
            error=self.error,
            message=self.message,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
        )


Find = Callable[[data_requests.PartitionKey], Partition | NotHosted]
"""The partition, or why it cannot serve requests here."""
Touched = Callable[[Partition], None]
"""Called after a partition changed while it handled a request: carries out the consequences."""


def absence(placement: Placement, broker_id: int, key: data_requests.PartitionKey) -> NotHosted:
    """For a partition that is not running."""
    image = placement.image
    if image is None:
        text = f"broker {broker_id} has no metadata yet: try again"
        return NotHosted(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
    if image.topics.topic(key[0]) is None:
        text = f"broker {broker_id} has no topic with the id {key[0].hex()}: refresh the metadata"
        return NotHosted(ErrorCode.UNKNOWN_TOPIC_ID, text)
    info = image.topics.partition(*key)
    if info is None:
        text = f"the topic has no partition {key[1]}: refresh the metadata"
        return NotHosted(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    leader = None if info.leader in (NO_LEADER, broker_id) else info.leader
    why = placement.offline.get(key)
    if why is not None:
        text = f"the replica on broker {broker_id} is offline: {why}"
        return NotHosted(ErrorCode.KAFKA_STORAGE_ERROR, text, leader, info.leader_epoch)
    if info.leader == broker_id:
        text = f"broker {broker_id} is about to lead this partition: try again"
    elif leader is None:
        text = "this partition has no leader now: try again later"
    else:
        text = f"broker {leader} leads this partition: send the request there"
    return NotHosted(ErrorCode.NOT_LEADER_OR_FOLLOWER, text, leader, info.leader_epoch)


# Produce requests: one append per partition that they name, and one answer when all have answered.

Marked = Callable[[data_requests.PartitionKey, BatchHeader, EndMarker], None]
"""Takes each marker that was appended to a partition, with the header of its batch."""


class Produces(PartitionedRequests[data_requests.ProduceResult]):
    """`touched` is called for each partition that was given a batch, `marked` for each marker. What was
    appended stays when its caller is gone."""

    def __init__(
        self, find: Find, touched: Touched, tail: Tail, requests_max: int, out: Outbox[DataEffect]
    ) -> None:
        super().__init__(find, out, requests_max, "produce requests")
        self._tail = tail
        self._touched = touched
        self.marked: Marked = lambda key, header, marker: None

    def handle(
        self, key: object, request: data_requests.ProduceRequest, *, now_ms: int, wall_ms: int
    ) -> None:
        if request.acks not in (data_requests.ACKS_NONE, data_requests.ACKS_LEADER, data_requests.ACKS_ALL):
            text = f"acks is {request.acks}: send 0 (none), 1 (the leader) or -1 (all in-sync replicas)"
            refusal = ApiError(ErrorCode.INVALID_REQUIRED_ACKS, text)
            self._out.append(DataRespond(key=key, response=refusal))
            return

        def ask(
            partition: Partition, part: data_requests.ProducePartition, ticket: ProduceTicket
        ) -> data_requests.ProduceResult | None:
            by_coordinator = request.by_coordinator
            return self.append(
                partition, ticket, part, request.acks, by_coordinator=by_coordinator, wall_ms=wall_ms
            )

        # With acks=1 the records are stored, however late: after an error they would be stored twice.
        waits = request.acks == data_requests.ACKS_ALL
        deadline_ms = now_ms + max(0, request.timeout_ms) if waits else NEVER_MS
        self._begin(key, request.partitions, ask, NotHosted.as_produced, deadline_ms=deadline_ms)

    def append(
        self,
        partition: Partition,
        ticket: ProduceTicket,
        part: data_requests.ProducePartition,
        acks: int,
        *,
        by_coordinator: bool,
        wall_ms: int,
    ) -> data_requests.ProduceResult | None:
        """As `Partition.produce`, for clients and for this broker itself; kept for readers near the end."""
        result = partition.produce(ticket, part, acks, by_coordinator=by_coordinator, wall_ms=wall_ms)
        stored = partition.take_appended()
        if stored is not None:
            self._tail.note(partition.key, stored.base_offset, stored.next_offset, stored.data)
            for header, marker in marked_headers(stored) if by_coordinator else ():
                if marker is not None:
                    self.marked(partition.key, header, marker)
        self._touched(partition)
        return result

    def _response(self, results: tuple[data_requests.ProduceResult, ...]) -> data_requests.ProduceResponse:
        return data_requests.ProduceResponse(results=results)


# DeleteRecords and OffsetForLeaderEpoch: one query to each partition that they name.

WAITING_MAX = 1_000


class Deletes(PartitionedRequests[data_requests.DeletedRecords]):
    """`touched` is called for each partition that deletes. A deletion continues when its caller is gone."""

    def __init__(self, find: Find, touched: Touched, out: Outbox[DataEffect]) -> None:
        super().__init__(find, out, WAITING_MAX, "requests to delete records")
        self._touched = touched

    def handle(self, key: object, request: data_requests.DeleteRecordsRequest, *, now_ms: int) -> None:
        deadline_ms = now_ms + max(0, request.timeout_ms)
        self._begin(key, request.partitions, self._delete, NotHosted.as_deleted, deadline_ms=deadline_ms)

    def _delete(
        self,
        partition: Partition,
        part: data_requests.DeleteRecordsPartition,
        ticket: Ticket[data_requests.DeletedRecords],
    ) -> data_requests.DeletedRecords | None:
        result = partition.delete_records(ticket, part.offset)
        self._touched(partition)
        return result

    def _response(
        self, results: tuple[data_requests.DeletedRecords, ...]
    ) -> data_requests.DeleteRecordsResponse:
        return data_requests.DeleteRecordsResponse(results=results)


def ends_of_epochs(
    find: Find, request: data_requests.OffsetForLeaderEpochRequest
) -> data_requests.OffsetForLeaderEpochResponse:
    """Where these epochs end according to the leaders on this broker."""
    results = []
    for asked in request.partitions:
        partition = find(asked.key)
        if isinstance(partition, NotHosted):
            results.append(
                data_requests.EpochEnd(key=asked.key, error=partition.error, message=partition.message)
            )
        else:
            results.append(partition.end_of_epoch(asked))
    return data_requests.OffsetForLeaderEpochResponse(results=tuple(results))


# ListOffsets requests: what the partitions know at once, and what must be looked up in a log.


class _LookUp(NamedTuple):
    ticket: Ticket[data_requests.ListedOffset]
    plan: FindPlan
    directory_id: bytes


class Offsets(PartitionedRequests[data_requests.ListedOffset]):
    """ListOffsets requests, and the look-ups that they wait for."""

    def __init__(self, find: Find, next_token: Callable[[], int], out: Outbox[DataEffect]) -> None:
        super().__init__(find, out, WAITING_MAX, "offset lookups")
        self._next_token = next_token
        self._look_ups: dict[int, _LookUp] = {}

    def handle(self, key: object, request: data_requests.ListOffsetsRequest) -> None:
        reader = Reader(replica_id=request.replica_id, read_committed=request.read_committed)

        def ask(
            partition: Partition,
            part: data_requests.ListOffsetsPartition,
            ticket: Ticket[data_requests.ListedOffset],
        ) -> data_requests.ListedOffset | None:
            answer = partition.list_offset(part, reader)
            if not isinstance(answer, FindPlan):
                return answer
            self._look_up(ticket, answer, partition)
            return None

        self._begin(key, request.partitions, ask, NotHosted.as_listed)

    def found(self, event: OffsetFound) -> None:
        look_up = self._look_ups.pop(event.token, None)
        if look_up is None:
            return
        partition = self._find(look_up.plan.key)
        if isinstance(partition, Partition):
            now = partition.found_offset(look_up.plan, event)
        else:
            now = partition.as_listed(look_up.plan.key)
        look_up.ticket.complete(now)

    def directory_failed(self, directory_id: bytes) -> None:
        """Its look-ups are never reported on."""
        for token, look_up in list(self._look_ups.items()):
            if look_up.directory_id == directory_id:
                nothing = OffsetFound(token=token, offset=None, timestamp_ms=-1, leader_epoch=-1)
                self.found(nothing)

    def _look_up(
        self, ticket: Ticket[data_requests.ListedOffset], plan: FindPlan, partition: Partition
    ) -> None:
        token = self._next_token()
        self._look_ups[token] = _LookUp(ticket, plan, partition.directory_id)
        self._out.append(
            FindOffset(
                token=token,
                directory_id=partition.directory_id,
                key=plan.key,
                incarnation=partition.incarnation,
                timestamp_ms=plan.timestamp_ms,
                below_offset=plan.below_offset,
            )
        )

    def _response(self, results: tuple[data_requests.ListedOffset, ...]) -> data_requests.ListOffsetsResponse:
        return data_requests.ListOffsetsResponse(results=results)
