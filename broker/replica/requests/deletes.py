"""DeleteRecords and OffsetForLeaderEpoch: one query to each partition that they name.

Owns the requests that wait until records are deleted everywhere. Does not decide what is deleted: the
partition does (`partition.deleting`).
"""

from __future__ import annotations

from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.requests.lookup import Find, NotHosted, Touched
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.log_ends import (
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochEnd,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from metaquorum.raft.outbox import Outbox

WAITING_MAX = 1_000


class _Pending:
    """A request with partitions that have not answered yet."""

    __slots__ = ("deadline_ms", "key", "left", "results", "tickets")

    def __init__(self, key: object, count: int, deadline_ms: int) -> None:
        self.key = key
        self.deadline_ms = deadline_ms
        self.left = count
        self.results: list[DeletedRecords | None] = [None] * count
        self.tickets: list[tuple[Partition, _Part]] = []


class _Part:
    """One partition of a request that waits (`deleting.DeleteTicket`)."""

    __slots__ = ("_at", "_deletes", "_pending")

    def __init__(self, deletes: Deletes, pending: _Pending, at: int) -> None:
        self._deletes = deletes
        self._pending = pending
        self._at = at

    @property
    def deadline_ms(self) -> int:
        return self._pending.deadline_ms

    def complete(self, result: DeletedRecords) -> None:
        self._deletes.settle(self._pending, self._at, result)


class Deletes:
    """`touched` is called for each partition that deletes."""

    def __init__(self, find: Find, touched: Touched, out: Outbox[DataEffect]) -> None:
        self._find = find
        self._touched = touched
        self._out = out
        self._waiting: dict[object, _Pending] = {}

    def handle(self, key: object, request: DeleteRecordsRequest, *, now_ms: int) -> None:
        if len(self._waiting) >= WAITING_MAX:
            text = f"{WAITING_MAX} requests to delete records are already waiting: try again later"
            error = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
            self._out.append(DataRespond(key=key, response=error))
            return
        pending = _Pending(key, len(request.partitions), now_ms + max(0, request.timeout_ms))
        self._waiting[key] = pending
        for at, asked in enumerate(request.partitions):
            found = self._find(asked.key)
            if isinstance(found, NotHosted):
                refused = DeletedRecords(key=asked.key, error=found.error, message=found.message)
                self.settle(pending, at, refused)
                continue
            ticket = _Part(self, pending, at)
            result = found.delete_records(ticket, asked.offset)
            if result is None:
                pending.tickets.append((found, ticket))
            else:
                self.settle(pending, at, result)
            self._touched(found)
        self._respond(pending)

    def settle(self, pending: _Pending, at: int, result: DeletedRecords) -> None:
        if pending.results[at] is None:
            pending.results[at] = result
            pending.left -= 1
        self._respond(pending)

    def cancel(self, key: object) -> bool:
        """The caller is gone; the deletion continues all the same."""
        pending = self._waiting.pop(key, None)
        if pending is None:
            return False
        for partition, ticket in pending.tickets:
            partition.cancel_delete(ticket)
        return True

    def take_waiting(self) -> list[object]:
        """Removes and returns all waiting requests."""
        keys = list(self._waiting)
        for key in keys:
            self.cancel(key)
        return keys

    def _respond(self, pending: _Pending) -> None:
        if pending.left == 0 and self._waiting.pop(pending.key, None) is not None:
            results = tuple([result for result in pending.results if result is not None])
            self._out.append(DataRespond(key=pending.key, response=DeleteRecordsResponse(results=results)))


def ends_of_epochs(find: Find, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Where these epochs end according to the leaders on this broker."""
    results = []
    for asked in request.partitions:
        found = find(asked.key)
        if isinstance(found, NotHosted):
            results.append(EpochEnd(key=asked.key, error=found.error, message=found.message))
        else:
            results.append(found.end_of_epoch(asked))
    return OffsetForLeaderEpochResponse(results=tuple(results))
