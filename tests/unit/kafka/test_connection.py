"""A Kafka listener on a real socket: order, back-pressure, limits, and what ends a connection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from metaquorum.listeners import connection as connections
from metaquorum.listeners.connection import ClientConnection, ConnectionConfig
from metaquorum.listeners.services import Client, EndConnection, Features, Later, Offered, Services
from metaquorum.network.deferred import Deferred
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.wire import codec
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from tests.waiting import within

METADATA, FIND_COORDINATOR, API_VERSIONS = 3, 10, 18


class Server:
    """A listener whose Metadata answers at once and whose FindCoordinator answers when it is let go."""

    def __init__(self, *, max_idle_s: float = 60, request_max_bytes: int = 10_000) -> None:
        self.asked: list[str] = []
        self.gates: list[asyncio.Future[FindCoordinatorResponse | None]] = []
        self.open: set[ClientConnection] = set()
        self.limits = ConnectionLimits(max_connections=100)
        self.config = ConnectionConfig(
            listener="KAFKA", request_max_bytes=request_max_bytes, max_idle_s=max_idle_s
        )
        offered = {
            "Metadata": Offered(0, 12, self.metadata),
            "FindCoordinator": Offered(0, 2, self.find_coordinator),
        }
        features = Features(supported={"kraft.version": (0, 1), "m": (1, 9)}, finalized={"m": 5}, epoch=77)
        self.services = Services(offered, lambda: features)
        self.port = 0

    def metadata(self, request: codec.Request, client: Client) -> MetadataResponse:
        self.asked.append(f"{client.listener} {client.address}")
        if request.body.topics == ():
            raise ValueError("a bug")
        return MetadataResponse(cluster_id=request.header.client_id)

    def begun(self, connection: ClientConnection) -> None:
        self.open.add(connection)

    async def find_coordinator(self, request: codec.Request, client: Client) -> Any:
        if request.body.key == "bug":
            raise ValueError("a bug")
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        return await gate


@contextlib.asynccontextmanager
async def serving(server: Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    def make() -> ClientConnection:
        place = server.limits.admit("KAFKA", "127.0.0.1")
        assert isinstance(place, ConnectionSlot)
        return ClientConnection(server.config, server.services, place, server.begun, server.open.discard)

    listening = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for each in list(server.open):
            each.end()
        async with within("the connections of a listener to end"):
            await listening.wait_closed()


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, key: int, version: int, correlation_id: int, body: Any) -> None:
        frame = b"".join(codec.encode_request(codec.RequestHeader(key, version, correlation_id, "me"), body))
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    async def receive(self, key: int, version: int) -> codec.Response:
        async with asyncio.timeout(20):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return codec.decode_response(key, version, await self.reader.readexactly(size))

    async def ended(self) -> bool:
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read() == b""
        return True


@contextlib.asynccontextmanager
async def calling(server: Server) -> AsyncIterator[Caller]:
    caller = Caller(*await asyncio.open_connection("127.0.0.1", server.port))
    try:
        yield caller
    finally:
        caller.writer.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_what_a_step_answers_leaves_when_it_ends_or_the_connection_does() -> None:
    async with serving(Server()) as server, calling(server) as caller:
        for number in (1, 2, 3, 4):
            caller.send(FIND_COORDINATOR, 2, number, FindCoordinatorRequest(key="g"))
        await until(lambda: len(server.gates) == 4)
        (connection,) = server.open
        departing, sends = connection._step_responses, []
        send, departing._send = departing._send, sends.append  # type: ignore[method-assign]
        server.config.step_end.begin()
        for gate in server.gates[:3]:
            gate.set_result(FindCoordinatorResponse(host="h"))
        await until(lambda: len(connection) == 1)
        assert sends == []
        server.config.step_end.flush()
        assert len(sends) == 1
        departing._send = send  # type: ignore[method-assign]
        send(sends[0])
        server.config.step_end.begin()
        server.gates[3].set_result(FindCoordinatorResponse(host="last"))
        await until(lambda: not len(connection))
        connection.end()
        hosts = [(await caller.receive(FIND_COORDINATOR, 2)).body.host for _ in range(4)]
        assert hosts == ["h", "h", "h", "last"] and await caller.ended()


async def test_answers_keep_the_order_of_the_requests() -> None:
    async with serving(Server()) as server, calling(server) as caller:
        caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest(key="g"))
        caller.send(FIND_COORDINATOR, 1, 2, FindCoordinatorRequest(key="h"))
        caller.send(METADATA, 12, 3, MetadataRequest(topics=None))
        await until(lambda: len(server.gates) == 2)
        server.gates[1].set_result(FindCoordinatorResponse(host="second"))
        assert server.asked == []
        server.gates[0].set_result(FindCoordinatorResponse(host="first"))
        first = await caller.receive(FIND_COORDINATOR, 2)
        second = await caller.receive(FIND_COORDINATOR, 1)
        last = await caller.receive(METADATA, 12)
        assert [each.correlation_id for each in (first, second, last)] == [1, 2, 3]
        assert (first.body.host, second.body.host, last.body.cluster_id) == ("first", "second", "me")


async def test_api_versions_says_what_is_offered_and_nothing_else() -> None:
    async with serving(Server()) as server, calling(server) as caller:
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        for version in range(5):
            sent = request if version >= 3 else ApiVersionsRequest()
            caller.send(API_VERSIONS, version, version, sent)
            body: ApiVersionsResponse = (await caller.receive(API_VERSIONS, version)).body
            ranges = {each.api_key: (each.min_version, each.max_version) for each in body.api_keys}
            assert (body.error_code, ranges) == (
                0,
                {3: (0, 12), 10: (0, 2), 17: (0, 1), 18: (0, 4), 36: (0, 2)},
            )
            names = [each.name for each in body.supported_features]
            # Old clients cannot read a feature whose lowest level is 0.
            assert names == {3: ["m"], 4: ["kraft.version", "m"]}.get(version, [])
            assert body.finalized_features_epoch == (77 if version >= 3 else -1)
        for names in (
            ("", ""),
            ("t", ""),
            ("", "1"),
            ("t t", "1"),
            ("t", "1-"),
            ("-t", "1"),
            ("té", "1"),
            ("t\n", "1"),
        ):
            software = dict(zip(("client_software_name", "client_software_version"), names, strict=True))
            caller.send(API_VERSIONS, 3, 9, ApiVersionsRequest(**software))
            assert (await caller.receive(API_VERSIONS, 3)).body.error_code == 42, names
        for names in (("librdkafka", "2.3.0-rc1"), ("a", "1"), ("apache-kafka-java", "3.7.0")):
            software = dict(zip(("client_software_name", "client_software_version"), names, strict=True))
            caller.send(API_VERSIONS, 3, 9, ApiVersionsRequest(**software))
            assert (await caller.receive(API_VERSIONS, 3)).body.error_code == 0, names


async def test_api_versions_of_an_unknown_version_is_answered_in_version_0() -> None:
    async with serving(Server()) as server, calling(server) as caller:
        caller.writer.write(b"\0\0\0\x0b\0\x12\0\x63\0\0\0\7\0\1x")
        response = await caller.receive(API_VERSIONS, 99)
        assert (response.correlation_id, response.body.error_code) == (7, 35)
        assert [each.api_key for each in response.body.api_keys] == [3, 10, 17, 18, 36]
        # The connection goes on: the client asks again in a version that it has learned.
        caller.send(METADATA, 1, 8, MetadataRequest(topics=None))
        assert (await caller.receive(METADATA, 1)).correlation_id == 8


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xff\xff\xff", "a frame announces -1 bytes; socket.request.max.bytes allows 0 to 10000"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame announces 1195725856 bytes"),
        (b"\0\0\0\2ab", "a frame of 2 bytes ends inside the header"),
        (b"\0\0\0\x08\0\3\0\x0d\0\0\0\1", "API 3 version 13 of client '' is not offered"),
        (b"\0\0\0\x0c\3\xe7\0\0\0\0\0\1\0\2me", "API 999 version 0 of client 'me' is not offered"),
        (b"\0\0\0\x0a\0\3\0\x0c\0\0\0\1\0\0", "MetadataRequest version 12: header: it ends too early"),
        (b"\0\0\0\x0b\0\3\0\x0c\0\0\0\1\0\0\0", "Topics at byte 11: it has 1 bytes, and 0 are left"),
    ],
)
async def test_what_is_no_request_ends_its_connection_with_one_line(
    data: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Server()) as server, calling(server) as other, calling(server) as caller:
        with caplog.at_level(logging.WARNING):
            caller.writer.write(data)
            assert await caller.ended()
        (record,) = caplog.records
        assert "closed the connection of 127.0.0.1:" in record.getMessage()
        assert text in record.getMessage()
        other.send(METADATA, 12, 1, MetadataRequest(topics=None))
        assert (await other.receive(METADATA, 12)).correlation_id == 1


async def test_malformed_frames_of_many_connections_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Server()) as server:
        for length in range(40):
            async with calling(server) as caller:
                caller.writer.write((1_000_000 + 977 * length).to_bytes(4, "big"))
                assert await caller.ended()
        (record,) = caplog.records
        assert "a frame announces 1000000 bytes" in record.getMessage()


async def test_a_failed_handler_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Server()) as server:
        async with calling(server) as caller:
            caller.send(METADATA, 12, 1, MetadataRequest(topics=()))
            assert await caller.ended()
        assert "API 3 version 12 failed" in caplog.text
        async with calling(server) as caller:
            caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest())
            await until(lambda: server.gates)
            server.gates[0].set_exception(EndConnection("there is no answer to this"))
            assert await caller.ended()
        assert "there is no answer to this" in caplog.text


@pytest.mark.parametrize(
    ("error", "told"), [(EndConnection("no answer to this"), "no answer"), (ValueError("a bug"), "failed")]
)
async def test_an_answer_that_cannot_be_finished_ends_the_connection(
    error: Exception, told: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[Deferred[Any]] = []

    def finish(found: Any) -> Any:
        if found is None:
            raise error
        return found

    def later(server: Server, request: codec.Request, client: Client) -> Later:
        gates.append(Deferred())
        return Later(gates[-1], finish)

    monkeypatch.setattr(Server, "find_coordinator", later)
    async with serving(Server()) as server:
        async with calling(server) as caller:
            for number in range(2):
                caller.send(FIND_COORDINATOR, 2, number, FindCoordinatorRequest())
            await until(lambda: len(gates) == 2)
            gates[0].set_result(FindCoordinatorResponse(host="h"))
            assert (await caller.receive(FIND_COORDINATOR, 2)).body.host == "h"
            gates[1].set_result(None)
            assert await caller.ended()
        assert told in caplog.text
        async with calling(server) as caller:
            caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest())
            await until(lambda: len(gates) == 3)
        await until(gates[2].cancelled)


async def test_a_request_without_an_answer_holds_nothing_back() -> None:
    async with serving(Server()) as server, calling(server) as caller:
        caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest())
        caller.send(METADATA, 12, 2, MetadataRequest(topics=None))
        await until(lambda: server.gates)
        server.gates[0].set_result(None)
        assert (await caller.receive(METADATA, 12)).correlation_id == 2


async def test_no_more_is_read_than_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUESTS_MAX", 3)
    async with serving(Server()) as server, calling(server) as caller:
        for number in range(200):
            caller.send(FIND_COORDINATOR, 2, number, FindCoordinatorRequest(key="k" * 900))
        await until(lambda: len(server.gates) == 3)
        await asyncio.sleep(0.05)
        assert len(server.gates) == 3
        for number in range(200):
            await until(lambda: len(server.gates) > number)  # noqa: B023
            server.gates[number].set_result(FindCoordinatorResponse())
            assert (await caller.receive(FIND_COORDINATOR, 2)).correlation_id == number
            assert len(server.gates) <= number + 4


async def test_a_client_that_does_not_read_stops_being_read() -> None:
    async with serving(Server()) as server, calling(server) as caller:
        long_id = "x" * 9_000
        header = codec.RequestHeader(METADATA, 12, 1, long_id)
        frame = b"".join(codec.encode_request(header, MetadataRequest(topics=None)))
        total = 5_000
        task = asyncio.ensure_future(_write_all(caller, (len(frame).to_bytes(4, "big") + frame), total))
        asked = -1
        async with within("a listener to stop reading"):
            while asked != len(server.asked):
                asked = len(server.asked)
                await asyncio.sleep(0.2)
        assert asked < total
        for _ in range(total):
            assert (await caller.receive(METADATA, 12)).body.cluster_id == long_id
        await task


async def _write_all(caller: Caller, data: bytes, times: int) -> None:
    for _ in range(times):
        caller.writer.write(data)
        await caller.writer.drain()


async def test_a_client_that_leaves_takes_its_requests_back() -> None:
    async with serving(Server()) as server:
        async with calling(server) as caller:
            caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest())
            await until(lambda: server.gates)
        await until(server.gates[0].cancelled)
        assert server.open == set()


async def test_long_requests_of_closed_connections_are_not_decoded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that is being decoded meanwhile, and turns out to be malformed, is nobody's."""
    decoded: list[int] = []
    gate = threading.Event()

    def decode(frame: bytes) -> codec.Request:
        decoded.append(len(frame))
        assert gate.wait(20), "the test did not go on"
        raise DecodeError("malformed")

    monkeypatch.setattr(codec, "decode_request_apart", decode)
    body = MetadataRequest(topics=tuple(MetadataRequest.MetadataRequestTopic(name="") for _ in range(5_000)))
    async with serving(Server(request_max_bytes=100_000)) as server:
        for _ in range(5):
            async with calling(server) as caller:
                caller.send(METADATA, 9, 1, body)
                await until(lambda: decoded and any(each._long for each in server.open))
                for each in tuple(server.open):
                    each.end()
                assert await caller.ended()
        gate.set()
        with pytest.raises(DecodeError):
            await server.config.long.work.do(server, lambda: decode(b""))
    gc.collect()
    assert len(decoded) == 2, "the first one had begun, the last one is this test's"
    assert "never retrieved" not in caplog.text


async def test_an_idle_connection_is_closed_and_one_that_waits_is_not() -> None:
    async with serving(Server(max_idle_s=0.3)) as server:
        async with calling(server) as idle, calling(server) as waiting:
            waiting.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest())
            await until(lambda: server.gates)
            assert await idle.ended()
            await asyncio.sleep(0.4)
            server.gates[0].set_result(FindCoordinatorResponse(host="h"))
            assert (await waiting.receive(FIND_COORDINATOR, 2)).body.host == "h"
