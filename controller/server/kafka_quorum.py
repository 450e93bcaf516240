"""What a controller needs whose quorum speaks Kafka's protocol: its way to the other voters, its registration
over that, and the addresses of controllers for what still speaks gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from metaquorum.clients.kafka.connection import ConnectionFailed, connect
from metaquorum.clients.kafka.login import log_in
from metaquorum.clients.kafka.raft_client import ANSWER_MAX_BYTES, CONNECT_S, KafkaWay
from metaquorum.clients.search import ClientError
from metaquorum.config.node import NodeConfig
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.network.tls import NodeTls
from metaquorum.raft.core import RaftCore
from metaquorum.rpc.channels import Route
from metaquorum.rpc.controllers import Controllers
from metaquorum.rpc.raft_client import PeerAddress
from metaquorum.wire.messages import ControllerRegistrationRequest


def way_to_voters(config: NodeConfig, every_tls: NodeTls, route: Route) -> KafkaWay:
    """How this controller connects to the others' listener: it logs in as that listener is configured here.
    Raises ConfigError."""
    tls = every_tls.of(config.quorum_listener)
    return KafkaWay(
        client_id=f"raft-client-{config.node_id}",
        tls=None if tls is None else tls.client_context,
        login=config.controllers_login,
        route=route,
    )


class KafkaRegistrar:
    """Registers this controller with the one that leads, over Kafka's protocol (KIP-919)."""

    def __init__(self, raft: RaftCore, controllers: Controllers, way: KafkaWay) -> None:
        self._raft, self._controllers, self._way = raft, controllers, way

    async def register(self, request: RegisterControllerRequest) -> None:
        """Raises ApiError or ClientError."""
        leader_id, way = self._raft.leader_id, self._way
        address = None if leader_id is None else self._controllers.get(leader_id)
        if address is None:
            raise ClientError("the leader's address is not known")
        try:
            connection = await connect(
                *way.route(address.host, address.port),
                client_id=way.client_id,
                tls=None if way.tls is None else way.tls(),
                answer_max_bytes=ANSWER_MAX_BYTES,
                timeout_s=CONNECT_S,
                looks_for_tls=False,
            )
            try:
                if way.login is not None:
                    await log_in(connection, way.login, timeout_s=CONNECT_S)
                answer = (await connection.ask(_body(request), timeout_s=CONNECT_S)).body
            finally:
                connection.close()
        except (ConnectionFailed, TimeoutError) as error:
            raise ClientError(f"node {leader_id}: {error or 'no answer in time'}") from error
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            raise ApiError(code, answer.error_message or f"node {leader_id} answers {code.name}")

    async def close(self) -> None:
        """Each registration has a connection of its own."""


def _body(request: RegisterControllerRequest) -> ControllerRegistrationRequest:
    kinds = ControllerRegistrationRequest
    return kinds(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        listeners=tuple(
            kinds.Listener(name=at.name, host=at.host, port=at.port, security_protocol=at.security_protocol)
            for at in request.endpoints
        ),
        features=tuple(
            kinds.Feature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ),
    )


class GrpcAddresses:
    """The controllers' gRPC listeners, as they have registered them: the quorum's addresses are those of
    Kafka's protocol."""

    def __init__(self, config: NodeConfig, raft: RaftCore, image: Callable[[], MetadataImage]) -> None:
        self._listener = config.controller_listener
        self._raft, self._image = raft, image

    def get(self, node_id: int) -> PeerAddress | None:
        """The address of a controller; None if it is unknown."""
        registered = self._image().controllers.get(node_id)
        places = () if registered is None else registered.endpoints
        found = next((at for at in places if at.name == self._listener), None)
        return None if found is None else PeerAddress(found.host, found.port)

    def __iter__(self) -> Iterator[int]:
        return iter(self._raft.voters)

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of all controllers that vote and are registered."""
        found = [self.get(node_id) for node_id in self]
        return tuple((each.host, each.port) for each in found if each is not None)
