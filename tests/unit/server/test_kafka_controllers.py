"""A broker's requests to controllers over Kafka's protocol: each is sent once and reported once, and what it
forwards finds the active one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from metaquorum.broker.channel import ChannelRequest, ControllerReported, NoAnswer, SendToController
from metaquorum.broker.server import kafka_controllers
from metaquorum.broker.server.kafka_controllers import KafkaControllerCalls, KafkaForwarding
from metaquorum.clients.kafka.grpc_way import ask_controllers
from metaquorum.clients.kafka.raft_client import KafkaWay
from metaquorum.clients.quorum.admin import ForwardedAnswer
from metaquorum.clients.search import ClientError
from metaquorum.config.security import Credentials
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.sasl import PlainExchange
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.controllers import Controllers
from metaquorum.rpc.transport import PeerAddress
from metaquorum.wire import codec
from metaquorum.wire import messages as wire
from metaquorum.wire.principal import ForwardedPrincipal, decode_principal
from metaquorum.wire.table import API_BY_NAME
from tests.unit.kafka.kafka_node import FakeNode, running
from tests.unit.server.nodes import silent_port
from tests.waiting import within

CONTROLLER = 3000
REGISTRATION = RegisterBrokerRequest(
    broker_id=1,
    cluster_id="c",
    incarnation_id=b"i" * 16,
    endpoints=(),
    features=(),
    rack=None,
    directories=(),
)
HEARTBEAT = BrokerHeartbeatRequest(broker_id=1, broker_epoch=2, applied_offset=3)
PRODUCER_IDS = AllocateProducerIdsRequest(broker_id=1, broker_epoch=2)
LOGIN = Credentials(mechanism="PLAIN", user="node", password="secret")
CREATE = wire.CreateTopicsRequest(topics=(), timeout_ms=1_000)
CREATE_KEY = API_BY_NAME["CreateTopics"].key
HOST = "127.0.0.1"


class Broker:
    """The calls of one broker, and their outcomes in order."""

    def __init__(self, port: int, login: Credentials | None = None) -> None:
        self._outcomes: asyncio.Queue[ControllerReported] = asyncio.Queue()
        self.controllers = {CONTROLLER: PeerAddress(HOST, port)}
        way = KafkaWay(client_id="1", login=login)
        self.calls = KafkaControllerCalls(
            self.controllers, self._outcomes.put_nowait, way, session_timeout_ms=9_000
        )
        self._number = 0

    def send(self, request: ChannelRequest, timeout_ms: int = 10_000, target: int = CONTROLLER) -> None:
        self._number += 1
        self.calls.send(
            SendToController(
                target=target,
                correlation_id=self._number,
                request=request,
                timeout_ms=timeout_ms,
            )
        )

    async def reported(self) -> Any:
        return (await self._outcomes.get()).outcome

    async def ask(self, request: ChannelRequest, timeout_ms: int = 10_000, target: int = CONTROLLER) -> Any:
        self.send(request, timeout_ms, target)
        return await self.reported()


@asynccontextmanager
async def broker_at(port: int, login: Credentials | None = None) -> AsyncIterator[Broker]:
    broker = Broker(port, login)
    try:
        yield broker
    finally:
        await broker.calls.close()


def controller(**handlers: Any) -> FakeNode:
    """A controller as Kafka's are: it says nothing of its session timeout."""
    known: dict[str, Any] = {
        "BrokerRegistration": lambda _: wire.BrokerRegistrationResponse(broker_epoch=5),
        "BrokerHeartbeat": lambda _: wire.BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False),
        "AllocateProducerIds": lambda _: wire.AllocateProducerIdsResponse(
            producer_id_start=7, producer_id_len=3
        ),
    }
    return FakeNode({**known, **handlers})


