"""What stands between the clients and the brokers of a test cluster: every request passes here.

A request may wait, be met by a fault, or be seen by a function of the test, before the broker's handler,
which does not know of it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.listeners.answers import opened
from metaquorum.listeners.long_work import LongAnswer
from metaquorum.listeners.pending_requests import is_of_a_broker
from metaquorum.listeners.services import Client, EndConnection, Handler, Later, Services
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.network.deferred import Driven
from metaquorum.testing.clock import ClusterClock
from metaquorum.testing.network import Delay
from metaquorum.testing.request_faults import CarryOut, Release, RequestFault, TopicNames, with_error
from metaquorum.wire.codec import Request
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import API_BY_NAME, APIS, response_type

# What clients and brokers did in a test cluster, on one time axis with its metadata log and its faults.

KEPT_MAX = 2_000
"""How many happenings are kept, the newest ones."""
LINES_MAX = 40
LONG_MS = 1 << 62
"""Of a time without records that is worth a line: none is."""
NAMES = ("name", "topic", "group_id", "transactional_id", "key", "resource_name")
"""Fields by which an entry of a response says what it is about."""
INDEXES = ("partition_index", "partition", "index")
STEPS = frozenset({ErrorCode.MEMBER_ID_REQUIRED.name})
"""Codes that are a step of the protocol: with this one, a member gets its id (KIP-394)."""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """`wall_ms`: Unix time by the cluster's clock. `kind`: metadata, group, transaction, error or fault."""

    wall_ms: int
    kind: str
    text: str


class Observed:
    """What answers to clients show: errors, rebalances and transactions. For the cluster's loop."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.kept: deque[Happening] = deque(maxlen=KEPT_MAX)
        self._wall_ms = wall_ms
        self._generations: dict[str, int] = {}

    def note(self, kind: str, text: str) -> None:
        self.kept.append(Happening(wall_ms=self._wall_ms(), kind=kind, text=text))

    def answered(self, api: str, node: int, request: Request, answer: Any) -> None:
        """A broker has answered a client."""
        who = f"{api} of {request.header.client_id} at broker {node}"
        problems = [] if answer is None else list(dict.fromkeys(_problems(answer, _places_in(api))))
        for about, code in problems[:3]:
            if code not in STEPS:
                self.note("error", f"{who}: {code}{about and f' ({about})'}")
        body = request.body
        if problems:
            return
        if api == "SyncGroup" and self._generations.get(body.group_id) != body.generation_id:
            self._generations[body.group_id] = body.generation_id
            self.note("group", f"group {body.group_id} is rebalanced: generation {body.generation_id}")
        elif api == "LeaveGroup":
            self.note("group", f"a member left group {body.group_id}")
        elif api == "ConsumerGroupHeartbeat" and body.member_epoch <= 0:
            does = "left" if body.member_epoch < 0 else "joins"
            self.note("group", f"member {answer.member_id or body.member_id} {does} group {body.group_id}")
        elif api == "EndTxn":
            ending = "commit" if body.committed else "abort"
            self.note("transaction", f"transaction {body.transactional_id}: {ending}")
        elif api == "InitProducerId" and body.transactional_id:
            producer = f"producer {answer.producer_id}, epoch {answer.producer_epoch}"
            self.note("transaction", f"transaction {body.transactional_id}: {producer}")


class _Places(msgspec.Struct, frozen=True):
    """Where a structure of a response may have error codes: itself, or the structures in these fields."""

    has_code: bool
    parts: tuple[tuple[str, _Places], ...]


@cache
def _places_in(api: str) -> _Places:
    return _places(response_type(API_BY_NAME[api].key).schema)


def _places(schema: StructSchema) -> _Places:
    parts = ((each.name, _places(each.struct)) for each in schema.fields if each.struct is not None)
    return _Places(
        has_code=any(each.name == "error_code" for each in schema.fields),
        parts=tuple((name, places) for name, places in parts if places.has_code or places.parts),
    )


def _problems(value: Any, places: _Places, about: str = "") -> Iterator[tuple[str, str]]:
    """Each error code in a response, and what it is about."""
    code = value.error_code if places.has_code else 0
    if not code and not places.parts:
        return
    name = next((str(own) for each in NAMES if (own := getattr(value, each, None))), "")
    index = next((own for each in INDEXES if (own := getattr(value, each, None)) is not None), None)
    about = "-".join(part for part in (about, name, "" if index is None else str(index)) if part)
    if code:
        yield about, ErrorCode.of(code).name
        return
    for field_name, inside in places.parts:
        found = getattr(value, field_name)
        for entry in found if isinstance(found, tuple) else () if found is None else (found,):
            yield from _problems(entry, inside, about)


def of_metadata(log: MetadataLog) -> list[Happening]:
    """The story of a metadata log, as `log timeline` tells it."""
    # Only the report of a failed test needs them.
    from metaquorum.metadata.inspect.timeline.event import at_least
    from metaquorum.metadata.inspect.timeline.story import events as story_of

    # An idle cluster of a test writes little, and tests move its clock.
    story = story_of(log, lambda line: None, shown=at_least("info"), gap_ms=LONG_MS)
    return [
        Happening(wall_ms=each.time_ms, kind="metadata", text=f"{each.kind}: {each.text}") for each in story
    ]


def lines_of(happenings: list[Happening], lines_max: int = LINES_MAX) -> list[str]:
    """The last ones in order of time, one a line; those that follow each other and are alike are one."""
    merged: list[tuple[Happening, int]] = []
    for event in sorted(happenings, key=lambda happening: happening.wall_ms):
        if merged and (merged[-1][0].kind, merged[-1][0].text) == (event.kind, event.text):
            merged[-1] = event, merged[-1][1] + 1
        else:
            merged.append((event, 1))
    left = len(merged) - lines_max
    first = [] if left <= 0 else [f"... {left + 1} earlier events"]
    return first + [_line(*each) for each in merged[max(0, left + bool(first)) :]]


def _line(happening: Happening, count: int) -> str:
    at = datetime.fromtimestamp(happening.wall_ms / 1000, UTC)
    times = f" ({count} times)" if count > 1 else ""
    return f"{at:%H:%M:%S}.{happening.wall_ms % 1000:03d}  {happening.kind:<11}  {happening.text}{times}"


OWN_CLIENT = "metaquorum-testing"
"""The client id of the cluster's own requests, which nothing stops."""
COORDINATOR_NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE.value
COORDINATOR_S, COORDINATOR_LOOK_S = 0.4, 0.005
"""For how long the topic of coordinators may be made before a client is refused, and how often is looked."""


