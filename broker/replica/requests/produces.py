"""Produce requests: one append per partition that they name, and one answer when all have answered.

Owns the requests that wait, and their bound. Does not check or append a batch: the partition does.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.broker.replica.disk_work import AppendPartition
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import ProduceTicket
from metaquorum.broker.replica.requests.lookup import Find, Touched
from metaquorum.broker.replica.requests.tail import Tail
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    PartitionKey,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from metaquorum.raft.outbox import Outbox
from metaquorum.storage.batches.format import BatchHeader, parse_header
from metaquorum.storage.batches.markers import EndMarker, read_marker


class PendingProduce:
    """A produce request with partitions that have not answered yet."""

    __slots__ = ("deadline_ms", "key", "left", "results", "tickets")

    def __init__(self, key: object, count: int, deadline_ms: int) -> None:
        self.key = key
        self.deadline_ms = deadline_ms
        self.left = count
        self.results: list[ProduceResult | None] = [None] * count
        self.tickets: list[tuple[Partition, Ticket]] = []


class Ticket:
    """One partition of a request that waits (`values.ProduceTicket`)."""

    __slots__ = ("_at", "_produces", "_waiting")

    def __init__(self, produces: Produces, waiting: PendingProduce, at: int) -> None:
        self._produces = produces
        self._waiting = waiting
        self._at = at

    @property
    def deadline_ms(self) -> int:
        return self._waiting.deadline_ms

    def complete(self, result: ProduceResult) -> None:
        self._produces.completed(self._waiting, self._at, result)


Marked = Callable[[PartitionKey, BatchHeader, EndMarker], None]
"""Takes each marker that was appended to a partition, with the header of its batch."""


class Produces:
    """`touched` is called for each partition that was given a batch, `marked` for each marker."""

    def __init__(
        self, find: Find, touched: Touched, tail: Tail, requests_max: int, out: Outbox[DataEffect]
    ) -> None:
        self._out = out
        self._find = find
        self._tail = tail
        self._touched = touched
        self._requests_max = requests_max
        self._waiting: dict[object, PendingProduce] = {}
        self.marked: Marked = lambda key, header, marker: None
        self.failed = 0
        self.bytes = 0
        self.records = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def handle(self, key: object, request: ProduceRequest, *, now_ms: int, wall_ms: int) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self.failed += 1
            self._out.append(DataRespond(key=key, response=refusal))
            return
        parts = request.partitions
        waiting = PendingProduce(key, len(parts), now_ms + max(0, request.timeout_ms))
        for at, part in enumerate(parts):
            found = self._find(part.key)
            if not isinstance(found, Partition):
                self._settle(waiting, at, found.as_produced(part.key))
                continue
            ticket = Ticket(self, waiting, at)
            result = self.append(
                found, ticket, part, request.acks, by_coordinator=request.by_coordinator, wall_ms=wall_ms
            )
            if result is None:
                waiting.tickets.append((found, ticket))
            else:
                self._settle(waiting, at, result)
        if waiting.left == 0:
            self._respond(waiting)
        else:
            self._waiting[key] = waiting

    def append(
        self,
        partition: Partition,
        ticket: ProduceTicket,
        part: ProducePartition,
        acks: int,
        *,
        by_coordinator: bool,
        wall_ms: int,
    ) -> ProduceResult | None:
        """As `Partition.produce`, for clients and for this broker itself; counted, and kept for followers."""
        base = partition.end_offset
        result = partition.produce(ticket, part, acks, by_coordinator=by_coordinator, wall_ms=wall_ms)
        if partition.end_offset > base:
            self.records += partition.end_offset - base
            self._note_tail(partition, base)
            if by_coordinator:
                self._note_marker(partition, base, part.records)
        if result is None:
            self.bytes += len(part.records)
        self._touched(partition)
        return result

    def completed(self, waiting: PendingProduce, at: int, result: ProduceResult) -> None:
        self._settle(waiting, at, result)
        if waiting.left == 0 and self._waiting.pop(waiting.key, None) is not None:
            self._respond(waiting)

    def cancel(self, key: object) -> bool:
        """The caller is gone; what was appended stays."""
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

    def _note_tail(self, partition: Partition, base_offset: int) -> None:
        for effect in reversed(self._out):
            if isinstance(effect, AppendPartition) and effect.key == partition.key:
                self._tail.note(partition.key, base_offset, partition.end_offset, effect.batches.data)
                return

    def _note_marker(self, partition: Partition, base_offset: int, records: bytes) -> None:
        header = parse_header(records)
        marker = read_marker(header, records)
        if marker is not None:
            self.marked(partition.key, header._replace(base_offset=base_offset), marker)

    def _settle(self, waiting: PendingProduce, at: int, result: ProduceResult) -> None:
        if waiting.results[at] is None:
            waiting.results[at] = result
            waiting.left -= 1
            self.failed += result.error is not ErrorCode.NONE

    def _respond(self, waiting: PendingProduce) -> None:
        results = tuple([result for result in waiting.results if result is not None])
        self._out.append(DataRespond(key=waiting.key, response=ProduceResponse(results=results)))

    def _refusal(self, request: ProduceRequest) -> ApiError | None:
        if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            text = f"acks is {request.acks}: send 0 (none), 1 (the leader) or -1 (all in-sync replicas)"
            return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, text)
        if len(self._waiting) >= self._requests_max:
            text = (
                f"{self._requests_max} produce requests are already waiting: nothing was stored; try "
                "again later"
            )
            return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
        return None
