"""What a controller's listeners of Kafka's protocol offer: the metadata log for observers, the quorum, what
Kafka's brokers ask for themselves and forward, and the same administration without a broker (KIP-919).

Requests become those that arrive over gRPC. Every controller answers what its own log shows; what only the
active one decides, another refuses with NOT_CONTROLLER, and a fetch with the leader's id.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from msgspec.structs import replace

from metaquorum.clients.kafka import raft_messages
from metaquorum.clients.kafka.node_messages import Tags, is_marked, offset_tags
from metaquorum.clients.kafka.quorum import OFFERED
from metaquorum.clients.kafka.raft_messages import Misshapen
from metaquorum.clients.quorum.admin import NOT_LOOKED_AT
from metaquorum.config.node import NodeConfig
from metaquorum.config.security import new_authorizer
from metaquorum.controller.server.forwarding_service import ForwardedCaller, KafkaCalls
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.connection import ClientConnection, ConnectionConfig
from metaquorum.listeners.forwarded.api import Forwarded
from metaquorum.listeners.forwarded.describe import DESCRIBED_BY_CONTROLLERS, out_of_image
from metaquorum.listeners.forwarded.described_configs import OwnConfig
from metaquorum.listeners.forwarded.direct import MISMATCHED, NotTheLeader
from metaquorum.listeners.forwarded.own_changes import OwnChanges
from metaquorum.listeners.forwarded.table import ANSWERED, FORWARDED
from metaquorum.listeners.long_work import LongWork
from metaquorum.listeners.response_memory import Unsent
from metaquorum.listeners.rights import CHECKS_OF_CONTROLLERS
from metaquorum.listeners.services import (
    Client,
    EndConnection,
    Later,
    Offered,
    Services,
    at_once,
    features_of,
)
from metaquorum.listeners.slices import sliced
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ControllerRegistration, MetadataImage, NodeEndpoint
from metaquorum.metadata.requests.common import CONTROLLERS, ControllerRequest, ControllerResponse, Mutator
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.node.scheduler import StepEnd
from metaquorum.raft.core import RaftCore
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    RaftRequest,
    RaftResponse,
)
from metaquorum.raft.voters import Endpoint
from metaquorum.rpc.server import USUAL_MAX_BYTES
from metaquorum.rpc.transport import RaftService
from metaquorum.storage.uuids import random_uuid
from metaquorum.wire import codec
from metaquorum.wire.codec import Request
from metaquorum.wire.errors import DecodeError, EncodeError, TooManyValues
from metaquorum.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    EnvelopeRequest,
    EnvelopeResponse,
)
from metaquorum.wire.principal import decode_principal
from metaquorum.wire.table import API_BY_NAME, APIS

# Requests in Kafka's protocol to the active controller: a node asks for itself, or a broker in an Envelope
# for a client (KIP-590).
#
# What is in an Envelope needs the rights of its own principal. Like a call over gRPC, one that this
# controller does not look at is refused as a whole, so that the broker finds the active one.

Ask = Callable[[Mutator, ControllerRequest], Awaitable[ControllerResponse | ApiError]]

_ELSEWHERE = frozenset({ErrorCode.NOT_CONTROLLER})
_WHOLE: ContextVar[frozenset[ErrorCode]] = ContextVar("whole", default=_ELSEWHERE)
"""Refusals of the inner request that are the envelope's."""

_log = logging.getLogger(__name__)


def asked(api: Forwarded, calls: KafkaCalls, ask: Ask | None = None) -> Offered:
    """An API of a listener that the active controller answers; `ask` as in `KafkaCalls.answer`. Without a
    task, unless it asks other nodes, too."""

    async def answer(request: codec.Request, client: Client) -> Any:
        caller = ForwardedCaller(principal=client.principal, address=client.address, by_token=client.by_token)
        return await calls.answer(api, request, caller, ask)

    def in_a_task(request: codec.Request, client: Client) -> asyncio.Future[Any]:
        return asyncio.ensure_future(answer(request, client))

    return Offered(api.min_version, api.max_version, in_a_task if api.asks_others else at_once(answer))


