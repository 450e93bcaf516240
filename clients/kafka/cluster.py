"""A client of a cluster that speaks Kafka's protocol: which node gets a request, what is retried, and how
often.

    async with KafkaClient("host:9092,host:9093", timeout_ms=10_000) as client:
        answer = await client.ask(ListGroupsRequest())                     # any broker
        answer = await client.ask(DescribeLogDirsRequest(topics=None), target=2)    # the broker with id 2
        answer = await client.ask(HeartbeatRequest(...), target=Coordinator(0, "g"))
        answer = await client.ask(ListOffsetsRequest(...), target=PartitionLeader("orders", 0))
        nodes = await client.brokers()                                     # the live brokers, by id
        client.refuse(answer.error_code, answer.error_message)             # raises ApiError for a code

`ask` returns the body of the response, in the highest version that both sides have. It raises ApiError for an
API that the node does not have, EncodeError for a body that the version cannot carry, and ClientError, in one
line, if no node responds in time or a node refuses this client's login or TLS. The caller judges error codes
in responses; `ask` only repeats a request, within the time limit, if all codes of a response are the same one
of `ASK_AGAIN`, or, from a partition's leader, of `LEADER_MOVES`. After a ClientError, or a retry, a change
may have been made already.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from metaquorum.clients.kafka.connection import (
    ClosedAtOnce,
    ConnectionClosed,
    ConnectionFailed,
    HostUnknown,
    LoginRefused,
    NodeConnection,
    TlsFailed,
    UnsupportedVersion,
    WrongProtocol,
    connect,
)
from metaquorum.clients.kafka.login import ClientSecurity, log_in
from metaquorum.clients.search import Address, Attempts, ClientError, NodeChoice, parse_bootstrap
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import CONTROLLERS
from metaquorum.metadata.text.addresses import address_text
from metaquorum.network.tls import TlsMaterial
from metaquorum.wire.messages import DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest

ANSWER_MAX_BYTES = 256 * 1024 * 1024
CLIENT_ID = "metaquorum"
ASK_AGAIN = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Error codes after which a retry, maybe at another node, can succeed."""
ELSEWHERE = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER})
"""Another controller leads. Kafka's controllers refuse DescribeQuorum with the second, of the partition; from
a broker, that is about a topic's partition, and the caller's to judge."""


