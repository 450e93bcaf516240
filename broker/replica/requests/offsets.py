"""ListOffsets requests: what the partitions know at once, and what must be looked up in a log.

Owns the requests that wait for a log. Knows no index and no file.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.broker.replica.disk_work import FindOffset, OffsetFound
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import FindPlan, Reader
from metaquorum.broker.replica.requests.lookup import Find
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import (
    ListedOffset,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from metaquorum.raft.outbox import Outbox

WAITING_MAX = 1_000


class _Waiting:
    __slots__ = ("key", "left", "results")

    def __init__(self, key: object, count: int) -> None:
        self.key = key
        self.left = count
        self.results: list[ListedOffset | None] = [None] * count


class _LookUp:
    __slots__ = ("at", "directory_id", "plan", "waiting")

    def __init__(self, waiting: _Waiting, at: int, plan: FindPlan, directory_id: bytes) -> None:
        self.waiting = waiting
        self.at = at
        self.plan = plan
        self.directory_id = directory_id


class Offsets:
    """ListOffsets requests, and the look-ups that they wait for."""

    def __init__(self, find: Find, next_token: Callable[[], int], out: Outbox[DataEffect]) -> None:
        self._out = out
        self._find = find
        self._next_token = next_token
        self._waiting: dict[object, _Waiting] = {}
        self._look_ups: dict[int, _LookUp] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def handle(self, key: object, request: ListOffsetsRequest) -> None:
        if len(self._waiting) >= WAITING_MAX:
            text = f"{WAITING_MAX} offset lookups are already waiting: try again later"
            error = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
            self._out.append(DataRespond(key=key, response=error))
            return
        waiting = self._waiting[key] = _Waiting(key, len(request.partitions))
        for at, part in enumerate(request.partitions):
            found = self._find(part.key)
            if not isinstance(found, Partition):
                self._settle(waiting, at, found.as_listed(part.key))
                continue
            reader = Reader(replica_id=request.replica_id, read_committed=request.read_committed)
            answer = found.list_offset(part, reader)
            if isinstance(answer, FindPlan):
                self._look_up(waiting, at, answer, found)
            else:
                self._settle(waiting, at, answer)
        self._respond(waiting)

    def found(self, event: OffsetFound) -> None:
        look_up = self._look_ups.pop(event.token, None)
        if look_up is None:
            return
        partition = self._find(look_up.plan.key)
        if isinstance(partition, Partition):
            now = partition.found_offset(look_up.plan, event)
        else:
            now = partition.as_listed(look_up.plan.key)
        self._settle(look_up.waiting, look_up.at, now)
        self._respond(look_up.waiting)

    def directory_failed(self, directory_id: bytes) -> None:
        """Its look-ups are never reported on."""
        for token, look_up in list(self._look_ups.items()):
            if look_up.directory_id == directory_id:
                nothing = OffsetFound(token=token, offset=None, timestamp_ms=-1, leader_epoch=-1)
                self.found(nothing)

    def cancel(self, key: object) -> bool:
        return self._waiting.pop(key, None) is not None

    def take_waiting(self) -> list[object]:
        """Removes and returns all waiting requests."""
        keys = list(self._waiting)
        self._waiting.clear()
        self._look_ups.clear()
        return keys

    def _look_up(self, waiting: _Waiting, at: int, plan: FindPlan, partition: Partition) -> None:
        token = self._next_token()
        self._look_ups[token] = _LookUp(waiting, at, plan, partition.directory_id)
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

    def _settle(self, waiting: _Waiting, at: int, result: ListedOffset) -> None:
        if waiting.results[at] is None:
            waiting.results[at] = result
            waiting.left -= 1

    def _respond(self, waiting: _Waiting) -> None:
        if waiting.left == 0 and self._waiting.pop(waiting.key, None) is not None:
            results = tuple([result for result in waiting.results if result is not None])
            self._out.append(DataRespond(key=waiting.key, response=ListOffsetsResponse(results=results)))
