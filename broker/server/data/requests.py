"""Requests for partition data on their way through the node: keys, places in the inbox, and waiting callers.

Owns the keys, the waiting callers, and how many bytes of producers' records this broker holds at once. The
node is notified when a caller disconnects, so that nothing is kept for it. Does not decide anything about a
request but whether there is room for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from metaquorum.broker.replica.events import DataEvent, DataRequestArrived, DataRequestCancelled, DataRespond
from metaquorum.broker.server.data.request_times import Ended, timed
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import DataRequest, DataResponse, ProduceRequest
from metaquorum.runtime.kafka.deferred import Deferred
from metaquorum.runtime.metrics.node import NodeStatistics

WAITING_MAX = 30_000
"""Requests whose answer is outstanding; more are refused as retriable."""

Answer = Deferred[DataResponse | ApiError]
_Waiting = tuple[Answer, int, Ended | None]
"""The waiting caller, the bytes of records that the request holds, and what counts its end."""


def busy(what: str) -> ApiError:
    """The request was not processed. Kafka's retriable code that means 'later', and never leaves open whether
    the request was carried out."""
    return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"the broker is busy: {what}; retry in a moment")


class DataRequests:
    """`begin` for the services, `answer` for the driver's effects. `submit` returns False when the inbox is
    full; `post` always takes an event."""

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
        self._waiting: dict[int, _Waiting] = {}
        self._closed: ApiError | None = None
        self.produced_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, request: DataRequest) -> Answer:
        """Returns the future answer. Cancelling it takes the request back."""
        size = 0
        if type(request) is ProduceRequest:
            size = sum([len(partition.batch.data) for partition in request.partitions])
        ended = None if self._statistics is None else timed(self._statistics, request)
        refusal = self._refusal(size)
        key = next(self._keys)
        if refusal is None and not self._submit(DataRequestArrived(key=key, request=request)):
            refusal = busy("its inbox is full")
        answer: Answer = Deferred(partial(self._left, key))
        if refusal is not None:
            if ended is not None:
                ended(refusal)
            answer.set_result(refusal)
            return answer
        self._waiting[key] = answer, size, ended
        self.produced_bytes += size
        return answer

    def _refusal(self, size: int) -> ApiError | None:
        if self._closed is not None:
            return self._closed
        if len(self._waiting) >= WAITING_MAX:
            return busy(f"{WAITING_MAX} requests are waiting for an answer")
        # A single request above the bound is accepted when it is alone.
        bound = self._produced_max_bytes
        if bound is not None and self.produced_bytes and self.produced_bytes + size > bound:
            return busy(f"it holds {self.produced_bytes} bytes of producers (queued.max.request.bytes)")
        return None

    def answer(self, effect: DataRespond) -> None:
        """Hands an answer to the waiting caller."""
        self._end(effect.key, effect.response)

    def refuse_all(self, error: ApiError) -> None:
        """Answers waiting and later callers with `error`: the node has stopped."""
        self._closed = error
        for key in list(self._waiting):
            self._end(key, error)

    def _end(self, key: object, response: DataResponse | ApiError | None) -> None:
        """None: the caller is gone, as it may already be."""
        waiting = self._waiting.pop(key, None)  # type: ignore[call-overload]
        if waiting is None:
            return
        answer, size, ended = waiting
        self.produced_bytes -= size
        if ended is not None:
            ended(response)
        if response is not None:
            answer.set_result(response)

    def _left(self, key: int) -> None:
        self._end(key, None)
        if self._closed is None:
            self._post(DataRequestCancelled(key=key))
