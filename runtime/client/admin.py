"""The admin client: finds the active controller, retries retriable errors, reports one clear error.

Owns to which address a call goes and how often. Does not know Kafka's protocol (`runtime.kafka.client`), nor
how results are shown. Responses are values of `metadata.requests` and of the image, never protobuf.
`AdminClient` is asyncio; `BlockingClient` is the same for a command line. For reads, a broker's address
suffices (it answers from its own image while it is unfenced); changes need a controller's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration, PartitionInfo, TopicInfo
from metaquorum.metadata.requests import common as api
from metaquorum.metadata.settings.keys import whole_number
from metaquorum.metadata.text.addresses import address_text
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import metadata_pb2 as pb
from metaquorum.proto.admin_pb2_grpc import AdminStub
from metaquorum.proto.metadata_pb2_grpc import MetadataStub
from metaquorum.runtime.api import admin as codec
from metaquorum.runtime.api.errors import LeaderAddress, error_from_pb, leader_from_pb
from metaquorum.runtime.api.image import BROKER, PARTITION, READ_INFO, ReadInfo
from metaquorum.runtime.backoff import Backoff, BackoffPolicy
from metaquorum.runtime.rpc.channels import open_channel
from metaquorum.runtime.rpc.reach import UNREADABLE, Reasons
from metaquorum.runtime.tls.material import TlsMaterial

RETRY = BackoffPolicy(initial_ms=20, max_ms=500)
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

Answer = TypeVar("Answer")
Address = tuple[str, int]


class ClientError(Exception):
    """No node responded in time. Whether a change was made is unknown."""


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    read: ReadInfo
    cluster_id: str
    controllers: tuple[LeaderAddress, ...]
    broker_count: int
    fenced_broker_count: int
    topic_count: int
    partition_count: int
    features: Mapping[str, int]


class BrokerListing(msgspec.Struct, frozen=True, kw_only=True):
    read: ReadInfo
    brokers: tuple[BrokerRegistration, ...]
    unknown_ids: tuple[int, ...] = ()


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    info: TopicInfo
    partition_count: int


class TopicListing(msgspec.Struct, frozen=True, kw_only=True):
    """`read` is that of the last response, if there were several."""

    read: ReadInfo
    topics: tuple[TopicSummary, ...]


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    info: TopicInfo
    partitions: tuple[PartitionInfo, ...]
    configs: Mapping[str, str] = msgspec.field(default_factory=dict)


class TopicDescriptions(msgspec.Struct, frozen=True, kw_only=True):
    """`read` is that of the last response, if there were several."""

    read: ReadInfo
    topics: tuple[TopicDescription, ...]
    unknown_names: tuple[str, ...] = ()
    unknown_ids: tuple[bytes, ...] = ()


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Parses `host:port,host:port`. Raises ClientError."""
    addresses: list[Address] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        host, _, port = part.rpartition(":")
        number = whole_number(port, 65535)
        if not host or not number:
            raise ClientError(f"{part!r} is not an address: write host:port,host:port")
        addresses.append((host.strip("[]"), number))
    if not addresses:
        raise ClientError("there is no address: write host:port,host:port")
    return tuple(dict.fromkeys(addresses))