async def test_each_kind_of_request_gets_its_answer() -> None:
    node = controller()
    async with running(node), broker_at(node.port) as broker:
        assert await broker.ask(REGISTRATION) == RegisterBrokerResponse(
            broker_epoch=5, session_timeout_ms=9_000
        )
        assert await broker.ask(HEARTBEAT) == BrokerHeartbeatResponse(
            is_caught_up=True,
            is_fenced=False,
            should_shut_down=False,
            in_controlled_shutdown=False,
            session_timeout_ms=9_000,
        )
        assert await broker.ask(PRODUCER_IDS) == AllocateProducerIdsResponse(first_id=7, count=3)
        assert await broker.ask(PRODUCER_IDS) == AllocateProducerIdsResponse(first_id=7, count=3)
        assert len(node.open) == 2, "registration and heartbeats have one connection, other kinds another"


async def test_a_heartbeat_does_not_wait_behind_another_kind_of_request() -> None:
    release = asyncio.Event()

    async def held(_: Any) -> wire.AllocateProducerIdsResponse:
        await release.wait()
        return wire.AllocateProducerIdsResponse(producer_id_start=1, producer_id_len=1)

    node = controller(AllocateProducerIds=held)
    async with running(node), broker_at(node.port) as broker:
        broker.send(PRODUCER_IDS)
        assert isinstance(await broker.ask(HEARTBEAT), BrokerHeartbeatResponse)
        release.set()
        assert await broker.reported() == AllocateProducerIdsResponse(first_id=1, count=1)


async def test_a_late_answer_is_never_taken_for_that_of_another_request() -> None:
    holds = True

    async def beat(body: wire.BrokerHeartbeatRequest) -> wire.BrokerHeartbeatResponse:
        if holds:
            await asyncio.sleep(0.3)
        return wire.BrokerHeartbeatResponse(is_fenced=body.broker_epoch == 2)

    node = controller(BrokerHeartbeat=beat)
    async with running(node), broker_at(node.port) as broker:
        assert await broker.ask(HEARTBEAT, timeout_ms=100) == NoAnswer("no answer within 100 ms")
        holds = False
        newer = BrokerHeartbeatRequest(broker_id=1, broker_epoch=9, applied_offset=3)
        assert not (await broker.ask(newer)).is_fenced


async def test_a_controller_that_moved_is_asked_at_its_new_address() -> None:
    old, new = controller(), controller()
    async with running(old, new), broker_at(old.port) as broker:
        await broker.ask(HEARTBEAT)
        broker.controllers[CONTROLLER] = PeerAddress(HOST, new.port)
        await broker.ask(HEARTBEAT)
        assert new.asked == ["BrokerHeartbeat"]
        async with within("the end of the old connection"):
            while old.open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_the_login_is_the_one_of_the_controllers_listener() -> None:
    rules = SaslRules(
        mechanisms=("PLAIN",), new_exchange=lambda _: PlainExchange({"node": "secret"}), max_reauth_ms={}
    )
    node = controller()
    secured = FakeNode(node.handlers, sasl=rules)
    async with running(secured):
        async with broker_at(secured.port, LOGIN) as broker:
            assert isinstance(await broker.ask(HEARTBEAT), BrokerHeartbeatResponse)
        wrong = Credentials(mechanism="PLAIN", user="node", password="other")
        async with broker_at(secured.port, wrong) as broker:
            assert (await broker.ask(HEARTBEAT)).reason.startswith("it refuses the login: ")
        async with broker_at(secured.port) as broker:
            assert (await broker.ask(HEARTBEAT)).reason == "it closed the connection"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.NOT_CONTROLLER, "it is not the active controller"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "allow this broker's principal ClusterAction"),
        (ErrorCode.STALE_BROKER_EPOCH, "the controller answers STALE_BROKER_EPOCH"),
    ],
)
async def test_a_refusal_is_an_answer(code: ErrorCode, text: str) -> None:
    node = controller(BrokerHeartbeat=lambda _: wire.BrokerHeartbeatResponse(error_code=code))
    async with running(node), broker_at(node.port) as broker:
        for _ in range(2):
            refusal = await broker.ask(HEARTBEAT)
            assert isinstance(refusal, ApiError)
            assert refusal.code is code and text in refusal.message
        assert len(node.open) == 1


