"""Two nodes of a quorum on loopback: a voter that answers, and a node that asks."""

from __future__ import annotations

import asyncio
import random
import ssl
from types import SimpleNamespace
from typing import Any

from metaquorum.clients.kafka.raft_client import ControllersWay, KafkaRaftClient, KafkaWay
from metaquorum.config.security import Credentials
from metaquorum.controller.server.forwarding_service import ForwardingService
from metaquorum.controller.server.kafka import RaftRequests, log_connections
from metaquorum.listeners.connection import ClientConnection, ConnectionConfig
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.login_rules import ListenerRules
from metaquorum.listeners.response_memory import Unsent
from metaquorum.listeners.sasl import PlainExchange
from metaquorum.listeners.services import Features, Offered, Services
from metaquorum.metadata.image import MetadataImage
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.node.scheduler import StepEnd
from metaquorum.proto.forwarding_pb2_grpc import add_ForwardingServicer_to_server
from metaquorum.raft.events import RaftRequestArrived
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.messages.errors import Hints
from metaquorum.rpc.server import GuardedServer
from metaquorum.rpc.transport import EventSink, PeerAddress, RaftService
from tests.conformance.exchanges import Sink

HOST = "127.0.0.1"


class _Raft:
    """In the place of the core."""

    node_id = 2
    voters: tuple[int, ...] = (1, 2, 3)
    kraft_version = 1


class _Observed(_Raft):
    """Node 1 does not vote."""

    voters = (2, 3)


class Voter:
    """Node 2: its listener, and the sink of its core."""

    def __init__(
        self,
        offered: dict[str, Offered] | None = None,
        port: int = 0,
        session_ms: int | None = None,
        tls: ssl.SSLContext | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.sink, self.port, self.logins, self._tls = sink or Sink(), port, 0, tls
        self.service = RaftService(self.sink)
        raft: Any = _Raft()
        handlers = RaftRequests("c", raft, self.service, b"r" * 16, MetadataImage, voters_ask=True)
        features = Features(supported={}, finalized={}, epoch=1)
        self._services = Services(handlers.offered() if offered is None else offered, lambda: features)
        self._limits = ConnectionLimits(max_connections=9, max_per_ip=9)
        self._config = ConnectionConfig(
            listener="KAFKA",
            request_max_bytes=1 << 20,
            max_idle_s=60,
            rules=None if session_ms is None else self._login_rules(session_ms),
        )
        self.open: set[ClientConnection] = set()

    def _login_rules(self, session_ms: int) -> ListenerRules:
        def new_exchange(mechanism: str) -> PlainExchange:
            self.logins += 1
            return PlainExchange({"node": "secret"})

        rules = SaslRules(
            mechanisms=("PLAIN",), new_exchange=new_exchange, max_reauth_ms={"PLAIN": session_ms}
        )
        certificates: Any = None
        return ListenerRules(sasl=rules, certificates=certificates)

    def _connection(self) -> ClientConnection:
        place = self._limits.admit("KAFKA", HOST)
        assert isinstance(place, ConnectionSlot)
        return ClientConnection(self._config, self._services, place, self.open.add, self.open.discard)

    def becomes_older(self) -> None:
        """It is another release from now on, with fewer versions."""
        self._services.limit({"ApiVersions": 3, "Fetch": 16})

    async def start(self) -> Voter:
        self._server = await asyncio.get_running_loop().create_server(
            self._connection, HOST, self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def kill(self) -> None:
        self._server.close()
        for each in list(self.open):
            each.cut_off("killed")

    async def answer(self, response: Any) -> Any:
        """Answers the next request; returns it."""
        arrived = await self.sink.next(RaftRequestArrived)
        self.service.respond(arrived.key, response)
        return arrived.request


class Caller:
    """Node 1."""

    def __init__(
        self, port: int, login: Credentials | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.sink = Sink()
        self.addresses = {2: PeerAddress(HOST, port)}

        way = KafkaWay(client_id="raft-client-1", login=login, tls=None if tls is None else lambda: tls)
        self.client = KafkaRaftClient(self.addresses, self.sink, way, random.Random(1))


def caller_of(
    addresses: dict[int, PeerAddress], sink: EventSink, way: ControllersWay | None = None
) -> KafkaRaftClient:
    return KafkaRaftClient(addresses, sink, way or KafkaWay(client_id="raft-client-1"), random.Random(1))


async def carrying_server(service: RaftService) -> tuple[GuardedServer, int]:
    """A gRPC server that carries fetches to the service as a controller's does, and its port."""
    config: Any = SimpleNamespace(grpc_controller_listener="GRPC")
    raft: Any = _Observed()
    connected = log_connections(
        config, "c", raft, service, MetadataImage, random.Random(1), unsent=Unsent(None), step_end=StepEnd()
    )
    calls: Any = None
    server = new_server()
    add_ForwardingServicer_to_server(ForwardingService(calls, Hints({}), connected), server)
    port = bind(server, HOST, 0, None)
    await server.start()
    return server, port