class AdminClient:
    """`bootstrap`: addresses of controllers (and brokers, for reads), or a function that returns the current
    ones. `timeout_ms` bounds one call with all its retries; `attempts_max` 1 disables retries, for callers
    that must know what happened.

    Every call raises ApiError if it is refused, ClientError if no node responds. After a ClientError, or a
    retry, a change may have been made already: creating a topic again then fails because it exists.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address] | str | Callable[[], Sequence[Address]],
        *,
        timeout_ms: int = 15_000,
        attempts_max: int | None = None,
        tls: TlsMaterial | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if callable(bootstrap):
            self._addresses = bootstrap
        else:
            known = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else tuple(bootstrap)
            self._addresses = lambda: known
        self._timeout_ms = timeout_ms
        self._attempts_max = attempts_max
        self._tls = tls
        self._reasons = Reasons(tls)
        self._rng = rng or random.Random()
        self._channels: dict[Address, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._tls_version = 0
        self._current: Address | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close(None) for channel in channels.values()))

    # --- changes

    async def create_topics(
        self, topics: Sequence[api.NewTopic], *, validate_only: bool = False
    ) -> api.TopicsResponse:
        """Creates topics; each result has its own error."""
        request = codec.CREATE_TOPICS.to_pb(
            api.CreateTopicsRequest(topics=tuple(topics), validate_only=validate_only)
        )
        return codec.TOPICS.from_pb(await self._admin(lambda stub: stub.CreateTopics, request))

    async def delete_topics(self, topics: Sequence[str | bytes]) -> api.TopicsResponse:
        """Deletes topics by name or by id; each result has its own error."""
        request = codec.DELETE_TOPICS.to_pb(api.DeleteTopicsRequest(topics=tuple(topics)))
        return codec.TOPICS.from_pb(await self._admin(lambda stub: stub.DeleteTopics, request))

    async def transfer_leadership(self, target_id: int | None = None) -> None:
        """Starts a transfer to a voter (None: the most caught-up one). Does not wait for the new leader."""
        request = codec.TRANSFER_LEADERSHIP.to_pb(api.TransferLeadershipRequest(target_id=target_id))
        await self._admin(lambda stub: stub.TransferLeadership, request)

    # --- reads

    async def describe_quorum(self) -> api.DescribeQuorumResponse:
        request = admin.DescribeQuorumRequest()
        return codec.QUORUM.from_pb(await self._admin(lambda stub: stub.DescribeQuorum, request))

    async def describe_cluster(self, *, stale: bool = False) -> ClusterDescription:
        request = pb.DescribeClusterRequest(consistency=_consistency(stale))
        answer = await self._metadata(lambda stub: stub.DescribeCluster, request)
        return ClusterDescription(
            read=READ_INFO.from_pb(answer.read),
            cluster_id=answer.cluster_id,
            controllers=tuple(LeaderAddress(each.id, each.host, each.port) for each in answer.controllers),
            broker_count=answer.broker_count,
            fenced_broker_count=answer.fenced_broker_count,
            topic_count=answer.topic_count,
            partition_count=answer.partition_count,
            features={each.name: each.level for each in answer.features},
        )

    async def list_brokers(self, broker_ids: Sequence[int] = (), *, stale: bool = False) -> BrokerListing:
        """The brokers with these ids; all if none is given."""
        request = pb.ListBrokersRequest(consistency=_consistency(stale), broker_ids=broker_ids)
        answer = await self._metadata(lambda stub: stub.ListBrokers, request)
        return BrokerListing(
            read=READ_INFO.from_pb(answer.read),
            brokers=tuple(BROKER.from_pb(each) for each in answer.brokers),
            unknown_ids=tuple(answer.unknown_ids),
        )

    async def list_topics(self, *, stale: bool = False) -> TopicListing:
        """All topics by ascending name."""
        topics: list[TopicSummary] = []
        request = pb.ListTopicsRequest(consistency=_consistency(stale))
        while True:
            answer = await self._metadata(lambda stub: stub.ListTopics, request)
            topics += [
                TopicSummary(info=TopicInfo(each.topic_id, each.name), partition_count=each.partition_count)
                for each in answer.topics
            ]
            if not answer.more:
                return TopicListing(read=READ_INFO.from_pb(answer.read), topics=tuple(topics))
            request.after = answer.topics[-1].name

    async def describe_topics(
        self, names: Sequence[str] = (), topic_ids: Sequence[bytes] = (), *, stale: bool = False
    ) -> TopicDescriptions:
        """These topics with all their partitions; every topic if none is given."""
        request = pb.DescribeTopicsRequest(consistency=_consistency(stale), names=names, topic_ids=topic_ids)
        found: dict[str, TopicDescription] = {}
        while True:
            answer = await self._metadata(lambda stub: stub.DescribeTopics, request)
            for each in answer.topics:
                earlier = found.get(each.name)
                partitions = tuple(PARTITION.from_pb(one, each.topic_id) for one in each.partitions)
                found[each.name] = TopicDescription(
                    info=TopicInfo(each.topic_id, each.name),
                    partitions=(earlier.partitions if earlier else ()) + partitions,
                    configs=dict(sorted(each.configs.items())),
                )
            if not answer.HasField("next"):
                break
            request.start.CopyFrom(answer.next)
        return TopicDescriptions(
            read=READ_INFO.from_pb(answer.read),
            topics=tuple(found.values()),
            unknown_names=tuple(answer.unknown_names),
            unknown_ids=tuple(answer.unknown_ids),
        )

    # --- calls

    async def _admin(self, method: Callable[[Any], Any], request: Any) -> Any:
        return await self.ask(lambda channel: method(AdminStub(channel)), request)

    async def _metadata(self, method: Callable[[Any], Any], request: Any) -> Any:
        return await self.ask(lambda channel: method(MetadataStub(channel)), request)

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
        limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        deadline = loop.time() + limit_ms / 1000
        backoff = Backoff(RETRY, self._rng)
        attempts, hints, problem = 0, 0, "no request was sent"
        refusal: ApiError | None = None
        while True:
            remaining_s = deadline - loop.time()
            if remaining_s <= 0 or attempts == self._attempts_max:
                raise refusal or ClientError(self._nobody(problem, attempts, limit_ms))
            attempts += 1
            address = self._current or self._bootstrap[0]
            try:
                call = method(self._channel(address))
                answer = await call(request, timeout=min(remaining_s, ATTEMPT_MAX_MS / 1000))
            except grpc.aio.AioRpcError as error:
                problem = f"{address[0]}:{address[1]}: {await self._reasons.of(error, address)}"
                refusal = None
                self._current = self._after(address)
            else:
                if answer is None:  # gRPC returns None for what it cannot decode
                    raise ClientError(f"{address[0]}:{address[1]}: {UNREADABLE}")
                if not answer.HasField("error"):
                    return answer
                refusal = error_from_pb(answer.error)
                problem = f"{address[0]}:{address[1]}: {refusal}"
                if refusal.code not in ask_again:
                    raise refusal
                hint = leader_from_pb(answer.error)
                if hint is not None and (hint.host, hint.port) != address and hints < len(self._bootstrap):
                    hints += 1
                    self._current = (hint.host, hint.port)
                    continue
                if refusal.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                    self._current = self._after(address)
            hints = 0
            wait_s = backoff.failed(0) / 1000
            await asyncio.sleep(max(0.0, min(wait_s, deadline - loop.time())))

    @property
    def _bootstrap(self) -> Sequence[Address]:
        return self._addresses()

    def _channel(self, address: Address) -> grpc.aio.Channel:
        if self._tls is not None:
            self._tls.refresh()
            self._renew(self._tls.version)
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(*address, self._tls)
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

    def _after(self, address: Address) -> Address:
        """The next address of the bootstrap list; after an address that is not in it, the first."""
        if address not in self._bootstrap:
            return self._bootstrap[0]
        index = self._bootstrap.index(address)
        return self._bootstrap[(index + 1) % len(self._bootstrap)]

    def _nobody(self, problem: str, attempts: int, limit_ms: int) -> str:
        addresses = ", ".join(address_text(host, port) for host, port in self._bootstrap)
        if self._attempts_max is not None and attempts >= self._attempts_max:
            return f"no answer ({problem}); the change may or may not have been made"
        return (
            f"no node at {addresses} answered within {limit_ms} ms (last: {problem}); check that "
            "the quorum runs and that the addresses are right"
        )


def _consistency(stale: bool) -> pb.Consistency.ValueType:
    return pb.CONSISTENCY_STALE if stale else pb.CONSISTENCY_DEFAULT


class BlockingClient:
    """`AdminClient` for code without a loop: `BlockingClient(bootstrap).call(lambda c: c.list_topics())`."""

    def __init__(
        self, bootstrap: Sequence[Address] | str, *, timeout_ms: int = 15_000, tls: TlsMaterial | None = None
    ) -> None:
        self._runner = asyncio.Runner()
        self._client = AdminClient(bootstrap, timeout_ms=timeout_ms, tls=tls)

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