class ClientFault:
    """A fault of the way between a client and a node. `client`: a client id or a principal; None: every one.
    `asks`, `answers`: which way it concerns. Without a delay nothing passes."""

    def __init__(self, client: str | None, node: int, ways: tuple[bool, bool], delay: Delay | None) -> None:
        self._client = client
        self.node = node
        self.asks, self.answers = ways
        self._delay = delay
        self._healed = Release()

    def matches(self, node: int, request: Request, client: Client) -> bool:
        client_id = request.header.client_id
        if node != self.node or client_id == OWN_CLIENT:
            return False
        if self._client is None:
            return not is_of_a_broker(request)
        return self._client in (client_id, client.principal)

    async def passed(self, rng: random.Random) -> None:
        """Returns once something may pass."""
        ms, jitter = self._delay or (0.0, 0.0)
        late_s = max(0.0, ms + rng.uniform(-jitter, jitter)) / 1000
        await self._healed.wait(None if self._delay is None else late_s)

    def heal(self) -> None:
        """What waits goes on."""
        self._healed.set()


class Intercepted(msgspec.Struct, frozen=True, kw_only=True):
    """A request, for a function of a test. `body`: of `metaquorum.wire.messages`; `node`: the broker that
    got it."""

    api: str
    version: int
    body: Any
    node: int
    client_id: str | None
    principal: str


Replacement = Callable[[Intercepted], Any]
"""What a test does with a request. Returns None: it is carried out; another body of a request: that one is;
the body of a response: that is the answer; a function: it gets the broker's answer and returns the one to
give."""


class Interceptor:
    """A `Replacement` in force. `problem`: what it raised."""

    def __init__(self, api: str, function: Replacement) -> None:
        self.api = api
        self.function = function
        self.problem: Exception | None = None

    async def answer(self, request: Request, intercepted: Intercepted, carry_out: CarryOut) -> Any:
        """The answer to a request. Ends the connection if the function fails."""
        try:
            result = self.function(intercepted)
            if result is None:
                return await carry_out(request)
            if isinstance(result, type(request.body)):
                return await carry_out(request.changed(result))
            if not callable(result):
                return self._checked(result, request)
            return self._checked(result(await carry_out(request)), request)
        except EndConnection:
            raise
        except Exception as error:
            self.problem = self.problem or error
            raise EndConnection("a function of the test failed") from error

    @staticmethod
    def _checked(result: Any, request: Request) -> Any:
        cls = response_type(request.header.api_key).cls
        if result is not None and not isinstance(result, cls):
            raise TypeError(f"it returned a {type(result).__name__}, not a {cls.__name__}")
        return result


class Interception:
    """What a cluster's brokers share: the faults that tests have set. All for the cluster's loop."""

    def __init__(self, rng: random.Random, clock: ClusterClock) -> None:
        self.observed = Observed(clock.wall_ms)
        self.clock = clock
        self.highest: dict[str, int] | None = None
        """By API, the highest version of an older release; None: there is no limit."""
        self.faults: list[RequestFault] = []
        self.client_faults: list[ClientFault] = []
        self.interceptors: list[Interceptor] = []
        self.client_ids: dict[int, str | None] = {}
        """By the number of the connection."""
        self.rng = rng


class InterceptedServices:
    """A broker's services with the faults before them; used as `Services`."""

    def __init__(self, services: Services, request_path: RequestPath) -> None:
        self._services = services
        self._request_path = request_path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._services, name)

    def find(self, api_key: int, version: int) -> Handler | None:
        """As `Services.find`."""
        handler = self._services.find(api_key, version)
        if handler is None:
            return None

        def intercepted(request: Request, client: Client) -> Later:
            return later(Driven(self._request_path.passed(handler, request, client)))

        return intercepted