async def test_what_cannot_be_asked_says_why_in_one_line() -> None:
    with silent_port() as port:
        async with broker_at(port) as broker:
            assert (await broker.ask(HEARTBEAT)).reason == "connection refused: no process listens there"
            assert (await broker.ask(HEARTBEAT, target=9)).reason == "it has no known address"
    silent = await asyncio.start_server(lambda *_: None, HOST, 0)
    async with broker_at(silent.sockets[0].getsockname()[1]) as broker:
        assert (await broker.ask(HEARTBEAT, timeout_ms=100)).reason == "no answer within 100 ms"
    silent.close()
    server = new_server()
    port = bind(server, HOST, 0, None)
    await server.start()
    async with broker_at(port) as broker:
        assert "it speaks gRPC there, and not Kafka's protocol" in (await broker.ask(HEARTBEAT)).reason
    await server.stop(None)
    old = FakeNode(dict(controller().handlers), BrokerHeartbeat=(0, 0))
    async with running(old), broker_at(old.port) as broker:
        assert (
            await broker.ask(HEARTBEAT)
        ).reason == "the node offers BrokerHeartbeat 0 to 0; 1 to 1 is needed"


# ---- what it forwards


class Quorum:
    """Controllers by id, as the forwarder sees them. `leader`: the one that the log's fetcher knows."""

    def __init__(self, *nodes: FakeNode, leader: int | None = None) -> None:
        self._places = {CONTROLLER + at: PeerAddress(HOST, node.port) for at, node in enumerate(nodes)}
        self.leader = leader
        known = cast("Controllers", self)
        self.forwarding = KafkaForwarding(known, lambda: self.leader, KafkaWay(client_id="1"), Random(1))

    def get(self, node_id: int) -> PeerAddress | None:
        return self._places.get(node_id)

    def addresses(self) -> tuple[tuple[str, int], ...]:
        return tuple((each.host, each.port) for each in self._places.values())

    async def forward(self, timeout_ms: int = 10_000, address: str = "10.0.0.7") -> ForwardedAnswer:
        header = codec.RequestHeader(CREATE_KEY, 7, 3, "client")
        return await self.forwarding.forward(
            b"".join(codec.encode_request(header, CREATE)),
            broker_id=1,
            principal="User:alice",
            client_address=address,
            by_token=True,
            timeout_ms=timeout_ms,
        )


def opened(body: wire.EnvelopeRequest) -> wire.EnvelopeResponse:
    """The answer of an active controller that checks what it gets."""
    assert decode_principal(body.request_principal) == ForwardedPrincipal("User:alice", True)
    assert bytes(body.client_host_address) == bytes([10, 0, 0, 7])
    inner = codec.decode_request(bytes(body.request_data))
    assert (inner.header.correlation_id, inner.header.client_id, inner.body) == (3, "client", CREATE)
    chunks = codec.encode_response(CREATE_KEY, 7, 3, wire.CreateTopicsResponse(throttle_time_ms=17))
    return wire.EnvelopeResponse(response_data=b"".join(chunks))


def refusing(code: ErrorCode) -> FakeNode:
    return FakeNode(
        {
            "Envelope": lambda _: wire.EnvelopeResponse(error_code=code),
            "CreateTopics": lambda body: wire.CreateTopicsResponse(
                topics=(wire.CreateTopicsResponse.CreatableTopicResult(name="t", error_code=code),)
            ),
        }
    )


def active() -> FakeNode:
    return FakeNode(
        {"Envelope": opened, "CreateTopics": lambda _: wire.CreateTopicsResponse(throttle_time_ms=18)}
    )


