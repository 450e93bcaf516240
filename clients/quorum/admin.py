"""The admin client: finds the active controller, retries retriable errors, reports one clear error.

Responses are values of `metadata.requests` and of the image, never protobuf. `AdminClient` is asyncio;
`BlockingClient` is the same for a command line. Other requests are frames of Kafka's protocol, passed on by
`forward`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
import msgspec

from metaquorum.clients.search import Address, Attempts, ClientError, NodeChoice, parse_bootstrap
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    AllocateBrokerIdRequest,
    AllocateBrokerIdResponse,
    BindBrokerIdRequest,
    RemoveRaftVoterRequest,
    UnbindBrokerIdRequest,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.network.tls import TlsMaterial
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import broker_ids_pb2 as broker_ids_pb
from metaquorum.proto import forwarding_pb2 as forwarding
from metaquorum.proto import metadata_pb2 as pb
from metaquorum.proto.admin_pb2_grpc import AdminStub
from metaquorum.proto.broker_ids_pb2_grpc import BrokerIdsStub
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.proto.forwarding_pb2_grpc import ForwardingStub
from metaquorum.proto.metadata_pb2_grpc import MetadataStub
from metaquorum.proto.voters_pb2_grpc import VotersStub
from metaquorum.rpc.channels import Route, direct, open_channel
from metaquorum.rpc.messages import tables
from metaquorum.rpc.messages import tables as codec
from metaquorum.rpc.messages.errors import NO_GRPC, error_from_pb, leader_from_pb
from metaquorum.rpc.messages.tables import BROKER, BrokerIdListing
from metaquorum.rpc.reach import SPEAKS_KAFKA, UNREADABLE, Reasons, lasts

ATTEMPT_MAX_MS = 5_000
"""The longest wait for one address before the request goes to another."""

ASK_AGAIN = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)

WITHOUT_GRPC_S = 2.0
"""How long a new leader's gRPC listener may be unknown before a command ends."""

_REFUSED = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})

Answer = TypeVar("Answer")


NOT_LOOKED_AT = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
"""Refusals after which a request goes to another controller, or to the same one again, as Kafka's brokers do.
A controller that was the active one until now may have written the change: `ControllerNode` says why asking
again does no harm."""


class ForwardedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The frame of a response in Kafka's protocol; everything below `offset` was committed when the
    controller encoded it."""

    frame: bytes
    offset: int


class BrokerListing(msgspec.Struct, frozen=True, kw_only=True):
    """Registrations as of `offset`: everything below it is in them."""

    offset: int
    brokers: tuple[BrokerRegistration, ...]


class AdminClient:
    """`bootstrap`: addresses of controllers, or a function that returns the current ones. `timeout_ms` bounds
    one call with all its retries, of which `spent_ms` are over before it begins; `attempts_max` 1 disables
    retries, for callers that must know what happened. `gives_up`: what a person has to correct first ends a
    call at once, for commands: a right or a certificate that is refused, names that cannot be resolved. A
    node waits. `route`: where to connect for an address.

    Every call raises ApiError if it is refused, ClientError if no node responds. After a ClientError, or a
    retry, a change may have been made already.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address] | str | Callable[[], Sequence[Address]],
        *,
        timeout_ms: int = 15_000,
        spent_ms: int = 0,
        attempts_max: int | None = None,
        tls: TlsMaterial | None = None,
        rng: random.Random | None = None,
        gives_up: bool = False,
        route: Route = direct,
    ) -> None:
        self._route = route
        if callable(bootstrap):
            self._choice = NodeChoice(bootstrap)
        else:
            listed = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else tuple(bootstrap)
            self._choice = NodeChoice(lambda: listed)
        self._timeout_ms, self._spent_ms = timeout_ms, spent_ms
        self._attempts_max = attempts_max
        self._gives_up = gives_up
        self._tls = tls
        self._reasons = Reasons(tls)
        self._rng = rng or random.Random()
        self._channels: dict[Address, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._tls_version = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close(None) for channel in channels.values()))

    # --- changes

    async def transfer_leadership(self, target_id: int | None = None) -> None:
        """Starts a transfer to a voter (None: the most caught-up one). Does not wait for the new leader."""
        request = codec.TRANSFER_LEADERSHIP.to_pb(api.TransferLeadershipRequest(target_id=target_id))
        await self._admin(lambda stub: stub.TransferLeadership, request)

    # --- reads

    async def describe_quorum(self) -> api.DescribeQuorumResponse:
        request = admin.DescribeQuorumRequest()
        return codec.QUORUM.from_pb(await self._admin(lambda stub: stub.DescribeQuorum, request))

    async def list_brokers(self) -> BrokerListing:
        """All registrations, from a linearizable read."""
        answer = await self.ask(lambda channel: MetadataStub(channel).ListBrokers, pb.ListBrokersRequest())
        return BrokerListing(
            offset=answer.read.offset, brokers=tuple(BROKER.from_pb(each) for each in answer.brokers)
        )

    # --- Kafka's protocol

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
        """Sends a frame of Kafka's protocol to the active controller. Raises ApiError if the controllers
        refuse it until the time is over, and ClientError if none responds: whether the request was carried
        out is unknown."""
        request = forwarding.ForwardRequest(
            frame=frame,
            broker_id=broker_id,
            principal=principal,
            client_address=client_address,
            by_token=by_token,
        )
        answer = await self.ask(
            lambda channel: ForwardingStub(channel).Forward,
            request,
            ask_again=NOT_LOOKED_AT,
            timeout_ms=timeout_ms,
        )
        return ForwardedAnswer(frame=bytes(answer.frame), offset=answer.offset)

    # --- calls

    async def _admin(self, method: Callable[[Any], Any], request: Any) -> Any:
        return await self.ask(lambda channel: method(AdminStub(channel)), request)

    async def ask(
        self,
        method: Callable[[grpc.aio.Channel], Any],
        request: Any,
        *,
        ask_again: Collection[ErrorCode] = ASK_AGAIN,
        timeout_ms: int | None = None,
    ) -> Any:
        """One call with its retries: after the refusals in `ask_again`, and after no response. The leader
        named in a refusal is tried at once, other retries wait. `timeout_ms` replaces the client's."""
        loop = asyncio.get_running_loop()
        attempts = Attempts(
            self._choice,
            self._rng,
            now_s=loop.time(),
            limit_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
            attempt_ms=ATTEMPT_MAX_MS,
            spent_ms=self._spent_ms,
            most=self._attempts_max,
        )
        hints, began_s = 0, loop.time()
        refusal: ApiError | None = None
        while attempt_s := attempts.next_s(loop.time()):
            address = self.address
            try:
                answer = await method(self._channel(address))(request, timeout=attempt_s)
            except grpc.aio.AioRpcError as error:
                refusal = None
                self._choice.pass_over(address)
                if self._is_over(error, await self._reasons.of(error, address), address, attempts):
                    raise ClientError(attempts.problem) from error
            else:
                if answer is None:  # gRPC returns None for what it cannot decode
                    raise ClientError(f"{address[0]}:{address[1]}: {UNREADABLE}")
                if not answer.HasField("error"):
                    self._choice.prefer(address)
                    return answer
                refusal = error_from_pb(answer.error)
                attempts.failed(address, str(refusal))
                if refusal.code not in ask_again:
                    raise refusal
                self._end_without_grpc(refusal, loop.time() - began_s)
                hint = leader_from_pb(answer.error)
                if hint is not None and (hint.host, hint.port) != address:
                    hints += 1
                    if hints <= len(self._choice.listed):
                        self._choice.prefer((hint.host, hint.port))
                        continue
                if refusal.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                    self._choice.pass_over(address)
            hints = 0
            await asyncio.sleep(attempts.wait_s(loop.time()))
        raise refusal or ClientError(attempts.text("quorum"))

    def _end_without_grpc(self, refusal: ApiError, spent_s: float) -> None:
        """Raises for a command, if the leader has no gRPC listener: none of these addresses leads to it."""
        if self._gives_up and NO_GRPC in refusal.message and spent_s >= WITHOUT_GRPC_S:
            text = f"{refusal.message}: give --bootstrap-controllers its listener for Kafka's protocol"
            raise ApiError(refusal.code, text, refusal.leader_hint)

    def _is_over(
        self, error: grpc.aio.AioRpcError, problem: str, address: Address, attempts: Attempts
    ) -> bool:
        """Notes the problem; returns whether no later attempt would differ."""
        lasting = SPEAKS_KAFKA in problem or (self._gives_up and lasts(problem))
        all_last = attempts.failed(address, problem, lasts=lasting)
        return all_last or (self._gives_up and error.code() in _REFUSED)

    @property
    def address(self) -> Address:
        """Where the last answer came from; before the first, the first address."""
        return self._choice.current

    def _channel(self, address: Address) -> grpc.aio.Channel:
        if self._tls is not None:
            self._tls.refresh()
            self._renew(self._tls.version)
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(*self._route(*address), self._tls)
        return channel

    def _renew(self, version: int) -> None:
        """Reopens channels after the TLS files have changed, since a channel keeps its first certificates."""
        if version != self._tls_version:
            self._tls_version = version
            for channel in self._channels.values():
                task = asyncio.ensure_future(channel.close(ATTEMPT_MAX_MS / 1000))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            self._channels = {}


