"""How long requests for partition data took, what they carried, and which errors they got, for metrics.

Owns Kafka's names of the requests, and that an error of one partition counts as one of its request. Does not
read a node: `server.metrics` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import (
    CONSUMER,
    DataRequest,
    DataResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from metaquorum.runtime.metrics.node import NodeStatistics
from metaquorum.runtime.metrics.statistics import TrafficStatistics
from metaquorum.storage.batches.parsed import NO_BATCHES

Answered = DataResponse | ApiError
Ended = Callable[[Answered | None], None]
"""Gets the answer to a request; None if its caller disconnected."""


def request_name(request: DataRequest) -> str:
    """Kafka's name: fetches of consumers and of followers are distinguished."""
    if isinstance(request, FetchRequest):
        return "FetchConsumer" if request.replica_id == CONSUMER else "FetchFollower"
    return type(request).__name__.removesuffix("Request")


def errors_of(response: Answered) -> set[str]:
    """The names of the codes in an answer; each code counts once, however many partitions have it."""
    match response:
        case ApiError(code=code):
            return {code.name}
        case ProduceResponse(results=results) | ListOffsetsResponse(results=results):
            return {result.error.name for result in results if result.error is not ErrorCode.NONE}
        case FetchResponse(partitions=partitions):
            return {partition.error.name for partition in partitions if partition.error is not ErrorCode.NONE}
        case _:
            return set()


def count_traffic(traffic: TrafficStatistics, request: DataRequest, response: Answered) -> None:
    """Counts what the request's partitions carried, or how many of them failed."""
    if isinstance(request, ProduceRequest):
        parts = {partition.key: partition.batch for partition in request.partitions}
        if not isinstance(response, ProduceResponse):
            traffic.failed_produces += len(parts)
            return
        for result in response.results:
            batch = parts.get(result.key, NO_BATCHES)
            if result.error is not ErrorCode.NONE:
                traffic.failed_produces += 1
                continue
            traffic.bytes_in += len(batch.data)
            traffic.records_in += sum([header.last_offset_delta + 1 for header in batch.headers])
    elif isinstance(request, FetchRequest):
        if not isinstance(response, FetchResponse):
            traffic.failed_fetches += max(1, len(request.partitions))
            return
        size = sum([len(partition.records) for partition in response.partitions])
        if request.replica_id == CONSUMER:
            traffic.bytes_out += size
        else:
            traffic.replication_bytes_out += size
        traffic.failed_fetches += sum(
            partition.error is not ErrorCode.NONE for partition in response.partitions
        )


def timed(statistics: NodeStatistics, request: DataRequest) -> Ended:
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
