"""DeleteRecords and OffsetForLeaderEpoch: one query to each partition that they name.

Owns the translation of the requests. Does not decide what is deleted: the partition does
(`partition.deleting`).
"""

from __future__ import annotations

from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import Ticket
from metaquorum.broker.replica.requests.lookup import Find, NotHosted, Touched
from metaquorum.broker.replica.requests.partitioned import PartitionedRequests
from metaquorum.metadata.requests.log_ends import (
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochEnd,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from metaquorum.raft.outbox import Outbox

WAITING_MAX = 1_000


class Deletes(PartitionedRequests[DeletedRecords]):
    """`touched` is called for each partition that deletes. A deletion continues when its caller is gone."""

    def __init__(self, find: Find, touched: Touched, out: Outbox[DataEffect]) -> None:
        super().__init__(find, out, WAITING_MAX, "requests to delete records")
        self._touched = touched

    def handle(self, key: object, request: DeleteRecordsRequest, *, now_ms: int) -> None:
        deadline_ms = now_ms + max(0, request.timeout_ms)
        self._begin(key, request.partitions, self._delete, NotHosted.as_deleted, deadline_ms=deadline_ms)

    def _delete(
        self, partition: Partition, part: DeleteRecordsPartition, ticket: Ticket[DeletedRecords]
    ) -> DeletedRecords | None:
        result = partition.delete_records(ticket, part.offset)
        self._touched(partition)
        return result

    def _response(self, results: tuple[DeletedRecords, ...]) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(results=results)


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