class Envelopes:
    """The handler of Envelope. `rights`: what the clients' principals may do."""

    def __init__(self, calls: KafkaCalls, rights: Rights) -> None:
        self._calls = calls
        self._work = LongWork()
        inside = {name: asked(api, calls, self._ask) for name, api in FORWARDED.items()}
        self._inside = {API_BY_NAME[name].key: offered for name, offered in guarded(inside, rights).items()}

    async def _ask(self, mutator: Mutator, request: ControllerRequest) -> ControllerResponse | ApiError:
        whole = _WHOLE.get()
        answer = await self._calls.ask(mutator, request)
        if isinstance(answer, ApiError) and answer.code in whole:
            raise NotTheLeader(answer)
        return answer

    async def answer(self, request: codec.Request, client: Client) -> EnvelopeResponse:
        """The response with the inner response, or with the code of what is wrong with the envelope; the
        checks are in Kafka's order."""
        body: EnvelopeRequest = request.body
        sender = decode_principal(body.request_principal)
        if sender is None:
            return EnvelopeResponse(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
        address = _address(body.client_host_address)
        if address is None:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        try:
            inner = await self._decoded(bytes(body.request_data), client)
        except DecodeError:
            return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        offered = self._inside.get(inner.header.api_key)
        if offered is None:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        if not offered.min_version <= inner.header.version <= offered.max_version:
            return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        forwarded_by = Client(
            listener=client.listener,
            address=address,
            principal=sender.principal,
            by_token=sender.by_token,
            connection=client.connection,
        )
        # A broker of ours waits and asks again if it was not answered, as over gRPC; Kafka's passes that on.
        _WHOLE.set(NOT_LOOKED_AT if is_marked(body) else _ELSEWHERE)
        try:
            answer = offered.handle(inner, forwarded_by)
            if isinstance(answer, Awaitable):
                answer = await answer
        except NotTheLeader as refusal:
            return EnvelopeResponse(error_code=refusal.error.code)
        # Decided and committed: a broker of ours waits until its own image has it.
        tags = offset_tags(body, self._calls.image().provenance.offset)
        seal = partial(_sealed, inner.header, answer, tags)
        return await self._work.do(client.connection, seal) if inner.end > codec.FEW_VALUES else seal()

    async def _decoded(self, frame: bytes, client: Client) -> codec.Request:
        """The inner request; one with many values is decoded beside the loop. Raises DecodeError."""
        try:
            return codec.decode_request(frame, codec.FEW_VALUES)
        except TooManyValues:
            work = partial(codec.decode_request_apart, frame)
            found: codec.Request = await self._work.do(client.connection, work)
            return found


def _sealed(header: codec.RequestHeader, answer: Any, tags: Tags) -> EnvelopeResponse:
    try:
        chunks = codec.encode_response(header.api_key, header.version, header.correlation_id, answer)
    except EncodeError as error:
        text = f"the answer to {APIS[header.api_key].name} {header.version} cannot be encoded: {error}"
        _log.error("%s; report this as a bug", text)
        return EnvelopeResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    return EnvelopeResponse(response_data=b"".join(chunks), unknown_tags=tags)


def _address(packed: Any) -> str | None:
    """The text of an IP address as a client's connection has it; None if the bytes are none."""
    try:
        address = ipaddress.ip_address(bytes(packed))
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(address if mapped is None else mapped)


# Raft's requests in Kafka's protocol: fetches of the metadata log, and what voters ask each other.

ASKED_BY_VOTERS = {
    "Vote": (0, 2),
    "BeginQuorumEpoch": (0, 1),
    "EndQuorumEpoch": (0, 1),
    "UpdateRaftVoter": (0, 0),
}
"""The versions of Kafka 3.7 to 4.1."""


class RaftRequests:
    """The handlers. `voters_ask`: of a listener of voters; elsewhere a caller that names a voter's id is
    refused, so that nothing but a voter acknowledges. `reader` stands for observers without a directory
    id. `image` has the leader's address for callers that learn it from answers (KIP-853)."""

    def __init__(
        self,
        cluster_id: str,
        raft: RaftCore,
        service: RaftService,
        reader: bytes,
        image: Callable[[], MetadataImage],
        *,
        voters_ask: bool = False,
    ) -> None:
        self._cluster_id = cluster_id
        self._raft = raft
        self._service = service
        self._reader = reader
        self._image = image
        self._voters_ask = voters_ask
        self._rounds = RoundsRepeated()

    def offered(self) -> dict[str, Offered]:
        """By API."""
        versions = OFFERED | (ASKED_BY_VOTERS if self._voters_ask else {})
        return {name: Offered(lowest, highest, self.answer) for name, (lowest, highest) in versions.items()}

    def answer(self, request: Request, client: Client) -> Any:
        """The response to a request of any of these APIs, which has no task while it waits."""
        version = request.header.version
        try:
            asked = self._asked(request.body, version, client)
        except Misshapen:
            return raft_messages.refusal(request.body, ErrorCode.INVALID_REQUEST)
        waiting = self._service.ask(asked)
        if waiting is None:
            raise EndConnection("this node is stopping")
        return Later(waiting, lambda answer: self._answered(answer, version, client))

    def _answered(self, answer: RaftResponse, version: int, client: Client) -> Any:
        if isinstance(answer, FetchResponse):
            self._rounds.answered(client.connection, answer)
        return raft_messages.response_body(answer, version, self._leader(answer, client))

    def _asked(self, body: Any, version: int, client: Client) -> RaftRequest:
        node_id = self._raft.node_id
        asked: RaftRequest = raft_messages.request_of(
            body, version, cluster_id=self._cluster_id, node_id=node_id
        )
        if not isinstance(asked, FetchRequest | FetchSnapshotRequest):
            return asked
        is_voter = asked.replica_id in self._raft.voters
        if is_voter and not self._voters_ask:
            raise Misshapen("voters do not fetch here")
        if not is_voter and not asked.replica_directory_id:
            # Each connection is a reader of its own: a leader holds one fetch of each.
            directory_id = self._reader[:8] + client.connection.to_bytes(8, "big")
            asked = replace(asked, replica_directory_id=directory_id)
        return self._rounds.asked(client.connection, asked) if isinstance(asked, FetchRequest) else asked

    def _leader(self, answer: RaftResponse, client: Client) -> Endpoint | None:
        """Where the leader that an answer names has the listener by whose name the client came."""
        if answer.leader_id is None:
            return None
        known = [at for at in answer.leader_endpoints if at.name.upper() == client.listener.upper()]
        at = listens_at(self._image().controllers, answer.leader_id, client)
        return next(iter(known), None if at is None else Endpoint(at.name, at.host, at.port))


def listens_at(
    registered: Mapping[int, ControllerRegistration], node_id: int, client: Client
) -> NodeEndpoint | None:
    """Where a controller has the listener by whose name the client came."""
    each = registered.get(node_id)
    endpoints = () if each is None else each.endpoints
    return next((at for at in endpoints if at.name == client.listener), None)


CONNECTIONS_MAX = 1_000
"""The most connections whose last answer is remembered; without it, a read waits for another fetch."""


class RoundsRepeated:
    """The rounds of reads that fetches of Kafka's nodes repeat, who do not say them (docs/raft.md).

    A voter of Kafka's sends nothing while it waits for an answer, and gives a request up only with its
    connection. So what arrives on a connection was sent after the last answer on it: it repeats that answer's
    round, for the same epoch."""

    def __init__(self) -> None:
        self._answered: dict[int, tuple[int, int]] = {}

    def answered(self, connection: int, answer: FetchResponse) -> None:
        """An answer leaves on a connection."""
        self._answered.pop(connection, None)
        if answer.read_round:
            self._answered[connection] = answer.epoch, answer.read_round
            if len(self._answered) > CONNECTIONS_MAX:
                del self._answered[next(iter(self._answered))]

    def asked(self, connection: int, request: FetchRequest) -> FetchRequest:
        """The fetch with the round that it repeats."""
        epoch, read_round = self._answered.pop(connection, (0, 0))
        if request.read_round or epoch != request.epoch:
            return request
        return replace(request, read_round=read_round)


def controller_services(
    config: NodeConfig,
    cluster_id: str,
    raft: RaftCore,
    service: RaftService,
    calls: KafkaCalls,
    rng: random.Random,
) -> Services:
    """The services of a controller's listeners."""
    reads = RaftRequests(cluster_id, raft, service, random_uuid(rng), calls.image, voters_ask=True)
    image, own = calls.image, OwnConfig.of(config)
    rights = Rights(authorizer=new_authorizer(config.values), image=image, checks=CHECKS_OF_CONTROLLERS)
    offered = {
        **{name: asked(api, calls) for name, api in ANSWERED.items()},
        "Envelope": Offered(0, 0, at_once(Envelopes(calls, rights).answer)),
        **out_of_image(DESCRIBED_BY_CONTROLLERS, image, own),
        "DescribeCluster": Offered(1, 2, ControllersOf(cluster_id, raft, image).describe),
        **reads.offered(),
    }
    OwnChanges.before(offered, own.node_id, is_broker=False)
    return Services(sliced(guarded(offered, rights)), lambda: features_of(image(), raft.kraft_version))


def log_connections(
    config: NodeConfig,
    cluster_id: str,
    raft: RaftCore,
    service: RaftService,
    image: Callable[[], MetadataImage],
    rng: random.Random,
    *,
    unsent: Unsent,
    step_end: StepEnd,
) -> Callable[[str], ClientConnection]:
    """Makes connections that gRPC carries, whose callers it has admitted and counted: for fetches of the
    metadata log alone, and not for voters'."""
    reads = RaftRequests(cluster_id, raft, service, random_uuid(rng), image)
    services = Services(reads.offered(), lambda: features_of(image(), raft.kraft_version))
    settings = ConnectionConfig(
        listener=config.grpc_controller_listener or "",
        request_max_bytes=USUAL_MAX_BYTES,
        max_idle_s=math.inf,
        unsent=unsent,
        step_end=step_end,
    )
    limits = ConnectionLimits()

    def connected(address: str) -> ClientConnection:
        place = ConnectionSlot(limits, settings.listener, address)
        return ClientConnection(settings, services, place, _counted, _counted)

    return connected


def _counted(connection: ClientConnection) -> None:
    return


class ControllersOf:
    """DescribeCluster, with the controllers' listeners of the name by which the client came."""

    def __init__(self, cluster_id: str, raft: RaftCore, image: Callable[[], MetadataImage]) -> None:
        self._cluster_id = cluster_id
        self._raft = raft
        self._image = image

    def describe(self, request: Request, client: Client) -> DescribeClusterResponse:
        body: DescribeClusterRequest = request.body
        if body.endpoint_type != CONTROLLERS:
            return MISMATCHED
        named = DescribeClusterResponse.DescribeClusterBroker
        registered = self._image().controllers
        return DescribeClusterResponse(
            endpoint_type=CONTROLLERS,
            cluster_id=self._cluster_id,
            controller_id=-1 if self._raft.leader_id is None else self._raft.leader_id,
            brokers=tuple(
                named(broker_id=node_id, host=at.host, port=at.port)
                for node_id in sorted(registered)
                if (at := listens_at(registered, node_id, client)) is not None
            ),
        )
