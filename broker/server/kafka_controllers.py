"""A broker at controllers that it asks by Kafka's protocol: its own requests, and those that it forwards.

A node answers the requests of a connection in their order, so each request has one to itself: no heartbeat
waits behind an answer that waits for its commit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from metaquorum.broker.channel import ChannelRequest, ChannelResponse, NoAnswer, SendToController
from metaquorum.broker.server.controllers import ControllerCalls, Report, no_answer_in_time
from metaquorum.clients.kafka.cluster import common_refusal
from metaquorum.clients.kafka.connection import ConnectionFailed, NodeConnection
from metaquorum.clients.kafka.node_messages import FORMS, MARK, answer_of, offset_of, refusal_of
from metaquorum.clients.kafka.raft_client import KafkaWay
from metaquorum.clients.quorum.admin import ATTEMPT_MAX_MS, NOT_LOOKED_AT, ForwardedAnswer
from metaquorum.clients.search import Address, Attempts, ClientError, NodeChoice
from metaquorum.config.node import NodeConfig
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import NO_BROKER, BrokerHeartbeatRequest, RegisterBrokerRequest
from metaquorum.network.tls import NodeTls
from metaquorum.rpc.channels import Route
from metaquorum.rpc.controllers import Controllers
from metaquorum.rpc.transport import Addresses, PeerAddress
from metaquorum.wire import codec
from metaquorum.wire.messages import EnvelopeRequest
from metaquorum.wire.principal import ForwardedPrincipal, encode_principal
from metaquorum.wire.table import APIS

IDLE_MAX = 4
"""The most unused connections to the active controller that one kind of request keeps."""
FORWARDED_MAX = 32
"""The most requests that are forwarded at once; more wait for their turn."""

_LIFECYCLE = frozenset({RegisterBrokerRequest, BrokerHeartbeatRequest})


def way_to_controllers(config: NodeConfig, every_tls: NodeTls, route: Route) -> KafkaWay:
    """How a broker connects to the controllers' listener. Raises ConfigError."""
    tls = every_tls.controllers
    return KafkaWay(
        client_id=str(config.node_id),
        tls=None if tls is None else tls.client_context,
        login=config.controllers_login,
        route=route,
    )


class _Connections:
    """Those of one kind of request, to the controller that was asked last."""

    def __init__(self, way: KafkaWay) -> None:
        self._way = way
        self._address: PeerAddress | None = None
        self._idle: list[NodeConnection] = []

    @asynccontextmanager
    async def one(self, address: PeerAddress, timeout_s: float) -> AsyncIterator[NodeConnection]:
        """A connection for one request, closed if that fails. Raises ConnectionFailed or TimeoutError."""
        if address != self._address:
            self.close()
            self._address = address
        connection = self._take() or await self._way.open(address, timeout_s=timeout_s, looks_for_tls=False)
        try:
            yield connection
        except ApiError:  # an answer
            self._keep(connection, address)
            raise
        except BaseException:
            connection.close()
            raise
        self._keep(connection, address)

    def _keep(self, connection: NodeConnection, address: PeerAddress) -> None:
        if address == self._address and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self) -> NodeConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and not connection.must_be_replaced:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        for each in self._idle:
            each.close()
        self._idle.clear()


class KafkaControllerCalls(ControllerCalls):
    """A broker's own requests. `session_timeout_ms`: by which its lease counts where the controller does not
    say how long a session lasts, as Kafka's do not."""

    def __init__(
        self, controllers: Addresses, report: Report, way: KafkaWay, *, session_timeout_ms: int
    ) -> None:
        super().__init__(report)
        self._controllers = controllers
        self._way = way
        self._session_timeout_ms = session_timeout_ms
        self._connections: dict[object, _Connections] = {}

    async def close(self) -> None:
        await super().close()
        await _closed(self._connections.values())

    async def _outcome(self, effect: SendToController) -> ChannelResponse | ApiError | NoAnswer:
        address = self._controllers.get(effect.target)
        if address is None:
            return NoAnswer("it has no known address")
        kind = "lifecycle" if type(effect.request) in _LIFECYCLE else type(effect.request)
        connections = self._connections.setdefault(kind, _Connections(self._way))
        timeout_s = effect.timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s), connections.one(address, timeout_s) as connection:
                return await self._ask(connection, effect.request, timeout_s)
        except ConnectionFailed as error:
            return NoAnswer(str(error))
        except TimeoutError:
            return NoAnswer(no_answer_in_time(effect))

    async def _ask(
        self, connection: NodeConnection, request: ChannelRequest, timeout_s: float
    ) -> ChannelResponse | ApiError:
        form = FORMS[type(request)]
        version = connection.version(form.api, form.lowest, form.highest)
        body = form.body(request, version)
        answer = (await connection.ask(body, version=version, timeout_s=timeout_s)).body
        found: ChannelResponse | ApiError = answer_of(form, answer, self._session_timeout_ms)
        return found


