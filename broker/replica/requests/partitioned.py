"""Requests that ask several partitions, each of which may answer later: one response when all have answered.

Owns the requests that wait, their bound, and the order of the results: that of the request. Does not know
what is asked of a partition: `produces`, `deletes` and `offsets` do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import Ticket
from metaquorum.broker.replica.requests.lookup import Find, NotHosted
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import DataResponse, PartitionKey
from metaquorum.raft.outbox import Outbox

NEVER_MS = 2**63 - 1

Result = TypeVar("Result")


class _Part(Protocol):
    """One partition that a request names."""

    @property
    def key(self) -> PartitionKey: ...


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

    def settle(self, at: int, result: Result) -> None:
        """A partition's first result counts."""
        if self.results[at] is None:
            self.results[at] = result
            self.left -= 1


class PartTicket(Generic[Result]):
    """One partition of a request that waits (`values.Ticket`)."""

    __slots__ = ("_at", "_requests", "_waiting")

    def __init__(self, requests: PartitionedRequests[Result], waiting: _Waiting[Result], at: int) -> None:
        self._requests = requests
        self._waiting = waiting
        self._at = at

    @property
    def deadline_ms(self) -> int:
        return self._waiting.deadline_ms

    def complete(self, result: Result) -> None:
        self._waiting.settle(self._at, result)
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
    def _response(self, results: tuple[Result, ...]) -> DataResponse: ...

    def _begin(
        self,
        key: object,
        parts: Sequence[Part],
        ask: Callable[[Partition, Part, Ticket[Result]], Result | None],
        absent: Callable[[NotHosted, PartitionKey], Result],
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
        for at, part in enumerate(parts):
            found = self._find(part.key)
            if isinstance(found, NotHosted):
                waiting.settle(at, absent(found, part.key))
                continue
            ticket = PartTicket(self, waiting, at)
            result = ask(found, part, ticket)
            if result is None:
                waiting.tickets.append((found, ticket))
            else:
                waiting.settle(at, result)
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
