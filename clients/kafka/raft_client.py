"""The calling side of the Raft transport over Kafka's protocol, as `rpc.transport` promises it.

A node answers the requests of a connection in their order, and a leader holds a fetch while there is nothing
new: so each peer has two connections, one for fetches and one for what must not wait behind them. A request
without an answer in time ends its connection, as in Kafka: its late answer would hold up the next one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Callable, Container
from typing import Any, Protocol

import msgspec

from metaquorum.clients.kafka.connection import (
    CLOSED_AFTER_TLS,
    ConnectionClosed,
    ConnectionFailed,
    LoginRefused,
    NodeConnection,
    TlsFailed,
    UnsupportedVersion,
    WrongProtocol,
    connect,
)
from metaquorum.clients.kafka.login import log_in
from metaquorum.clients.kafka.message_forms import CannotSay
from metaquorum.clients.kafka.quorum import OFFERED
from metaquorum.clients.kafka.raft_messages import (
    Misshapen,
    NotOfRaft,
    api_of,
    request_body,
    response_of,
)
from metaquorum.config.security import Credentials
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.backoff import Backoff
from metaquorum.raft.events import RaftRequestFailed, RaftResponseArrived
from metaquorum.raft.messages import (
    FetchRequest,
    FetchSnapshotRequest,
    RaftError,
    RaftRequest,
    VoteRequest,
    VoteResponse,
)
from metaquorum.rpc.transport import IN_FLIGHT_MAX, RECONNECT, Addresses, EventSink, PeerAddress
from metaquorum.wire.codec import Response

ANSWER_MAX_BYTES = 64 * 1024 * 1024
NOT_BY_GRPC = (
    "it speaks gRPC there, and not Kafka's protocol: name the controllers' Kafka listener in"
    " controller.quorum.voters or controller.quorum.bootstrap.servers, or, if this node is a broker, set"
    " controller.quorum.protocol=grpc"
)
NO_LOGIN = (
    "it closed the connection at the first request: it may require a login (map the controllers' listener to"
    " its protocol in listener.security.protocol.map)"
)
CONNECT_S = 2.0
"""The most time for a connection and its login."""

_log = logging.getLogger(__name__)


class KafkaWay(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect. `tls` returns the context of the next connection, None: plain text; `login` None: no
    login. `client_id` names this node in its peers' logs."""

    client_id: str
    tls: Callable[[], ssl.SSLContext] | None = None
    login: Credentials | None = None
    route: Callable[[str, int], tuple[str, int]] = lambda host, port: (host, port)

    async def open(
        self, address: PeerAddress, *, timeout_s: float = CONNECT_S, looks_for_tls: bool = True
    ) -> NodeConnection:
        """A connection that is ready for requests. Raises ConnectionFailed or TimeoutError."""
        try:
            connection = await connect(
                *self.route(address.host, address.port),
                client_id=self.client_id,
                tls=None if self.tls is None else self.tls(),
                answer_max_bytes=ANSWER_MAX_BYTES,
                timeout_s=timeout_s,
                looks_for_tls=looks_for_tls,
            )
            if self.login is not None:
                await log_in(connection, self.login, timeout_s=timeout_s)
        except ConnectionClosed as error:
            if self.tls is not None:
                raise TlsFailed(CLOSED_AFTER_TLS) from error
            raise
        except WrongProtocol as error:
            raise WrongProtocol(NOT_BY_GRPC) from error
        return connection


class ControllersWay(Protocol):
    """How to connect to a controller: `KafkaWay`, or over gRPC."""

    @property
    def login(self) -> Credentials | None: ...

    async def open(self, address: PeerAddress, *, looks_for_tls: bool = True) -> NodeConnection: ...


