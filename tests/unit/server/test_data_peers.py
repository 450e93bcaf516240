"""Fetches from other brokers by Kafka's protocol: connections, answers, and leaders that cannot be
reached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.broker.replica.events import DataEvent, PeerFetched, PeerFetchFailed, SendFetch
from metaquorum.broker.server.data.peers import IDLE_CONNECTIONS_MAX, Peer, PeerConnector, PeerFetches
from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.config.addresses import PROTOCOL_IDS
from metaquorum.config.security import Credentials
from metaquorum.listeners.connection import ClientConnection, ConnectionConfig
from metaquorum.listeners.services import Client, Features, Offered, Services
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.network.tls import TlsMaterial
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import FetchResponse, ListOffsetsResponse
from tests.unit.kafka.test_connection import until
from tests.unit.server.certificates import certificate_files
from tests.unit.server.test_servers import material

TOPIC = b"t" * 16


class Leader:
    """A listener that answers fetches as it is told."""

    def __init__(self, fetch_versions: tuple[int, int] = (4, 16)) -> None:
        self.fetched: list[Request] = []
        self.asked: list[Request] = []
        self.answer: Any = FetchResponse()
        self.connections: set[ClientConnection] = set()
        offered = {
            "Fetch": Offered(*fetch_versions, self.fetch),
            "ListOffsets": Offered(1, 6, self.list_offsets),
        }
        features = Features(supported={}, finalized={}, epoch=0)
        self.services = Services(offered, lambda: features)
        self.port = 0

    async def fetch(self, request: Request, client: Client) -> Any:
        self.fetched.append(request)
        return await self.answer if asyncio.isfuture(self.answer) else self.answer

    def list_offsets(self, request: Request, client: Client) -> Any:
        self.asked.append(request)
        part = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=3, offset=70)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="orders", partitions=(part,))
        return ListOffsetsResponse(topics=(topic,))


@contextlib.asynccontextmanager
async def leading(leader: Leader, tls: TlsMaterial | None = None) -> AsyncIterator[Leader]:
    config = ConnectionConfig(listener="IN", request_max_bytes=100_000, max_idle_s=60)
    limits = ConnectionLimits(max_connections=100, max_per_ip=100)

    def make() -> ClientConnection:
        known, place = leader.connections, limits.admit("IN", "127.0.0.1")
        assert isinstance(place, ConnectionSlot)
        return ClientConnection(config, leader.services, place, known.add, known.discard)

    loop = asyncio.get_running_loop()
    context = None if tls is None else tls.server_context("none")
    server = await loop.create_server(make, "127.0.0.1", 0, ssl=context)
    leader.port = server.sockets[0].getsockname()[1]
    try:
        yield leader
    finally:
        server.close()
        for each in list(leader.connections):
            each.end()


class Follower:
    def __init__(self, tls: TlsMaterial | None = None, login: Credentials | None = None) -> None:
        self.reports: asyncio.Queue[DataEvent] = asyncio.Queue()
        protocol = ("SASL_" if login else "") + ("SSL" if tls else "PLAINTEXT")
        self.fetches = PeerFetches(
            self.reports.put_nowait,
            PeerConnector(tls, login, answer_max_bytes=1_000_000),
            lambda effect: Peer(effect.target, effect.host, effect.port, PROTOCOL_IDS[protocol]),
            lambda topic_id: "orders" if topic_id == TOPIC else None,
            broker_id=2,
        )

    def send(self, port: int, correlation_id: int = 1, timeout_ms: int = 20_000) -> None:
        request = core.FetchRequest(
            replica_id=2,
            replica_epoch=9,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            partitions=(core.FetchPartition(key=(TOPIC, 3), fetch_offset=5, max_bytes=1),),
        )
        self.fetches.send(
            SendFetch(
                target=7,
                host="127.0.0.1",
                port=port,
                correlation_id=correlation_id,
                request=request,
                timeout_ms=timeout_ms,
            )
        )

    async def report(self) -> Any:
        async with asyncio.timeout(30):
            return await self.reports.get()


@contextlib.asynccontextmanager
async def following(
    tls: TlsMaterial | None = None, login: Credentials | None = None
) -> AsyncIterator[Follower]:
    follower = Follower(tls, login)
    try:
        yield follower
    finally:
        await follower.fetches.close()


async def test_a_connection_is_used_again_and_a_second_one_while_it_is_held() -> None:
    async with leading(Leader()) as leader, following() as follower:
        for number in range(3):
            follower.send(leader.port, number)
            report = await follower.report()
            assert isinstance(report, PeerFetched) and report.correlation_id == number
        assert len(leader.connections) == 1
        header = leader.fetched[0].header
        assert (header.version, header.client_id) == (16, "broker-2-fetcher-0")
        answer, leader.answer = leader.answer, asyncio.get_running_loop().create_future()
        for number in (7, 8):
            follower.send(leader.port, number)
        await until(lambda: len(leader.fetched) == 5)
        assert len(leader.connections) == 2
        leader.answer.set_result(answer)
        assert {(await follower.report()).correlation_id for _ in range(2)} == {7, 8}


async def test_idle_connections_to_a_leader_are_bounded() -> None:
    many = IDLE_CONNECTIONS_MAX + 3
    async with leading(Leader()) as leader, following() as follower:
        answer, leader.answer = leader.answer, asyncio.get_running_loop().create_future()
        for number in range(many):
            follower.send(leader.port, number)
        await until(lambda: len(leader.fetched) == many)
        assert len(leader.connections) == many
        leader.answer.set_result(answer)
        assert {(await follower.report()).correlation_id for _ in range(many)} == set(range(many))
        await until(lambda: len(leader.connections) == IDLE_CONNECTIONS_MAX)


async def test_an_answer_that_comes_too_late_counts_for_nothing() -> None:
    async with leading(Leader()) as leader, following() as follower:
        answer, leader.answer = leader.answer, asyncio.get_running_loop().create_future()
        follower.send(leader.port, 1, timeout_ms=300)
        report = await follower.report()
        assert isinstance(report, PeerFetchFailed) and report.reason == "no answer within 300 ms"
        leader.answer.cancel()
        leader.answer = answer
        follower.send(leader.port, 2)
        assert (await follower.report()).correlation_id == 2


async def test_a_connection_whose_fetch_failed_is_closed() -> None:
    """A late answer would be taken for that of another fetch."""
    closed: list[str] = []
    connection: Any = SimpleNamespace(close=lambda: closed.append("closed"))
    async with following() as follower:
        effect: Any = SimpleNamespace(target=7, correlation_id=3, host="h", port=1, timeout_ms=250)
        for error, reason in (
            (ConnectionFailed("gone"), "gone"),
            (TimeoutError(), "no answer within 250 ms"),
        ):
            follower.fetches._failed(effect, connection, error)
            assert await follower.report() == PeerFetchFailed(target=7, correlation_id=3, reason=reason)
        assert closed == ["closed"] * 2
        follower.fetches._failed(effect, None, TimeoutError())
        await follower.report()
        await follower.fetches.close()
        follower.fetches._failed(effect, connection, TimeoutError())
        assert follower.reports.empty() and len(closed) == 3


async def test_a_fetch_that_is_under_way_ends_with_its_owner_and_is_not_reported() -> None:
    async with leading(Leader()) as leader, following() as follower:
        leader.answer = asyncio.get_running_loop().create_future()
        follower.send(leader.port)
        await until(lambda: leader.fetched)
        await follower.fetches.close()
        await until(lambda: not leader.connections)
        assert follower.reports.empty()


async def test_a_refusal_of_the_whole_fetch_is_an_error_of_the_leader() -> None:
    async with leading(Leader()) as leader, following() as follower:
        leader.answer = FetchResponse(error_code=71)
        follower.send(leader.port)
        report = await follower.report()
        assert isinstance(report.response, ApiError)
        assert report.response.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize(("told", "expected"), [(-1, 70), (33, 33)])
async def test_where_a_leaders_log_begins_is_asked_if_it_does_not_say_so(told: int, expected: int) -> None:
    async with leading(Leader()) as leader, following() as follower:
        part = FetchResponse.PartitionData(
            partition_index=3, error_code=1, high_watermark=-1, log_start_offset=told
        )
        topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC, partitions=(part,))
        leader.answer = FetchResponse(responses=(topic,))
        follower.send(leader.port)
        (found,) = (await follower.report()).response.partitions
        assert (found.error, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, expected)
        assert len(leader.asked) == (told < 0)
        assert all(request.body.replica_id == 2 for request in leader.asked)


async def test_a_leader_without_topic_ids_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with leading(Leader((4, 12))) as leader, following() as follower:
        follower.send(leader.port)
        assert isinstance(await follower.report(), PeerFetchFailed)
        assert caplog.messages == [
            f"broker 7 at 127.0.0.1:{leader.port} cannot be reached: the node offers Fetch 4 to 12; 13 to 16 "
            "is needed"
        ]


@pytest.mark.parametrize(
    ("authority", "problem"),
    [
        (None, "it speaks TLS, but this client does not"),
        ("stranger", "its certificate is not accepted: self-signed certificate"),
    ],
)
async def test_a_leader_whose_tls_does_not_fit_is_named_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, authority: str | None, problem: str
) -> None:
    caplog.set_level(logging.WARNING)
    for name in ("leader", "stranger"):
        certificate_files(tmp_path, name, None)
    ours = material(tmp_path, None, authority) if authority else None
    theirs = material(tmp_path, "leader", "leader")
    async with leading(Leader(), theirs) as leader, following(ours) as follower:
        for _ in range(2):
            follower.send(leader.port)
            assert isinstance(await follower.report(), PeerFetchFailed)
        told = [line for line in caplog.messages if line.startswith("broker 7")]
        assert len(told) == 1
        assert told[0].startswith(f"broker 7 at 127.0.0.1:{leader.port} cannot be reached: {problem}")