class RequestPath:
    """The way of requests to the handlers of a broker. `topics`: the name of a topic in a request."""

    def __init__(self, node: int, shared: Interception, topics: TopicNames) -> None:
        self._node = node
        self._shared = shared
        self._topics = topics

    async def passed(self, handler: Handler, request: Request, client: Client) -> Any:
        """The answer to a request, as faults have it. Raises EndConnection."""
        api = APIS[request.header.api_key].name
        shared = self._shared
        shared.client_ids[client.connection] = request.header.client_id
        await self._way_is_free(request, client, lambda fault: fault.asks)
        met = None
        for each in tuple(shared.faults):  # those that only count do so whatever else meets the request
            if (each.only_counts or met is None) and self._meets(each, api, request, client):
                met = met if each.only_counts else each

        async def carry_out(left: Request) -> Any:
            return await answer_of(handler, left, client)

        interceptor = next((each for each in reversed(shared.interceptors) if each.api == api), None)
        if met is not None:
            answer = await self._faulty(met, request, carry_out)
        elif interceptor is not None:
            answer = await interceptor.answer(request, self._intercepted(api, request, client), carry_out)
        elif api == "FindCoordinator":
            answer = await self._with_coordinator(handler, request, client)
        else:
            answer = await _resolved(handler(request, client))
        if request.header.client_id != OWN_CLIENT and not is_of_a_broker(request):
            shared.observed.answered(api, self._node, request, _body(answer))
        await self._way_is_free(request, client, lambda fault: fault.answers)
        return answer

    async def _with_coordinator(self, handler: Handler, request: Request, client: Client) -> Any:
        """The first client that asks for a coordinator is answered once its topic is there: it would ask
        again after half a second."""
        until_s = time.monotonic() + COORDINATOR_S
        while True:
            answer = await _resolved(handler(request, client))
            body = _body(answer)
            codes = {body.error_code, *(each.error_code for each in body.coordinators)}
            is_late = time.monotonic() > until_s or self._shared.clock.is_manual
            if COORDINATOR_NOT_AVAILABLE not in codes or is_late:
                return answer
            await asyncio.sleep(COORDINATOR_LOOK_S)

    async def _way_is_free(
        self, request: Request, client: Client, applies_to: Callable[[ClientFault], bool]
    ) -> None:
        """Returns once something may pass between a client and this node: a fault that begins meanwhile stops
        it, too."""
        shared = self._shared
        passed: list[ClientFault] = []
        while ahead := [
            each
            for each in shared.client_faults
            if each not in passed and applies_to(each) and each.matches(self._node, request, client)
        ]:
            await ahead[0].passed(shared.rng)
            passed.append(ahead[0])

    def _meets(self, fault: RequestFault, api: str, request: Request, client: Client) -> bool:
        return fault.api == api and fault.takes(self._node, request, client, self._topics)

    def _intercepted(self, api: str, request: Request, client: Client) -> Intercepted:
        header = request.header
        return Intercepted(
            api=api,
            version=header.version,
            body=request.body,
            node=self._node,
            client_id=header.client_id,
            principal=client.principal,
        )

    async def _faulty(self, fault: RequestFault, request: Request, carry_out: CarryOut) -> Any:
        how = fault.how
        if how.get("hold"):
            await fault.released.wait()
        if how.get("disconnect"):
            raise EndConnection("a fault of the test")

        answer = await with_error(fault, request, carry_out, self._topics)
        if how.get("lose_answer"):
            raise EndConnection("a fault of the test lost the answer")
        if "delay_s" in how:
            await fault.released.wait(how["delay_s"])
        if "throttle_ms" in how and answer is not None:
            answer = replace(answer, throttle_time_ms=how["throttle_ms"])
        return answer


def topic_name(entry: Any, by_id: Callable[[bytes], str | None]) -> str | None:
    """The name of a topic in a request, which has it or the topic's id."""
    name = getattr(entry, "name", None) or getattr(entry, "topic", None)
    topic_id = getattr(entry, "topic_id", None)
    return name if name or topic_id is None else by_id(topic_id)


def later(deferred: Driven[Any]) -> Later:
    """An answer that will be there, as it is."""
    return Later(deferred, _as_it_is)


def _as_it_is(answer: Any) -> Any:
    return answer


def _body(answer: Any) -> Any:
    return answer.body if type(answer) is LongAnswer else opened(answer)


async def answer_of(handler: Handler, request: Request, client: Client) -> Any:
    """The body of a handler's answer."""
    return _body(await _resolved(handler(request, client)))


async def _resolved(answer: Any) -> Any:
    """What a handler returned, once it is there."""
    if type(answer) is Later:
        return answer.finish(await answer.deferred)
    # Of a task, which it may need.
    return await asyncio.ensure_future(answer) if isinstance(answer, Awaitable) else answer