class KafkaRaftClient:
    """The connections to the peers of one node. Everything runs on the loop's thread."""

    def __init__(
        self, addresses: Addresses, sink: EventSink, way: ControllersWay, rng: random.Random
    ) -> None:
        self._addresses = addresses
        self._sink = sink
        self._way = way
        self._rng = rng
        self._peers: dict[int, _KafkaPeer] = {}

    def send(self, to: int, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        """Sends a request; exactly one RaftResponseArrived or RaftRequestFailed follows."""
        address = self._addresses.get(to)
        if address is None:
            self._fail_later(to, correlation_id, f"node {to} has no known address")
            return
        peer = self._peers.get(to)
        if peer is None or peer.address != address:
            self._retire(to, f"node {to} moved to {address_text(address.host, address.port)}")
            peer = self._peers[to] = _KafkaPeer(to, address, self._sink, self._way, self._rng)
        peer.send(correlation_id, request, timeout_ms)

    def retain(self, node_ids: Container[int]) -> None:
        """Closes the connections to all other nodes."""
        for node_id in [each for each in self._peers if each not in node_ids]:
            self._retire(node_id, f"node {node_id} is no longer a target")

    def _retire(self, node_id: int, reason: str) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            peer.close(reason)

    def _fail_later(self, to: int, correlation_id: int, reason: str) -> None:
        failure = RaftRequestFailed(target=to, correlation_id=correlation_id, reason=reason)
        asyncio.get_running_loop().call_soon(self._sink, failure)

    async def close(self) -> None:
        """Closes all connections; drops requests in flight without an event."""
        for peer in self._peers.values():
            peer.close(None)
        self._peers.clear()
        await asyncio.sleep(0)  # transports report the end of their connections in the next turn


class _KafkaPeer:
    """The two connections to one peer."""

    def __init__(
        self,
        node_id: int,
        address: PeerAddress,
        sink: EventSink,
        way: ControllersWay,
        rng: random.Random,
    ) -> None:
        self.address = address
        self.node_id, self.sink, self.way, self.rng = node_id, sink, way, rng
        self._logged = ""
        self._fetches, self._others = _Line(self), _Line(self)

    def send(self, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        waits = isinstance(request, FetchRequest | FetchSnapshotRequest)
        line = self._fetches if waits else self._others
        line.send(_InFlight(line, correlation_id, request, timeout_ms))

    def close(self, reason: str | None) -> None:
        """Ends both connections; requests in flight fail after the caller's step, without a reason they are
        dropped."""
        for line in (self._fetches, self._others):
            line.close(reason)

    def log_once(self, problem: ConnectionFailed | str) -> None:
        """Logs what an operator must correct, once until it is another one."""
        if str(problem) != self._logged:
            self._logged = str(problem)
            where = address_text(self.address.host, self.address.port)
            _log.warning("node %d at %s cannot be asked: %s", self.node_id, where, problem)

    def answered(self) -> None:
        self._logged = ""


class _InFlight:
    """One request: it is the receiver of its response (`WaitsForAnswer`), and ends once."""

    __slots__ = ("_line", "_timer", "_version", "correlation_id", "request", "timeout_ms")

    def __init__(self, line: _Line, correlation_id: int, request: RaftRequest, timeout_ms: int) -> None:
        self._line = line
        self.correlation_id, self.request, self.timeout_ms = correlation_id, request, timeout_ms
        self._version = 0
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_ms / 1000, line.timed_out, self)

    def write(self, connection: NodeConnection, versions: dict[type, int]) -> None:
        """Sends it. `versions`: those of the requests that the connection has carried. Raises CannotSay,
        ConnectionFailed or EncodeError."""
        kind = type(self.request)
        version = versions.get(kind)
        if version is None:
            api = api_of(self.request)
            version = versions[kind] = connection.version(api, *OFFERED.get(api, ()))
        self._version = version
        connection.send(request_body(self.request, version), version=version, to=self)

    def end(self) -> bool:
        """True the first time: the caller then reports the outcome."""
        self._timer.cancel()
        return self._line.forget(self)

    # ---- as a receiver

    def done(self) -> bool:
        return not self._line.has(self)

    def set_result(self, response: Response, /) -> None:
        if not self.end():
            return
        line = self._line
        try:
            answer = response_of(response.body, self._version, self.request)
        except NotOfRaft as refused:
            line.refused(self, refused)
        except Misshapen as problem:
            line.report(self, f"it sent an invalid answer: {problem}")
        else:
            line.arrived(self, answer)

    def set_exception(self, error: ConnectionFailed, /) -> None:
        if self.end():
            self._line.lost(self, error)


class _Line:
    """One connection to a peer, opened when there is something to send. While the peer is known to be
    unreachable, a request fails at once."""

    def __init__(self, peer: _KafkaPeer) -> None:
        self._peer = peer
        self._backoff = Backoff(RECONNECT, peer.rng)
        self._last_failure = ""
        self._connection: NodeConnection | None = None
        self._versions: dict[type, int] = {}
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[_InFlight, None] = {}
        self._unsent: deque[_InFlight] = deque()
        self._has_answered = False
        self._silent = 0
        """How many connections in a row the peer has closed without a word."""
        self._closed: NodeConnection | None = None

    def has(self, flight: _InFlight) -> bool:
        return flight in self._waiting

    def forget(self, flight: _InFlight) -> bool:
        return self._waiting.pop(flight, self) is None

    # ---- requests

    def send(self, flight: _InFlight) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[flight] = None
        if len(self._waiting) > IN_FLIGHT_MAX:
            loop.call_soon(self._fail, flight, f"{IN_FLIGHT_MAX} requests are unanswered")
            return
        connection = self._connection
        if connection is not None and connection.is_open and not self._must_log_in(connection):
            self._write(flight, connection)
            return
        if self._opening is None:
            remaining_ms = self._backoff.remaining_ms(int(loop.time() * 1000))
            if remaining_ms > 0:
                loop.call_soon(self._fail, flight, f"{self._last_failure}; next attempt in {remaining_ms} ms")
                return
            self._opening = loop.create_task(self._open())
        self._unsent.append(flight)

    def _must_log_in(self, connection: NodeConnection) -> bool:
        """Whether the session ends soon: another connection takes its place, as this one is idle."""
        if connection.must_be_replaced and len(self._waiting) == 1:
            self._connection = None
            connection.close("its session ends")
            return True
        return False

    def _write(self, flight: _InFlight, connection: NodeConnection) -> None:
        loop = asyncio.get_running_loop()
        try:
            flight.write(connection, self._versions)
        except CannotSay:
            loop.call_soon(self._answer_pre_vote, flight)
        except UnsupportedVersion as error:
            self._peer.log_once(error)
            loop.call_soon(self._fail, flight, str(error))
        except ConnectionFailed as error:
            loop.call_soon(self._fail, flight, self.failure(error))

    def _answer_pre_vote(self, flight: _InFlight) -> None:
        """The peer's release has no pre-vote (KIP-996): the core decides what that means."""
        if isinstance(flight.request, VoteRequest) and flight.end():
            self.arrived(
                flight,
                VoteResponse(
                    error=RaftError.UNSUPPORTED_VERSION,
                    epoch=0,
                    leader_id=None,
                    vote_granted=False,
                    pre_vote=True,
                ),
            )

    # ---- outcomes

    def arrived(self, flight: _InFlight, response: Any) -> None:
        self._has_answered = True
        self._backoff.succeeded()
        self._peer.answered()
        self._peer.sink(
            RaftResponseArrived(
                source=self._peer.node_id, correlation_id=flight.correlation_id, response=response
            )
        )

    def refused(self, flight: _InFlight, refused: NotOfRaft) -> None:
        text = f"it refuses {api_of(flight.request)}: {refused}"
        if refused.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            text += "; allow this node's principal ClusterAction on the cluster"
        self._peer.log_once(text)
        self.report(flight, text, refusal=text)

    def report(self, flight: _InFlight, reason: str, refusal: str = "") -> None:
        self._peer.sink(
            RaftRequestFailed(
                target=self._peer.node_id,
                correlation_id=flight.correlation_id,
                reason=reason,
                refusal=refusal,
            )
        )

    def lost(self, flight: _InFlight, error: ConnectionFailed) -> None:
        """The connection ended without an answer. A peer that closes one is perhaps stopping, one that closes
        the next one, too, wants a login."""
        refusal = ""
        if isinstance(error, ConnectionClosed) and not self._has_answered and self._peer.way.login is None:
            if self._connection not in (None, self._closed):  # None: this node closed it
                self._silent += 1
                self._closed = self._connection
            refusal = NO_LOGIN if self._silent > 1 else ""
        if refusal:
            self._peer.log_once(refusal)
        self.report(flight, self.failure(error), refusal)

    def failure(self, error: BaseException | str) -> str:
        peer = self._peer
        where = address_text(peer.address.host, peer.address.port)
        return f"cannot reach node {peer.node_id} at {where} ({error})"

    def _fail(self, flight: _InFlight, reason: str, refusal: str = "") -> None:
        if flight.end():
            self.report(flight, reason, refusal)

    def timed_out(self, flight: _InFlight) -> None:
        is_unsent = flight in self._unsent
        if is_unsent:
            self._unsent.remove(flight)
        self._fail(flight, f"no answer within {flight.timeout_ms} ms")
        connection = self._connection
        if connection is not None and not is_unsent:
            self._connection = None
            connection.close("a request was not answered in time")

    # ---- the connection

    async def _open(self) -> None:
        peer = self._peer
        try:
            connection = await peer.way.open(peer.address, looks_for_tls=not self._has_answered)
        except (ConnectionFailed, TimeoutError) as error:
            self._opening = None
            refusal = ""
            if isinstance(error, TlsFailed | LoginRefused | WrongProtocol):
                refusal = str(error)
                peer.log_once(error)
            self._broken(error, refusal)
            return
        except BaseException:
            self._opening = None
            raise
        self._opening, self._connection, self._versions = None, connection, {}
        self._backoff.succeeded()
        unsent, self._unsent = self._unsent, deque()
        for flight in unsent:
            self._write(flight, connection)

    def _broken(self, error: BaseException, refusal: str = "") -> None:
        self._silent = 0
        self._last_failure = self.failure(str(error) or "no answer in time")
        self._backoff.failed(int(asyncio.get_running_loop().time() * 1000))
        unsent, self._unsent = self._unsent, deque()
        for flight in unsent:
            self._fail(flight, self._last_failure, refusal)

    def close(self, reason: str | None) -> None:
        loop = asyncio.get_running_loop()
        waiting, self._waiting = self._waiting, {}
        self._unsent.clear()
        for flight in waiting:
            flight.end()
            if reason is not None:
                loop.call_soon(self.report, flight, reason)
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
