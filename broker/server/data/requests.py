"""Requests for partition data on their way through the node: keys, places in the inbox, and who waits.

Owns the keys, the waiting callers, and how many bytes of producers' records this broker holds at once. The
node hears of a caller that goes away, so that nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from metaquorum.broker.replica.events import DataEvent, DataRequestArrived, DataRequestCancelled, DataRespond
from metaquorum.broker.server.data.request_times import timed
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import DataRequest, DataResponse, ProduceRequest
from metaquorum.runtime.metrics.node import NodeStatistics

WAITING_MAX = 30_000
"""Requests whose answer is outstanding; more are refused as retriable."""

Answer = asyncio.Future[DataResponse | ApiError]


def busy(what: str) -> ApiError:
    """The request was not looked at. Kafka's retriable code whose meaning is 'later', and which never leaves
    open whether the request was carried out."""
    return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"the broker is busy: {what}; retry in a moment")


class DataRequests:
    """`begin` for the services, `answer` for the driver's effects. `submit`: False when the inbox is full;
    `post` always takes an event."""

    def __init__(
        self,
        submit: Callable[[DataEvent], bool],
        post: Callable[[DataEvent], None],
        *,
        produced_max_bytes: int | None,
        statistics: NodeStatistics | None = None,
    ) -> None:
        self._submit = submit
        self._post = post
        self._produced_max_bytes = produced_max_bytes
        self._statistics = statistics
        self._keys = itertools.count(1)
        self._waiting: dict[int, tuple[Answer, int]] = {}
        self._closed: ApiError | None = None
        self.produced_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, request: DataRequest) -> Answer:
        """The answer's future. Cancelling it takes the request back."""
        future: Answer = asyncio.get_running_loop().create_future()
        if self._statistics is not None:
            future.add_done_callback(timed(self._statistics, request))
        size = 0
        if type(request) is ProduceRequest:
            size = sum([len(partition.records) for partition in request.partitions])
        refusal = self._refusal(size)
        key = next(self._keys)
        if refusal is None and not self._submit(DataRequestArrived(key=key, request=request)):
            refusal = busy("its inbox is full")
        if refusal is not None:
            future.set_result(refusal)
            return future
        self._waiting[key] = future, size
        self.produced_bytes += size
        future.add_done_callback(lambda done: self._ended(key, done))
        return future

    def _refusal(self, size: int) -> ApiError | None:
        if self._closed is not None:
            return self._closed
        if len(self._waiting) >= WAITING_MAX:
            return busy(f"{WAITING_MAX} requests are waiting for an answer")
        # One request that is larger than the bound is taken when it is alone.
        bound = self._produced_max_bytes
        if bound is not None and self.produced_bytes and self.produced_bytes + size > bound:
            return busy(f"it holds {self.produced_bytes} bytes of producers (queued.max.request.bytes)")
        return None

    def answer(self, effect: DataRespond) -> None:
        """Hands an answer to the caller that waits for it."""
        entry = self._waiting.get(effect.key)  # type: ignore[call-overload]
        if entry is not None and not entry[0].done():
            entry[0].set_result(effect.response)

    def refuse_all(self, error: ApiError) -> None:
        """Answers everyone with `error`, and later callers: the node has stopped."""
        self._closed = error
        for future, _ in list(self._waiting.values()):
            if not future.done():
                future.set_result(error)

    def _ended(self, key: int, future: Answer) -> None:
        _, size = self._waiting.pop(key)
        self.produced_bytes -= size
        if future.cancelled() and self._closed is None:
            self._post(DataRequestCancelled(key=key))
