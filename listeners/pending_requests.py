"""Requests of one connection in progress: what they cost, and their responses, which may arrive later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from metaquorum.listeners.quotas import FETCH_BYTES, PRODUCE_BYTES, REQUEST_PERCENT, Quotas
from metaquorum.listeners.services import Client, EndConnection, Later
from metaquorum.network.deferred import Deferred
from metaquorum.wire.codec import Request
from metaquorum.wire.table import API_BY_NAME


class Asker(Protocol):
    """The connection, as this module sees it."""

    def answer(self, asked: Asked, body: Any, begun_s: float) -> None:
        """Sends a response; the work on it began at `begun_s`."""

    def failed(self, request: Request, error: BaseException | None = None) -> None:
        """There is no response, because of a bug."""

    def end(self, reason: str | None = None) -> None:
        """There is no response: closes the connection."""

    def start_waiting(self) -> None:
        """Requests that waited for this response may start."""


class RequestsInProgress:
    """Passes results to the connection; nothing once that has ended."""

    def __init__(self, asker: Asker) -> None:
        self._asker: Asker | None = asker
        self._waiting: set[asyncio.Future[Any] | Deferred[Any]] = set()

    def wait(self, asked: Asked, answer: Any, *, timed: bool) -> None:
        """Passes on what a handler returned, now or when it arrives. `timed`: the processor time of a task is
        counted."""
        if type(answer) is Later:
            deferred = answer.deferred
            if deferred.done():
                self._finish(asked, lambda: answer.finish(deferred.result()))
                return
            self._waiting.add(deferred)
            deferred.then(partial(self._resolved, asked, deferred, answer.finish))
        elif isinstance(answer, Awaitable):
            future: asyncio.Future[Any] = asyncio.ensure_future(
                Timed(answer, asked.spent) if timed else answer
            )
            self._waiting.add(future)
            future.add_done_callback(partial(self._awaited, asked))
        elif self._asker is not None:
            self._asker.answer(asked, answer, time.perf_counter())

    def cancel(self) -> None:
        """The connection has ended: cancels what it waits for."""
        self._asker = None
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            future.cancel()

    def _resolved(
        self, asked: Asked, deferred: Deferred[Any], finish: Callable[[Any], Any], value: Any
    ) -> None:
        self._waiting.discard(deferred)
        self._finish(asked, lambda: finish(deferred.result()))
        if self._asker is not None:
            self._asker.start_waiting()

    def _awaited(self, asked: Asked, future: asyncio.Future[Any]) -> None:
        self._waiting.discard(future)
        if not future.cancelled():
            if self._asker is None:
                future.exception()  # its connection has ended: there is no one to tell
            self._finish(asked, future.result)
            if self._asker is not None:
                self._asker.start_waiting()

    def _finish(self, asked: Asked, make: Callable[[], Any]) -> None:
        """Passes on the result of `make`. Drops tracebacks of errors, which would keep the connection
        alive."""
        asker = self._asker
        if asker is None:
            return
        begun_s = time.perf_counter()
        try:
            body = make()
        except EndConnection as error:
            asker.end(str(error))
            error.__traceback__ = None
        except Exception as error:
            asker.failed(asked.request, error)
            error.__traceback__ = None
        else:
            asker.answer(asked, body, begun_s)


_PRODUCE, FETCH = (API_BY_NAME[name].key for name in ("Produce", "Fetch"))
_OF_NODES = frozenset(
    API_BY_NAME[name].key
    for name in (
        *("WriteTxnMarkers", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "FetchSnapshot"),
        *("BrokerRegistration", "BrokerHeartbeat", "AlterPartition", "AllocateProducerIds"),
        *("AssignReplicasToDirs", "ControllerRegistration"),
        "Envelope",  # its client is charged by its broker
    )
)


@dataclass(slots=True)
class Spent:
    """What one request in progress costs."""

    size: int
    """In bytes."""
    seconds: float = 0.0
    """The processor time that it took."""
    is_long: bool = False
    """It has so many values that others wait for its end (`long_work`)."""
    _since: float = field(default=0.0, repr=False)

    def __enter__(self) -> None:
        self._since = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._since


class Asked(NamedTuple):
    """A request in progress, and its number among the requests of its connection."""

    number: int
    request: Request
    spent: Spent


class Timed:
    """An awaitable that counts the time of its own steps, but not of its waits."""

    def __init__(self, awaited: Any, spent: Spent) -> None:
        self._awaited = awaited
        self._spent = spent

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaited.__await__()
        step: Any = None
        call = steps.send
        while True:
            try:
                with self._spent:
                    waits_for = call(step)
            except StopIteration as done:
                return done.value
            try:
                step, call = (yield waits_for), steps.send
            except BaseException as error:  # as a task throws its cancellation into what it awaits
                step, call = error, steps.throw


class Throttled(NamedTuple):
    """How long the client must wait, in ms, and the response to send now."""

    wait_ms: int
    answer: Any


def bounded(quotas: Quotas, client: Client, request: Request, now_ms: int) -> Request:
    """Limits a fetch to what its quota leaves: it exceeds the quota by one batch at most, and the client
    waits afterwards. Without this limit, each response might be larger than the quota of all windows."""
    body = request.body
    if request.header.api_key != FETCH or is_of_a_broker(request):
        return request
    user, client_id = client.principal.partition(":")[2], request.header.client_id or ""
    room = quotas.room(FETCH_BYTES, user, client_id, now_ms)
    if room is None or room >= body.max_bytes:
        return request
    return request.changed(replace(body, max_bytes=room, min_bytes=min(body.min_bytes, max(room, 1))))


def charge(
    quotas: Quotas, client: Client, request: Request, spent: Spent, answer: Any, answer_size: int, now_ms: int
) -> Throttled:
    """Counts a request when its response is ready. A response of the controller may contain a wait too; the
    longer wait applies."""
    if is_of_a_broker(request):
        return Throttled(0, answer)
    user, client_id = client.principal.partition(":")[2], request.header.client_id or ""
    wait_ms = quotas.use(REQUEST_PERCENT, user, client_id, 100 * spent.seconds, now_ms)
    key = request.header.api_key
    if key == _PRODUCE:
        wait_ms = max(wait_ms, quotas.use(PRODUCE_BYTES, user, client_id, spent.size, now_ms))
    if key == FETCH:
        wait_ms = max(wait_ms, quotas.use(FETCH_BYTES, user, client_id, answer_size, now_ms))
    said_ms = getattr(answer, "throttle_time_ms", None)
    if said_ms is not None and wait_ms > said_ms:
        answer = replace(answer, throttle_time_ms=wait_ms)
    wait_ms = max(wait_ms, said_ms or 0)
    return Throttled(wait_ms, answer)


def is_of_a_broker(request: Request) -> bool:
    """True for a request between nodes, which quotas do not apply to: default quotas would keep replicas out
    of the ISR, voters from an election, and brokers from their sessions. Authorization is checked before."""
    key, body = request.header.api_key, request.body
    return key in _OF_NODES or (key == FETCH and (body.replica_id >= 0 or body.replica_state.replica_id >= 0))