class KafkaForwarding:
    """Requests of clients in Envelopes (KIP-590), and those of Kafka's protocol that this broker sends by
    itself, to the active controller. `leader` returns its id as the metadata log's fetcher knows it."""

    def __init__(
        self, controllers: Controllers, leader: Callable[[], int | None], way: KafkaWay, rng: random.Random
    ) -> None:
        self._controllers = controllers
        self._leader = leader
        self._rng = rng
        self._choice = NodeChoice(controllers.addresses)
        self._connections = _Connections(way)
        self._turns = asyncio.Semaphore(FORWARDED_MAX)

    async def close(self) -> None:
        await _closed((self._connections,))

    async def forward(
        self,
        frame: bytes,
        *,
        broker_id: int,
        principal: str,
        client_address: str,
        by_token: bool,
        timeout_ms: int,
    ) -> ForwardedAnswer:
        """As `AdminClient.forward`. A request of no broker is this broker's own."""
        own = broker_id == NO_BROKER
        loop = asyncio.get_running_loop()
        attempts = Attempts(
            self._choice, self._rng, now_s=loop.time(), limit_ms=timeout_ms, attempt_ms=ATTEMPT_MAX_MS
        )
        refusal: ApiError | None = None
        failed: Address | None = None
        while attempt_s := attempts.next_s(loop.time()):
            address = self._next(failed)
            try:
                async with (
                    self._turns,
                    asyncio.timeout(attempt_s),
                    self._connections.one(PeerAddress(*address), attempt_s) as connection,
                ):
                    if own:
                        return await _sent(connection, frame, attempt_s)
                    client = ForwardedPrincipal(principal, by_token)
                    return await _forwarded(connection, frame, client, client_address, attempt_s)
            except ApiError as error:
                refusal = error
                attempts.failed(address, str(error))
                if error.code not in NOT_LOOKED_AT:
                    raise
            except (ConnectionFailed, TimeoutError) as error:
                refusal = None
                attempts.failed(address, str(error) or "no answer")
            failed = address
            if refusal is None or refusal.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                self._choice.pass_over(address)
            await asyncio.sleep(attempts.wait_s(loop.time()))
        raise refusal or ClientError(attempts.text("quorum"))

    def _next(self, failed: Address | None) -> Address:
        """The leader's address, unless it has just failed."""
        leader_id = self._leader()
        known = None if leader_id is None else self._controllers.get(leader_id)
        if known is not None and (known.host, known.port) != failed:
            self._choice.prefer((known.host, known.port))
        return self._choice.current


async def _forwarded(
    connection: NodeConnection, frame: bytes, client: ForwardedPrincipal, address: str, timeout_s: float
) -> ForwardedAnswer:
    """The answer to a client's request. Raises ApiError if the controller refuses the envelope."""
    body = EnvelopeRequest(
        request_data=frame,
        request_principal=encode_principal(client),
        client_host_address=_packed(address),
        unknown_tags=((MARK, b""),),
    )
    answer = (await connection.ask(body, timeout_s=timeout_s)).body
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION, "the controllers do not support this version of the request"
        )
    if answer.error_code:
        raise refusal_of(answer)
    return ForwardedAnswer(frame=bytes(answer.response_data), offset=offset_of(answer))


def _packed(address: str) -> bytes:
    """An address as bytes; that of a client that has gone is not known."""
    try:
        return ipaddress.ip_address(address).packed
    except ValueError:
        return bytes(4)


async def _sent(connection: NodeConnection, frame: bytes, timeout_s: float) -> ForwardedAnswer:
    """The answer to a request of this broker's own, as the frame of one."""
    request = codec.decode_request(frame)
    key, version = request.header.api_key, request.header.version
    version = connection.version(APIS[key].name, highest=version)
    answer = (await connection.ask(request.body, version=version, timeout_s=timeout_s)).body
    refusal = common_refusal(answer)
    if refusal is not None and refusal in NOT_LOOKED_AT:
        raise ApiError(refusal, "it is not the active controller, or is busy")
    chunks = codec.encode_response(key, request.header.version, request.header.correlation_id, answer)
    return ForwardedAnswer(frame=b"".join(chunks), offset=0)


async def _closed(every: Iterable[_Connections]) -> None:
    for each in every:
        each.close()
    await asyncio.sleep(0)  # transports report the end of their connections in the next turn
