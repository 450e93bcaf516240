"""Produce requests: one append per partition that they name, and one answer when all have answered.

Owns what others learn of the appended batches: readers near the end, and coordinators. Does not check or
append a batch: the partition does.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import ProduceTicket
from metaquorum.broker.replica.requests.lookup import Find, NotHosted, Touched
from metaquorum.broker.replica.requests.partitioned import PartitionedRequests
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
from metaquorum.storage.batches.format import BatchHeader
from metaquorum.storage.batches.markers import EndMarker, marked_headers

Marked = Callable[[PartitionKey, BatchHeader, EndMarker], None]
"""Takes each marker that was appended to a partition, with the header of its batch."""


class Produces(PartitionedRequests[ProduceResult]):
    """`touched` is called for each partition that was given a batch, `marked` for each marker. What was
    appended stays when its caller is gone."""

    def __init__(
        self, find: Find, touched: Touched, tail: Tail, requests_max: int, out: Outbox[DataEffect]
    ) -> None:
        super().__init__(find, out, requests_max, "produce requests")
        self._tail = tail
        self._touched = touched
        self.marked: Marked = lambda key, header, marker: None

    def handle(self, key: object, request: ProduceRequest, *, now_ms: int, wall_ms: int) -> None:
        if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            text = f"acks is {request.acks}: send 0 (none), 1 (the leader) or -1 (all in-sync replicas)"
            refusal = ApiError(ErrorCode.INVALID_REQUIRED_ACKS, text)
            self._out.append(DataRespond(key=key, response=refusal))
            return

        def ask(partition: Partition, part: ProducePartition, ticket: ProduceTicket) -> ProduceResult | None:
            by_coordinator = request.by_coordinator
            return self.append(
                partition, ticket, part, request.acks, by_coordinator=by_coordinator, wall_ms=wall_ms
            )

        deadline_ms = now_ms + max(0, request.timeout_ms)
        self._begin(key, request.partitions, ask, NotHosted.as_produced, deadline_ms=deadline_ms)

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

    def _response(self, results: tuple[ProduceResult, ...]) -> ProduceResponse:
        return ProduceResponse(results=results)
