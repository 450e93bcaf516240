"""ListOffsets requests: what the partitions know at once, and what must be looked up in a log.

Owns the look-ups. Knows no index and no file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from metaquorum.broker.replica.disk_work import FindOffset, OffsetFound
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import FindPlan, Reader, Ticket
from metaquorum.broker.replica.requests.lookup import Find, NotHosted
from metaquorum.broker.replica.requests.partitioned import PartitionedRequests
from metaquorum.metadata.requests.data import (
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from metaquorum.raft.outbox import Outbox

WAITING_MAX = 1_000


class _LookUp(NamedTuple):
    ticket: Ticket[ListedOffset]
    plan: FindPlan
    directory_id: bytes


class Offsets(PartitionedRequests[ListedOffset]):
    """ListOffsets requests, and the look-ups that they wait for."""

    def __init__(self, find: Find, next_token: Callable[[], int], out: Outbox[DataEffect]) -> None:
        super().__init__(find, out, WAITING_MAX, "offset lookups")
        self._next_token = next_token
        self._look_ups: dict[int, _LookUp] = {}

    def handle(self, key: object, request: ListOffsetsRequest) -> None:
        reader = Reader(replica_id=request.replica_id, read_committed=request.read_committed)

        def ask(
            partition: Partition, part: ListOffsetsPartition, ticket: Ticket[ListedOffset]
        ) -> ListedOffset | None:
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

    def _look_up(self, ticket: Ticket[ListedOffset], plan: FindPlan, partition: Partition) -> None:
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

    def _response(self, results: tuple[ListedOffset, ...]) -> ListOffsetsResponse:
        return ListOffsetsResponse(results=results)