class BlockingClient:
    """`AdminClient` for code without a loop: `BlockingClient(bootstrap).call(lambda c: c.list_brokers())`."""

    def __init__(
        self,
        bootstrap: Sequence[Address] | str,
        *,
        timeout_ms: int = 15_000,
        spent_ms: int = 0,
        tls: TlsMaterial | None = None,
    ) -> None:
        self._runner = asyncio.Runner()
        self._client = AdminClient(
            bootstrap, timeout_ms=timeout_ms, spent_ms=spent_ms, tls=tls, gives_up=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def call(self, method: Callable[[AdminClient], Coroutine[Any, Any, Answer]]) -> Answer:
        """Runs one call of the client; returns its result."""
        return self._runner.run(self._run(method))

    async def _run(self, method: Callable[[AdminClient], Awaitable[Answer]]) -> Answer:
        return await method(self._client)

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


# Calls of `AdminClient` about broker ids and producer ids.
#
# Responses are values, never protobuf.


async def list_broker_ids(client: AdminClient) -> BrokerIdListing:
    """Bindings, missing ids and allocated ids, from a linearizable read."""
    answer = await client.ask(
        lambda channel: BrokerIdsStub(channel).List, broker_ids_pb.ListBrokerIdsRequest()
    )
    return codec.LISTING.from_pb(answer)


async def bind_broker_id(client: AdminClient, key: str, broker_id: int) -> None:
    """Binds a key to an id, and unbinds other keys of that id."""
    request = BindBrokerIdRequest(key=key, broker_id=broker_id)
    await client.ask(lambda channel: BrokerIdsStub(channel).Bind, codec.BIND.to_pb(request))


async def unbind_broker_id(client: AdminClient, key: str) -> None:
    request = UnbindBrokerIdRequest(key=key)
    await client.ask(lambda channel: BrokerIdsStub(channel).Unbind, codec.UNBIND.to_pb(request))


async def allocate_broker_id(
    client: AdminClient, request: AllocateBrokerIdRequest
) -> AllocateBrokerIdResponse:
    """One response, which may request a retry later. Repeating the call is safe: the request carries an
    id."""
    answer = await client.ask(lambda channel: BrokerIdsStub(channel).Allocate, codec.ALLOCATE.to_pb(request))
    return codec.ALLOCATED.from_pb(answer)


async def allocate_producer_ids(
    client: AdminClient, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Allocates the next block. Repeating it is safe: a block that did not arrive is never used."""
    message = tables.ALLOCATE_PRODUCER_IDS.to_pb(request)
    answer = await client.ask(lambda channel: BrokerLifecycleStub(channel).AllocateProducerIds, message)
    return tables.ALLOCATED_PRODUCER_IDS.from_pb(answer)


# Calls of `AdminClient` about the quorum's voters.

CHANGE_TIMEOUT_MS = 4_000
"""How long a leader waits for the commit before it reports a timeout; less than `AdminClient` waits for one
address."""


async def add_raft_voter(client: AdminClient, request: AddRaftVoterRequest) -> None:
    """Returns once the change is committed, or with `validate_only` once the node's identity is confirmed."""
    message = codec.ADD_VOTER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).Add, message, ask_again=NOT_LOOKED_AT)


async def remove_raft_voter(client: AdminClient, request: RemoveRaftVoterRequest) -> None:
    """Returns once the change is committed."""
    message = codec.REMOVE_VOTER.to_pb(request)
    await client.ask(lambda channel: VotersStub(channel).Remove, message, ask_again=NOT_LOOKED_AT)
