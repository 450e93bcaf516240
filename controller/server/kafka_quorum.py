"""What a controller needs whose quorum speaks Kafka's protocol: its way to the other voters, and its
registration over that."""

from __future__ import annotations

from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.clients.kafka.node_messages import features_of, listeners_of
from metaquorum.clients.kafka.raft_client import CONNECT_S, KafkaWay
from metaquorum.clients.search import ClientError
from metaquorum.config.node import NodeConfig
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.network.tls import NodeTls
from metaquorum.raft.core import RaftCore
from metaquorum.rpc.channels import Route
from metaquorum.rpc.controllers import Controllers
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
            connection = await way.open(address, looks_for_tls=False)
            try:
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
        listeners=listeners_of(kinds, request.endpoints),
        features=features_of(kinds, request.features),
    )
