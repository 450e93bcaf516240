"""One fetch request in progress: what it requests, what was found yet, and until when it may wait.

Owns the state of the request, and the memory that answers may take. Does not decide what is read or when it
is answered: `fetches` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from metaquorum.broker.replica.fetch_sessions import FIRST_EPOCH, FetchSession
from metaquorum.broker.replica.partition.values import Reader, ReadPlan
from metaquorum.metadata.requests.data import (
    FetchedPartition,
    FetchRequest,
    PartitionKey,
)


class ReadRoom:
    """What may be read for clients. `left`: what their answers that have not been sent leave of it."""

    def __init__(self) -> None:
        self.left: Callable[[], int] = lambda: sys.maxsize
        self._reading_bytes = 0

    def most(self, fetch: Fetch) -> int:
        """How much may be read for a fetch now. Followers' are not bounded."""
        return sys.maxsize if fetch.session.is_follower else self.left() - self._reading_bytes

    def begins(self, fetch: Fetch, size: int) -> None:
        """About `size` bytes are read for it."""
        fetch.reading_bytes = size
        self._reading_bytes += size

    def ended(self, fetch: Fetch) -> None:
        """It is answered, or given up."""
        self._reading_bytes -= fetch.reading_bytes
        fetch.reading_bytes = 0


class ReadUnderWay(NamedTuple):
    """What a log is read for."""

    fetch: Fetch
    key: PartitionKey
    directory_id: bytes


class Fetch:
    """One request in progress: parked while `reads` is empty. `plans`: what to read; `answers`: parts that
    need no read. `whole`: every partition of the request is answered."""

    __slots__ = (
        "answers",
        "data",
        "deadline_ms",
        "is_over",
        "key",
        "looked_ms",
        "max_bytes",
        "min_bytes",
        "pending",
        "plans",
        "reader",
        "reading_bytes",
        "session",
        "whole",
    )

    def __init__(
        self,
        key: object,
        request: FetchRequest,
        session: FetchSession,
        now_ms: int,
        *,
        max_bytes: int,
    ) -> None:
        self.key = key
        self.looked_ms = now_ms
        self.session = session
        self.whole = request.session_epoch <= FIRST_EPOCH
        self.reader = Reader(
            replica_id=session.replica_id,
            replica_epoch=request.replica_epoch,
            read_committed=request.read_committed,
            rack=request.rack,
        )
        self.min_bytes = request.min_bytes
        self.max_bytes = min(request.max_bytes, max_bytes)
        self.deadline_ms = now_ms + max(0, request.max_wait_ms)
        self.answers: dict[PartitionKey, FetchedPartition] = {}
        self.plans: dict[PartitionKey, ReadPlan] = {}
        self.data: dict[PartitionKey, bytes | None] = {}
        self.pending = self.reading_bytes = 0
        self.is_over = False
