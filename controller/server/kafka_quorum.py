"""A controller's way to the other voters, and what it asks over that: the leader to be registered and to be a
voter, and any voter who it is."""

from __future__ import annotations

import asyncio
from typing import Any

from metaquorum.clients.kafka.cluster import KafkaClient, Target
from metaquorum.clients.kafka.connection import ConnectionFailed, NodeConnection, UnsupportedVersion
from metaquorum.clients.kafka.message_forms import CannotSay
from metaquorum.clients.kafka.node_messages import features_of, listeners_of
from metaquorum.clients.kafka.raft_client import KafkaWay
from metaquorum.clients.kafka.raft_messages import Misshapen, NotOfRaft, request_body, response_of
from metaquorum.clients.quorum.admin import CHANGE_TIMEOUT_MS
from metaquorum.clients.search import ClientError
from metaquorum.config.node import NodeConfig
from metaquorum.controller.server.voter_changes import no_answer
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter
from metaquorum.metadata.requests.settings import RegisterControllerRequest
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.tls import NodeTls
from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import RaftError, VoteRequest
from metaquorum.rpc.channels import Route
from metaquorum.rpc.controllers import Controllers
from metaquorum.rpc.transport import PeerAddress
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire.messages import ApiVersionsRequest, ControllerRegistrationRequest

LEADER_ANSWERS_MS = CHANGE_TIMEOUT_MS + 1_000
"""How long the leader may take to answer; a voter change waits for its commit."""


def way_to_voters(config: NodeConfig, every_tls: NodeTls, route: Route) -> KafkaWay:
    """How this controller connects to the others' listener: it logs in as that listener is configured here.
    Raises ConfigError."""
    tls = every_tls.controllers
    return KafkaWay(
        client_id=f"raft-client-{config.node_id}",
        tls=None if tls is None else tls.client_context,
        login=config.controllers_login,
        route=route,
    )


class LeaderClient(KafkaClient):
    """A KafkaClient for the controller that leads, of this release or of Apache Kafka: each request over a
    connection of its own, once."""

    def __init__(self, raft: RaftCore, controllers: Controllers, way: KafkaWay) -> None:
        super().__init__((), timeout_ms=LEADER_ANSWERS_MS, asks_brokers=False)
        self._raft, self._controllers, self._way = raft, controllers, way

    async def ask(
        self, body: Any, *, target: Target = None, lowest: int = 0, highest: int = 2**15 - 1
    ) -> Any:
        """Raises ApiError for an API that the leader does not have, ClientError if none answers."""
        leader_id, way, name = self._raft.leader_id, self._way, type(body).__name__.removesuffix("Request")
        address = None if leader_id is None else self._controllers.get(leader_id)
        if address is None:
            raise ClientError("the leader's address is not known")
        try:
            connection = await way.open(address, looks_for_tls=False)
            try:
                version = connection.version(name, lowest, highest)
                timeout_s = self.timeout_ms / 1000
                return (await connection.ask(body, version=version, timeout_s=timeout_s)).body
            finally:
                connection.close()
        except UnsupportedVersion as error:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"node {leader_id}: {error}") from error
        except (ConnectionFailed, TimeoutError) as error:
            raise ClientError(f"node {leader_id}: {error or 'no answer in time'}") from error

    async def register(self, request: RegisterControllerRequest) -> None:
        """Registers this controller (KIP-919). Raises ApiError or ClientError."""
        answer = await self.ask(_body(request))
        self.refuse(answer.error_code, answer.error_message)


class KafkaProbe:
    """Asks a new voter at its Kafka listener: ApiVersions names its versions, and a pre-vote, which binds no
    one, is answered by Raft's own rule for whom a request is meant. Without pre-votes (before 4.0) only its
    versions are known, as in Kafka."""

    def __init__(self, cluster_id: str, raft: RaftCore, way: KafkaWay) -> None:
        self._cluster_id, self._raft, self._way = cluster_id, raft, way

    async def ask(
        self, voter: Voter, addresses: list[tuple[str, int]], timeout_ms: int
    ) -> KRaftVersionFeature | ApiError:
        """See `VoterProbe`."""
        versions = voter.kraft_version_feature
        for address in addresses:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    connection = await self._way.open(PeerAddress(*address))
                    try:
                        versions = await _kraft_versions(connection, versions, timeout_ms / 1000)
                        answer = await self._asked_as(voter, connection, timeout_ms / 1000)
                    finally:
                        connection.close()
            except (ConnectionFailed, TimeoutError) as error:
                return no_answer(voter, address, error or "no answer in time")
            except (NotOfRaft, Misshapen) as error:
                return no_answer(voter, address, f"it refuses Vote: {error}")
            problem = self._another(voter, address, answer)
            if problem is not None:
                return problem
        return versions

    async def _asked_as(self, voter: Voter, connection: NodeConnection, timeout_s: float) -> RaftError:
        state = self._raft.state
        vote = VoteRequest(
            cluster_id=self._cluster_id,
            epoch=self._raft.epoch,
            candidate_id=self._raft.node_id,
            candidate_directory_id=state.identity.directory_id,
            voter_id=voter.voter_id,
            voter_directory_id=voter.voter_directory_id,
            last_position=state.log.end_position,
            pre_vote=True,
            kraft_version=self._raft.kraft_version,
        )
        version = connection.version("Vote", 1)
        try:
            body = request_body(vote, version)
        except CannotSay:
            return RaftError.NONE
        found = (await connection.ask(body, version=version, timeout_s=timeout_s)).body
        error: RaftError = response_of(found, version, vote).error
        return error

    def _another(self, voter: Voter, address: tuple[str, int], error: RaftError) -> ApiError | None:
        where = address_text(*address)
        match error:
            case RaftError.INCONSISTENT_CLUSTER_ID:
                return ApiError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"the node at {where} belongs to another cluster than {self._cluster_id}: correct the "
                    "address",
                )
            case RaftError.INVALID_VOTER_KEY:
                return ApiError(
                    ErrorCode.INVALID_VOTER_KEY,
                    f"the node at {where} is not node {voter.voter_id} with directory id "
                    f"{uuid_to_text(voter.voter_directory_id)}, or it has static voters: name those that it "
                    "has",
                )
            case RaftError.NONE | RaftError.FENCED_LEADER_EPOCH:
                return None
            case _:
                return no_answer(voter, address, f"it refuses Vote: {error.name}")


async def _kraft_versions(
    connection: NodeConnection, stated: KRaftVersionFeature, timeout_s: float
) -> KRaftVersionFeature:
    """The versions of kraft.version that the node supports; `stated`, if it does not say."""
    version = connection.version("ApiVersions", 3)
    asked = ApiVersionsRequest(client_software_name="metaquorum", client_software_version="1")
    answer = (await connection.ask(asked, version=version, timeout_s=timeout_s)).body
    found = {each.name: each for each in answer.supported_features}.get(KRAFT_VERSION)
    return stated if found is None else KRaftVersionFeature(found.min_version, found.max_version)


def _body(request: RegisterControllerRequest) -> ControllerRegistrationRequest:
    kinds = ControllerRegistrationRequest
    return kinds(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        listeners=listeners_of(kinds, request.endpoints),
        features=features_of(kinds, request.features),
    )
