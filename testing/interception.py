"""What stands between the clients and the brokers of a test cluster: every request passes here.

A request may wait, be met by a fault, or be seen by a function of the test, before the broker's handler,
which does not know of it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.listeners.answers import opened
from metaquorum.listeners.long_work import LongAnswer
from metaquorum.listeners.pending_requests import is_of_a_broker
from metaquorum.listeners.services import Client, EndConnection, Handler, Later, Services
from metaquorum.metadata.errors import ErrorCode
from metaquorum.network.deferred import Driven
from metaquorum.testing.clock import ClusterClock
from metaquorum.testing.happenings import Observed
from metaquorum.testing.network import Delay
from metaquorum.testing.release import Release
from metaquorum.testing.request_faults import CarryOut, RequestFault, TopicNames, with_error
from metaquorum.wire.codec import Request
from metaquorum.wire.table import APIS, response_type

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
