"""The cost of a response to its client, and how the client learns its wait: the quotas at a connection.

Owns which requests count against which quota. Does not have the rates (`quotas`) and does not mute a client:
the connection does.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from msgspec.structs import replace

from metaquorum.runtime.kafka.quotas import FETCH_BYTES, PRODUCE_BYTES, REQUEST_PERCENT, Quotas
from metaquorum.runtime.kafka.services import Client
from metaquorum.wire.apis import API_BY_NAME
from metaquorum.wire.codec import Request

_PRODUCE, FETCH, _MARKERS = (API_BY_NAME[name].key for name in ("Produce", "Fetch", "WriteTxnMarkers"))


@dataclass(slots=True)
class Spent:
    """One request in progress: its size in bytes, and the processor time that it took, in seconds."""

    size: int
    seconds: float = 0.0
    _since: float = field(default=0.0, repr=False)

    def __enter__(self) -> None:
        self._since = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._since


class Asked(NamedTuple):
    """A request in progress, and its place among the responses."""

    place: int
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
    return replace(request, body=replace(body, max_bytes=room, min_bytes=min(body.min_bytes, max(room, 1))))


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
    """True for a request between brokers, which quotas do not apply to (as in Kafka): default quotas would
    keep replicas out of the ISR. Authorization is checked before."""
    key, body = request.header.api_key, request.body
    return key == _MARKERS or (key == FETCH and (body.replica_id >= 0 or body.replica_state.replica_id >= 0))
