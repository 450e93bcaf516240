"""Requests for partition data on their way through the node: keys, places in the inbox, and waiting callers.

The node is notified when a caller disconnects, so that nothing is kept for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial

from metaquorum.broker.replica.events import DataEvent, DataRequestArrived, DataRequestCancelled, DataRespond
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as data_requests
from metaquorum.network.deferred import Deferred
from metaquorum.observability.metrics.statistics import NodeStatistics, TrafficStatistics
from metaquorum.storage.batches.batch import NO_BATCHES

# How long requests for partition data took, what they carried, and which errors they got, for metrics.

Answered = data_requests.DataResponse | ApiError
Ended = Callable[[Answered | None], None]
"""Gets the answer to a request; None if its caller disconnected."""


def request_name(request: data_requests.DataRequest) -> str:
    """Kafka's name: fetches of consumers and of followers are distinguished."""
    if isinstance(request, data_requests.FetchRequest):
        return "FetchConsumer" if request.replica_id == data_requests.CONSUMER else "FetchFollower"
    return type(request).__name__.removesuffix("Request")


def errors_of(response: Answered) -> set[str]:
    """The names of the codes in an answer; each code counts once, however many partitions have it."""
    match response:
        case ApiError(code=code):
            return {code.name}
        case (
            data_requests.ProduceResponse(results=results)
            | data_requests.ListOffsetsResponse(results=results)
        ):
            return {result.error.name for result in results if result.error is not ErrorCode.NONE}
        case data_requests.FetchResponse(partitions=partitions):
            return {partition.error.name for partition in partitions if partition.error is not ErrorCode.NONE}
        case _:
            return set()


def count_traffic(traffic: TrafficStatistics, request: data_requests.DataRequest, response: Answered) -> None:
    """Counts what the request's partitions carried, or how many of them failed."""
    if isinstance(request, data_requests.ProduceRequest):
        parts = {partition.key: partition.batch for partition in request.partitions}
        if not isinstance(response, data_requests.ProduceResponse):
            traffic.failed_produces += len(parts)
            return
        for result in response.results:
            batch = parts.get(result.key, NO_BATCHES)
            if result.error is not ErrorCode.NONE:
                traffic.failed_produces += 1
                continue
            traffic.bytes_in += len(batch.data)
            traffic.records_in += sum([header.last_offset_delta + 1 for header in batch.headers])
    elif isinstance(request, data_requests.FetchRequest):
        if not isinstance(response, data_requests.FetchResponse):
            traffic.failed_fetches += max(1, len(request.partitions))
            return
        size = sum([len(partition.records) for partition in response.partitions])
        if request.replica_id == data_requests.CONSUMER:
            traffic.bytes_out += size
        else:
            traffic.replication_bytes_out += size
        traffic.failed_fetches += sum(
            partition.error is not ErrorCode.NONE for partition in response.partitions
        )


def timed(statistics: NodeStatistics, request: data_requests.DataRequest) -> Ended:
    """A request has arrived. Returns what to call when it ends."""
    name, begun_ns, requests = request_name(request), time.monotonic_ns(), statistics.requests

    def ended(response: Answered | None) -> None:
        if response is None:
            requests.abandon(name)
            return
        requests.observe(name, (time.monotonic_ns() - begun_ns) / 1e6)
        count_traffic(statistics.traffic, request, response)
        for code in errors_of(response):
            requests.fail(name, code)

    return ended


WAITING_MAX = 30_000
"""Requests whose answer is outstanding; more are refused as retriable."""

Answer = Deferred[data_requests.DataResponse | ApiError]
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

    def begin(self, request: data_requests.DataRequest) -> Answer:
        """Returns the future answer. Cancelling it takes the request back."""
        size = 0
        if type(request) is data_requests.ProduceRequest:
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

    def _end(self, key: object, response: data_requests.DataResponse | ApiError | None) -> None:
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