async def test_a_request_of_a_client_finds_the_active_controller() -> None:
    standby, leads = refusing(ErrorCode.NOT_CONTROLLER), active()
    async with running(standby, leads):
        quorum = Quorum(standby, leads)
        answer = await quorum.forward()
        assert codec.decode_response(CREATE_KEY, 7, answer.frame).body.throttle_time_ms == 17
        assert answer.offset == 0
        assert (standby.asked, leads.asked) == (["Envelope"], ["Envelope"])
        quorum.leader = CONTROLLER + 1
        await quorum.forward()
        assert standby.asked == ["Envelope"]
        await quorum.forwarding.close()


async def test_the_leader_of_the_log_is_asked_first_and_passed_over_once_it_has_failed() -> None:
    dead, leads = FakeNode({}), active()
    async with running(dead, leads):
        quorum = Quorum(leads, dead, leader=CONTROLLER + 1)
        await quorum.forward()
        assert leads.asked == ["Envelope"]
        await quorum.forwarding.close()


async def test_waiting_for_a_turn_takes_none_of_an_attempts_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not sent has not failed: no other controller is asked, and nothing is sent twice."""
    monkeypatch.setattr(kafka_controllers, "FORWARDED_MAX", 1)
    monkeypatch.setattr(kafka_controllers, "ATTEMPT_MAX_MS", 100)
    leads, other = active(), refusing(ErrorCode.NOT_CONTROLLER)
    async with running(leads, other):
        quorum = Quorum(leads, other, leader=CONTROLLER)
        async with quorum.forwarding._turns:
            waiting = asyncio.create_task(quorum.forward())
            await asyncio.sleep(0.4)
            assert not waiting.done()
        await waiting
        assert (leads.asked, other.asked) == (["Envelope"], [])
        await quorum.forwarding.close()


async def test_a_request_of_the_brokers_own_is_sent_as_it_is() -> None:
    standby, leads = refusing(ErrorCode.NOT_CONTROLLER), active()
    async with running(standby, leads):
        quorum = Quorum(standby, leads)
        answer = await ask_controllers(quorum.forwarding, CREATE, 7, timeout_ms=10_000)
        assert answer.throttle_time_ms == 18
        assert (standby.asked, leads.asked) == (["CreateTopics"], ["CreateTopics"])
        await quorum.forwarding.close()


@pytest.mark.parametrize(
    ("address", "packed"),
    [("10.0.0.7", bytes([10, 0, 0, 7])), ("fe80::1%lo", b"\xfe\x80" + bytes(13) + b"\1"), ("", bytes(4))],
)
async def test_the_clients_address_is_in_the_envelope(address: str, packed: bytes) -> None:
    """Also that of a client that has gone meanwhile, which is not known."""
    seen = []

    def note(body: wire.EnvelopeRequest) -> wire.EnvelopeResponse:
        seen.append(bytes(body.client_host_address))
        return wire.EnvelopeResponse(response_data=b"")

    node = FakeNode({"Envelope": note})
    async with running(node):
        quorum = Quorum(node)
        await quorum.forward(address=address)
        assert seen == [packed]
        await quorum.forwarding.close()


async def test_what_no_controller_would_do_is_refused_at_once() -> None:
    node = refusing(ErrorCode.UNSUPPORTED_VERSION)
    async with running(node):
        quorum = Quorum(node)
        with pytest.raises(ApiError, match="do not support this version") as error:
            await quorum.forward()
        assert error.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert node.asked == ["Envelope"]
        await quorum.forwarding.close()


async def test_without_an_active_controller_the_last_problem_is_told() -> None:
    node = refusing(ErrorCode.NOT_CONTROLLER)
    async with running(node):
        quorum = Quorum(node)
        with pytest.raises(ApiError, match="it is not the active controller"):
            await quorum.forward(timeout_ms=1_500)
        assert len(node.open) == 1
        await quorum.forwarding.close()
    with pytest.raises(ClientError, match="no process listens there"):
        await quorum.forward(timeout_ms=1_500)
