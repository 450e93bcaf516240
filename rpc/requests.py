"""Requests of clients on their way through a node: a key, a place in the inbox, and the waiting caller.

The time of arrival is taken here, before any queue.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextvars import ContextVar

from msgspec.structs import replace

from metaquorum.clock import Clock
from metaquorum.metadata.errors import ApiError, busy
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.requests.common import (
    Answer,
    ControllerRequest,
    ControllerResponse,
    Mutator,
    RequestArrived,
)
from metaquorum.network.deferred import Deferred
from metaquorum.observability.metrics.statistics import RequestStatistics

_KAFKA_NAMES = {
    "RegisterBroker": "BrokerRegistration",
    "RegisterController": "ControllerRegistration",
    "AlterConfigs": "IncrementalAlterConfigs",
    "AlterScram": "AlterUserScramCredentials",
    "AlterQuotas": "AlterClientQuotas",
    "CreateToken": "CreateDelegationToken",
    "RenewToken": "RenewDelegationToken",
    "ExpireToken": "ExpireDelegationToken",
    "AlterReassignments": "AlterPartitionReassignments",
}

CALLER: ContextVar[BatchCause | None] = ContextVar("CALLER", default=None)
"""The caller on whose behalf this task sends requests, set by the listener. Its `request` is only set if it
differs from the request sent to the node. None: this process."""

WAITING_MAX = 20_000
"""The most requests without a response; more are refused as retriable."""


class WaitingRequests:
    """Services call `ask`, the driver's effects call `answer`; `statistics` counts requests and times."""

    def __init__(
        self,
        submit: Callable[[RequestArrived], bool],
        clock: Clock,
        statistics: RequestStatistics | None = None,
    ) -> None:
        self._submit = submit
        self._statistics = statistics
        self._clock = clock
        self._keys = itertools.count(1)
        self._waiting: dict[int, Deferred[ControllerResponse | ApiError]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(
        self, request: ControllerRequest, mutator: Mutator | None = None
    ) -> ControllerResponse | ApiError:
        """The node's response, or its refusal. If the caller is cancelled, its request may still take
        effect."""
        statistics = self._statistics
        if statistics is None:
            return await self._ask(request, mutator)
        name = request_name(request)
        begun_ns = time.monotonic_ns()
        try:
            response = await self._ask(request, mutator)
        except asyncio.CancelledError:
            statistics.abandon(name)
            raise
        error = response.code.name if isinstance(response, ApiError) else None
        statistics.observe(name, (time.monotonic_ns() - begun_ns) / 1e6, error)
        return response

    async def _ask(
        self, request: ControllerRequest, mutator: Mutator | None
    ) -> ControllerResponse | ApiError:
        arrived_ms = self._clock.monotonic_ms()
        if len(self._waiting) >= WAITING_MAX:
            return busy(f"{WAITING_MAX} requests are waiting for an answer")
        key = next(self._keys)
        arrived = RequestArrived(
            key=key, arrived_ms=arrived_ms, request=request, mutator=mutator, cause=_cause(request)
        )
        if not self._submit(arrived):
            return busy("the inbox is full")
        waiting: Deferred[ControllerResponse | ApiError] = Deferred(lambda: self._waiting.pop(key, None))
        self._waiting[key] = waiting
        return await waiting

    def answer(self, answer: Answer) -> None:
        """Passes a response to the caller that waits for it."""
        waiting = self._waiting.pop(answer.key, None)
        if waiting is not None:
            waiting.set_result(answer.response)

    def refuse_all(self, error: ApiError) -> None:
        """Responds to all callers with `error`, once the node has stopped."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.set_result(error)


def _cause(request: ControllerRequest) -> BatchCause:
    caller = CALLER.get()
    if caller is None:
        return BatchCause(request=request_name(request))
    return caller if caller.request is not None else replace(caller, request=request_name(request))


def request_name(request: ControllerRequest) -> str:
    """The name of the API, as in Kafka if Kafka has it."""
    name = type(request).__name__.removesuffix("Request")
    return _KAFKA_NAMES.get(name, name)