LEADER_MOVES = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Error codes of a partition whose leader has just changed, or is about to."""


CREATES_NO_TOPIC = 4
"""The lowest version of Metadata in which a query for a topic need not create it."""


class Coordinator(msgspec.Struct, frozen=True):
    """The coordinator of a key; `key_type` 0: a group id, 1: a transactional id."""

    key_type: int
    key: str


class PartitionLeader(msgspec.Struct, frozen=True):
    """The leader of a partition, which every attempt looks up: a dead one is replaced meanwhile."""

    topic: str
    partition: int


Target = int | Coordinator | PartitionLeader | None
"""Who gets a request: a broker, by its id, or None: any broker."""


class LiveBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, with the address for this client."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class KafkaClient:
    """See the module. `timeout_ms` bounds one call with all its retries, of which `spent_ms` are over before
    it begins. `asks_brokers`: the addresses are those of brokers, not of controllers. Raises ConfigError for
    TLS files that cannot be read."""

    def __init__(
        self,
        bootstrap: Sequence[Address] | str,
        *,
        timeout_ms: int = 15_000,
        spent_ms: int = 0,
        security: ClientSecurity | None = None,
        rng: random.Random | None = None,
        client_id: str = CLIENT_ID,
        asks_brokers: bool = True,
    ) -> None:
        self.asks_brokers = asks_brokers
        self._ask_again = ASK_AGAIN if asks_brokers else ASK_AGAIN | ELSEWHERE
        self._client_id = client_id
        listed = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else tuple(bootstrap)
        self._choice = NodeChoice(lambda: listed)
        self.timeout_ms, self._spent_ms = timeout_ms, spent_ms
        self._security = security or ClientSecurity()
        self._tls = client_context(self._security)
        self._rng = rng or random.Random()
        self._connections: dict[Address, NodeConnection] = {}
        self._nodes: dict[int, Address] = {}
        self._refused = ClosedAtOnce()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        # Transports report the end of their connections in the next turn of the loop.
        await asyncio.sleep(0)

    @staticmethod
    def refuse(code: int, message: str | None = None) -> None:
        """Raises ApiError for a code that is not 0."""
        if code:
            raise ApiError(ErrorCode.of(code), message or "refused")

    async def brokers(self) -> dict[int, LiveBroker]:
        """The live brokers by id, with the addresses for this client."""
        answer = await self.ask(MetadataRequest(topics=()))
        return {
            each.node_id: LiveBroker(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in sorted(answer.brokers, key=lambda one: one.node_id)
        }

    async def version(self, api: str) -> int | None:
        """The highest version of an API that the current node and this program have; None if the node
        does not have the API."""

        async def look(connection: NodeConnection, _: float) -> int | None:
            try:
                return connection.version(api)
            except UnsupportedVersion:
                return None

        return await self._asked(look, None)  # type: ignore[no-any-return]

    async def ask(
        self, body: Any, *, target: Target = None, lowest: int = 0, highest: int = 2**15 - 1
    ) -> Any:
        """The body of the response to a request. The version is the highest possible one between `lowest` and
        `highest`."""
        name = type(body).__name__.removesuffix("Request")

        async def send(connection: NodeConnection, timeout_s: float) -> Any:
            version = connection.version(name, lowest, highest)
            return (await connection.ask(body, version=version, timeout_s=timeout_s)).body

        return await self._asked(send, target)

    async def ask_every_broker(self, body: Any, what: str, *, lowest: int = 0) -> list[tuple[int, Any]]:
        """The id and the response of each live broker. Raises ApiError if one refuses; `what` is what it
        does not list."""
        answers = []
        for broker in await self.brokers():
            answer = await self.ask(body, target=broker, lowest=lowest)
            self.refuse(answer.error_code, f"broker {broker} does not list {what}")
            answers.append((broker, answer))
        return answers

    async def _asked(self, use: Callable[[NodeConnection, float], Awaitable[Any]], target: Target) -> Any:
        """The result of `use` with a connection; repeats it, maybe at another node, while a retry can
        succeed."""
        loop = asyncio.get_running_loop()
        leads = isinstance(target, PartitionLeader)
        ask_again = self._ask_again | LEADER_MOVES if leads else self._ask_again
        attempts = Attempts(
            self._choice,
            self._rng,
            now_s=loop.time(),
            limit_ms=self.timeout_ms,
            attempt_ms=(self.timeout_ms - self._spent_ms) // 2,
            spent_ms=self._spent_ms,
        )
        refused: Any = None
        while attempt_s := attempts.next_s(loop.time()):
            address = self._choice.current
            try:
                address = await self._where(target, attempt_s)
                answer = await use(await self._connection(address, attempt_s), attempt_s)
                self._refused.answered(address)
                code = common_refusal(answer)
                if code is ErrorCode.MISMATCHED_ENDPOINT_TYPE:
                    self._refuse_other_kind(address)
                may_succeed = code in ask_again
                if not may_succeed and not _names_nobody(answer):
                    return answer
                refused = answer if may_succeed else None
                attempts.failed(address, code.name if code else "it is fenced")
                await self._follow(code, attempt_s)
            except UnsupportedVersion as error:
                self._refuse_other_kind(address)
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"{address_text(*address)}: {error}") from error
            except (TlsFailed, LoginRefused, WrongProtocol) as error:
                raise ClientError(f"{address_text(*address)}: {error}") from error
            except (ConnectionFailed, TimeoutError) as failed:
                judged = self._judged(address, failed)
                if not (attempts.problem and isinstance(judged, TimeoutError) and attempts.is_cut_short):
                    refused = None
                    lasts = isinstance(judged, HostUnknown | LoginRefused)
                    if attempts.failed(address, str(judged) or "no answer", lasts=lasts):
                        raise ClientError(attempts.problem) from failed
                self._forget(address)
            await asyncio.sleep(attempts.wait_s(loop.time()))
        if refused is not None:
            return refused
        raise ClientError(attempts.text("cluster"))

    # --- choice of the node

    async def _where(self, target: Target, timeout_s: float) -> Address:
        match target:
            case None:
                return self._choice.current
            case Coordinator():
                return await self._coordinator(target, timeout_s)
            case PartitionLeader():
                return await self._leader(target, timeout_s)
        if target not in self._nodes:
            await self._learn(timeout_s)
        if target not in self._nodes:
            known = ", ".join(map(str, sorted(self._nodes))) or "none"
            raise ConnectionFailed(f"broker {target} is not among the live ones ({known})")
        return self._nodes[target]

    async def _learn(self, timeout_s: float) -> int:
        """Queries the addresses of the brokers; returns the controller's id, as the node knows it. A
        controller names the controllers (KIP-919)."""
        connection = await self._connection(self._choice.current, timeout_s)
        if connection.offers("FetchSnapshot"):
            asked = DescribeClusterRequest(endpoint_type=CONTROLLERS)
            found = (await connection.ask(asked, timeout_s=timeout_s)).body
            self._nodes = {each.broker_id: (each.host, each.port) for each in found.brokers}
            return int(found.controller_id)
        answer = (await connection.ask(MetadataRequest(topics=()), timeout_s=timeout_s)).body
        self._nodes = {each.node_id: (each.host, each.port) for each in answer.brokers}
        return int(answer.controller_id)

    async def _coordinator(self, wanted: Coordinator, timeout_s: float) -> Address:
        connection = await self._connection(self._choice.current, timeout_s)
        version = connection.version("FindCoordinator", 1)
        body = FindCoordinatorRequest(key_type=wanted.key_type, key=wanted.key)
        if version >= 4:
            body = FindCoordinatorRequest(key_type=wanted.key_type, coordinator_keys=(wanted.key,))
        answer = (await connection.ask(body, version=version, timeout_s=timeout_s)).body
        coordinator = answer.coordinators[0] if version >= 4 and answer.coordinators else answer
        if ErrorCode.of(coordinator.error_code) in ASK_AGAIN:
            why = coordinator.error_message or ErrorCode.of(coordinator.error_code).name
            raise ConnectionFailed(f"it knows no coordinator: {why}")
        self.refuse(coordinator.error_code, coordinator.error_message)
        return coordinator.host, coordinator.port

    async def _leader(self, wanted: PartitionLeader, timeout_s: float) -> Address:
        connection = await self._connection(self._choice.current, timeout_s)
        topics = (MetadataRequest.MetadataRequestTopic(name=wanted.topic),)
        version = connection.version("Metadata", CREATES_NO_TOPIC)
        body = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = (await connection.ask(body, version=version, timeout_s=timeout_s)).body
        addresses = {each.node_id: (each.host, each.port) for each in answer.brokers}
        for topic in answer.topics:
            for part in topic.partitions:
                if part.partition_index == wanted.partition and part.leader_id in addresses:
                    return addresses[part.leader_id]
        raise ConnectionFailed(f"{wanted.topic}-{wanted.partition} has no leader")

    async def _follow(self, code: ErrorCode | None, timeout_s: float) -> None:
        """Chooses the next node after a refusal: the controller, or the next of the bootstrap list."""
        if code in ELSEWHERE:
            controller_id = await self._learn(timeout_s)
            if controller_id in self._nodes and self._nodes[controller_id] != self._choice.current:
                self._choice.prefer(self._nodes[controller_id])
                return
        if code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            self._choice.pass_over(self._choice.current)

    def _refuse_other_kind(self, address: Address) -> None:
        """Raises ApiError if a request was for a broker and the node is a controller, or the reverse."""
        connection = self._connections.get(address)
        if connection is not None and connection.offers("FetchSnapshot") == self.asks_brokers:
            found, wanted = ("controller", "broker") if self.asks_brokers else ("broker", "controller")
            raise ApiError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                f"{address_text(*address)} is a {found}: give the address of a {wanted} here",
            )

    def _judged(self, address: Address, error: Exception) -> Exception:
        """A connection without a login that ends at its first request may have needed one."""
        connection = self._connections.get(address)
        is_plain = self._security.login is None and isinstance(error, ConnectionClosed)
        if is_plain and connection is not None and not connection.has_answered:
            return self._refused.closed(address)
        return error

    def _forget(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
        self._nodes = {}
        self._choice.pass_over(address)

    async def _connection(self, address: Address, timeout_s: float) -> NodeConnection:
        found = self._connections.get(address)
        if found is not None and found.is_open:
            return found
        host, port = address
        made = await connect(
            host,
            port,
            client_id=self._client_id,
            tls=self._tls,
            answer_max_bytes=ANSWER_MAX_BYTES,
            timeout_s=timeout_s,
        )
        if self._security.login is not None:
            await log_in(made, self._security.login, timeout_s=timeout_s)
        self._connections[address] = made
        return made


def common_refusal(answer: Any) -> ErrorCode | None:
    """The error code of the whole response, or of all its parts; None if parts differ or any succeeded."""
    common = None
    for code in _codes(answer):
        if not code or common not in (None, code):
            return None
        common = code
    return None if common is None else ErrorCode.of(common)


def _codes(value: Any) -> Iterator[int]:
    """The error codes of the innermost parts; a part that was refused as a whole has one."""
    if isinstance(value, tuple):
        for each in value:
            yield from _codes(each)
    elif isinstance(value, msgspec.Struct):
        own = getattr(value, "error_code", None)
        if own:
            yield own
            return
        has_parts = False
        for name in value.__struct_fields__:
            for code in _codes(getattr(value, name)):
                has_parts = True
                yield code
        if own is not None and not has_parts:
            yield own


def _names_nobody(answer: Any) -> bool:
    """True for a Metadata response without brokers, as a fenced broker sends it."""
    return type(answer).__name__ == "MetadataResponse" and not answer.brokers


def client_context(security: ClientSecurity) -> ssl.SSLContext | None:
    """The TLS context for connections to nodes; None for plain text. Raises ConfigError."""
    if security.tls is None:
        return None
    context = TlsMaterial.load(security.tls).client_context()
    context.check_hostname = security.checks_names
    return context
