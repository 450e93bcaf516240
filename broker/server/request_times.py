"""How long requests for partition data took, and which errors they were answered with, for metrics.

Owns Kafka's names of the requests, and that an error of one partition counts as one of its request.
"""

from __future__ import annotations

import time
from asyncio import Future
from collections.abc import Callable

from broker.replica.messages import (
    CONSUMER,
    DataRequest,
    DataResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsResponse,
    ProduceResponse,
)
from metadata.errors import ApiError, ErrorCode
from runtime.metrics.statistics import RequestStatistics

Answered = DataResponse | ApiError


def request_name(request: DataRequest) -> str:
    """As Kafka calls it: fetches of consumers and of followers are told apart."""
    if isinstance(request, FetchRequest):
        return "FetchConsumer" if request.replica_id == CONSUMER else "FetchFollower"
    return type(request).__name__.removesuffix("Request")


def errors_of(response: Answered) -> set[str]:
    """The names of the codes in an answer; one code counts once, however many partitions have it."""
    match response:
        case ApiError(code=code):
            return {code.name}
        case ProduceResponse(results=results) | ListOffsetsResponse(results=results):
            return {each.error.name for each in results if each.error is not ErrorCode.NONE}
        case FetchResponse(partitions=partitions):
            return {each.error.name for each in partitions if each.error is not ErrorCode.NONE}
        case _:
            return set()


def timed(statistics: RequestStatistics, request: DataRequest) -> Callable[[Future[Answered]], None]:
    """A callback for the answer's future; the request arrives now."""
    name, begun_ns = request_name(request), time.monotonic_ns()

    def ended(future: Future[Answered]) -> None:
        if future.cancelled() or future.exception() is not None:
            statistics.abandon(name)
            return
        statistics.observe(name, (time.monotonic_ns() - begun_ns) / 1e6)
        for code in errors_of(future.result()):
            statistics.fail(name, code)

    return ended
